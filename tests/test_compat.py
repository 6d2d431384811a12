"""The drop-ins: signatures, reductions and what each library means by its arguments. Vectors: what they publish."""

import doctest
import inspect
import re
from operator import attrgetter
from pathlib import Path

import peer_vectors as published
import pytest
import torch
from batches import Batch, random_batch
from cases import X1
from compare import assert_within_budget

ROOT = Path(__file__).resolve().parents[1]
WARP = "(acts, labels, act_lens, label_lens"
K2 = "(logits, symbols, termination_symbol, boundary=None, rnnt_type='regular', delay_penalty=0.0, reduction='mean'"
PACKED = "(logits, targets, logit_lengths, target_lengths"
# the libraries' own, without annotations: of a class, of its constructor and of its forward
SIGNATURES = {
    "torchaudio.rnnt_loss": f"{PACKED}, blank=-1, clamp=-1, reduction='mean', fused_log_softmax=True)",
    "torchaudio.RNNTLoss": ("(blank=-1, clamp=-1.0, reduction='mean', fused_log_softmax=True)", f"{PACKED})"),
    "warp_rnnt.rnnt_loss": "(log_probs, labels, frames_lengths, labels_lengths, average_frames=False, "
    "reduction='none', blank=0, gather=False, fastemit_lambda=0.0, compact=False)",
    "warprnnt_pytorch.rnnt_loss": f"{WARP}, blank=0, reduction='mean')",
    "warprnnt_pytorch.RNNTLoss": ("(blank=0, reduction='mean')", f"{WARP})"),
    "optimized_transducer.transducer_loss": f"{PACKED}, blank, from_log_softmax, one_sym_per_frame=False, "
    "reduction='mean')",
    "optimized_transducer.TransducerLoss": (
        "(blank, reduction='mean')",
        f"{PACKED}, from_log_softmax, one_sym_per_frame=False)",
    ),
    "nemo.RNNTLoss": (
        "(num_classes, reduction='mean_batch', loss_name='default', loss_kwargs=None)",
        "(log_probs, targets, input_lengths, target_lengths)",
    ),
    "nemo.RNNTLossNumba": ("(blank=0, reduction='mean', fastemit_lambda=0.0, clamp=-1)", f"{WARP})"),
    "k2.rnnt_loss": f"{K2})",
    "fast_rnnt.rnnt_loss": f"{K2}, return_grad=False)",
    "speechbrain.transducer_loss": "(logits, targets, input_lens, target_lens, blank_index, reduction='mean', "
    "use_torchaudio=True)",
}


def bare(function) -> str:
    """A signature without its annotations and self."""
    parameters = inspect.signature(function).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters if p.name != "self"]))


def public(backend) -> list[str]:
    modules = {name: getattr(backend.rnnt.compat, name) for name in backend.rnnt.compat.__all__}
    return [
        f"{name}.{key}"
        for name, module in modules.items()
        for key, value in vars(module).items()
        if inspect.isroutine(value) or inspect.isclass(value)
        if value.__module__ == module.__name__ and not key.startswith("_")
    ]


def test_every_drop_in_is_here_and_in_the_guide(backend):
    assert sorted(public(backend)) == sorted(SIGNATURES)
    guide = (ROOT / "docs" / "migration.md").read_text()
    assert [name for name in SIGNATURES if f"compat.{name}" not in guide] == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(backend, name):
    ours = attrgetter(name)(backend.rnnt.compat)
    if inspect.isclass(ours):
        assert issubclass(ours, torch.nn.Module)
        assert (bare(ours.__init__), bare(ours.forward)) == SIGNATURES[name]
    else:
        assert bare(ours) == SIGNATURES[name]


