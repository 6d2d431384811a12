"""Time, memory and gradient error of this loss, of torchaudio's and of plain PyTorch, beside the floor of the machine.

    python benchmarks/peers.py --json results.json     # the table, some minutes
    python benchmarks/peers.py --quick                 # a few seconds
    python benchmarks/peers.py --recycle --threads 1 2

All contenders do the same work: float32 logits in, loss per utterance out, blank 0, full lengths. Each is first checked
against a float64 lattice on the very inputs it is timed on; one that disagrees gets no speed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch
import torch.nn.functional as F
import torchaudio_cpu
from benchmark import lattice_loss, parse_shape, plain_loss, random_inputs

ROOT = Path(__file__).resolve().parent.parent
SHAPES = ["8,100,20,128", "16,200,40,256", "4,300,50,512", "2,500,80,256", "1,1500,200,500", "8,1000,200,4"]
QUICK_SHAPES = ["2,60,12,64"]
LOSS_BOUND, GRADIENT_BOUND = 1e-4, 3e-2  # relative; of the largest gradient: float32 recursions lose up to 1e-2
# Small blocks in a thread's cache, next to a freed gradient, would leave it a little too small for the next one.
MALLOC_RECYCLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}
NOTES = {
    "work": "float32 logits, blank 0, full lengths; forward: the losses without autograd; training: their sum and its "
    "gradient at the logits. torchaudio (fused_log_softmax=True) computes its gradient in forward.",
    "floor": "the same logits, warm memory, same rounds. forward: torch.sum (one read). training: torch.sum, then "
    "copy_ into a reused tensor (read, read, write).",
    "time": "median over rounds in which contenders take turns (three rounds for what takes half a second); a round "
    "repeats short work for 20 ms.",
    "memory": "a fresh process per contender and step: the step on a tiny shape, the inputs, VmRSS, the step, VmHWM; "
    "the difference in multiples of the logits, default allocator settings. Training includes the gradient.",
    "errors": f"against a float64 lattice: largest relative error of a loss (bound {LOSS_BOUND:g}); largest error of a "
    f"gradient element over the largest gradient element (bound {GRADIENT_BOUND:g}). Beyond a bound no time is given.",
}
Loss = Callable[..., torch.Tensor]
Key = TypeVar("Key", bound=Hashable)


def load_kernel() -> ModuleType:
    from kernels import get_kernel

    os.environ.setdefault("LOCAL_KERNELS", f"phanerozoic/rnnt-loss={ROOT / 'build'}")
    return get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True)


def load_ours() -> Loss:
    return partial(load_kernel().rnnt_loss_from_logits, reduction="none")


def load_torchaudio() -> Loss:
    rnnt_loss = torchaudio_cpu.load().functional.rnnt_loss
    return lambda *inputs: rnnt_loss(*inputs, blank=0, reduction="none", fused_log_softmax=True)


LOADERS: dict[str, Callable[[], Loss]] = {
    "ours": load_ours,
    "torchaudio": load_torchaudio,
    "plain PyTorch": lambda: plain_loss,
}


def forward(loss: Loss, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with torch.no_grad():
        return loss(*inputs)


def training(loss: Loss, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    logits = inputs[0].detach().requires_grad_()
    losses = loss(logits, *inputs[1:])
    losses.sum().backward()
    return losses.detach(), logits.grad


STEPS = {"forward": forward, "training": training}


class Truth:
    """The float64 loss, and errors against it. Only a few frames of logits are ever held in float64."""

    def __init__(self, logits, labels, input_lengths, label_lengths):
        self.logits, self.index = logits, labels.long()[:, None, :, None]
        scores = [self.score(frames.double()) for frames in self.split(logits)]
        self.normalizer, blank, label = (torch.cat(parts, 1) for parts in zip(*scores))
        blank.requires_grad_(), label.requires_grad_()
        losses = lattice_loss(blank, label, input_lengths, label_lengths)
        losses.sum().backward()
        self.losses, self.grad_blank, self.grad_label = losses.detach(), blank.grad, label.grad

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.split(max(1, (1 << 22) // (self.logits[:, 0].numel())), 1)

    def labels_of(self, frames: torch.Tensor) -> torch.Tensor:
        return self.index.expand(-1, frames.shape[1], -1, 1)

    def score(self, frames: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Log-sum-exp and arc scores of the rows of some frames."""
        normalizer = frames.logsumexp(-1)
        label = frames[:, :, :-1].gather(3, self.labels_of(frames)).squeeze(3)
        return normalizer, frames[..., 0] - normalizer, label - normalizer[:, :, :-1]

    def loss_error(self, losses: torch.Tensor) -> float:
        return float(((losses.double() - self.losses) / self.losses).abs().max())

    def gradient_error(self, grad: torch.Tensor) -> float:
        """Largest error over the largest gradient; that of a row is sum(g of its arcs) (one-hot - softmax)."""
        error = largest = torch.zeros((), dtype=torch.float64, device=grad.device)
        arrays = self.logits, grad, self.normalizer, self.grad_blank, self.grad_label
        for frames, got, normalizer, blank, label in zip(*map(self.split, arrays)):
            leave = blank + F.pad(label, (0, 1))
            want = (frames.double() - normalizer[..., None]).exp_().mul_(-leave[..., None])
            want[..., 0] += blank
            want[:, :, :-1].scatter_add_(3, self.labels_of(frames), label[..., None])
            largest = torch.maximum(largest, want.abs().amax())
            error = torch.maximum(error, want.sub_(got).abs().amax())  # a NaN stays
        return float(error / largest)


