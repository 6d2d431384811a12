"""Against torchaudio's transducer loss, an implementation by other people, on its own ground: float32, int32, CPU."""

import importlib.util
from pathlib import Path

import pytest
import torch
from batches import Batch, random_batch
from compare import assert_within_budget
from reference import Twin

LOADER = Path(__file__).resolve().parents[1] / "benchmarks" / "torchaudio_cpu.py"


@pytest.fixture(scope="module")
def torchaudio():
    spec = importlib.util.spec_from_file_location("torchaudio_cpu", LOADER)
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    try:
        return loader.load()
    except ImportError as error:
        pytest.skip(f"torchaudio cannot be had: {error}")


def theirs(torchaudio, batch: Batch, upstream: torch.Tensor, **keywords) -> tuple[torch.Tensor, torch.Tensor]:
    x = batch.x.clone().requires_grad_()
    ids = [tensor.int() for tensor in batch[1:4]]
    loss = torchaudio.functional.rnnt_loss(x, *ids, blank=batch.blank, reduction="none", **keywords)
    (grad,) = torch.autograd.grad(loss, x, upstream)
    return loss.detach(), grad


@pytest.mark.parametrize("B, T, U, V", [(1, 1, 1, 3), (3, 5, 4, 6), (4, 20, 9, 30), (2, 60, 25, 100), (8, 12, 12, 5)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("blank", [0, -1])
def test_random_batches(backend, torchaudio, B, T, U, V, scale, blank):
    """Both are within their float32 rounding of the float64 twin: three implementations of one loss."""
    batch = random_batch(B, T, U, V, scale=scale, blank=blank, ragged=True).to(torch.float32)
    batch = batch._replace(label_lengths=batch.label_lengths.clamp(min=1))  # torchaudio wants at least one label
    upstream = torch.linspace(0.5, 2, B)
    ours, their = backend.loss_and_grad(batch, upstream=upstream), theirs(torchaudio, batch, upstream)
    truth = Twin(batch, True)
    for name, got, other, wanted in zip(
        ("loss", "gradient"), ours, their, (truth.loss, truth.grad * upstream.double()[:, None, None, None])
    ):
        assert_within_budget(f"torchaudio's {name}", other, wanted, floor=2e-6 * (T + U))
        assert_within_budget(name, got, other.double(), floor=2e-6 * (T + U))
        assert_within_budget(name, got, wanted, other)


def test_log_probs(backend, torchaudio):
    batch = random_batch(3, 8, 5, 12, ragged=True).front(False).to(torch.float32)
    batch = batch._replace(label_lengths=batch.label_lengths.clamp(min=1))
    ours = backend.loss_and_grad(batch, from_logits=False)
    their = theirs(torchaudio, batch, torch.ones(3), fused_log_softmax=False)
    for name, got, other in zip(("loss", "gradient"), ours, their):
        assert_within_budget(name, got, other.double(), floor=1e-5)


@pytest.mark.parametrize("clamp", [0.05, 0.3])
def test_clamp(backend, torchaudio, clamp):
    batch = random_batch(3, 8, 5, 12).to(torch.float32)
    ours = backend.loss_and_grad(batch, clamp=clamp)
    their = theirs(torchaudio, batch, torch.ones(3), clamp=clamp)
    assert their[1].abs().max() <= clamp
    assert_within_budget("gradient", ours[1], their[1].double(), floor=1e-5)
