"""What the compiler made of the CUDA kernels: registers, memory and telling instructions, per kernel and architecture.

    python tools/sass.py                                            # every source for all of build.toml's capabilities
    python tools/sass.py 9.0 --markdown benchmarks/results/sass.md

Needs nvcc and no GPU; cuobjdump is PyPI's nvidia-cuda-cuobjdump with nvidia-cuda-nvdisasm, or the one on PATH. A spill,
local memory or a warning stops the compiler. Machine code is kept in build/.sass by the hash of what it is made from.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

from build_variant import ROOT, CudaVariant, digest

CACHE = ROOT / "build" / ".sass"
# Counted by the first that an instruction starts with.
TELLING = ["LDG.E.128", "LDG", "STG.E.128", "STG", "LDS", "STS", "LDL", "STL", "SHFL", "BAR", "MUFU", "ATOM", "RED"]
COLUMNS = ["LDG.E.128", "LDG", "STG.E.128", "STG", "LDL", "STL", "SHFL", "BAR", "MUFU"]
HEAD = """\
Machine code of the CUDA kernels, by nvcc {release}. `make check-cuda` makes this table and asserts what
tests/test_cuda_static.py says of it. Shared memory in bytes, code in instructions, then how many there are of each;
of the sweeps, the innermost loops in which lanes hear of a neighbour, how many there are and the barriers in them.