def default_malloc() -> dict[str, str]:
    """The environment of a process that gives freed memory back, as programs do."""
    return {key: value for key, value in os.environ.items() if key not in MALLOC_RECYCLES}


def recycle_memory() -> None:
    """Starts this process anew if need be: malloc reads its settings once."""
    if any(os.environ.get(key) != value for key, value in MALLOC_RECYCLES.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC_RECYCLES})


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak) of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field + ":"))


def print_memory(name: str, step: str, shape: str) -> None:
    """The peak of one step over the inputs, in multiples of the logits: a process of `extra_memory`."""
    loss, work = LOADERS[name](), STEPS[step]
    work(loss, random_inputs((1, 4, 2, 8)))
    inputs = random_inputs(parse_shape(shape))
    before = resident("VmRSS")
    work(loss, inputs)
    print((resident("VmHWM") - before) / inputs[0].nbytes)


def extra_memory(name: str, shape: str) -> dict[str, float | None]:
    if not Path("/proc/self/status").exists():
        return dict.fromkeys(STEPS)
    commands = {step: [sys.executable, __file__, "--memory", name, step, shape] for step in STEPS}
    started = {
        step: subprocess.Popen(command, stdout=subprocess.PIPE, env=default_malloc(), text=True)
        for step, command in commands.items()
    }
    return {step: float(process.communicate()[0].split()[-1]) for step, process in started.items()}


