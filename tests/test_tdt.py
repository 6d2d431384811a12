"""TDT and multi-blank: known values, every path on small lattices, the twin's recursion on larger ones, edges."""

import math

import pytest
import torch
from arc_oracles import recursion, row_scores, tdt_arcs, walk
from batches import INF, NAN, random_batch
from cases import X1, X1_DURATIONS
from compare import FLOORS, assert_opcheck, assert_within_budget
from reference import Arc

DURATIONS = [[1], [0, 1], [0, 1, 2], [2, 1], [3, 0, 5], [4, 2, 1, 0], [*range(16)]]
WIDE_AND_NARROW = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def big_blank_arcs(batch, durations, logits, sigma=0.0):
    log_probs = logits.double().log_softmax(-1) - sigma
    blank, label = row_scores(batch, log_probs)
    index = batch.blank % logits.shape[3]
    big = [Arc(d, 0, log_probs[..., index - 1 - i]) for i, d in enumerate(durations)]
    return [Arc(1, 0, blank), Arc(0, 1, label), *big]


def heads(B, T, U, V, D, seed=0, **options):
    batch = random_batch(B, T, U, V, seed=seed, **options)
    frames = torch.randn(B, T, U + 1, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    return batch, frames


def run(backend, function, batch, *more, upstream=1.0, **options):
    """Losses, and gradients of all float tensors, of a function of (x, *more floats, labels, ...)."""
    floats = [x.detach().to(backend.device).clone().requires_grad_() for x in (batch.x, *more)]
    ids = [tensor.to(backend.device) for tensor in batch[1:4]]
    loss = function(*floats, *ids, **{"reduction": "none", **options})
    grads = torch.autograd.grad((loss * upstream).sum(), floats)
    return loss.detach().cpu(), *(grad.cpu() for grad in grads)


def test_the_known_values(backend):
    for sigma, wanted in [(0.0, 5.571556316816581), (0.05, 5.724600567824256)]:
        loss, tokens, frames = run(backend, backend.rnnt.tdt_loss, X1, X1_DURATIONS, durations=[0, 1, 2], sigma=sigma)
        assert loss.item() == pytest.approx(wanted, rel=1e-12)
        if not sigma:
            row = [0.160531, -0.691625, 0.177031, 0.177031, 0.177031]
            assert tokens[0, 0, 0].tolist() == pytest.approx(row, abs=1e-6)
            assert frames[0, 0, 0].tolist() == pytest.approx([-0.312986, -0.019239, 0.332225], abs=1e-6)


@pytest.mark.parametrize(
    "T, V, durations, wanted", [(3, 5, [0, 1, 2], 6.361705521747351), (4, 5, [0, 1, 2, 3, 4], 7.236380242150712)]
)
def test_equal_logits(backend, T, V, durations, wanted):
    batch = random_batch(1, T, 2, V, scale=0.0)
    frames = torch.zeros(1, T, 3, len(durations), dtype=torch.float64)
    loss, *_ = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=durations)
    assert loss.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("durations", DURATIONS, ids=str)
@pytest.mark.parametrize("T, U", [(1, 0), (1, 1), (2, 2), (3, 1), (4, 2), (5, 0)])
def test_every_path_of_tdt(backend, T, U, durations):
    batch, frames = heads(1, T, U, 4, len(durations), blank=2)
    loss, *grads = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=durations, blank=2, sigma=0.1)
    leaves = [batch.x.clone().requires_grad_(), frames.clone().requires_grad_()]
    arcs = tdt_arcs(batch, durations, *leaves, sigma=0.1)
    wanted = walk([(dt, du, score[0]) for dt, du, score in arcs], T, U, ends_by_blank=True)
    assert_within_budget("loss", loss, wanted[None].detach())
    if wanted == INF:
        assert all((grad == 0).all() for grad in grads)
    else:
        for name, got, grad in zip(("tokens", "durations"), grads, torch.autograd.grad(wanted, leaves), strict=True):
            assert_within_budget(name, got, grad)


