"""The kernel loaded by the real `kernels` client, each time in a fresh process with an empty cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kernels", reason="the client itself is what is tested")

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
USE = """
import torch
logits = torch.zeros(1, 5, 2, 7, requires_grad=True)
loss = rnnt.rnnt_loss_from_logits(logits, torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1]))
loss.backward()
assert abs(loss.item() - 10.066022981897778) < 1e-5 and logits.grad.sum(-1).abs().max() < 1e-6
assert rnnt.ops.loss_forward and rnnt.RNNTLoss
"""


def run(code, tmp_path, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "LOCAL_KERNELS"))}
    environment = {**clean, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize("trust", ["", ", trust_remote_code=True"])
def test_get_kernel_under_local_kernels(tmp_path, trust):
    code = f'from kernels import get_kernel\nrnnt = get_kernel("phanerozoic/rnnt-loss", version=1{trust})\n{USE}'
    done = run(code, tmp_path, LOCAL_KERNELS=f"phanerozoic/rnnt-loss={BUILD}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", [ROOT, BUILD])
def test_get_local_kernel(tmp_path, folder):
    done = run(f"from pathlib import Path\nfrom kernels import get_local_kernel\n"
               f"rnnt = get_local_kernel(Path({str(folder)!r}))\n{USE}", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_get_local_kernel_of_the_variant_itself(tmp_path):
    (variant,) = BUILD.glob("torch-stable-abi*-cpu-*")
    done = run(f"from pathlib import Path\nfrom kernels import get_local_kernel\n"
               f"rnnt = get_local_kernel(Path({str(variant)!r}))\n{USE}", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_path_through_a_link_and_spaces(tmp_path):
    link = tmp_path / "a folder"
    link.symlink_to(BUILD)
    code = f'from kernels import get_kernel\nrnnt = get_kernel("phanerozoic/rnnt-loss", version=1)\n{USE}'
    done = run(code, tmp_path, LOCAL_KERNELS=f"phanerozoic/rnnt-loss={link}")
    assert done.returncode == 0, done.stderr


def test_kernelize_puts_the_layers_in_place(tmp_path):
    """Functions with the signatures of transformers' losses become ours; the client checks a layer's rules."""
    code = """
import torch
from pathlib import Path
from kernels import LocalLayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

def rnnt_loss(logits, targets, logit_lengths, target_lengths, blank_token_id, reduction="mean_volume"):
    raise NotImplementedError

def tdt_loss(token_logits, duration_logits, targets, logit_lengths, target_lengths, blank_token_id, durations,
             sigma=0.0, reduction="mean"):
    raise NotImplementedError

def kernelized(function, name, mode):
    layer = use_kernel_forward_from_hub(name)(function)
    with use_kernel_mapping({name: {"cpu": LocalLayerRepository(Path(BUILD), layer_name=name)}}):
        return kernelize(layer, mode=mode, device="cpu", use_fallback=False)

tokens, ids = torch.zeros(1, 5, 2, 7), (torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1]))
loss = kernelized(rnnt_loss, "RNNTLoss", Mode.TRAINING | Mode.TORCH_COMPILE)(tokens, *ids, blank_token_id=0)
assert abs(loss.item() - 10.066022981897778) < 1e-5
loss = kernelized(tdt_loss, "TDTLoss", Mode.TRAINING)(tokens, tokens[..., :2], *ids, blank_token_id=0, durations=[0, 1])
assert loss.isfinite()
"""
    done = run(f"BUILD = {str(BUILD)!r}\n{code}", tmp_path)
    assert done.returncode == 0, done.stderr
