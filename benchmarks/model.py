"""What a training step should take on a GPU: bytes over bandwidth, instructions over issue rate, steps times step time.

    python benchmarks/model.py                      # an H200, both dtypes
    python benchmarks/model.py --bandwidth 3.0 --json model.json

Predictions, not measurements; benchmarks/device.py puts the two side by side. What a step of a sweep costs, and how
many instructions rows take, is read off the machine code by tools/timeline.py, which says what it assumes.

Rows are bound by their bytes or by the instructions of their warps. A sweep takes T + U steps, and a hand-over more for
each strip after the first; panels follow each other. Rows and sweeps overlap. Forward, where sweeps are few (beside), a
sweep starts with the first FRAMES frames, and when the last rows are there it has the last frames and the way up to the
last label ahead of it; larger batches take one after the other. Backward, the first rows wait until the flow has come
down from the last label and told so, and when the flow ends the rows of its last word are left. That a sweep shares its
multiprocessor with rows is not counted.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path

SHAPES = ["8,100,20,128", "16,200,40,256", "32,300,50,512", "16,500,80,256", "4,1500,200,1024", "1,1500,200,500"]
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}

# As in rnnt_loss/cuda/tuning.h.
THREADS, BLOCKS, STRIP, STRIPS, HAND_OVER = 256, 2, 32, 8, 16
VECTORS, BLOCK_ROW = 8, 8192
FRAMES, TOLD_EVERY, SWEEPS_OF_PLACES = 16, 32, 8


@dataclass(frozen=True)
class Machine:
    """An H200."""

    bandwidth: float = 4.3e12  # of a copy, bytes read and written per second
    clock: float = 1.98e9
    multiprocessors: int = 132
    schedulers: int = 4  # of a multiprocessor, an instruction of one warp a cycle each
    l2_bytes: int = 64  # what a multiprocessor moves a cycle
    launch_us: float = 2.5  # from one kernel's end to the next one's work, replayed from a graph


@dataclass(frozen=True)
class Sweep:
    """One step of a warp, in float32 for sm_90."""

    cycles: float
    instructions: float
    slot_bytes: int  # read and written for a label


@dataclass(frozen=True)
class Rows:
    """Instructions of a warp, for sm_90: for 16 bytes a lane, and besides."""

    piece: dict[str, float]
    besides: float
    cell_bytes: int  # read and written beside the logits


# python tools/timeline.py; a row's `besides` by counting
ALPHA = Sweep(145, 64, 16 + 4)  # logits_kernel<float>
FLOW = Sweep(101, 34, 4 + 8)  # gradient_kernel<float, float, true>
SCORE = Rows({"float32": 39, "bfloat16": 80}, 550, 16 + 8)  # arcs and softmax
GRADIENT = Rows({"float32": 29, "bfloat16": 65}, 500, 8 + 8)  # posteriors and softmax
# Beside the kernels: the zeros of two workspaces, the reduction of the losses, and its gradient
OTHER_LAUNCHES = 2 + 2


def step_us(warps: int, sweep: Sweep, machine: Machine) -> float:
    """Of so many strips of a block."""
    busiest = sweep.instructions * ceil(warps / machine.schedulers)
    return max(sweep.cycles, busiest, sweep.slot_bytes * STRIP * warps / machine.l2_bytes) / machine.clock * 1e6


def sweep_us(T: int, U: int, B: int, sweep: Sweep, machine: Machine) -> float:
    """A block an utterance, a warp a strip, strips a hand-over apart, panels one after the other."""
    strips = ceil((U + 1) / STRIP)
    panels, warps = ceil(strips / STRIPS), min(strips, STRIPS)
    turns = ceil(B / machine.multiprocessors)  # several blocks on one multiprocessor are not counted on
    return turns * panels * (T + U + HAND_OVER * (warps - 1)) * step_us(warps, sweep, machine)


def rows_us(rows: int, V: int, dtype: str, passes: int, work: Rows, machine: Machine) -> float:
    """passes: how often the logits' bytes are moved."""
    size, chunk = V * ELEMENT_BYTES[dtype], 16 * VECTORS
    lanes = THREADS if size >= BLOCK_ROW else 2 if size < 64 else 4
    while lanes < 32 and lanes * 2 * chunk < size:
        lanes *= 2
    pieces = VECTORS * ceil(size / (lanes * chunk))
    instructions = rows * lanes / 32 * (work.besides + pieces * work.piece[dtype])
    issue = instructions / (machine.multiprocessors * machine.schedulers * machine.clock)
    return max(rows * (passes * size + work.cell_bytes) / machine.bandwidth, issue) * 1e6