@pytest.mark.parametrize("durations", [[], [2], [2, 4], [3, 2]], ids=str)
@pytest.mark.parametrize("T, U", [(1, 0), (1, 2), (3, 1), (4, 2), (5, 0)])
@pytest.mark.parametrize("blank", [3, -1, 5])
def test_every_path_of_multi_blank(backend, T, U, durations, blank):
    V = 6
    index = blank % V
    batch = random_batch(1, T, U, V, blank=index)
    batch = batch._replace(labels=torch.zeros_like(batch.labels))
    loss, grad = run(backend, backend.rnnt.multiblank_rnnt_loss, batch, big_blank_durations=durations, blank=blank,
                     sigma=0.1)  # fmt: skip
    leaf = batch.x.clone().requires_grad_()
    arcs = big_blank_arcs(batch, durations, leaf, sigma=0.1)
    wanted = walk([(dt, du, score[0]) for dt, du, score in arcs], T, U, ends_by_blank=False)
    assert_within_budget("loss", loss, wanted[None].detach())
    assert_within_budget("gradient", grad, torch.autograd.grad(wanted, leaf)[0])


@pytest.mark.parametrize("dtype", WIDE_AND_NARROW, ids=str)
@pytest.mark.parametrize("clamp, fastemit_lambda", [(None, 0.0), (None, 0.3), (0.02, 0.3)])
def test_tdt_of_a_ragged_batch(backend, dtype, clamp, fastemit_lambda):
    durations = [0, 1, 2, 4]
    batch, frames = heads(3, 30, 9, 21, len(durations), ragged=True)
    batch, frames = batch.to(dtype), frames.to(dtype)
    options = {"durations": durations, "sigma": 0.05, "clamp": clamp, "fastemit_lambda": fastemit_lambda}
    padded = batch.poisoned()
    poison = padded.x.new_full((*padded.x.shape[:3], len(durations)), NAN)
    poison[padded.cells] = frames[batch.cells]
    upstream = torch.tensor([2.0, 1.0, -0.5], device=backend.device)
    loss, *grads = run(backend, backend.rnnt.tdt_loss, padded, poison, upstream=upstream, **options)

    leaves = [batch.x.double().requires_grad_(), frames.double().requires_grad_()]
    arcs = tdt_arcs(batch, durations, *leaves, sigma=0.05)
    wanted, surrogate = recursion(arcs, batch, ends_by_blank=True, label_weight=1 + fastemit_lambda)
    floor = FLOORS[dtype]
    assert_within_budget("loss", loss, wanted)
    for name, got, grad in zip(("tokens", "durations"), grads, torch.autograd.grad(surrogate, leaves), strict=True):
        assert got.dtype == dtype and (got[~padded.cells] == 0).all()
        own_floor = floor
        if clamp is not None:  # errors are as large as they were before the clamp
            own_floor = floor and floor * float(grad.abs().max() / clamp)
            grad = grad.clamp(-clamp, clamp)
        got = got[:, : grad.shape[1], : grad.shape[2]]
        assert_within_budget(name, got, grad * upstream.cpu()[:, None, None, None], floor=own_floor)


@pytest.mark.parametrize("dtype", WIDE_AND_NARROW, ids=str)
@pytest.mark.parametrize("clamp, fastemit_lambda", [(None, 0.0), (0.02, 0.0), (None, 0.3), (0.02, 0.3)])
def test_multi_blank_of_a_ragged_batch(backend, dtype, clamp, fastemit_lambda):
    batch = random_batch(3, 30, 9, 21, ragged=True, blank=20)
    batch = batch._replace(labels=batch.labels.clamp(max=17)).to(dtype)
    loss, grad = run(backend, backend.rnnt.multiblank_rnnt_loss, batch.poisoned(), big_blank_durations=[2, 5], blank=20,
                     sigma=0.05, clamp=clamp, fastemit_lambda=fastemit_lambda)  # fmt: skip
    leaf = batch.x.double().requires_grad_()
    wanted, surrogate = recursion(big_blank_arcs(batch, [2, 5], leaf, 0.05), batch, ends_by_blank=False,
                                  label_weight=1 + fastemit_lambda)  # fmt: skip
    (truth,) = torch.autograd.grad(surrogate, leaf)
    truth = truth if clamp is None else truth.clamp(-clamp, clamp)
    floor = FLOORS[dtype]
    assert_within_budget("loss", loss, wanted)
    assert_within_budget("gradient", grad[:, :30, :10], truth, floor=floor)


