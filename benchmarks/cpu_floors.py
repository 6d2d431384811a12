"""What bounds the CPU kernels besides what peers.py measures, each beside a floor in the same run.

    python benchmarks/cpu_floors.py --json results.json     # the table, ten minutes
    python benchmarks/cpu_floors.py --quick                 # some seconds

Everything is checked against a float64 lattice (variants: against themselves in float64) on the very inputs it is timed
on; what is wrong ends the run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path

import peers
import torch
from benchmark import parse_shape, random_inputs

SHAPES = ["16,200,40,256", "4,300,50,512", "2,500,80,256", "1,1500,200,500"]
LATTICE_SHAPE = "8,1000,200"
DURATIONS = [0, 1, 2, 3, 4]
QUICK_SHAPES, QUICK_LATTICE_SHAPE = ["2,60,12,64"], "2,60,12"
FLAGS = ["-O3", "-std=c++17", "-ffp-contract=off", "-Wno-psabi"]  # build.toml's
MEBIBYTE = 1 << 20
BOUNDS = {  # the most that a value should be; of "fresh gradient", the least
    "lattice, forward": None,
    "lattice, forward + backward": 4,
    "log-probs": 1.3,
    "in place": None,
    "in place, least": None,
    "bfloat16": 1.5,
    "float16": 1.5,
    "HAT": None,
    "sigma": None,
    "TDT": 1.5,
    "TDT, two heads": 1.5,
    "fresh gradient": 12,
    "memory, in place": 24,
    "memory": 24,
    "memory, sigma": None,
    "memory, TDT": None,
}
NOTES = {
    "lattice": "cpu::lattice and cpu::posteriors on given arc scores: nanoseconds per cell.",
    "log-probs": "rnnt_loss, forward + backward / zero_ of a reused tensor of the gradient's size.",
    "in place": "rnnt_loss_from_logits(inplace_grad=True), forward + backward / torch.sum, then copy_ into a reused "
    "tensor (read, read, write). Least: torch.sum, then neg_ (read, read and write in place) / the same. Before any of "
    "them the logits are copied to where they will be overwritten, untimed.",
    "bfloat16, float16": "rnnt_loss_from_logits, forward + backward / the same in float32.",
    "HAT, sigma": "rnnt_loss_from_logits with that keyword, forward + backward / without.",
    "TDT": "tdt_loss_from_joint_logits, or tdt_loss of two tensors, five durations, forward + backward / "
    "rnnt_loss_from_logits of as many columns.",
    "fresh gradient": "torchaudio / rnnt_loss_from_logits, forward + backward, in a process with malloc's defaults.",
    "memory": "bytes per cell beyond the logits, and beyond the gradient where it is not in place: VmHWM after "
    "forward + backward less VmRSS before, in a fresh process with malloc's defaults. 1 MiB more is allowed.",
    "time": "medians over rounds in which all take turns, ms / floor_ms; recycled memory, but for fresh gradient.",
    "bold": "beyond the bound.",
}


def require(what: str, loss_error: float, gradient_error: float) -> None:
    print(f"{what}: loss {loss_error:.1e}, gradient {gradient_error:.1e}", file=sys.stderr)
    if not (loss_error <= peers.LOSS_BOUND and gradient_error <= peers.GRADIENT_BOUND):
        sys.exit(f"{what} disagrees with the float64 lattice")


def result(measure: str, shape: str, threads: int, value: float, slack: float = 0, **parts: float) -> dict:
    bound = BOUNDS[measure]
    holds = bound is None or (value >= bound if measure == "fresh gradient" else value <= bound + slack)
    sizes = [int(size) for size in shape.split(",")]
    row = {"measure": measure, "shape": sizes, "threads": threads, "value": value, "bound": bound, "holds": holds}
    return {**row, **parts}


def over_floor(
    shape: str, works: dict[str, Callable[[], object]], thread_counts: list[int], rounds: int, clock=peers.wall_clock
) -> list[dict]:
    """A row per number of threads and work but the floor."""
    rows = []
    for threads in thread_counts:
        torch.set_num_threads(threads)
        ms = {name: statistics.median(times) for name, times in peers.times_ms(works, rounds, clock).items()}
        floor = ms.pop("floor")
        rows += [result(name, shape, threads, own / floor, ms=own, floor_ms=floor) for name, own in ms.items()]
    return rows


def lattice(shape: str, rounds: int) -> list[dict]:
    sources = [Path(__file__).with_name("lattice_driver.cpp"), peers.ROOT / "rnnt_loss" / "cpu" / "lattice.cpp"]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "driver")
        subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, *sources, "-o", program], check=True)
        output = subprocess.check_output([program, *shape.split(","), str(3 * rounds)], text=True)
    errors, *times = ([float(word) for word in line.split()] for line in output.splitlines())
    require(f"{shape} lattice", *errors)
    alone, both = (statistics.median(column) for column in zip(*times))
    return [result("lattice, forward", shape, 1, alone), result("lattice, forward + backward", shape, 1, both)]


def arc_gradient_error(truth: peers.Truth, grad: torch.Tensor) -> float:
    """As Truth.gradient_error, but of log-probabilities, of which only the classes of arcs have a gradient."""
    blank, label = grad[..., 0], grad[:, :, :-1].gather(3, truth.labels_of(grad)).squeeze(3)
    if grad.count_nonzero() != blank.count_nonzero() + label.count_nonzero():
        return float("nan")
    pairs = (blank, truth.grad_blank), (label, truth.grad_label)
    return float(max((got - want).abs().max() for got, want in pairs) / max(want.abs().max() for _, want in pairs))


def log_probs(kernel, shape: str, *settings) -> list[dict]:
    logits, *ids = random_inputs(parse_shape(shape))
    inputs = logits.log_softmax(-1), *ids
    step = partial(peers.training, partial(kernel.rnnt_loss, reduction="none"), inputs)
    truth, (losses, grad) = peers.Truth(*inputs), step()
    require(f"{shape} log-probs", truth.loss_error(losses), arc_gradient_error(truth, grad))
    del truth, grad
    return over_floor(shape, {"log-probs": step, "floor": torch.empty_like(logits).zero_}, *settings)


class Made(torch.autograd.Function):
    """Memory as if an operation had made it, at no cost: a leaf must not be overwritten."""

    @staticmethod
    def forward(ctx, anchor, memory):
        return memory.new_empty(0).set_(memory)

    @staticmethod
    def backward(ctx, grad):
        return None, None


def in_place_step(kernel, memory: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
    """The losses of the logits in this memory; then their gradient is in it."""
    logits = Made.apply(torch.zeros((), requires_grad=True), memory)
    losses = kernel.rnnt_loss_from_logits(logits, *ids, reduction="none", inplace_grad=True)
    losses.sum().backward()
    return losses.detach()


def in_place(kernel, shape: str, *settings) -> list[dict]:
    logits, *ids = random_inputs(parse_shape(shape))
    memory, truth = logits.clone(), peers.Truth(logits, *ids)
    losses = in_place_step(kernel, memory, *ids)
    require(f"{shape} in place", truth.loss_error(losses), truth.gradient_error(memory))
    del truth

    def clock(work: Callable[[], object], repeats: int) -> float:
        ms = []
        for _ in range(repeats):
            memory.copy_(logits)
            ms.append(peers.wall_clock(work, 1))
        return statistics.mean(ms)

    target = torch.empty_like(logits)
    works = {
        "in place": partial(in_place_step, kernel, memory, *ids),
        "in place, least": lambda: (memory.sum(), memory.neg_()),
        "floor": lambda: (memory.sum(), target.copy_(memory)),
    }
    return over_floor(shape, works, *settings, clock)


def checked_training(name: str, loss: peers.Loss, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    step = partial(peers.training, loss, inputs)
    truth, (losses, grad) = peers.Truth(*inputs), step()
    require(name, truth.loss_error(losses), truth.gradient_error(grad))
    return step


def halves(kernel, shape: str, *settings) -> list[dict]:
    logits, *ids = random_inputs(parse_shape(shape))
    loss = partial(kernel.rnnt_loss_from_logits, reduction="none")
    dtypes = {"floor": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    works = {
        name: checked_training(f"{shape} {dtype}", loss, (logits.to(dtype), *ids)) for name, dtype in dtypes.items()
    }
    return over_floor(shape, works, *settings)


def variants(kernel) -> dict[str, peers.Loss]:
    standard = partial(kernel.rnnt_loss_from_logits, reduction="none")
    return {
        "HAT": partial(standard, normalizer="hat"),
        "sigma": partial(standard, sigma=0.05),
        "TDT": partial(kernel.tdt_loss_from_joint_logits, durations=DURATIONS, reduction="none"),
        "floor": standard,
    }


def variant_inputs(shape: str) -> tuple[torch.Tensor, ...]:
    """Of all variants: no label is a duration's column."""
    logits, labels, *lengths = random_inputs(parse_shape(shape))
    return logits, labels.clamp(max=logits.shape[3] - len(DURATIONS) - 1), *lengths