"""


class CompileError(RuntimeError):
    """What nvcc said."""


@dataclass(frozen=True)
class Instruction:
    address: int
    text: str  # predicate and operands too
    encoding: int  # 128 bits

    @cached_property
    def opcode(self) -> str:
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0]

    def is_a(self, prefix: str) -> bool:
        return self.opcode == prefix or self.opcode.startswith(prefix + ".")

    @cached_property
    def target(self) -> int | None:
        """Of a branch or a call; the compiler uses calls as branches, too."""
        found = re.search(r"\b0x([0-9a-f]+)$", self.text)
        return int(found[1], 16) if found and (self.is_a("BRA") or self.is_a("CALL.REL")) else None

    @cached_property
    def is_conditional(self) -> bool:
        return self.text.startswith("@") or re.search(r"\s!?U?P\d,", self.text) is not None or self.is_a("BRA.DIV")


@dataclass(frozen=True)
class Loop:
    head: int
    tail: int  # the branch back
    code: list[Instruction]  # all that can be passed in it, wherever the compiler has put it

    def count(self, prefix: str) -> int:
        return sum(i.is_a(prefix) for i in self.code)

    @property
    def body(self) -> list[Instruction]:
        """Without what was put out of the way."""
        return [i for i in self.code if self.head <= i.address <= self.tail]


@dataclass(frozen=True)
class Kernel:
    source: str  # stem
    capability: str
    name: str  # demangled, without namespaces and parameters
    usage: dict[str, int]  # REG, STACK, SHARED, LOCAL
    code: list[Instruction]

    def __str__(self) -> str:
        return f"{self.name} for {self.capability}"

    @cached_property
    def counts(self) -> Counter[str]:
        """How many of each of TELLING; LDG includes LDG.E.128."""
        counts: Counter[str] = Counter()
        for instruction in self.code:
            for prefix in TELLING:
                counts[prefix] += instruction.is_a(prefix)
        return counts

    @cached_property
    def edges(self) -> dict[int, list[int]]:
        """Where control can go from each address."""
        following = dict(zip((i.address for i in self.code), (i.address for i in self.code[1:])))
        reconverges: dict[str, list[int]] = {}  # where the BSSYs of a barrier say that its BSYNC leads
        for i in self.code:
            if found := re.match(r"BSSY\S* (B\d+), 0x([0-9a-f]+)", i.text):
                reconverges.setdefault(found[1], []).append(int(found[2], 16))
        edges = {}
        for i in self.code:
            onward = [following[i.address]] if i.address in following else []
            if i.is_a("BSYNC") and not set(onward) & set(reconverges.get(i.text.split()[-1], onward)):
                onward = reconverges[i.text.split()[-1]]
            elif i.opcode.split(".")[0] in {"EXIT", "RET", "BRX", "JMX"} and not i.is_conditional:
                onward = []
            elif i.target is not None:
                onward = [i.target, *(onward if i.is_conditional or i.is_a("CALL") else [])]
            edges[i.address] = onward
        return edges

    @cached_property
    def loops(self) -> list[Loop]:
        """The natural loops, the smallest first."""
        arrivals: dict[int, list[int]] = {address: [] for address in self.edges}
        for address, onward in self.edges.items():
            for other in onward:
                arrivals[other].append(address)
        found = []
        for branch in self.code:
            head, tail = branch.target, branch.address
            if head is None or head >= tail or tail in reached(self.code[0].address, self.edges, without=head):
                continue  # no loop: forward, what fills up a kernel's end, or back from a block put out of the way
            inside = reached(tail, arrivals, without=head) | {head}
            found.append(Loop(head, tail, [i for i in self.code if i.address in inside]))
        return sorted(found, key=lambda loop: len(loop.code))

    @cached_property
    def sweeps(self) -> list[Loop]:
        """The innermost loops in which lanes hear of a neighbour, in the order of their code."""
        return sorted(self.innermost("SHFL.UP", "SHFL.DOWN"), key=lambda loop: loop.head)

    def innermost(self, *prefixes: str) -> list[Loop]:
        """The loops with such an instruction and without another such loop inside."""
        found: list[Loop] = []
        for loop in self.loops:
            inside = {i.address for i in loop.code}
            if any(map(loop.count, prefixes)) and not any(other.head in inside for other in found):
                found.append(loop)
        return found


def reached(start: int, edges: dict[int, list[int]], without: int) -> set[int]:
    """What can be reached from there, not passing `without`."""
    found, open_nodes = {without}, [start]
    while open_nodes:
        address = open_nodes.pop()
        if address not in found:
            found.add(address)
            open_nodes += edges[address]
    return found - {without}


@cache
def variant() -> CudaVariant:
    """How the CUDA variant is compiled. Exits where there is no nvcc."""
    return CudaVariant("cuda")


@cache
def tuning() -> dict[str, int]:
    """The constants of tuning.h; one that depends on the type is kVectors for double, kVectorsElse for others."""
    text = (ROOT / "rnnt_loss" / "cuda" / "tuning.h").read_text()
    found = re.findall(r"constexpr int (\w+)(?: =\s[^;?]*\?)? ?=? ?(\d+)(?: : (\d+))?;", text)
    constants = {name: int(value) for name, value, _ in found}
    return constants | {f"{name}Else": int(other) for name, _, other in found if other}


def sources() -> list[Path]:
    return sorted((ROOT / "rnnt_loss" / "cuda").glob("*.cu"))


@cache
def nvcc_version() -> str:
    return subprocess.run([variant().compiler, "--version"], capture_output=True, text=True, check=True).stdout


def compile_kernels(source: Path, capability: str) -> Path:
    """The cubin of one source. Raises CompileError on a spill, local memory, a warning or an error."""
    section = variant().sections.get(source, {})
    command = variant().nvcc([capability], "-cubin", *section.get("cuda-flags", []))
    headers = sorted(path for path in (ROOT / "rnnt_loss").rglob("*") if path.suffix in {".h", ".cuh"})
    key = digest(
        " ".join(command).encode(), nvcc_version().encode(), *(path.read_bytes() for path in [source, *headers])
    )
    CACHE.mkdir(parents=True, exist_ok=True)
    architecture = "sm_" + capability.replace(".", "")
    made = CACHE / f"{source.stem}-{architecture}-{key[:16]}.cubin"
    if not made.exists():
        partial = made.with_suffix(f".{os.getpid()}")
        done = subprocess.run([*command, str(source), "-o", str(partial)], capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"{source.name} for {architecture}: {readable(done.stderr.strip())}")
        for old in CACHE.glob(f"{source.stem}-{architecture}-*.cubin"):
            old.unlink(missing_ok=True)
        partial.replace(made)
    return made


def cuobjdump() -> str:
    """PyPI's, which finds its nvdisasm beside itself, or the one on PATH."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        for path in sorted(Path(folder).glob("*/bin/cuobjdump")):
            if path.with_name("nvdisasm").exists():
                return str(path)
    found = shutil.which("cuobjdump")
    if found is None:
        raise FileNotFoundError("no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    return found


def readable(text: str) -> str:
    """Demangled, without namespaces and parameters, where c++filt is installed."""
    if shutil.which("c++filt") is None:
        return text
    plain = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True).stdout
    plain = re.sub(r"(\w+|\(anonymous namespace\))::", "", plain.replace("void ", ""))
    return re.sub(r"(?<=[\w>])\([\w, *&:<>]*\)", "", plain)


