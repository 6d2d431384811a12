"""Build, test, check and time the CUDA variant on this machine's GPU: one JSON file and one page, the table last.

    make device-check
    python tools/device_check.py --minutes 8

Needs an NVIDIA GPU, nvcc 13, a C++ compiler, and in this Python PyTorch 2.11 or newer with CUDA, pytest and hypothesis;
torchaudio, and compute-sanitizer on PATH, as far as they are there. No network, no `kernels` package. A step that fails
or runs out of its time is recorded and the next one runs. Results go to $OUT if that is set, else benchmarks/results/.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import device_report  # noqa: E402

PYTHON = sys.executable
TAIL = 4000  # characters of a failed step's output that are kept
# A page has to fit where only the end of an output is shown.
PAGE = 11000


@dataclass(frozen=True)
class Step:
    name: str
    seconds: int  # of its own; what earlier steps left over comes on top
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    needs: str | None = None  # a program


def steps(work: Path) -> list[Step]:
    pytest = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    several = ["-n", "6"] if importlib.util.find_spec("xdist") else []
    sanitizer = ["compute-sanitizer", "--error-exitcode", "3", "--print-limit", "20", "--tool"]
    # every tensor in memory of its own, so that its bounds are known
    no_caching = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    small = [PYTHON, "tools/small_steps.py"]
    return [
        Step("build", 100, [PYTHON, "tools/build_variant.py", "cuda"]),
        Step("graphs, streams, devices", 40, [*pytest, "tests/test_cuda.py", f"--junitxml={work}/graphs.xml"]),
        Step("benchmark", 130, [PYTHON, "benchmarks/device.py", "--json", f"{work}/benchmark.json"]),
        Step(
            "test suite",
            110,
            [*pytest, *several, "tests", "-k", "cuda and not static", "--ignore=tests/test_cuda.py"]
            + [f"--junitxml={work}/suite.xml"],
        ),
        Step("memcheck", 50, [*sanitizer, "memcheck", *small], no_caching, needs="compute-sanitizer"),
        Step("racecheck", 40, [*sanitizer, "racecheck", *small, "--one-strip"], needs="compute-sanitizer"),
    ]


def gpu() -> tuple[str, str]:
    """Name and capability of the first, asked in a process of its own so that this one holds no memory there."""
    code = "import torch; print(torch.cuda.get_device_name()); print(*torch.cuda.get_device_capability(), sep='.')"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"PyTorch finds no GPU: {done.stderr.strip().splitlines()[-1]}")
    name, capability = done.stdout.strip().splitlines()[-2:]
    return name, capability


def run(step: Step, seconds: float, environment: dict[str, str]) -> dict:
    """What became of a step. A step that runs out of time ends with all that it has started."""
    record: dict = {"step": step.name}
    if step.needs and shutil.which(step.needs) is None:
        return record | {"result": f"skipped: no {step.needs}", "seconds": 0.0}
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env={**environment, **step.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=seconds)
            result = "passed" if code == 0 else f"FAILED ({code})"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            result = f"OUT OF TIME ({seconds:.0f} s)"
        output.seek(0)
        said = output.read().replace(f"{ROOT}/", "")
    record |= {"result": result, "seconds": round(time.monotonic() - start, 1)}
    return record | {"output": said[-TAIL:] if result != "passed" else said.strip().splitlines()[-1:]}


def read_junit(path: Path) -> dict:
    """How many tests passed, and which did not."""
    if not path.exists():
        return {}
    cases = list(ElementTree.parse(path).iter("testcase"))

    def having(*tags: str) -> list[str]:
        return [f"{c.get('classname')}::{c.get('name')}" for c in cases if any(c.find(tag) is not None for tag in tags)]

    failed, skipped = having("failure", "error"), having("skipped")
    return {"passed": len(cases) - len(failed) - len(skipped), "skipped": len(skipped), "failed": failed}


def page(results: dict) -> str:
    """What is printed last: the steps, what failed, and the benchmark."""
    lines = ["| step | result | seconds |", "|---|---|---:|"]
    lines += [f"| {step['step']} | {step['result']} | {step['seconds']:.0f} |" for step in results["steps"]]
    for name, tests in results["tests"].items():
        if tests:
            lines += [
                "",
                f"{name}: {tests['passed']} passed, {tests['skipped']} skipped, {len(tests['failed'])} failed",
            ]
            lines += [f"    {failed}" for failed in tests["failed"][:20]]
    for step in results["steps"]:
        if "output" in step and not step["result"].startswith(("passed", "skipped")):
            lines += ["", f"--- {step['step']}, the end of its output", *step["output"].splitlines()[-15:]]
    top = "\n".join(lines)
    if not results["benchmark"]:
        return top[-PAGE:]
    bottom = device_report.report(results["benchmark"])
    return f"{top[: max(500, PAGE - len(bottom))]}\n\n{bottom}"


def collect(work: Path, records: list[dict]) -> dict:
    benchmark = work / "benchmark.json"
    return {
        "steps": records,
        "tests": {name: read_junit(work / f"{name}.xml") for name in ("graphs", "suite")},
        "benchmark": json.loads(benchmark.read_text()) if benchmark.exists() else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.7, help="for all steps together")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="of build, graphs, benchmark, ...")
    args = parser.parse_args()
    end = time.monotonic() + args.minutes * 60
    name, capability = gpu()
    environment = {**os.environ, "RNNT_CUDA_CAPABILITIES": capability, "PYTHONUNBUFFERED": "1"}
    out = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    out.mkdir(parents=True, exist_ok=True)
    path = out / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".json")
    records: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wanted = [
            step for step in steps(work) if not args.only or any(step.name.startswith(name) for name in args.only)
        ]
        for i, step in enumerate(wanted):
            reserved = sum(later.seconds for later in wanted[i + 1 :])
            records.append(run(step, max(5.0, end - time.monotonic() - reserved), environment))
            print(f"{step.name}: {records[-1]['result']}, {records[-1]['seconds']} s", flush=True)
            results = collect(work, records)
            path.write_text(json.dumps(results, indent=1) + "\n")
            if step.name == "build" and records[-1]["result"] != "passed":
                break  # nothing else has anything to run
    print(f"\n{page(results)}")
    if any(not step["result"].startswith(("passed", "skipped")) for step in records):
        sys.exit(1)


if __name__ == "__main__":
    main()