def wall_clock(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds of one of several repeats."""
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats * 1e3


def times_ms(works: dict[Key, Callable[[], object]], rounds: int, clock=wall_clock) -> dict[Key, list[float]]:
    """Times over rounds in which all take turns; one that takes half a second sits out after the third."""
    once = {key: clock(work, 1) for key, work in works.items()}
    repeats = {key: max(1, min(100, int(20 / ms))) for key, ms in once.items()}
    times: dict[Key, list[float]] = {key: [] for key in works}
    for number in range(rounds):
        for key, work in works.items():
            if number < 3 or once[key] < 500:
                times[key].append(clock(work, repeats[key]))
    return times


def compare(text: str, losses: dict[str, Loss], thread_counts: list[int], rounds: int) -> list[dict]:
    """One row per number of threads and contender."""
    torch.manual_seed(0)
    torch.set_num_threads(max(thread_counts))
    inputs = random_inputs(parse_shape(text))
    logits, truth = inputs[0], Truth(*inputs)
    common: dict[str, dict] = {}
    for name, loss in losses.items():
        got, grad = training(loss, inputs)
        loss_error, gradient_error = truth.loss_error(got), truth.gradient_error(grad)
        del grad
        agrees = loss_error <= LOSS_BOUND and gradient_error <= GRADIENT_BOUND
        verdict = "" if agrees else f": DISAGREES, wanted {LOSS_BOUND:g} and {GRADIENT_BOUND:g}"
        print(f"{text} {name}: loss {loss_error:.1e}, gradient {gradient_error:.1e}{verdict}", file=sys.stderr)
        errors = [error if math.isfinite(error) else None for error in (loss_error, gradient_error)]
        memory = {f"{step}_extra_memory": value for step, value in extra_memory(name, text).items()}
        common[name] = {"agrees": agrees, "loss_error": errors[0], "gradient_error": errors[1], **memory}
    del truth

    target = torch.zeros_like(logits)
    works: dict[tuple[str, str], Callable[[], object]] = {
        ("floor", "forward"): logits.sum,
        ("floor", "training"): lambda: (logits.sum(), target.copy_(logits)),
    }
    for name, loss in losses.items():
        if common[name]["agrees"]:
            for step, work in STEPS.items():
                works[name, step] = partial(work, loss, inputs)
    rows = []
    for threads in thread_counts:
        torch.set_num_threads(threads)
        times = times_ms(works, rounds)
        median = {key: statistics.median(ms) for key, ms in times.items()}
        for name in ("floor", *losses):
            row = {"shape": list(parse_shape(text)), "threads": threads, "contender": name, **common.get(name, {})}
            for step in STEPS:
                own, floor, peer = (median.get((who, step)) for who in (name, "floor", "torchaudio"))
                row[f"{step}_ms"], row[f"{step}_best_ms"] = own, min(times.get((name, step), [None]))
                row[f"{step}_over_floor"] = own and own / floor
                row[f"torchaudio_over_{step}"] = own and peer and peer / own
            rows.append(row)
    return rows


def machine() -> dict:
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    simd = torch.backends.cpu.get_cpu_capability()
    load = round(os.getloadavg()[0], 1)  # of the last minute, before this run
    return {"cpu": cpu, "simd": simd, "cores": os.cpu_count(), "load": load, "torch": torch.__version__}


def commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    return subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip() or "none"


def provenance(script: str, json_path: str | None, **settings: object) -> dict:
    # of a path only the name belongs into a result
    words = [word.replace(json_path, Path(json_path).name) if json_path else word for word in sys.argv[1:]]
    command = " ".join([f"python benchmarks/{Path(script).name}", *words])
    today = datetime.date.today().isoformat()
    return {"command": command, **settings, "machine": machine(), "date": today, "commit": commit()}


def table(rows: list[dict]) -> str:
    """Markdown, one line per row of `compare`."""

    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    timed = "| {} ms | x floor | torchaudio / it "
    head = "| B,T,U,V | threads | " + timed.format("forward") + timed.format("training")
    head += "| extra memory, forward | training | loss error | gradient error |"
    lines = [head, "|---" * 3 + "|---:" * 10 + "|"]
    for row in rows:
        cells = [",".join(map(str, row["shape"])), str(row["threads"]), row["contender"]]
        for step in STEPS:
            cells += [cell(row[f"{step}_ms"], ".2f"), cell(row[f"{step}_over_floor"], ".2f")]
            cells += [cell(row[f"torchaudio_over_{step}"], ".1f")]
        cells += [cell(row.get(f"{step}_extra_memory"), ".2f") for step in STEPS]
        cells += [cell(row.get(f"{what}_error"), ".1e") for what in ("loss", "gradient")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", metavar="B,T,U,V")
    parser.add_argument("--threads", nargs="+", type=int, default=[min(2, os.cpu_count() or 1)])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one small shape, three rounds")
    parser.add_argument("--recycle", action="store_true", help="glibc keeps freed memory: gradients in warm pages")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        return print_memory(*args.memory)
    if args.recycle:
        recycle_memory()
    about = provenance(__file__, args.json, recycled_memory=args.recycle)
    losses: dict[str, Loss] = {}
    for name, load in LOADERS.items():
        try:
            losses[name] = load()
        except ImportError as error:
            if name == "ours":
                raise
            print(f"{name} is left out: {error}", file=sys.stderr)
    if "torchaudio" in losses:
        about["machine"]["torchaudio"] = metadata.version("torchaudio")
    shapes = args.shapes or (QUICK_SHAPES if args.quick else SHAPES)
    rounds = min(args.rounds, 3) if args.quick else args.rounds
    rows = [row for shape in shapes for row in compare(shape, losses, args.threads, rounds)]
    print("\n".join(f"{key}: {value}" for key, value in {**about, **NOTES}.items()), table(rows), sep="\n\n")
    if args.json:
        results = {**about, "notes": NOTES, "rows": rows}
        Path(args.json).write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    if not all(row["agrees"] for row in rows if row["contender"] == "ours"):
        sys.exit("ours disagrees with the float64 lattice")


if __name__ == "__main__":
    main()