@pytest.mark.parametrize("inplace_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_one_tensor_gives_what_two_give(backend, dtype, inplace_grad):
    durations = [2, 0, 1]
    batch, frames = heads(3, 20, 6, 33, 3, ragged=True)
    batch, frames = batch.to(dtype), frames.to(dtype)
    options = {"durations": durations, "blank": -1, "clamp": 0.1, "fastemit_lambda": 0.1}
    batch = batch._replace(labels=batch.labels.clamp(max=31))
    loss, *grads = run(backend, backend.rnnt.tdt_loss, batch, frames, **options)

    def joint(x, *ids, **options):
        return backend.rnnt.tdt_loss_from_joint_logits(x * 1 if inplace_grad else x, *ids, **options)

    whole = batch._replace(x=torch.cat([batch.x, frames], -1))
    got, grad = run(backend, joint, whole, **options, inplace_grad=inplace_grad)
    assert torch.equal(got, loss) and torch.equal(grad, torch.cat(grads, -1))


@pytest.mark.parametrize("V, dtype", [(300, torch.float32), (1090, torch.float32), (1090, torch.float16)], ids=str)
def test_one_tensor_of_a_size_that_is_written_past_the_cache(backend, V, dtype):
    B, T, U, durations = 2, 1200000 // (2 * 13 * V), 12, [0, 2, 1]
    backend.needs(B, T, U + 1, V)
    batch, frames = heads(B, T, U, V, 3, ragged=True)
    batch, frames = batch.to(dtype), frames.to(dtype)
    loss, *grads = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=durations)
    whole = batch._replace(x=torch.cat([batch.x, frames], -1))
    got, grad = run(backend, backend.rnnt.tdt_loss_from_joint_logits, whole, durations=durations)
    assert torch.equal(got, loss) and torch.equal(grad, torch.cat(grads, -1))


def test_durations_of_one_frame_are_the_topologies_of_old(backend):
    """durations [1]: labels and blanks take a frame each, and the last arc is a blank."""
    batch = random_batch(2, 8, 3, 5, ragged=True)
    loss, *_ = run(backend, backend.rnnt.tdt_loss, batch, torch.randn(2, 8, 4, 1), durations=[1])
    arcs = [Arc(dt, du, s) for (dt, du), s in zip(((1, 0), (1, 1)), row_scores(batch, batch.x.log_softmax(-1)))]
    assert_within_budget("loss", loss, recursion(arcs, batch, ends_by_blank=True)[0])


def test_any_strides(backend):
    batch, frames = heads(2, 6, 3, 5, 3)
    wanted = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2])

    def turned(tokens, frames, *ids, **options):
        tokens, frames = (x.movedim(-1, 0).contiguous().movedim(0, -1) for x in (tokens, frames))
        return backend.rnnt.tdt_loss(tokens, frames, *ids, **options)

    for got, same in zip(run(backend, turned, batch, frames, durations=[0, 1, 2]), wanted, strict=True):
        assert torch.equal(got, same)


def test_without_a_path(backend):
    batch, frames = heads(2, 4, 1, 5, 2)
    batch = batch._replace(input_lengths=torch.tensor([4, 3]))
    loss, *grads = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[2, 4])
    assert loss[1] == INF and loss[0].isfinite()  # two twos; three frames are no sum of these
    assert all((grad[1] == 0).all() and grad[0].any() for grad in grads)
    loss, *grads = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[2, 4], zero_infinity=True)
    assert loss[1] == 0 and all((grad[1] == 0).all() for grad in grads)


def test_a_nan_stays_in_its_utterance(backend):
    batch, frames = heads(3, 6, 2, 5, 3)
    clean = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2])
    for head in (0, 1):
        for bad in (NAN, INF):
            x, d = batch.x.clone(), frames.clone()
            (x, d)[head][1, 5, 0, 1] = bad
            found = run(backend, backend.rnnt.tdt_loss, batch._replace(x=x), d, durations=[0, 1, 2])
            assert found[0][1].isnan() and found[1][1].isnan().any() and found[2][1].isnan().any()
            for got, wanted in zip(found, clean):
                assert torch.equal(got[[0, 2]], wanted[[0, 2]])


