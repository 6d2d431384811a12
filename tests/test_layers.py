"""The hub's layers: its rules, transformers' arguments and reductions, and transformers' Parakeet trained with them."""

import contextlib
import importlib
import inspect
import os
import sys
from pathlib import Path

import pytest
import torch
from batches import INF, Batch, random_batch
from compare import assert_within_budget

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import torchaudio_cpu  # noqa: E402

BLANK, DURATIONS = 4, (0, 1, 2, 3)
SIGNATURES = {
    "RNNTLoss": "(logits, targets, logit_lengths, target_lengths, blank_token_id, reduction='mean_volume')",
    "TDTLoss": "(token_logits, duration_logits, targets, logit_lengths, target_lengths, blank_token_id, durations, "
    "sigma=0.0, reduction='mean')",
}
REDUCTIONS = {
    "none": lambda losses, lengths: losses,
    "sum": lambda losses, lengths: losses.sum(),
    "mean_batch": lambda losses, lengths: losses.mean(),
    "mean_volume": lambda losses, lengths: losses.sum() / lengths.sum().clamp(min=1),
    "mean": lambda losses, lengths: (losses / lengths.clamp(min=1)).mean(),
}
LAYERS = pytest.mark.parametrize("name", SIGNATURES)


def bare(function) -> str:
    """A signature without its annotations and self."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def heads(name: str, batch: Batch) -> list[torch.Tensor]:
    """The float tensors that a loss takes."""
    g = torch.Generator().manual_seed(1)
    frames = torch.randn(*batch.x.shape[:3], len(DURATIONS), dtype=torch.float64, generator=g).to(batch.x.dtype)
    return [batch.x, frames][: 1 + (name == "TDTLoss")]


def inputs(backend, name: str, batch: Batch) -> tuple[list[torch.Tensor], list[torch.Tensor], dict]:
    """(leaves, ids, the keywords) of a layer's call."""
    leaves = [x.detach().to(backend.device).clone().requires_grad_() for x in heads(name, batch)]
    keywords = {"blank_token_id": batch.blank} | ({"durations": DURATIONS} if name == "TDTLoss" else {})
    return leaves, [tensor.to(backend.device) for tensor in batch[1:4]], keywords


def own_losses(backend, name: str, leaves, ids, blank: int) -> torch.Tensor:
    if name == "RNNTLoss":
        return backend.rnnt.rnnt_loss_from_logits(*leaves, *ids, blank, "none")
    return backend.rnnt.tdt_loss(*leaves, *ids, DURATIONS, blank, reduction="none")


@LAYERS
def test_the_hubs_rules(backend, name):
    layer = getattr(backend.rnnt.layers, name)
    assert issubclass(layer, torch.nn.Module) and layer.__init__ is torch.nn.Module.__init__
    assert set(dir(layer)) - set(dir(torch.nn.Module)) <= {"has_backward", "can_torch_compile"}
    assert layer.has_backward is True and layer.can_torch_compile is (name == "RNNTLoss")
    assert not [*layer().parameters(), *layer().buffers()] and vars(layer()).keys() == vars(torch.nn.Module()).keys()
    assert bare(layer.forward) == SIGNATURES[name]


@LAYERS
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(backend, name, reduction):
    """On a ragged batch with an empty transcript and poisoned padding, against this package's own losses."""
    batch = random_batch(4, 9, 4, 6, blank=BLANK, ragged=True).poisoned()
    leaves, ids, keywords = inputs(backend, name, batch)
    loss = getattr(backend.rnnt.layers, name)()(*leaves, *ids, **keywords, reduction=reduction)
    wanted = REDUCTIONS[reduction](own_losses(backend, name, leaves, ids, BLANK), ids[2])
    torch.testing.assert_close(loss, wanted, rtol=1e-14, atol=0)
    for grad, other in zip(*(torch.autograd.grad(value.sum(), leaves) for value in (loss, wanted))):
        assert_within_budget("gradient", grad, other)
        assert (grad[~batch.cells.to(backend.device)] == 0).all()


@LAYERS
def test_the_defaults_are_transformers(backend, name):
    leaves, ids, keywords = inputs(backend, name, random_batch(3, 6, 3, 5, blank=BLANK, ragged=True))
    layer, default = getattr(backend.rnnt.layers, name)(), SIGNATURES[name].split("'")[1]
    assert torch.equal(layer(*leaves, *ids, **keywords), layer(*leaves, *ids, **keywords, reduction=default))


