"""Whether the emulator sees bugs of the project's own kernels: seeds those of mutants.toml into a copy, one at a time.

    python tests/emulator/mutants.py --all                # or the names of some; none: those that `make test` tries
    python tests/emulator/mutants.py --all --markdown     # the table in mutants.md
    python tests/emulator/mutants.py --all --variant emulated

A mutant is seen if the emulator reports something or a result is not within the error budget of the float64 twin, on
any case of mutant_cases.py. Without a bug all of them have to pass, which is tried first. Only what includes the
changed file is compiled again, as tools/build_variant.py would. Each mutant has a process of its own: ops are
registered once.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import tomllib
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from build_variant import OPS_PY, VARIANTS, EmulatedVariant  # noqa: E402
from mutant_cases import CASES, try_all  # noqa: E402

KERNELS = Path("rnnt_loss") / "cuda"
SECONDS = 120  # for all cases


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    in_test: bool = False


MUTANTS = [
    Mutant(name, **fields) for name, fields in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
]


class Originals:
    """The sources and the objects that mutants are made from, as they are now."""

    def __init__(self, kind: str, folder: Path):
        self.variant: EmulatedVariant = VARIANTS[kind](kind)
        self.folder, self.tree = folder, folder / "tree"
        for name in ("rnnt_loss", "tests/emulator"):
            shutil.copytree(ROOT / name, self.tree / name)
        self.variant.objects.mkdir(parents=True, exist_ok=True)
        with open(self.variant.objects / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sources = [path for path in self.variant.sections if path.suffix in {".cpp", ".cu"}]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = list(pool.map(self.variant.compile, sources))
            self.objects = {source: shutil.copy(object, folder) for source, object in zip(sources, made)}

    def includes(self, path: Path) -> set[Path]:
        """The file itself and all that it includes of the kernels."""
        found, waiting = set(), [path]
        while waiting:
            path = waiting.pop()
            if path in found or not path.exists():
                continue
            found.add(path)
            waiting += [(path.parent / name).resolve() for name in re.findall(r'#include "(.+)"', path.read_text())]
        return found

    def build(self, mutant: Mutant | None) -> Path:
        """The folder of the package."""
        folder = self.folder / (mutant.name if mutant else "control")
        package, objects = folder / self.variant.package, dict(self.objects)
        package.mkdir(parents=True)
        if mutant:
            objects |= self.compile(mutant, folder)
        ours = copy.copy(self.variant)
        ours.objects = folder
        ours.link([str(object) for object in objects.values()], package / f"{ours.ops}.abi3.so")
        shutil.copytree(ROOT / "torch-ext" / ours.package, package, dirs_exist_ok=True)
        (package / "_ops.py").write_text(OPS_PY.format(ops=ours.ops))
        (package / "metadata.json").write_text(json.dumps(ours.metadata()))
        return package

    def compile(self, mutant: Mutant, folder: Path) -> dict[Path, Path]:
        """The objects that are not the originals'."""
        shutil.copytree(self.tree, folder / "tree")
        changed = folder / "tree" / KERNELS / mutant.file
        changed.write_text(changed.read_text().replace(mutant.old, mutant.new))
        objects = {}
        for source in self.objects:
            if source.suffix != ".cu" or (ROOT / KERNELS / mutant.file).resolve() not in self.includes(source):
                continue
            objects[source] = folder / f"{source.stem}.o"
            command = [part.replace(str(ROOT), str(folder / "tree")) for part in self.variant.command(source)]
            copied = folder / "tree" / source.relative_to(ROOT)
            subprocess.run([*command, "-w", "-c", str(copied), "-o", str(objects[source])], check=True)
        return objects


# ---- the run


def judge(originals: Originals, mutant: Mutant | None, answer: Connection) -> None:
    """In a process of its own; the answer is what was seen first, None, or an error's text."""
    try:
        package = originals.build(mutant)
    except (Exception, SystemExit) as error:
        answer.send(f"could not be built: {error}")
        return
    answer.send("built")
    signal.alarm(SECONDS)  # ends the process
    try:
        answer.send(try_all(package))
    except Exception as error:
        answer.send(f"could not be tried: {error!r}")
    shutil.rmtree(package.parent)


def received(answer: Connection) -> dict | str | None:
    try:
        first = answer.recv()
        return answer.recv() if first == "built" else first
    except EOFError:
        return {"kinds": ["crash, or no end"], "case": "", "detail": ""}


def judge_all(originals: Originals, mutants: list[Mutant | None], say: Callable) -> None:
    """Calls say(mutant, result) for each, as they come; as many at a time as there are cores."""
    context = multiprocessing.get_context("fork")  # with torch loaded and the twin's results at hand
    waiting, running = list(mutants), {}
    while waiting or running:
        while waiting and len(running) < os.cpu_count():
            answer, theirs = context.Pipe(duplex=False)
            process = context.Process(target=judge, args=(originals, waiting[0], theirs))
            process.start()
            theirs.close()
            running[answer] = waiting.pop(0), process
        for answer in wait(list(running)):
            mutant, process = running.pop(answer)
            say(mutant, received(answer))
            process.join()


def table(seen: list[Mutant], results: dict) -> str:
    lines = ["| bug | in | seen as | by the case |", "|---|---|---|---|"]
    for mutant in seen:
        kinds, case = ", ".join(results[mutant.name]["kinds"]), results[mutant.name]["case"]
        lines.append(f"| {mutant.name.replace('_', ' ')} | {mutant.file} | {kinds} | {case} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--variant", choices=["emulated", "emulated-check"], default="emulated-check")
    parser.add_argument("--markdown", action="store_true", help="a table in place of lines")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    chosen = [m for m in MUTANTS if options.all or (m.name in options.names if options.names else m.in_test)]
    for mutant in chosen:
        count = (ROOT / KERNELS / mutant.file).read_text().count(mutant.old)
        if count != 1:
            sys.exit(f"{mutant.name}: what it changes occurs {count} times in {mutant.file}:\n{mutant.old}")

    torch.set_num_threads(1)  # a fork has no threads
    for case in CASES:
        for twin in case.truth:
            twin.grad  # noqa: B018, computed once for all
    results: dict[str, dict | str | None] = {}

    def say(mutant: Mutant | None, result: dict | str | None) -> None:
        name = mutant.name if mutant else "no bug"
        results[name] = result
        text = (
            result if isinstance(result, str) else ", ".join(result["kinds"]) + f" ({result['case']})" if result else ""
        )
        print(f"{name}: {text or 'nothing is seen'}", flush=True, file=sys.stderr if options.markdown else sys.stdout)

    with tempfile.TemporaryDirectory() as folder:
        originals = Originals(options.variant, Path(folder))
        judge_all(originals, [None], say)
        if results["no bug"]:
            sys.exit(f"without a bug: {results['no bug']}")
        judge_all(originals, chosen, say)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    seen = [mutant for mutant in chosen if isinstance(results[mutant.name], dict)]
    if options.markdown:
        print(table(seen, results))
    print(f"{len(seen)} of {len(chosen)} bugs are seen")
    if len(seen) < len(chosen):
        sys.exit(1)


if __name__ == "__main__":
    main()