def test_a_bad_length_on_a_device_costs_its_utterance_both_gradients(backend):
    if backend.data_errors == "raise":
        pytest.skip("it is an error here")
    batch, frames = heads(2, 4, 2, 5, 3)
    batch = batch._replace(input_lengths=torch.tensor([4, 9]))
    loss, *grads = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2])
    for tensor in (loss, *grads):
        assert tensor[0].isfinite().all() and tensor[1].isnan().all()


def test_fastemit_and_its_scale(backend):
    batch, frames = heads(2, 9, 4, 6, 3)
    plain = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2])
    fast = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2], fastemit_lambda=0.25)
    scaled = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2], fastemit_lambda=0.25,
                 scale_loss=True)  # fmt: skip
    assert torch.equal(plain[0], fast[0]) and not torch.equal(plain[1], fast[1])
    torch.testing.assert_close(scaled[0], 1.25 * plain[0])
    assert torch.equal(scaled[1], fast[1]) and torch.equal(scaled[2], fast[2])


def test_omega(backend):
    batch, frames = heads(2, 9, 4, 6, 3)
    rnnt, grad = run(backend, backend.rnnt.rnnt_loss_from_logits, batch)
    always = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2], omega=1.0)
    torch.testing.assert_close(always[0], rnnt)
    torch.testing.assert_close(always[1], grad)
    assert (always[2] == 0).all()
    draws = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        loss = run(backend, backend.rnnt.tdt_loss, batch, frames, durations=[0, 1, 2], omega=0.5, generator=generator)
        draws.append(bool((loss[0] - rnnt).abs().max() < 1e-9))
    assert 3 <= sum(draws) <= 17


def test_the_modules(backend):
    batch, frames = heads(2, 9, 4, 6, 3)
    loss = backend.rnnt.tdt_loss(batch.x, frames, *batch[1:4], durations=[0, 1, 2], sigma=0.1)
    module = backend.rnnt.TDTLoss([0, 1, 2], sigma=0.1)
    assert torch.equal(module(batch.x, frames, *batch[1:4]), loss) and "sigma=0.1" in repr(module)
    joint = backend.rnnt.TDTLoss([0, 1, 2], sigma=0.1, joint=True)
    both = torch.cat([batch.x, frames], -1)
    assert torch.equal(joint(both, *batch[1:4]), loss)
    labels, T_b, U_b = batch[1:4]
    assert torch.equal(joint(both, labels=labels, input_lengths=T_b, label_lengths=U_b), loss)
    with pytest.raises(TypeError, match="joint=False takes the 5 tensors of tdt_loss, got 4"):
        module(both, *batch[1:4])
    with pytest.raises(TypeError, match="joint=True takes the 4 tensors of tdt_loss_from_joint_logits, got 5"):
        joint(batch.x, frames, *batch[1:4])


def test_a_second_derivative_is_refused(backend):
    batch, frames = heads(1, 4, 2, 5, 3)
    x = batch.x.requires_grad_()
    loss = backend.rnnt.tdt_loss(x, frames, *batch[1:4], durations=[0, 1, 2])
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        (loss + (grad**2).sum()).backward()


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"durations": [0, 1]}, ValueError, r"duration_logits must have shape \[1, 4, 3, 2\], got \[1, 4, 3, 3\]"),
        ({"durations": [0, 1, 1]}, ValueError, r"durations must be different.*\[0, 1, 1\]"),
        ({"durations": [0, 1, -2]}, ValueError, "durations must be different and at least 0"),
        ({"durations": [0, 1, 2.5]}, TypeError, "durations must be a sequence of ints"),
        ({"durations": [True, 2, 3]}, TypeError, "durations must be a sequence of ints"),
        ({"durations": b"012"}, TypeError, "durations must be a sequence of ints"),
        ({"durations": {0: 1, 1: 2, 2: 3}}, TypeError, "durations must be a sequence of ints"),
        ({"durations": range(20)}, ValueError, "durations must be at most 16, got 20"),
        ({"sigma": math.nan}, ValueError, "sigma must be a finite float"),
        ({"fastemit_lambda": -1.0}, ValueError, "fastemit_lambda must be a finite float >= 0"),
        ({"sigma": 10**400}, ValueError, "sigma must be a finite float, got 1000"),
        ({"omega": 10**400}, ValueError, "omega must be a finite float >= 0, got 1000"),
        ({"omega": 1.5}, ValueError, r"omega must be in \[0, 1\]"),
        ({"clamp": 0.0}, ValueError, "clamp must be None or a float > 0"),
        ({"reduction": "average"}, ValueError, "reduction must be one of"),
    ],
)
def test_errors(backend, options, error, message):
    batch, frames = heads(1, 4, 2, 5, 3)
    with pytest.raises(error, match=message):
        backend.rnnt.tdt_loss(batch.x, frames, *batch[1:4], **{"durations": [0, 1, 2], **options})
    with pytest.raises(ValueError, match="durations must be 1 to 16, one of them above 0"):
        backend.rnnt.tdt_loss(batch.x, frames[..., :1], *batch[1:4], durations=[0])
    with pytest.raises(ValueError, match="blank must be at least 2"):
        backend.rnnt.multiblank_rnnt_loss(batch.x, *batch[1:4], big_blank_durations=[2, 3], blank=1)


