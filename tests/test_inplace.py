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


LARGE = [(16, 0), (17, 0), (250, 0), (257, 0), (1030, 0), (2051, 0), (29, 5), (251, 5), (1024, 16)]


@pytest.mark.parametrize("V, tail", LARGE)
def test_large_gradients_leave_by_whole_lines(backend, V, tail):
    """On the CPU they go past the cache, in place they do not: the same bits, in each row, and none outside of them."""
    T, U = 40, 9
    B = 1 + (1 << 20) // (T * (U + 1) * V)
    backend.needs(B, T, U + 1, V + tail)
    batch = random_batch(B, T, U, V, ragged=True).to(torch.float32)
    ids = [tensor.to(backend.device) for tensor in batch[1:4]]
    more = torch.randn(B, T, U + 1, tail)
    x = torch.cat([batch.x, more], -1).to(backend.device)
    scores, softmax, _ = backend.rnnt.ops.score(x, *ids, 0, "softmax", False, 0, tail)
    posteriors, of_tail = torch.rand_like(scores), torch.randn_like(more, device=backend.device)
    posteriors[:, 0, 3:] = 0  # rows of zeros
    upstream = torch.ones(B, device=backend.device)
    rest = (upstream, x, *ids, softmax, posteriors, 0, "softmax", None, 0, of_tail if tail else None)
    wanted = backend.rnnt.ops.score_backward(*rest)
    in_place = x.clone()
    backend.rnnt.ops.score_backward_out(in_place, upstream, in_place, *rest[2:])
    assert_same_bits("in place", in_place.cpu(), wanted.cpu())
    for offset in (1, 5):
        memory = torch.full((x.numel() + 32,), 7.0, device=backend.device)
        out = memory[offset : offset + x.numel()].view(x.shape)
        backend.rnnt.ops.score_backward_out(out, *rest)
        assert_same_bits("elsewhere", out.cpu(), wanted.cpu())
        assert (memory[:offset] == 7).all() and (memory[offset + x.numel() :] == 7).all()
    frames_first = torch.full((T, B, U + 1, V + tail), 7.0, device=backend.device)  # rows do not follow each other
    backend.rnnt.ops.score_backward_out(frames_first.transpose(0, 1), *rest)
    assert_same_bits("frames first", frames_first.transpose(0, 1).cpu(), wanted.cpu())


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
