"""inplace_grad=True: the gradient over the logits' memory, and who is told that the logits are gone."""

import pytest
import torch
from batches import random_batch
from cases import DTYPES, TOPOLOGIES
from compare import assert_same_bits

RAGGED = random_batch(3, 6, 4, 9, ragged=True)


def overwritten(backend, batch, make=lambda w: w * 2, **keywords):
    """The logits make(w) after backward, and the gradient at w."""
    w = backend.leaf(batch).x
    logits = make(w)
    loss = backend.loss(batch._replace(x=logits), reduction="sum", inplace_grad=True, **keywords)
    (grad,) = torch.autograd.grad(loss, w)
    return logits.detach(), grad


@TOPOLOGIES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("V", [1, 3, 15, 16, 17, 40, 300])
def test_the_gradient_takes_the_place_of_the_logits(backend, dtype, V, topology):
    batch = random_batch(3, 6, min(4, V - 1), V, ragged=True).to(dtype)
    logits, grad = overwritten(backend, batch, topology=topology)
    w = backend.leaf(batch).x
    loss = backend.loss(batch._replace(x=w * 2), reduction="sum", topology=topology)
    (wanted,) = torch.autograd.grad(loss, w)
    assert_same_bits("gradient", grad, wanted)
    assert_same_bits("logits", logits * 2, wanted)  # twice the gradient of 2 w at w


def test_any_rows_that_do_not_overlap(backend):
    wanted = overwritten(backend, RAGGED)[1]
    frames_first = overwritten(backend, RAGGED, lambda w: (w.transpose(0, 1) * 2).transpose(0, 1))[1]
    sliced = overwritten(backend, RAGGED, lambda w: torch.cat([w, w], 3)[..., :9] * 1 * 2)[1]
    assert_same_bits("frames first", frames_first, wanted)
    assert_same_bits("sliced", sliced, wanted)


def test_a_second_backward_meets_autograds_own_error(backend):
    logits = backend.leaf(RAGGED).x * 2
    loss = backend.loss(RAGGED._replace(x=logits), inplace_grad=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_whoever_saved_the_logits_is_told(backend):
    w = backend.leaf(RAGGED).x
    loss = backend.loss(RAGGED._replace(x=w.tanh()), inplace_grad=True)  # tanh saves its result
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "wanted, make",
    [
        ("leaf", lambda w: w.detach().requires_grad_()),
        ("view of one", lambda w: w.view(w.shape)),
        ("view of one", lambda w: w.transpose(0, 1).transpose(0, 1)[:]),
        ("expanded or overlapping", lambda w: (w[:, :1] * 1).expand_as(w)),
        ("contiguous rows", lambda w: (w.transpose(2, 3) * 1).contiguous().transpose(2, 3)),
        ("expanded or overlapping", lambda w: (w * 1).flatten().as_strided(w.shape, (9, 9, 9, 1))),
    ],
)
def test_what_cannot_be_overwritten_is_refused(backend, wanted, make):
    with pytest.raises(ValueError, match=f"logits must .*{wanted}"):
        overwritten(backend, RAGGED, make)


def test_without_a_gradient_nothing_is_asked(backend):
    x = RAGGED.x.to(backend.device)
    before = x.clone()
    loss = backend.loss(RAGGED._replace(x=x), reduction="none", inplace_grad=True)
    assert_same_bits("loss", loss, backend.loss(RAGGED._replace(x=x), reduction="none"))
    assert_same_bits("logits", x, before)


def test_compiled(backend):
    def function(w):
        return backend.loss(RAGGED._replace(x=w * 2), reduction="sum", inplace_grad=True)

    w = backend.leaf(RAGGED).x
    (wanted,) = torch.autograd.grad(function(w), w)
    (got,) = torch.autograd.grad(torch.compile(function, fullgraph=True)(w), w)
    assert_same_bits("gradient", got, wanted)
