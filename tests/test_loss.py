"""Loss functions: values, gradients, reductions, zero_infinity and clamp."""

import math

import pytest
import torch
from batches import INF, NAN, Batch, collate, edit
from cases import (
    BY_NAME,
    COMBINATIONS,
    EQUAL,
    FRONT_ENDS,
    NARROW_COMBINATIONS,
    NO_LABEL_1,
    TOPOLOGIES,
    X1,
    X1_LOSS,
    X3,
    X3_LOSS,
)
from compare import assert_same_bits, assert_within_budget
from reference import Twin

BOTH = collate(X1, X3)
MIXED = collate(X1, NO_LABEL_1, X3)


# ---- values and gradients


@pytest.mark.kernels_ci
@pytest.mark.parametrize("case, from_logits, topology", COMBINATIONS)
def test_value_and_gradient(backend, case, from_logits, topology):
    batch = case.batch(from_logits)
    loss, grad = backend.loss_and_grad(batch, from_logits, topology=topology)
    truth = Twin(batch, from_logits, topology)
    assert_within_budget("loss", loss, truth.loss, floor=case.floor)
    assert_within_budget("gradient", grad, truth.grad, floor=case.floor)
    if (known := case.known(topology)) is not None:
        assert loss.tolist() == pytest.approx(known, rel=case.rel, abs=case.rel)
    if from_logits and topology == "standard":
        for index, row in case.rows.items():
            assert grad[index].tolist() == pytest.approx(row, abs=6e-7)


