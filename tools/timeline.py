"""Instructions and cycles of one warp in the loops that count, read off the machine code: a step of a sweep, a piece of
16 bytes of a row.

    python tools/timeline.py                    # of every kernel, for 9.0
    python tools/timeline.py 12.0 --waits       # and what it waits for

The compiler writes into each instruction how long to stall after it, and which of six counters its result raises or has
to be waited for: until nothing is in flight that raises it. What it cannot know is how long a variable latency takes:
those are LATENCY's, from published measurements of Volta to Hopper. A loop is walked once through, a spin loop counts
as one look, and what no usual pass comes to is left out. One warp has the scheduler for itself: where several share it,
a step takes no less than all their instructions.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

from sass import Instruction, Kernel, inspect, sources, tuning

# cycles until a result is there; LDG: from L2, which prefetched loads have to cover
LATENCY = {"LDG": 270, "LD": 35, "LDS": 29, "ST": 20, "STS": 20, "STG": 20, "MUFU": 23, "SHFL": 24, "BAR": 22}
LATENCY |= {"LDC": 30, "S2R": 25, "SYNCS": 30, "ATOMS": 40}
OTHER_LATENCY = 12
COUNTERS = 6
NEIGHBOURS = ("SHFL.UP", "SHFL.DOWN")
PIECES = ("LDG.E.128", "STG.E.128")


@dataclass(frozen=True)
class Work:
    """The usual pass of a loop."""

    kernel: str
    unit: str
    code: list[Instruction]
    units: int  # of a pass

    @property
    def instructions(self) -> float:
        return len(self.code) / self.units

    @property
    def cycles(self) -> float:
        return cycles_of(self.code) / self.units


def without(code: list[Instruction], rare, counts) -> list[Instruction]:
    """What a branch leaps over is left out if it has something rare, and what counts is elsewhere too."""
    kept = code
    for branch in code:
        if branch.target is None or branch.target <= branch.address or branch.opcode.startswith(("BRA.DIV", "CALL")):
            continue
        over = [i for i in kept if branch.address < i.address < branch.target]
        rest = [i for i in kept if not branch.address < i.address < branch.target]
        if any(map(rare, over)) and (any(map(counts, rest)) or not any(map(counts, over))):
            kept = rest
    return kept


def sweeps(kernel: Kernel) -> list[Work]:
    """Without what meets with the whole warp besides: messages of another panel, waiting for rows, word to them."""

    def rare(i: Instruction) -> bool:
        return i.opcode.startswith(("BRA.DIV", "BRA.CONV", "WARPSYNC", "VOTE"))

    steps = tuning()["kAheadWide" if "double" in kernel.name or kernel.name == "alpha_beta_kernel" else "kAhead"]
    return [
        Work(kernel.name, "step", without(loop.body, rare, lambda i: any(map(i.is_a, NEIGHBOURS))), steps)
        for loop in kernel.sweeps
    ]


def rows(kernel: Kernel) -> list[Work]:
    """Without pieces that are not aligned, or not whole."""

    def is_piece(i: Instruction) -> bool:
        return any(map(i.is_a, PIECES))

    found = []
    for loop in kernel.innermost(*PIECES):
        if any(map(loop.count, NEIGHBOURS)):
            continue
        code = without(loop.body, lambda i: (i.is_a("LDG") or i.is_a("STG")) and not is_piece(i), is_piece)
        found.append(Work(kernel.name, "piece", code, max(sum(i.is_a(piece) for i in code) for piece in PIECES)))
    return found


def walk(code: list[Instruction], repeats: int) -> tuple[int, Counter[str], Counter[str]]:
    """Cycles to issue the code so many times in a row; of them those spent waiting, by what is waited for (a result, or
    that operands have been read) and by the instruction that waits."""
    now, ready, blamed = 0, [0] * COUNTERS, [""] * COUNTERS
    causes, waits = Counter[str](), Counter[str]()
    for instruction in code * repeats:
        control = instruction.encoding >> 105
        stall, written, read, awaited = control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63
        last = max((i for i in range(COUNTERS) if awaited >> i & 1), key=lambda i: ready[i], default=0)
        start = max(now, ready[last]) if awaited else now
        causes[blamed[last]] += start - now
        waits[f"{instruction.address:04x} {instruction.text}"] += start - now
        operation = instruction.opcode.split(".")[0]
        latency = LATENCY.get(operation, OTHER_LATENCY)
        for counter, cycles, name in (
            (written, latency, operation),
            (read, min(latency, LATENCY["STS"]), f"operands of {operation}"),
        ):
            if counter < COUNTERS and start + cycles > ready[counter]:
                ready[counter], blamed[counter] = start + cycles, name
        now = start + max(stall, 1) + (LATENCY["BAR"] if instruction.is_a("BAR") else 0)
    return now, causes, waits


def loads_under_way(work: Work) -> int:
    """The most 16-byte loads that a pass has started before it waits for one of them."""
    under_way, most = [0] * COUNTERS, 0
    for instruction in work.code:
        control = instruction.encoding >> 105
        under_way = [0 if control >> 11 >> i & 1 else n for i, n in enumerate(under_way)]
        if instruction.is_a("LDG.E.128") and control >> 5 & 7 < COUNTERS:
            under_way[control >> 5 & 7] += 1
        most = max(most, sum(under_way))
    return most


def cycles_of(code: list[Instruction]) -> float:
    """Of one pass in the steady state."""
    return (walk(code, 6)[0] - walk(code, 3)[0]) / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capability", nargs="?", default="9.0")
    parser.add_argument("--waits", action="store_true", help="the instructions that are waited at longest")
    args = parser.parse_args()
    print("| kernel | unit | in a pass | instructions | cycles |\n|---|---|---:|---:|---:|")
    for kernel in (kernel for source in sources() for kernel in inspect(source, args.capability)):
        for work in [*sweeps(kernel), *rows(kernel)]:
            numbers = f"{work.units} | {work.instructions:.1f} | {work.cycles:.0f}"
            print(f"| `{work.kernel}` | {work.unit} | {numbers} |")
            if args.waits:
                cycles, causes, waits = walk(work.code, 6)
                said = ", ".join(f"{name} {cycles / 6:.0f}" for name, cycles in causes.most_common() if cycles)
                print(f"    of {cycles / 6:.0f} cycles waiting for: {said}")
                for text, cycles in waits.most_common(8):
                    print(f"    {cycles / 6:6.0f}  {text}")


if __name__ == "__main__":
    main()
