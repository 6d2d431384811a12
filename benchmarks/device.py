"""A training step on a GPU: time, memory and gradient error, beside torchaudio, the floor and the model's prediction.

    python benchmarks/device.py --json results.json
    python benchmarks/device.py --device cpu --shapes 2,9,4,8       # rehearses all but graphs and profile

The variant in build/ is loaded by its path, so no `kernels` package is needed. Contenders take turns on the same
inputs, blank 0, full lengths; each is first checked against a float64 lattice, and one that disagrees gets no speed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from benchmark import parse_shape, random_inputs
from device_report import SHAPES, derived, report, table
from model import Machine, lattice_us, predict
from peers import ROOT, STEPS, Loss, Truth, commit, load_torchaudio, times_ms, training, wall_clock

sys.path.insert(0, str(ROOT / "tools"))
from load_variant import folder_of, load  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDS = 9
COPY_BYTES = 2 << 30
LOSS_BOUND = 1e-4  # relative
GRADIENT_BOUNDS = {"float32": 1e-5, "bfloat16": 4e-3, "torchaudio": 3e-2}  # of the largest gradient
NOTES = {
    "work": "the sum of the losses and its gradient at the logits; labels and lengths int64 on the device (int32 for "
    "torchaudio, which wants them). graph: the same, replayed from a CUDA graph.",
    "time": "medians over rounds in which contenders take turns, CUDA events around all sets of inputs, of which there "
    "are so many that their logits are twice the L2 cache.",
    "floor": "logits read twice, a gradient of their size written once, at the bandwidth of a large copy in this run.",
    "lattice": "the step from log-probabilities of four classes, so that rows are next to nothing, from a graph.",
    "memory": "peak of a step on top of its inputs, in multiples of the logits.",
    "errors": "against a float64 lattice, as a part of the largest gradient.",
}


def event_clock(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds on the device of one of several repeats."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


class Device:
    """Where the benchmark runs. On the CPU, for rehearsal, there are no graphs, no profile and no peak memory."""

    def __init__(self, name: str):
        self.name = name
        self.is_cuda = name.startswith("cuda")
        self.clock = event_clock if self.is_cuda else wall_clock
        self.cache_bytes = torch.cuda.get_device_properties(name).L2_cache_size if self.is_cuda else 1 << 16

    def free_bytes(self) -> float:
        return torch.cuda.mem_get_info(self.name)[0] if self.is_cuda else math.inf

    def about(self) -> dict:
        about = {"device": self.name, "torch": torch.__version__}
        if self.is_cuda:
            query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
            try:
                answer = subprocess.run(query, capture_output=True, text=True).stdout.strip()
            except FileNotFoundError:
                answer = "unknown"
            about |= {"device": torch.cuda.get_device_name(self.name), "driver": answer, "cuda": torch.version.cuda}
            about |= {"L2_bytes": self.cache_bytes}
        return about

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """The work as a graph. Its outputs are kept, so that graphs do not write over each other's."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()  # what is set up on first use cannot be captured
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = work()
        return lambda kept=kept: graph.replay()

    def peak_bytes(self, work: Callable[[], object]) -> int | None:
        if not self.is_cuda:
            return None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def kernels_us(self, work: Callable[[], object]) -> dict[str, float]:
        """Time of each kernel of the work, as the profiler saw it."""
        if not self.is_cuda:
            return {}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work()
            torch.cuda.synchronize()
        times: dict[str, float] = {}
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                name = re.sub(r"<.*|\(.*", "", re.sub(r"(\w+|\(anonymous namespace\)|<unnamed>)::", "", event.name))
                name = name.removeprefix("void ").strip()
                times[name] = times.get(name, 0) + event.self_device_time_total
        return times

    def copy_bandwidth(self, size: int) -> float:
        """Bytes read and written per second."""
        source = torch.zeros(size, dtype=torch.uint8, device=self.name)
        target = torch.ones_like(source)
        times = [self.clock(partial(target.copy_, source), 3) for _ in range(7)]
        return 2 * size / statistics.median(times) * 1e3


def load_ours(backend: str) -> dict[str, Loss]:
    rnnt = load(folder_of(backend))

    def loss(function, logits, *ids):
        return function(logits, *(tensor.long() for tensor in ids), reduction="none")

    return {"logits": partial(loss, rnnt.rnnt_loss_from_logits), "log_probs": partial(loss, rnnt.rnnt_loss)}


def in_turn(works: list[Callable[[], object]]) -> Callable[[], object]:
    def run() -> None:
        for work in works:
            work()

    return run


def error_of(got: tuple[torch.Tensor, torch.Tensor], truth: Truth, bound: float) -> tuple[float | None, bool]:
    """The gradient's error, and whether that and the losses' are within bounds."""
    loss_error, error = truth.loss_error(got[0]), truth.gradient_error(got[1])
    return (error if math.isfinite(error) else None), loss_error <= LOSS_BOUND and error <= bound