def beside(B: int, machine: Machine) -> bool:
    """Whether the sweeps take so few places for blocks that rows run beside them."""
    return B <= BLOCKS * machine.multiprocessors // SWEEPS_OF_PLACES


def predict(
    shape: tuple[int, int, int, int], dtype: str = "float32", machine: Machine | None = None
) -> dict[str, float]:
    """Microseconds of a training step replayed from a graph, and of its parts. shape: B, T, U, V."""
    machine = machine or Machine()
    B, T, U, V = shape
    rows = B * T * (U + 1)
    parts = {
        "floor": 3 * rows * V * ELEMENT_BYTES[dtype] / machine.bandwidth * 1e6,
        "score": rows_us(rows, V, dtype, 1, SCORE, machine),
        "alpha": sweep_us(T, U, B, ALPHA, machine),
        "flow": sweep_us(T, U, B, FLOW, machine),
        "gradient": rows_us(rows, V, dtype, 2, GRADIENT, machine),
    }
    score, alpha, flow, gradient = (parts[name] for name in ("score", "alpha", "flow", "gradient"))
    warps = min(STRIPS, ceil((U + 1) / STRIP))
    parts["forward"] = score + alpha
    if beside(B, machine):
        to_last_label = (min(FRAMES, T) + U) * step_us(warps, ALPHA, machine)
        parts["forward"] = max(score * min(1, FRAMES / T) + alpha, score + to_last_label)
    first_word = min(U + TOLD_EVERY, T + U) * step_us(warps, FLOW, machine)
    parts["backward"] = max(first_word + gradient, flow + gradient * min(1, TOLD_EVERY / T))
    parts["launches"] = (OTHER_LAUNCHES + (2 if beside(B, machine) else 3)) * machine.launch_us
    return parts | {"step": parts["forward"] + parts["backward"] + parts["launches"]}


def lattice_us(shape: tuple[int, int, int, int], machine: Machine | None = None) -> float:
    """Of a training step from log-probabilities of so few classes that rows take next to nothing."""
    B, T, U, _ = shape
    machine = machine or Machine()
    sweeps = sum(sweep_us(T, U, B, sweep, machine) for sweep in (ALPHA, FLOW))
    return sweeps + (OTHER_LAUNCHES + 3) * machine.launch_us


def table(rows: list[dict]) -> str:
    names = list(rows[0]["us"])
    lines = ["| B,T,U,V | dtype | " + " | ".join(names) + " | x floor |", "|---|---" + "|---:" * (len(names) + 1) + "|"]
    for row in rows:
        us = row["us"]
        cells = [f"{us[name]:.1f}" if us[name] < 100 else f"{us[name]:.0f}" for name in names]
        lines.append(" | ".join([f"| {row['shape']}", row["dtype"], *cells, f"{us['step'] / us['floor']:.2f} |"]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="B,T,U,V")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="of a copy, in TB/s, bytes read and written")
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    machine = Machine(bandwidth=args.bandwidth * 1e12)
    rows = [
        {"shape": shape, "dtype": dtype, "us": predict(tuple(map(int, shape.split(","))), dtype, machine)}
        for shape in args.shapes
        for dtype in ELEMENT_BYTES
    ]
    print(f"predicted microseconds of a training step, {args.bandwidth} TB/s\n\n{table(rows)}")
    if args.json:
        args.json.write_text(json.dumps({"machine": vars(machine), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
