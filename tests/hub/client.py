"""The real client in fresh processes: nothing of this one's caches, hubs, overrides or proxies reaches them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from hub.server import read_files

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
REPO = "phanerozoic/rnnt-loss"
USE = """
import torch
def use(rnnt):
    logits = torch.zeros(1, 5, 2, 7, requires_grad=True)
    loss = rnnt.rnnt_loss_from_logits(logits, torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1]))
    loss.backward()
    assert abs(loss.item() - 10.066022981897778) < 1e-5 and logits.grad.sum(-1).abs().max() < 1e-6
    assert rnnt.ops.loss_forward and rnnt.RNNTLoss
"""
GET = f"from kernels import get_kernel\nREPO = {REPO!r}\n{USE}"
# Telemetry among them, which has to stay on: without it kernels 0.17.2 sends requests that are not valid.
SETTINGS = re.compile(r"HF_|HUGGING|TRANSFORMERS_|(LOCAL_)?KERNELS_?|DISABLE_TELEMETRY|DO_NOT_TRACK|\w+_PROXY$", re.I)


def run(*command, home: Path, **environment: str) -> subprocess.CompletedProcess:
    kept = {key: value for key, value in os.environ.items() if not SETTINGS.match(key)}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    environment = {**kept, **quiet, "HF_HOME": str(home), **environment}
    return subprocess.run(list(map(str, command)), env=environment, cwd=home, capture_output=True, text=True)


def tool(name: str) -> Path:
    """A command of `kernels` or `huggingface_hub`."""
    return Path(sys.executable).with_name(name)


def printed(*command, **keywords) -> str:
    """By a process that has to succeed."""
    done = run(*command, **keywords)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(code: str, *arguments, **keywords) -> str:
    return printed(sys.executable, "-c", code, *arguments, **keywords)


def built() -> Path:
    """The folder of the CPU variant."""
    (found,) = BUILD.glob("torch-stable-abi*-cpu-*")
    return found


def in_build(folder: Path) -> dict[str, bytes]:
    """A variant's files, by their paths on the hub."""
    return {f"build/{folder.name}/{path}": content for path, content in read_files(folder).items()}


def as_released(variant: dict[str, bytes]) -> dict[str, bytes]:
    """With what else a release pushes to its branch: other variants, and benchmarks."""
    cuda = {path.replace("-cpu-", "-cu130-"): content for path, content in variant.items()}
    return {**variant, **cuda, "benchmarks/benchmark.py": b"raise SystemExit('the kernel needs no benchmark')"}
