"""NeMo's arguments, what its kernels do with them, and the ways that its joints call its loss."""

import pytest
import torch
from compare import assert_within_budget
from test_compat_semantics import BLANK, B, inputs


@pytest.mark.parametrize("reduction", [None, "sum", "mean_batch"])
def test_nemos_fastemit_and_clamp(backend, reduction):
    """The loss counts 1 + lambda times, clamp bounds each utterance's own gradient, FastEmit's part included."""
    x, ids = inputs(backend)
    options = {"fastemit_lambda": 0.25, "clamp": 0.1}
    loss = backend.rnnt.compat.nemo.RNNTLoss(BLANK, reduction, loss_kwargs=options)(x, *ids)
    losses = backend.rnnt.rnnt_loss_from_logits(x, *ids, BLANK, "none", fastemit_lambda=0.25)
    torch.testing.assert_close(
        loss, {None: 1.25 * losses, "sum": 1.25 * losses.sum()}.get(reduction, 1.25 * losses.mean())
    )
    (grad,) = torch.autograd.grad(loss.sum(), x)
    (unbounded,) = torch.autograd.grad(losses.sum(), x)
    assert (unbounded.abs() > 0.1).any()
    torch.testing.assert_close(grad, unbounded.clamp(-0.1, 0.1) / (B if reduction == "mean_batch" else 1))
    numba = backend.rnnt.compat.nemo.RNNTLossNumba(BLANK, "none", **options)(x, *ids)
    assert torch.equal(numba, 1.25 * losses) or torch.allclose(numba, 1.25 * losses, rtol=1e-15)
    assert torch.equal(torch.autograd.grad(numba.sum(), x)[0], unbounded.clamp(-0.1, 0.1))


def test_nemos_other_losses(backend):
    """loss_name chooses; loss_kwargs and num_classes become the arguments of tdt and multi-blank."""
    x, ids = inputs(backend)
    ids[0] = torch.full_like(ids[0], 2)  # a token, neither blank nor the big blank
    nemo, rnnt = backend.rnnt.compat.nemo.RNNTLoss, backend.rnnt
    usual = nemo(BLANK)(x, *ids)
    for name in ("default", "warprnnt_numba", "warprnnt", "pytorch"):
        assert torch.equal(nemo(BLANK, loss_name=name)(x, *ids), usual)
    with_emphasis = {"fastemit_lambda": 0.1, "clamp": 0.2, "sigma": 0.05}
    ours = {**with_emphasis, "scale_loss": True, "reduction": "none"}
    durations = {"durations": [0, 1]}
    tdt = nemo(BLANK, None, "tdt", {**durations, **with_emphasis, "omega": 0.0})(x, *ids)
    assert torch.equal(tdt, rnnt.tdt_loss_from_joint_logits(x, *ids, **durations, blank=BLANK, **ours))
    plain = nemo(BLANK, None, "tdt_pytorch", {**durations, "sigma": 0.05})(x, *ids)
    assert torch.equal(plain, rnnt.tdt_loss_from_joint_logits(x, *ids, [0, 1], BLANK, 0.05, "none"))
    big = {"big_blank_durations": [2]}
    multi = nemo(BLANK, None, "multiblank_rnnt", {**big, **with_emphasis})(x, *ids)
    assert torch.equal(multi, rnnt.multiblank_rnnt_loss(x, *ids, **big, blank=BLANK, **ours))
    plain = nemo(BLANK, None, "multiblank_rnnt_pytorch", {**big, "sigma": 0.05})(x, *ids)
    assert torch.equal(plain, rnnt.multiblank_rnnt_loss(x, *ids, [2], BLANK, 0.05, "none"))


def test_nemos_wider_targets(backend):
    x, ids = inputs(backend)
    criterion = backend.rnnt.compat.nemo.RNNTLoss(BLANK, None)
    numba = backend.rnnt.compat.nemo.RNNTLossNumba(BLANK, "none")
    wider = torch.nn.functional.pad(ids[0], (0, 3), value=2147480000)
    for loss in (criterion, numba):
        assert torch.equal(loss(x, wider, *ids[1:]), criterion(x, *ids))


@pytest.mark.parametrize("dtypes", [(torch.int16, torch.int64), (torch.float32, torch.float32)], ids=str)
def test_nemos_casts(backend, dtypes):
    x, ids = inputs(backend)
    criterion = backend.rnnt.compat.nemo.RNNTLoss(BLANK, "mean")
    targets, lengths = ids[0].to(dtypes[0]), [tensor.to(dtypes[1]) for tensor in ids[1:]]
    assert torch.equal(criterion(x, targets, *lengths), criterion(x, *ids))


def by_parts(criterion, x, targets, input_lengths, target_lengths, size=2):
    """As NeMo's joints that fuse joint and loss call it: every part as wide as its own longest."""
    reduction, losses, lengths = criterion.reduction, [], []
    for b in range(0, len(x), size):
        part, T_b, U_b = slice(b, b + size), input_lengths[b : b + size], target_lengths[b : b + size]
        logits = x[part, : int(T_b.max()), : int(U_b.max()) + 1]
        criterion.reduction = None
        losses.append(criterion(log_probs=logits, targets=targets[part], input_lengths=T_b, target_lengths=U_b))
        lengths.append(U_b)
        criterion.reduction = reduction
    return criterion.reduce(losses, lengths)


@pytest.mark.parametrize("reduction", [None, "mean", "sum", "mean_batch", "mean_volume"])
def test_nemos_fused_joint(backend, reduction):
    x, ids = inputs(backend)
    criterion = backend.rnnt.compat.nemo.RNNTLoss(BLANK, reduction, loss_kwargs={"fastemit_lambda": 0.1})
    loss, whole = by_parts(criterion, x, *ids), criterion(x, *ids)
    assert torch.equal(loss, whole)
    assert_within_budget("gradient", *(torch.autograd.grad(value.sum(), x)[0] for value in (loss, whole)))


def test_nemos_sampled_joint(backend):
    """Its logits are those of some classes, the first of them blank, which is set for the call."""
    x, ids = inputs(backend)
    criterion = backend.rnnt.compat.nemo.RNNTLoss(BLANK)
    usual = criterion(x, *ids)
    classes = torch.tensor([BLANK, *(v for v in range(x.shape[3]) if v != BLANK)], device=x.device)
    blank, criterion._loss.blank = criterion._loss.blank, 0
    sampled = by_parts(criterion, x[..., classes], classes.argsort()[ids[0]], *ids[1:])
    criterion._loss.blank = blank
    torch.testing.assert_close(sampled, usual, rtol=1e-12, atol=0)
    assert torch.equal(criterion(x, *ids), usual)


def test_nemos_kwargs_stay_what_they_are(backend):
    options = {"fastemit_lambda": 0.1}
    backend.rnnt.compat.nemo.RNNTLoss(BLANK, loss_kwargs=options)
    assert options == {"fastemit_lambda": 0.1}