def test_a_label_must_not_be_a_big_blank(backend):
    batch = random_batch(2, 4, 2, 5, blank=4)
    labels = torch.tensor([[3, 0], [1, 2]])
    options = {"big_blank_durations": [2], "blank": 4}
    function = backend.rnnt.multiblank_rnnt_loss
    if torch.device(backend.device).type != "cpu":
        loss, grad = run(backend, function, batch._replace(labels=labels), **options)
        assert loss[0].isnan() and grad[0].isnan().any() and loss[1].isfinite() and grad[1].isfinite().all()
    elif backend.data_errors == "raise":
        long = batch._replace(labels=labels, label_lengths=torch.tensor([2, 3]))
        with pytest.raises(RuntimeError, match=r"label_lengths\[1\] must be in"):
            run(backend, function, long, **options)
    with pytest.raises(RuntimeError, match=r"labels\[0, 0\] must not be a big blank"):
        run(backend, function, batch._replace(labels=labels), **options, validate=True)
    short = batch._replace(labels=labels, label_lengths=torch.tensor([0, 2]))  # padding may be anything
    assert run(backend, function, short, **options)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("B, U", [(2, 3), (1, 0), (0, 2)])
@pytest.mark.parametrize("normalizer", ["softmax", "none"])
def test_opcheck(backend, dtype, B, U, normalizer):
    batch, logits = heads(max(B, 1), 4, U, 7, 2, ragged=True)
    batch = batch._replace(labels=batch.labels.clamp(max=4))  # the others of 7 columns are the tail
    x, *ids = (tensor.to(backend.device) for tensor in batch.to(dtype).take(range(B))[:4])
    ops, logits = backend.rnnt.ops, logits[:B].to(backend.device, dtype)

    assert_opcheck(ops.score, x.requires_grad_(), *ids, 0, normalizer, False, 0, 2)
    scores, softmax, tail = (tensor.detach() for tensor in ops.score(x, *ids, 0, normalizer, False, 0, 2))
    assert torch.equal(tail[batch.take(range(B)).cells], x[batch.take(range(B)).cells][..., 5:])
    for needed in (True, False):
        assert_opcheck(
            ops.tdt_scores, scores.requires_grad_(needed), logits.requires_grad_(), *ids[1:], [0, 2], normalizer
        )
    x, scores, logits = (tensor.detach() for tensor in (x, scores, logits))
    of_arcs = ops.tdt_scores(scores, logits, *ids[1:], [0, 2], normalizer)
    assert_opcheck(ops.tdt_scores_backward, of_arcs, logits, *ids[1:], [0, 2], normalizer)
    for clamp_tail in (True, False):
        rest = (x.new_ones(B), x, *ids, softmax, scores, 0, normalizer, 0.1, 0, logits, clamp_tail)
        assert_opcheck(ops.score_backward, *rest)
        assert_opcheck(ops.score_backward_out, torch.empty_like(x), *rest)


