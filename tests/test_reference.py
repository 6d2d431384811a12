"""The oracles themselves: recursion against enumeration and known values, and a budget that can be exceeded."""

import math

import pytest
import torch
from batches import INF, NAN, edit, random_batch
from cases import COMBINATIONS, X1, X1_BLANK, X1_LABEL, X3, probabilities
from compare import assert_same_bits, assert_within_budget
from reference import TOPOLOGIES, Twin, enumerate_paths

SHAPES = [(1, 0), (1, 1), (1, 3), (3, 1), (2, 2), (4, 3), (3, 3)]


@pytest.mark.parametrize("case, from_logits, topology", [c for c in COMBINATIONS if not c.values[0].large])
def test_twin_gives_the_known_values(case, from_logits, topology):
    twin = Twin(case.batch(from_logits), from_logits, topology)
    assert not twin.grad.isnan().any()
    if (known := case.known(topology)) is not None:
        assert twin.loss.tolist() == pytest.approx(known, rel=case.rel, abs=case.rel)
    if from_logits and topology == "standard":
        for index, row in case.rows.items():
            assert twin.grad[index].tolist() == pytest.approx(row, abs=6e-7)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("T, U", SHAPES)
def test_twin_is_the_sum_over_paths(T, U, topology):
    batch = random_batch(1, T, U, 4, blank=2)
    logits = batch.x.clone().requires_grad_()
    loss = enumerate_paths(logits.log_softmax(-1)[0], batch.labels[0].tolist(), batch.blank, topology)
    twin = Twin(batch, True, topology)
    assert_within_budget("loss", twin.loss, loss[None].detach())
    if T >= U or topology == "standard":
        assert_within_budget("gradient", twin.grad, torch.autograd.grad(loss, logits)[0])
    else:
        assert (twin.grad == 0).all()


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("cell", [(t, u, k) for t in range(2) for u in range(3) for k in range(3)])
def test_twin_with_minus_infinity_is_the_sum_over_paths(cell, topology):
    batch = edit(X1, -INF, (0, *cell))
    paths = enumerate_paths(batch.x.log_softmax(-1)[0], [1, 2], 0, topology)
    twin = Twin(batch, True, topology)
    assert_within_budget("loss", twin.loss, paths[None])
    assert twin.grad.isfinite().all() and (twin.grad.any() == paths.isfinite())


def test_constrained_topology_gives_the_known_values():
    losses = [Twin(batch, True, "constrained").loss.item() for batch in (X1, X3, probabilities())]
    assert losses == pytest.approx([5.67267938586955, 6.484090751438496, -math.log(0.163632)], rel=1e-12)


def test_posteriors_of_the_first_case():
    blank, label = Twin(X1, True).lattice.posteriors
    torch.testing.assert_close(blank[0], torch.tensor(X1_BLANK, dtype=torch.float64), atol=6e-7, rtol=0)
    torch.testing.assert_close(label[0], torch.tensor(X1_LABEL, dtype=torch.float64), atol=6e-7, rtol=0)


@pytest.mark.parametrize("wrong", [1 + 1e-5, 0.0, NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_budget_can_be_exceeded(wrong, dtype):
    truth = torch.ones(2, 3, dtype=torch.float64)
    got = truth.to(dtype, copy=True)
    assert_within_budget("x", got, truth)
    got[1, 2] = wrong
    with pytest.raises(AssertionError, match=r"x\[1, 2\]: wanted 1.0, got"):
        assert_within_budget("x", got, truth)


@pytest.mark.parametrize("wanted", [NAN, INF])
def test_budget_wants_the_same_infinities_and_nans(wanted):
    truth = torch.tensor([1.0, wanted], dtype=torch.float64)
    assert_within_budget("x", truth.float(), truth)
    for wrong in (0.0, 1e30, -INF, NAN if wanted == INF else INF):
        with pytest.raises(AssertionError, match=r"x\[1\]"):
            assert_within_budget("x", torch.tensor([1.0, wrong]), truth)


def test_budget_follows_the_twin():
    truth, twin = torch.ones(1, dtype=torch.float64), torch.tensor([1.001])
    assert_within_budget("x", torch.tensor([0.9981]), truth, twin)
    with pytest.raises(AssertionError):
        assert_within_budget("x", torch.tensor([0.9979]), truth, twin)


def test_same_bits_can_differ():
    with pytest.raises(AssertionError, match=r"x\[0\]"):
        assert_same_bits("x", torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]))