def measure(text: str, dtype: str, device: Device, ours: dict[str, Loss], torchaudio: Loss | None, copy: float,
            rounds: int = ROUNDS) -> dict:  # fmt: skip
    """One row: a shape in one dtype."""
    shape = parse_shape(text)
    torch.manual_seed(0)

    def make(shape: tuple[int, ...] = shape) -> tuple[torch.Tensor, ...]:
        logits, *ids = random_inputs(shape, device.name)
        return logits.to(DTYPES[dtype]), *(tensor.long() for tensor in ids)

    sets = [make()]
    logits_bytes = sets[0][0].nbytes
    row: dict = {"shape": text, "dtype": dtype, "logits_bytes": logits_bytes}
    if device.free_bytes() < 8 * logits_bytes:
        return row | {"error": "too little memory"}
    count = max(1, math.ceil(2 * device.cache_bytes / logits_bytes))
    sets += [make() for _ in range(min(count, 64) - 1)]
    row["sets"] = len(sets)

    truth = Truth(*sets[0])
    row["gradient_error"], row["agrees"] = error_of(training(ours["logits"], sets[0]), truth, GRADIENT_BOUNDS[dtype])
    works: dict[str, list[Callable[[], object]]] = {}
    if row["agrees"]:
        steps = {
            "eager": partial(training, ours["logits"]),
            "forward": partial(STEPS["forward"], ours["logits"]),
            "log_probs": partial(training, ours["log_probs"]),
            "log_probs_forward": partial(STEPS["forward"], ours["log_probs"]),
        }
        works = {name: [partial(step, inputs) for inputs in sets] for name, step in steps.items()}
        works["fill"] = [torch.empty_like(inputs[0]).zero_ for inputs in sets]
        works["lattice"] = [partial(training, ours["log_probs"], make((*shape[:3], 4)))] * len(sets)
        peak = device.peak_bytes(works["eager"][0])
        row["extra_memory"] = peak and peak / logits_bytes
        row["kernels_us"] = device.kernels_us(works["eager"][0])
        if device.is_cuda:
            works["graph"] = list(map(device.captured, works["eager"]))
            for name in ("forward", "log_probs", "log_probs_forward", "lattice"):
                works[name] = list(map(device.captured, works[name]))
    if torchaudio is not None and dtype == "float32":
        narrow = [(logits, *(tensor.int() for tensor in ids)) for logits, *ids in sets]
        try:
            row["torchaudio_gradient_error"], agrees = error_of(
                training(torchaudio, narrow[0]), truth, GRADIENT_BOUNDS["torchaudio"]
            )
            if agrees:
                works["torchaudio"] = [partial(training, torchaudio, inputs) for inputs in narrow]
        except RuntimeError as error:
            row["torchaudio_error"] = str(error).splitlines()[0][:200]
    del truth
    times = times_ms({name: in_turn(each) for name, each in works.items()}, rounds, device.clock)
    row["us"] = {name: statistics.median(ms) * 1e3 / len(sets) for name, ms in times.items()}
    row["floor_us"] = 3 * logits_bytes / copy * 1e6
    row["predicted_us"] = predict(shape, dtype, Machine(bandwidth=copy))
    row["predicted_us"]["lattice"] = lattice_us(shape)
    return row | derived(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="B,T,U,V")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--copy-bytes", type=int, default=COPY_BYTES)
    parser.add_argument("--json", type=Path, metavar="PATH", help="written anew after every row")
    args = parser.parse_args()
    device = Device(args.device)
    ours = load_ours("cuda" if device.is_cuda else "cpu")
    about = device.about()
    try:
        torchaudio = load_torchaudio()
        about["torchaudio"] = metadata.version("torchaudio")
    except (ImportError, AttributeError) as error:
        torchaudio, about["torchaudio"] = None, f"missing: {error}"
    copy = device.copy_bandwidth(args.copy_bytes)
    about |= {"copy_TB_per_s": round(copy / 1e12, 3), "date": datetime.date.today().isoformat(), "commit": commit()}
    results: dict = {"about": about, "notes": NOTES, "rows": []}
    for text in args.shapes:
        for dtype in args.dtypes:
            try:
                row = measure(text, dtype, device, ours, torchaudio, copy, args.rounds)
            except RuntimeError as error:  # the other rows may fare better
                row = {"shape": text, "dtype": dtype, "error": str(error).splitlines()[0][:300]}
            results["rows"].append(row)
            print(table({"rows": [row]}).splitlines()[-1], file=sys.stderr, flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
            if device.is_cuda:
                torch.cuda.empty_cache()
    print(report(results))
    if not all(row.get("agrees") for row in results["rows"]):
        sys.exit("not every row was measured, or ours disagrees with the float64 lattice")


if __name__ == "__main__":
    main()