@pytest.mark.parametrize("name", SIGNATURES)
def test_examples(backend, name):
    """They run, and each docstring says what differs on purpose."""
    documented = attrgetter(name)(backend.rnnt.compat)
    assert "Example:" in documented.__doc__
    assert "Differs:" in documented.__doc__ or "`rnnt_loss` as a module" in documented.__doc__
    (test,) = doctest.DocTestFinder(recurse=False).find(documented, name)
    test.globs = {"torch": torch, "compat": backend.rnnt.compat}
    report = []
    results = doctest.DocTestRunner().run(test, out=report.append)
    assert results.attempted and not results.failed, "".join(report)


def flat(labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([row[:n] for row, n in zip(labels, lengths.tolist())])


def packed(function):
    """A call of packed rows, of a padded batch."""
    return lambda rnnt, x, labels, T, U, blank, **keywords: function(
        rnnt, rnnt.pack_rows(x, T, U), labels, T, U, blank, **keywords
    )


def boundary(T: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
    return torch.stack([0 * U, 0 * T, U, T], 1).long()


def relative(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    return lengths / max(1, longest)


# each drop-in called with logits, labels, their lengths and a blank
CALLS = {
    "torchaudio.rnnt_loss": lambda r, *b, **k: r.compat.torchaudio.rnnt_loss(*b, **k),
    "torchaudio.RNNTLoss": lambda r, *b, **k: r.compat.torchaudio.RNNTLoss(b[4], **k)(*b[:4]),
    "torchaudio, log-probabilities": lambda r, x, *b, **k: r.compat.torchaudio.rnnt_loss(
        x.log_softmax(-1), *b, fused_log_softmax=False, **k
    ),
    "warp_rnnt.rnnt_loss": lambda r, x, y, T, U, blank, **k: r.compat.warp_rnnt.rnnt_loss(
        x.log_softmax(-1), y, T, U, blank=blank, **k
    ),
    "warp_rnnt, gathered": lambda r, x, y, T, U, blank, **k: r.compat.warp_rnnt.rnnt_loss(
        x.log_softmax(-1), y, T, U, blank=blank, gather=True, **k
    ),
    "warp_rnnt, two columns": lambda r, x, y, T, U, blank, **k: r.compat.warp_rnnt.rnnt_loss(
        two_columns(x.log_softmax(-1), y, blank), y, T, U, blank=-1, **k
    ),
    "warp_rnnt, compact": packed(
        lambda r, x, y, T, U, blank, **k: r.compat.warp_rnnt.rnnt_loss(
            x.log_softmax(-1), flat(y, U), T, U, blank=blank, compact=True, **k
        )
    ),
    "warprnnt_pytorch.rnnt_loss": lambda r, *b, **k: r.compat.warprnnt_pytorch.rnnt_loss(*b, **k),
    "warprnnt_pytorch.RNNTLoss": lambda r, *b, **k: r.compat.warprnnt_pytorch.RNNTLoss(b[4], **k)(*b[:4]),
    "optimized_transducer.transducer_loss": packed(
        lambda r, *b, **k: r.compat.optimized_transducer.transducer_loss(*b, False, **k)
    ),
    "optimized_transducer, log-probabilities": packed(
        lambda r, x, *b, **k: r.compat.optimized_transducer.transducer_loss(x.log_softmax(-1), *b, True, **k)
    ),
    "optimized_transducer.TransducerLoss": packed(
        lambda r, *b, **k: r.compat.optimized_transducer.TransducerLoss(b[4], **k)(*b[:4], from_log_softmax=False)
    ),
    "nemo.RNNTLoss": lambda r, *b, **k: r.compat.nemo.RNNTLoss(b[4], **k)(*b[:4]),
    "nemo.RNNTLossNumba": lambda r, *b, **k: r.compat.nemo.RNNTLossNumba(b[4], **k)(*b[:4]),
    "k2.rnnt_loss": lambda r, x, y, T, U, blank, **k: r.compat.k2.rnnt_loss(x, y, blank, boundary(T, U), **k),
    "fast_rnnt.rnnt_loss": lambda r, x, y, T, U, blank, **k: r.compat.fast_rnnt.rnnt_loss(
        x, y, blank, boundary(T, U), **k
    ),
    "speechbrain.transducer_loss": lambda r, x, y, T, U, blank, **k: r.compat.speechbrain.transducer_loss(
        x, y, relative(T, x.shape[1]), relative(U, y.shape[1]), blank, **k
    ),
}
USUAL = ("none", "mean", "sum")
REDUCTIONS = {"warp_rnnt": (*USUAL, None), "optimized_transducer": USUAL[1:]}
NEMO = (None, "mean", "sum", "mean_batch", "mean_volume")
REDUCED = [
    (name, reduction)
    for name in CALLS
    for reduction in (NEMO if name == "nemo.RNNTLoss" else REDUCTIONS.get(re.match(r"\w+", name)[0], USUAL))
]
BATCH = random_batch(4, 9, 4, 6, blank=2, ragged=True)


def two_columns(log_probs: torch.Tensor, labels: torch.Tensor, blank: int) -> torch.Tensor:
    ids = torch.nn.functional.pad(labels.long(), (0, 1), value=blank)[:, None, :, None]
    label = log_probs.gather(3, ids.expand(-1, log_probs.shape[1], -1, 1))
    return torch.cat([log_probs[..., blank, None], label], 3)


def wanted(name: str, reduction: str | None, losses: torch.Tensor, label_lengths: torch.Tensor) -> torch.Tensor:
    if reduction in (None, "none"):
        return losses
    if name == "nemo.RNNTLoss" and reduction == "mean":
        return (losses / label_lengths.clamp(min=1)).mean()
    if reduction == "mean_volume":
        return losses.sum() / label_lengths.sum()
    reduced = losses.sum() if reduction == "sum" else losses.mean()
    return reduced.view(1) if name.startswith("warprnnt_pytorch") or name == "nemo.RNNTLossNumba" else reduced


def on(backend, batch: Batch) -> tuple:
    """The leaf, the ids and blank."""
    return *(tensor.to(backend.device) for tensor in backend.leaf(batch)[:4]), batch.blank


@pytest.mark.parametrize("name, reduction", REDUCED)
def test_reductions(backend, name, reduction):
    """Losses and gradients of a ragged batch with an empty transcript, against this package's own losses."""
    arguments = on(backend, BATCH)
    loss = CALLS[name](backend.rnnt, *arguments, reduction=reduction)
    losses = backend.rnnt.rnnt_loss_from_logits(*arguments, reduction="none")
    reference = wanted(name, reduction, losses, arguments[3])
    torch.testing.assert_close(loss, reference, rtol=1e-13, atol=0)
    grad, other = (torch.autograd.grad(value.sum(), arguments[0])[0] for value in (loss, reference))
    assert_within_budget("gradient", grad, other)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtypes", [(torch.int32, torch.int32), (torch.int32, torch.int64)])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
def test_dtypes(backend, name, dtypes, x_dtype):
    x, labels, T, U, blank = on(backend, BATCH.to(x_dtype))
    loss = CALLS[name](backend.rnnt, x, labels.to(dtypes[0]), T.to(dtypes[1]), U.to(dtypes[1]), blank)
    own = CALLS[name](backend.rnnt, x, labels, T, U, blank)
    assert loss.dtype == torch.float32 and torch.equal(loss, own)
    assert torch.autograd.grad(loss.sum(), x)[0].dtype == x_dtype


LOGITS = [name for name in CALLS if not re.search("warp_rnnt|optimized|log-prob|speechbrain", name)]


@pytest.mark.parametrize("name", LOGITS)
def test_more_padding_than_the_longest(backend, name):
    """Of NaN: its gradient is 0 and the loss is what it is without."""
    poisoned, plain = on(backend, BATCH.poisoned()), on(backend, BATCH)
    loss, other = (CALLS[name](backend.rnnt, *arguments) for arguments in (poisoned, plain))
    assert torch.equal(loss, other)
    (grad,) = torch.autograd.grad(loss.sum(), poisoned[0])
    assert (grad[~BATCH.poisoned().cells.to(grad.device)] == 0).all()


TO_LAST_DIGIT = {"rtol": 0, "atol": 1.01e-6}
VECTORS = {  # drop-ins that take the blank: a batch, its losses, the gradient of their sum for logits
    "four frames": (published.FOUR_FRAMES, published.FOUR_FRAMES_LOSSES, published.FOUR_FRAMES_GRADIENT),
    "two frames": (X1, published.TWO_AND_THREE_LOSSES[:1], published.TWO_FRAMES_GRADIENT),
    "blank last": (published.BLANK_LAST, published.BLANK_LAST_LOSSES, published.BLANK_LAST_GRADIENT),
}


@pytest.mark.parametrize("name", [name for name in CALLS if "two columns" not in name])
@pytest.mark.parametrize("case", VECTORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_published_logits(backend, name, case, dtype):
    """torchaudio's unit tests, warp-transducer's and NeMo's, of every drop-in."""
    batch, losses, gradient = VECTORS[case]
    if name.startswith("warp_rnnt"):  # where -1 has another meaning
        batch = batch._replace(blank=batch.blank % batch.x.shape[3])
    x, *rest = on(backend, batch.to(dtype))
    loss = CALLS[name](backend.rnnt, x, *rest, reduction="sum")
    torch.testing.assert_close(loss.double().sum().cpu(), torch.tensor(losses).double().sum(), **TO_LAST_DIGIT)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(grad.double().cpu(), gradient, **TO_LAST_DIGIT)


@pytest.mark.parametrize("fastemit_lambda", [0.0, 0.5])
@pytest.mark.parametrize("options", [{}, {"gather": True}, {"compact": True}, {"average_frames": True}], ids=str)
@pytest.mark.parametrize("case", ["two and three", "four frames", "one frame", "no labels"])
def test_published_log_probs(backend, case, options, fastemit_lambda):
    """warp-rnnt's unit tests, and warp-transducer's below its binding; FastEmit raises the gradient of labels alone."""
    batch, losses, gradient = {
        "two and three": (published.TWO_AND_THREE, published.TWO_AND_THREE_LOSSES,
                          published.TWO_AND_THREE_LOG_PROBS_GRADIENT),
        "four frames": (published.FOUR_FRAMES, published.FOUR_FRAMES_LOSSES, published.FOUR_FRAMES_LOG_PROBS_GRADIENT),
        "one frame": (published.ONE_FRAME, published.ONE_FRAME_LOSSES,
                      -torch.eye(5).double()[[1, 2, 0]].view(1, 1, 3, 5)),
        "no labels": (published.NO_LABELS, published.NO_LABELS_LOSSES, -torch.eye(5).double()[:1].view(1, 1, 1, 5)),
    }[case]  # fmt: skip
    x, labels, T, U, blank = on(backend, batch.front(False))
    log_probs, ids = (backend.rnnt.pack_rows(x, T, U), flat(labels, U)) if "compact" in options else (x, labels)
    loss = backend.rnnt.compat.warp_rnnt.rnnt_loss(
        log_probs, ids, T, U, blank=blank, fastemit_lambda=fastemit_lambda, **options
    )
    frames = batch.input_lengths if "average_frames" in options else torch.ones(len(losses))
    torch.testing.assert_close(loss.cpu(), torch.tensor(losses).double() / frames, **TO_LAST_DIGIT)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    emphasis = torch.where(torch.arange(gradient.shape[3]) == blank, 1, 1 + fastemit_lambda)
    torch.testing.assert_close(grad.cpu() / emphasis, gradient / frames.view(-1, 1, 1, 1), **TO_LAST_DIGIT)