def read_kernels(cubin: Path, source: str, capability: str) -> list[Kernel]:
    def dump(option: str) -> str:
        return subprocess.run([cuobjdump(), option, cubin], capture_output=True, text=True, check=True).stdout

    usage = {
        name: {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line)}
        for name, line in re.findall(r"Function (\S+):\s*\n\s*(.*)", dump("-res-usage"))
    }
    code: dict[str, list[Instruction]] = {}
    pair = r"^\s+/\*([0-9a-f]{4,})\*/\s+([^;]*?)\s*;\s+/\* 0x([0-9a-f]{16}) \*/\s*\n\s+/\* 0x([0-9a-f]{16}) \*/"
    for function in dump("-sass").split("Function : ")[1:]:
        found = re.findall(pair, function, re.M)
        code[function.split(maxsplit=1)[0]] = [
            Instruction(int(address, 16), text, int(high, 16) << 64 | int(low, 16))
            for address, text, low, high in found
        ]
    names = dict(zip(code, readable("\n".join(code)).splitlines()))
    return sorted(
        (Kernel(source, capability, names[name], usage[name], lines) for name, lines in code.items()),
        key=lambda kernel: kernel.name,
    )


def inspect(source: Path, capability: str) -> list[Kernel]:
    return read_kernels(compile_kernels(source, capability), source.stem, capability)


def inspect_all(wanted: list[str]) -> list[Kernel]:
    work = [(source, capability) for source in sources() for capability in wanted]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [kernel for found in pool.map(lambda item: inspect(*item), work) for kernel in found]


def table(kernels: list[Kernel]) -> str:
    """Markdown, one line per kernel and capability."""
    head = [
        "source",
        "kernel",
        "sm",
        "registers",
        "stack",
        "local",
        "shared",
        "code",
        *COLUMNS,
        "sweeps",
        "BAR in them",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for k in sorted(kernels, key=lambda k: (k.source, k.name, float(k.capability))):
        cells = [k.source, f"`{k.name}`", k.capability.replace(".", "")]
        cells += [k.usage[key] for key in ("REG", "STACK", "LOCAL", "SHARED")]
        cells += [len(k.code), *(k.counts[key] for key in COLUMNS), len(k.sweeps)]
        cells += [sum(sweep.count("BAR") for sweep in k.sweeps) if k.sweeps else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capabilities", nargs="*", metavar="CAPABILITY")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the table there too")
    args = parser.parse_args()
    try:
        found = table(inspect_all(args.capabilities or variant().capabilities()))
    except CompileError as error:
        sys.exit(str(error))
    print(found)
    if args.markdown:
        args.markdown.write_text(HEAD.format(release=re.search(r"V([\d.]+)", nvcc_version())[1]) + found + "\n")


if __name__ == "__main__":
    main()