def two_heads(kernel, heads: tuple[torch.Tensor, ...], *ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [head.detach().requires_grad_() for head in heads]
    losses = kernel.tdt_loss(*leaves, *ids, durations=DURATIONS, reduction="none")
    losses.sum().backward()
    return losses.detach(), *(leaf.grad for leaf in leaves)


def over_standard(kernel, shape: str, *settings) -> list[dict]:
    inputs, losses = variant_inputs(shape), variants(kernel)
    double = inputs[0].double(), *inputs[1:]
    works = {name: partial(peers.training, loss, inputs) for name, loss in losses.items()}
    heads = inputs[0].split([inputs[0].shape[3] - len(DURATIONS), len(DURATIONS)], -1)
    works["TDT, two heads"] = partial(two_heads, kernel, [head.contiguous() for head in heads], *inputs[1:])
    for name, step in works.items():
        loss, *grads = step()
        exact, exact_grad = peers.training(losses[name.split(",")[0]], double)
        grad_error = (torch.cat(grads, -1) - exact_grad).abs().max() / exact_grad.abs().max()
        require(f"{shape} {name}", float(((loss - exact) / exact).abs().max()), float(grad_error))
        del grads, exact_grad
    return over_floor(shape, works, *settings)


def fresh_gradient(shape: str, rounds: int, thread_counts: list[int]) -> list[dict]:
    try:
        losses = {"fresh gradient": peers.load_torchaudio(), "floor": peers.load_ours()}
    except ImportError as error:
        print(f"torchaudio is left out: {error}", file=sys.stderr)
        return []
    inputs = random_inputs(parse_shape(shape))
    works = {name: partial(peers.training, loss, inputs) for name, loss in losses.items()}
    rows = over_floor(shape, works, thread_counts, rounds)
    for name, loss in losses.items():  # checked last: what that leaves in the heap may serve a gradient
        checked_training(f"{shape} {name}", loss, inputs)
    return rows


def training_step(variant: str, kernel, *inputs: torch.Tensor) -> object:
    return peers.training(variants(kernel)[variant], inputs)


MEMORY_STEPS = {
    "memory, in place": in_place_step,
    "memory": partial(training_step, "floor"),
    "memory, sigma": partial(training_step, "sigma"),
    "memory, TDT": partial(training_step, "TDT"),
}


def extra_bytes(measure: str, shape: str, threads: int) -> int:
    torch.set_num_threads(threads)
    kernel, step = peers.load_kernel(), MEMORY_STEPS[measure]
    step(kernel, *variant_inputs("4,40,20,64"))  # brings in code and threads; what it frees is not to be used again
    ctypes.CDLL(None).malloc_trim(0)
    inputs = variant_inputs(shape)
    before = peers.resident("VmRSS")
    step(kernel, *inputs)
    return peers.resident("VmHWM") - before - (0 if step is in_place_step else inputs[0].nbytes)


def recycled(shape: str, rounds: int, thread_counts: list[int]) -> list[dict]:
    kernel, rows = peers.load_kernel(), []
    for measure in (log_probs, in_place, halves, over_standard):
        torch.set_num_threads(max(thread_counts))
        rows += measure(kernel, shape, thread_counts, rounds)
    return rows


CHILDREN = {function.__name__: function for function in (recycled, fresh_gradient, extra_bytes)}


def of_fresh_process(function: Callable, *arguments: object):
    """What one of CHILDREN returns in a process of its own, `recycled` in one whose malloc keeps what is freed."""
    environment = {**peers.default_malloc(), **(peers.MALLOC_RECYCLES if function is recycled else {})}
    command = [sys.executable, __file__, "--child", function.__name__, json.dumps(arguments)]
    return json.loads(subprocess.check_output(command, env=environment))


def memory(shape: str, threads: int) -> list[dict]:
    B, T, U, _ = parse_shape(shape)
    cells, rows = B * T * (U + 1), []
    for measure in MEMORY_STEPS:
        extra = of_fresh_process(extra_bytes, measure, shape, threads)
        rows.append(result(measure, shape, threads, extra / cells, slack=MEBIBYTE / cells, bytes=extra))
    return rows


def table(rows: list[dict]) -> str:
    """Markdown: a line per measure and number of threads, a column per shape."""
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in rows))
    cells: dict[tuple, dict] = {}
    for row in rows:
        value = f"{row['value']:.2f}" if row["holds"] else f"**{row['value']:.2f}**"
        line = row["measure"], str(row["threads"]), "" if row["bound"] is None else str(row["bound"])
        cells.setdefault(line, {})[tuple(row["shape"])] = value
    lines = [["measure", "threads", "bound", *(",".join(map(str, shape)) for shape in shapes)]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    lines += [[*line, *(values.get(shape, "") for shape in shapes)] for line, values in cells.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", metavar="B,T,U,V")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small shapes, three rounds")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.child:
        function, arguments = args.child
        return print(json.dumps(CHILDREN[function](*json.loads(arguments))))
    about = peers.provenance(__file__, args.json)
    rounds = min(args.rounds, 3) if args.quick else args.rounds
    rows = lattice(QUICK_LATTICE_SHAPE if args.quick else LATTICE_SHAPE, rounds)
    for shape in args.shapes or (QUICK_SHAPES if args.quick else SHAPES):
        rows += of_fresh_process(recycled, shape, rounds, args.threads)
        rows += of_fresh_process(fresh_gradient, shape, rounds, args.threads)
        if Path("/proc/self/status").exists():
            rows += memory(shape, max(args.threads))
    if any(row["measure"] == "fresh gradient" for row in rows):
        about["machine"]["torchaudio"] = metadata.version("torchaudio")
    order = list(BOUNDS)
    rows.sort(key=lambda row: (order.index(row["measure"]), row["threads"]))
    print("\n".join(f"{key}: {value}" for key, value in {**about, **NOTES}.items()), table(rows), sep="\n\n")
    if args.json:
        Path(args.json).write_text(
            json.dumps({**about, "notes": NOTES, "rows": rows}, indent=1, allow_nan=False) + "\n"
        )


if __name__ == "__main__":
    main()