def test_sigma(backend):
    leaves, ids, keywords = inputs(backend, "TDTLoss", random_batch(3, 6, 3, 5, blank=BLANK, ragged=True))
    loss = backend.rnnt.layers.TDTLoss()(*leaves, *ids, **keywords, sigma=0.1, reduction="none")
    assert torch.equal(loss, backend.rnnt.tdt_loss(*leaves, *ids, DURATIONS, BLANK, 0.1, "none"))


@LAYERS
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_but_empty_transcripts(backend, name, reduction):
    """No label to divide by: it counts as one."""
    batch = random_batch(2, 5, 0, 6, blank=BLANK)
    leaves, ids, keywords = inputs(backend, name, batch)
    loss = getattr(backend.rnnt.layers, name)()(*leaves, *ids, **keywords, reduction=reduction)
    losses = own_losses(backend, name, leaves, ids, BLANK)
    assert losses.isfinite().all()
    wanted = {"none": losses, "sum": losses.sum(), "mean_volume": losses.sum()}.get(reduction, losses.mean())
    torch.testing.assert_close(loss, wanted, rtol=1e-14, atol=0)
    assert all(grad.isfinite().all() and grad.any() for grad in torch.autograd.grad(loss.sum(), leaves))


@LAYERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_logits(backend, name, dtype):
    leaves, ids, keywords = inputs(backend, name, random_batch(2, 6, 3, 5, blank=BLANK).to(dtype))
    loss = getattr(backend.rnnt.layers, name)()(*leaves, *ids, **keywords)
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(grad.dtype == dtype for grad in torch.autograd.grad(loss, leaves))


@LAYERS
@pytest.mark.parametrize("reduction", ["mean", "mean_volume"])
def test_compiled(backend, name, reduction):
    """can_torch_compile promises one whole graph, forward and backward; without it the graph breaks at the layer."""
    torch._dynamo.reset()
    layer = getattr(backend.rnnt.layers, name)()
    leaves, ids, keywords = inputs(backend, name, random_batch(3, 6, 3, 5, blank=BLANK, ragged=True))

    def step(*tensors):
        return layer(*tensors, **keywords, reduction=reduction)

    compiled = torch.compile(step, fullgraph=layer.can_torch_compile, backend="aot_eager")
    losses = [compiled(*leaves, *ids), step(*leaves, *ids)]
    assert_within_budget("loss", *(loss.detach()[None] for loss in losses))
    for grads in zip(*(torch.autograd.grad(loss, leaves) for loss in losses)):
        assert_within_budget("gradient", *grads)


@LAYERS
def test_errors(backend, name):
    layer = getattr(backend.rnnt.layers, name)()
    leaves, ids, keywords = inputs(backend, name, random_batch(2, 6, 3, 5, blank=BLANK))
    with pytest.raises(
        ValueError, match="reduction must be one of mean_volume, mean_batch, mean, sum, none, got 'avg'"
    ):
        layer(*leaves, *ids, **keywords, reduction="avg")
    with pytest.raises(ValueError, match=r"blank must be in \[-5, 5\), got 5"):
        layer(*leaves, *ids, **(keywords | {"blank_token_id": 5}))
    with pytest.raises(ValueError, match=r"labels must have shape \[2, 3\]"):
        layer(*leaves, ids[0][:, :2], *ids[1:], **keywords)


# ---- beside transformers


@pytest.fixture(scope="module")
def transformers():
    """It imports torchaudio wherever there is one."""
    with contextlib.suppress(ImportError):
        torchaudio_cpu.load()
    return importlib.import_module("transformers")


@pytest.fixture
def theirs(transformers, name):
    """transformers' loss. That of RNN-T is torchaudio's."""
    if name == "TDTLoss":
        return importlib.import_module("transformers.loss.loss_tdt").tdt_loss
    try:
        torchaudio_cpu.load()
    except ImportError as error:
        assert not os.environ.get("CI"), f"continuous integration has to have torchaudio: {error}"
        pytest.skip(f"torchaudio cannot be had: {error}")
    return importlib.import_module("transformers.loss.loss_rnnt").rnnt_loss


def tiny_parakeet(transformers, name: str) -> torch.nn.Module:
    encoder = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
        "num_mel_bins": 16, "subsampling_conv_channels": 4, "dropout": 0.0, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "layerdrop": 0.0,
    }  # fmt: skip
    options = {
        "vocab_size": 9, "blank_token_id": 8, "pad_token_id": 8, "decoder_hidden_size": 12, "num_decoder_layers": 1,
        "encoder_config": encoder,
    }  # fmt: skip
    if name == "RNNTLoss":
        return transformers.ParakeetForRNNT(transformers.ParakeetRNNTConfig(**options))
    return transformers.ParakeetForTDT(transformers.ParakeetTDTConfig(**options, durations=DURATIONS))


