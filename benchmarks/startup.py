"""What loading the kernel and a first loss cost, each time in a fresh process: seconds, the median of some.

    python benchmarks/startup.py            # of build/; with LOCAL_KERNELS, of that

Under 0.3 s are meant to come on top of torch and the client. tests/test_startup.py holds what is imported.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build"
STEPS = ("import torch", "import kernels", "get_kernel", "first loss and gradient")
CODE = """
import json, time
times = [time.perf_counter()]
import torch
times.append(time.perf_counter())
from kernels import get_kernel
times.append(time.perf_counter())
rnnt = get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True)
times.append(time.perf_counter())
logits = torch.zeros(1, 5, 2, 7, requires_grad=True)
rnnt.rnnt_loss_from_logits(logits, torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1])).backward()
times.append(time.perf_counter())
print(json.dumps([end - start for start, end in zip(times, times[1:])]))
"""


def measure() -> "list[float]":
    """Seconds of each step."""
    environment = {"LOCAL_KERNELS": f"phanerozoic/rnnt-loss={BUILD}", **os.environ}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes, after one that warms the disk's cache")
    runs = parser.parse_args().runs
    measure()
    medians = [statistics.median(times) for times in zip(*(measure() for _ in range(runs)))]
    for step, seconds in zip(STEPS, medians):
        print(f"{step:24} {seconds:6.3f}")
    print(f"{'the last two':24} {sum(medians[2:]):6.3f}")


if __name__ == "__main__":
    main()