def test_gradcheck_of_the_ops(backend):
    """Of rows with a tail, and of arcs with durations; padding is neither read nor has it a gradient."""
    batch, logits = heads(2, 3, 2, 6, 3, ragged=True)
    batch = batch._replace(labels=batch.labels.clamp(max=3))
    x, *ids = (tensor.to(backend.device) for tensor in batch[:4])
    ops, logits, lengths = backend.rnnt.ops, logits.to(backend.device).requires_grad_(), ids[1:]
    tokens = torch.randn(2, *x.shape[:3], dtype=torch.float64, device=backend.device, requires_grad=True)
    cells = batch.cells.to(backend.device)

    def rows(x):
        scores, _, tail = ops.score(x, *ids, 0, "softmax", False, 0, 2)
        return scores, tail

    def arcs(tokens, logits, normalizer):
        return ops.tdt_scores(tokens, logits, *lengths, [2, 0, 1], normalizer)

    assert torch.autograd.gradcheck(rows, x.requires_grad_())
    for normalizer in ("softmax", "none"):
        assert torch.autograd.gradcheck(arcs, (tokens, logits, normalizer))
        grads = torch.autograd.grad(arcs(tokens, logits, normalizer).sum(), [tokens, logits])
        assert (grads[0][:, ~cells] == 0).all() and (grads[1][~cells] == 0).all()


@pytest.mark.parametrize("dtype, rel", [(torch.float64, 1e-14), (torch.float32, 3e-7)], ids=str)
def test_scores_of_sure_durations(backend, dtype, rel):
    """What the most probable one lacks of certainty is not lost in a sum with 1."""
    ids = [tensor.to(backend.device) for tensor in random_batch(1, 1, 0, 5)[2:4]]
    for rest in (-0.5, -3.0, -16.0, -23.0, -40.0, -80.0):
        logits = torch.tensor([0.0, rest, -INF], dtype=dtype, device=backend.device).view(1, 1, 1, 3)
        tokens = logits.new_zeros(2, 1, 1, 1)
        scores = backend.rnnt.ops.tdt_scores(tokens, logits, *ids, [1, 2, 4], "softmax")
        lacks = math.log1p(math.exp(rest))
        assert scores.flatten().tolist() == 2 * [
            pytest.approx(-lacks, rel=rel), pytest.approx(rest - lacks, rel=rel), -INF
        ]  # fmt: skip


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"scores": torch.zeros(3, 1, 4, 3)}, r"scores must have shape \[2, 1, 4, 3\], got \[3, 1, 4, 3\]"),
        ({"scores": torch.zeros(2, 1, 4, 3).double()}, "scores must be Float, got Double"),
        ({"logits": torch.zeros(1, 4, 3)}, r"logits must have shape \[B, T, U \+ 1, D\], got \[1, 4, 3\]"),
        ({"logits": torch.zeros(1, 4, 3, 2).half()}, "logits must be Float or Double, got Half"),
        ({"logits": torch.zeros(1, 4, 3, 17)}, "logits must be of 1 to 16 durations, got 17"),
        ({"durations": [1, 2, 3]}, "durations must be 2, as the logits are of, got 3"),
        ({"normalizer": "hat"}, "normalizer must be softmax or none, got hat"),
    ],
)
def test_errors_of_the_ops(backend, changed, message):
    ids = [tensor.to(backend.device) for tensor in random_batch(1, 4, 2, 5)[1:4]]
    wanted = {"scores": torch.zeros(2, 1, 4, 3), "logits": torch.zeros(1, 4, 3, 2), "durations": [0, 1],
              "normalizer": "softmax", **changed}  # fmt: skip
    scores, logits = (wanted[name].to(backend.device) for name in ("scores", "logits"))
    with pytest.raises(RuntimeError, match=message):
        backend.rnnt.ops.tdt_scores(scores, logits, *ids[1:], wanted["durations"], wanted["normalizer"])
    x = torch.zeros(1, 4, 3, 20, device=backend.device)
    with pytest.raises(RuntimeError, match=r"tail must be in \[0, 16\], got 17"):
        backend.rnnt.ops.score(x, *ids, 0, "softmax", False, 0, 17)
    with pytest.raises(RuntimeError, match=r"tail must be in \[0, 0\], got 1"):
        backend.rnnt.ops.score(x.view(12, 20), *ids, 0, "softmax", False, 4, 1)