@LAYERS
def test_the_signatures_are_transformers(theirs, name):
    assert bare(theirs) == SIGNATURES[name]


@LAYERS
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_parakeet_gets_the_same_loss_and_gradients(backend, transformers, theirs, name, reduction):
    model = tiny_parakeet(transformers, name).to(backend.device)
    layer = getattr(backend.rnnt.layers, name)()
    labels = torch.tensor([[1, 2, 3, 4, 5], [7, 0, 8, 8, 8], [6, 6, 1, 2, 8]])  # 8 pads
    batch = {
        "input_features": torch.randn(3, 96, 16),
        "attention_mask": torch.arange(96) < torch.tensor([[96], [60], [77]]),
        "decoder_input_ids": torch.nn.functional.pad(labels, (1, 0), value=8),
        "labels": labels,
    }
    batch = {key: tensor.to(backend.device) for key, tensor in batch.items()}

    def loss_and_grads():
        loss = model(**batch, reduction=reduction).loss
        return loss.detach(), torch.autograd.grad(loss.sum(), list(model.parameters()))

    their_loss, their_grads = loss_and_grads()
    calls = []

    def ours(labels, label_lengths, **keywords):
        calls.append(reduction)
        return layer(targets=labels, target_lengths=label_lengths, **keywords)

    model.loss_function = ours
    loss, grads = loss_and_grads()
    assert calls and loss.dtype == their_loss.dtype
    torch.testing.assert_close(loss, their_loss, rtol=1e-5, atol=0)
    scale = max(grad.abs().max() for grad in their_grads)
    for parameter, grad, their in zip(dict(model.named_parameters()), grads, their_grads):
        assert (grad - their).abs().max() <= 1e-4 * scale, parameter


# What follows compares nothing: transformers 5.24 is wrong there, which a later one may not be.


def their_grads(theirs, leaves, ids, keywords):
    loss = theirs(*(x.cpu() for x in leaves), *(tensor.int().cpu() for tensor in ids), **keywords)
    return torch.autograd.grad(loss.sum(), leaves)


@LAYERS
def test_an_empty_transcript_in_a_mean(backend, theirs, name):
    """transformers divides its loss by 0; here the other utterances go on training."""
    batch = random_batch(2, 6, 3, 5, blank=BLANK).to(torch.float32)._replace(label_lengths=torch.tensor([3, 0]))
    leaves, ids, keywords = inputs(backend, name, batch)
    keywords["reduction"] = "mean"
    assert any(grad.isnan().any() for grad in their_grads(theirs, leaves, ids, keywords))
    loss = getattr(backend.rnnt.layers, name)()(*leaves, *ids, **keywords)
    assert loss.isfinite() and all(grad.isfinite().all() for grad in torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("name", ["TDTLoss"])
def test_durations_without_0(backend, theirs, name):
    """Cells that no path reaches make transformers' gradients NaN, though the loss is finite."""
    leaves, ids, keywords = inputs(backend, name, random_batch(2, 8, 2, 5, blank=BLANK).to(torch.float32))
    leaves[1] = leaves[1].detach()[..., :2].clone().requires_grad_()
    keywords["durations"] = [1, 2]
    assert any(grad.isnan().any() for grad in their_grads(theirs, leaves, ids, keywords))
    loss = backend.rnnt.layers.TDTLoss()(*leaves, *ids, **keywords)
    assert loss.isfinite() and all(grad.isfinite().all() for grad in torch.autograd.grad(loss, leaves))


@LAYERS
def test_without_a_path(backend, theirs, name):
    """A masked label leaves no path: +inf with gradient 0 for that utterance alone; transformers' gradients are NaN."""
    batch = random_batch(2, 6, 3, 5, blank=BLANK).to(torch.float32)
    batch.x[0, :, 1, batch.labels[0, 1]] = -INF
    leaves, ids, keywords = inputs(backend, name, batch)
    keywords["reduction"] = "none"
    assert any(grad.isnan().any() for grad in their_grads(theirs, leaves, ids, keywords))
    loss = getattr(backend.rnnt.layers, name)()(*leaves, *ids, **keywords)
    assert loss[0] == INF and loss[1].isfinite()
    for grad in torch.autograd.grad(loss.sum(), leaves):
        assert (grad[0] == 0).all() and grad[1].isfinite().all() and grad[1].any()