@pytest.mark.parametrize("case, from_logits, topology, dtype", NARROW_COMBINATIONS)
def test_value_and_gradient_of_narrower_dtypes(backend, case, from_logits, topology, dtype):
    batch = case.batch(from_logits, dtype)
    loss, grad = backend.loss_and_grad(batch, from_logits, topology=topology)
    assert loss.dtype == torch.float32
    truth, twin = (Twin(batch, from_logits, topology, acc) for acc in (torch.float64, torch.float32))
    assert_within_budget("loss", loss, truth.loss, twin.loss)
    assert_within_budget("gradient", grad, truth.grad, twin.grad.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", EQUAL, ids=lambda case: case.name)
def test_equal_logits_keep_six_digits(backend, case, dtype):
    loss, grad = backend.loss_and_grad(case.batch(True, dtype))
    assert loss.item() == pytest.approx(case.standard[0], rel=1e-6)
    wide_loss, wide_grad = backend.loss_and_grad(case.batch(True))
    assert wide_loss.item() == pytest.approx(case.standard[0], rel=1e-12)
    assert_within_budget("gradient", grad, wide_grad, wide_grad.to(dtype), floor=1e-5)
    eps, tiny = torch.finfo(dtype).eps, max(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, 1e-37)
    assert (grad.double().sum(-1).abs() <= eps * grad.double().abs().sum(-1) + tiny * grad.shape[3]).all()


def test_one_class_costs_nothing_and_not_minus_nothing(backend):
    batch = BY_NAME["one_class"].batch(True)
    for from_logits in (True, False):
        loss, grad = backend.loss_and_grad(batch.front(from_logits), from_logits)
        assert loss.item() == 0 and math.copysign(1, loss.item()) == 1
        assert torch.equal(grad, torch.full_like(grad, 0.0 if from_logits else -1.0))


def test_repeated_labels_are_not_collapsed(backend):
    repeated, single = X1._replace(labels=torch.tensor([[1, 1]])), X1._replace(label_lengths=torch.tensor([1]))
    assert backend.loss_and_grad(repeated)[0].item() == pytest.approx(4.730875574341801, rel=1e-12)
    assert backend.loss_and_grad(single)[0].item() != pytest.approx(4.730875574341801, rel=1e-3)


@FRONT_ENDS
def test_ids_and_lengths_of_either_width(backend, from_logits):
    wanted = backend.loss_and_grad(BOTH.front(from_logits), from_logits)
    for widths in [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]:
        x, *ids, blank = BOTH.front(from_logits)
        ids = [tensor.to((torch.int32, torch.int64)[w]) for tensor, w in zip(ids, widths)]
        got = backend.loss_and_grad(Batch(x, *ids, blank), from_logits)
        assert_same_bits(f"loss with {widths}", got[0], wanted[0])
        assert_same_bits(f"gradient with {widths}", got[1], wanted[1])


def test_ids_on_the_cpu_and_of_any_stride(backend):
    wanted = backend.loss_and_grad(BOTH, poisoned=False)[0]
    x, labels, T_b, U_b, _ = BOTH
    labels, T_b, U_b = labels.t().contiguous().t(), T_b[:, None].expand(-1, 2)[:, 1], U_b.repeat_interleave(2)[::2]
    got = backend.rnnt.rnnt_loss_from_logits(x.to(backend.device), labels, T_b, U_b, reduction="none")
    assert_same_bits("loss", got.cpu(), wanted)


# ---- reductions


@FRONT_ENDS
@pytest.mark.parametrize(
    "reduction, value, weights",
    [
        ("none", [X1_LOSS, X3_LOSS], [1, 1]),
        ("sum", 10.232391817, [1, 1]),
        ("mean", 5.116195908, [0.5, 0.5]),
        ("mean_volume", 2.558097954, [0.25, 0.25]),
    ],
)
def test_reductions(backend, from_logits, reduction, value, weights):
    batch = BOTH.front(from_logits)
    loss, grad = backend.loss_and_grad(batch, from_logits, reduction=reduction)
    assert loss.tolist() == pytest.approx(value, abs=1e-9)
    each = backend.loss_and_grad(batch, from_logits)[1]
    wanted = each * torch.tensor(weights, dtype=torch.float64)[:, None, None, None]
    assert_within_budget("gradient", grad, wanted)


def test_the_default_reduction_is_the_mean_and_the_default_blank_0(backend):
    x, *ids, _ = BOTH
    for function, scores in [(backend.rnnt.rnnt_loss, BOTH.front(False).x), (backend.rnnt.rnnt_loss_from_logits, x)]:
        loss = function(*(tensor.to(backend.device) for tensor in (scores, *ids)))
        assert loss.item() == pytest.approx(5.116195908, abs=1e-9)


@pytest.mark.parametrize("reduction, value", [("none", []), ("sum", 0.0), ("mean", NAN), ("mean_volume", 0.0)])
@FRONT_ENDS
@TOPOLOGIES
def test_empty_batch(backend, reduction, value, from_logits, topology):
    empty = BOTH.take([])
    loss, grad = backend.loss_and_grad(empty, from_logits, reduction=reduction, topology=topology)
    assert loss.tolist() == pytest.approx(value, nan_ok=True)
    assert grad.shape == empty.x.shape


def test_mean_volume_of_empty_targets_divides_by_one(backend):
    batch = BOTH._replace(label_lengths=torch.tensor([0, 0]))
    each = backend.loss_and_grad(batch)[0]
    assert backend.loss_and_grad(batch, reduction="mean_volume")[0].item() == pytest.approx(
        each.sum().item(), rel=1e-12
    )


# ---- zero_infinity and clamp


@pytest.mark.parametrize("reduction, factor", [("sum", 1), ("mean", 1 / 3), ("mean_volume", 1 / 6)])
@FRONT_ENDS
def test_zero_infinity_counts_an_impossible_utterance_as_zero(backend, reduction, factor, from_logits):
    batch = MIXED.front(from_logits)
    each, grads = backend.loss_and_grad(batch, from_logits, zero_infinity=True)
    assert each.tolist() == pytest.approx([X1_LOSS, 0, X3_LOSS], rel=1e-12) and each[1] == 0
    assert (grads[1] == 0).all() and grads[0].any() and grads[2].any()
    loss, grad = backend.loss_and_grad(batch, from_logits, zero_infinity=True, reduction=reduction)
    assert loss.item() == pytest.approx((X1_LOSS + X3_LOSS) * factor, rel=1e-12)
    assert_within_budget("gradient", grad, grads * factor)
    assert backend.loss_and_grad(batch, from_logits, reduction=reduction)[0] == INF


def test_zero_infinity_leaves_nan(backend):
    loss, grad = backend.loss_and_grad(edit(MIXED, NAN, (0, 0, 0, 0)), zero_infinity=True)
    assert loss.isnan().tolist() == [True, False, False]
    assert grad[0, :2].isnan().all() and (grad[1] == 0).all()


@FRONT_ENDS
@TOPOLOGIES
@pytest.mark.parametrize("upstream", [1.0, 10.0, -2.0])
def test_clamp_bounds_the_gradient_before_the_upstream_one(backend, from_logits, topology, upstream):
    batch = BOTH.front(from_logits)
    loss, grad = backend.loss_and_grad(batch, from_logits, upstream=upstream, clamp=0.1, topology=topology)
    truth = Twin(batch, from_logits, topology)
    assert_within_budget("loss", loss, truth.loss)
    assert_within_budget("gradient", grad, truth.grad.clamp(-0.1, 0.1) * upstream)
    if from_logits and topology == "standard":
        assert (grad[0, 0, 0] / upstream).tolist() == pytest.approx([-0.1, -0.1, 0.1, 0.1, 0.1], rel=1e-12)


def test_clamp_comes_before_the_factor_of_the_reduction(backend):
    grad = backend.loss_and_grad(BOTH, clamp=0.1, reduction="mean")[1]
    assert_within_budget("gradient", grad, Twin(BOTH, True).grad.clamp(-0.1, 0.1) / 2)


def test_a_wide_clamp_changes_no_bit_and_leaves_nan(backend):
    batch = edit(MIXED, NAN, (2, 0, 0, 0))
    wanted, got = backend.loss_and_grad(batch), backend.loss_and_grad(batch, clamp=2)
    assert_same_bits("gradient", got[1], wanted[1])
    assert backend.loss_and_grad(batch, clamp=0.1)[1][2].isnan().all()
