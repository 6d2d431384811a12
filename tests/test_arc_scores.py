"""What holds on every way through arc scores as it does in the fused kernels: exactness, bits, edges, refusals."""

import pytest
import torch
from batches import INF, Batch, collate, random_batch
from cases import NO_LABEL_1, X3
from compare import assert_same_bits

DURATIONS, BIG_BLANKS = [0, 1, 2, 3, 4], [2, 3]


def sigma(rnnt, x, bias, *ids, **options):
    return rnnt.rnnt_loss_from_logits(x, *ids, 0, "none", sigma=0.1, blank_bias=bias[..., 0], **options)


def tdt(rnnt, x, heads, *ids, **options):
    return rnnt.tdt_loss(x, heads, *ids, DURATIONS, 0, reduction="none", **options)


def joint(rnnt, x, heads, *ids, **options):
    return rnnt.tdt_loss_from_joint_logits(torch.cat([x, heads], -1), *ids, DURATIONS, 0, reduction="none", **options)


def multiblank(rnnt, x, _, *ids, **options):
    x = torch.cat([x[..., 1:], x[..., :1]], -1)  # classes 0 and 1 of labels become the last but the blank
    return rnnt.multiblank_rnnt_loss(x, ids[0] - 1, *ids[1:], BIG_BLANKS, -1, reduction="none", **options)


WAYS = pytest.mark.parametrize("way", [sigma, tdt, joint, multiblank])


def inputs_of(backend, batch: Batch, dtype=torch.float32, seed=0):
    """Logits, five more columns, ids, on the device; labels leave the last two classes to big blanks."""
    g = torch.Generator().manual_seed(seed)
    more = torch.randn(*batch.x.shape[:3], 5, generator=g, dtype=torch.float64)
    labels = batch.labels.clamp(max=batch.x.shape[3] - 3)
    tensors = [batch.x.to(dtype), more.to(dtype), labels, *batch[2:4]]
    x, more, *ids = (tensor.to(backend.device) for tensor in tensors)
    return x.detach().requires_grad_(), more.detach().requires_grad_(), ids


def gradients(backend, way, x, more, ids, upstream=1.0, **options):
    loss = way(backend.rnnt, x, more, *ids, **options)
    upstream = torch.as_tensor(upstream, dtype=loss.dtype, device=loss.device).expand_as(loss)
    return torch.autograd.grad(loss, [x, more], upstream, allow_unused=True, materialize_grads=True)


@WAYS
@pytest.mark.parametrize("peak", [6.0, 10.0, 14.0, 20.0])
def test_a_confident_model_keeps_its_gradient(backend, way, peak):
    """One path has nearly all: whatever is left of a gradient is not a difference from 1."""
    g = torch.Generator().manual_seed(0)
    T, U = 40, 5
    labels = torch.randint(1, 6, (1, U), generator=g)
    x = 0.5 * torch.randn(1, T, U + 1, 8, generator=g, dtype=torch.float64)
    x[..., 0] += peak
    for u in range(U):
        x[0, 7 * u + 3, u, labels[0, u]] += 2 * peak
    batch = Batch(x, labels, torch.tensor([T]), torch.tensor([U]), 0)
    found = {}
    for dtype in (torch.float32, torch.float64):
        x, more, ids = inputs_of(backend, batch, dtype)
        with torch.no_grad():
            more[..., 1] += peak  # every duration is 1
            more.copy_(more.float()), x.copy_(x.float())
        found[dtype] = gradients(backend, way, x, more, ids)
    for name, got, wanted in zip(("x", "more"), *found.values(), strict=True):
        largest = wanted.abs().max()
        assert (got.double() - wanted).abs().max() <= 1e-5 * largest, name


@WAYS
def test_bits_depend_on_no_other_utterance_and_no_padding(backend, way):
    for seed in range(8):
        x, more, ids = inputs_of(backend, random_batch(3, 7, 4, 9, seed=seed, ragged=True), seed=seed)
        for b in range(3):
            T, U = int(ids[1][b]), int(ids[2][b])
            alone = [tensor[b : b + 1, :T, : U + 1].detach().requires_grad_() for tensor in (x, more)]
            own_ids = ids[0][b : b + 1, :U], ids[1][b : b + 1], ids[2][b : b + 1]
            assert_same_bits(
                "loss", way(backend.rnnt, *alone, *own_ids)[0], way(backend.rnnt, x, more, *ids)[b].detach()
            )
            together = gradients(backend, way, x, more, ids)
            for got, wanted in zip(gradients(backend, way, *alone, own_ids), together, strict=True):
                assert_same_bits("gradient", got[0], wanted[b, :T, : U + 1])


@WAYS
@pytest.mark.parametrize("of", ["x", "more"])
def test_a_second_derivative_is_refused(backend, way, of):
    x, more, ids = inputs_of(backend, random_batch(2, 4, 2, 7))
    chosen = {"x": x, "more": more}[of]
    if way is multiblank and of == "more":
        pytest.skip("it takes one tensor")
    others = [tensor if tensor is chosen else tensor.detach() for tensor in (x, more)]
    (grad,) = torch.autograd.grad(way(backend.rnnt, *others, *ids).sum(), chosen, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        grad.square().sum().backward()


@WAYS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_gradients_are_those_of_float32_rounded(backend, way, dtype):
    """Small ones too, if the upstream gradient lifts them: as GradScaler does. And a bound beyond the dtype is none."""
    x, more, ids = inputs_of(backend, random_batch(2, 9, 3, 7, scale=4.0), dtype)
    wide = [tensor.detach().float().requires_grad_() for tensor in (x, more)]
    for options in ({}, {"clamp": 1e5}):
        wanted = gradients(backend, way, *wide, ids, upstream=4096.0, **options)
        for got, exact in zip(gradients(backend, way, x, more, ids, upstream=4096.0, **options), wanted, strict=True):
            assert got.dtype == dtype  # on a GPU a row's sum goes in another order: the last bit may differ
            torch.testing.assert_close(got.float(), exact, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)


@WAYS
def test_changing_ids_before_backward_is_an_error(backend, way):
    for changed in range(3):
        x, more, ids = inputs_of(backend, random_batch(2, 5, 3, 8))
        if way is multiblank and changed == 0:
            continue  # its labels are this test's own
        loss = way(backend.rnnt, x, more, *ids)
        ids[changed].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.sum().backward()


@WAYS
@pytest.mark.parametrize("upstream", [INF, float("nan")])
def test_what_comes_from_upstream_stays_out_of_zeros(backend, way, upstream):
    """Where there is no path, and in padding."""
    batch = collate(NO_LABEL_1, X3)
    batch = batch._replace(x=torch.nn.functional.pad(batch.x, (0, 2), value=-1.0))  # room for big blanks
    x, more, ids = inputs_of(backend, batch)
    ids[0] = batch.labels.to(backend.device)
    loss = way(backend.rnnt, x, more, *ids).detach()
    found = gradients(backend, way, x, more, ids, upstream=torch.tensor([upstream, upstream]))
    cells = batch.cells.to(backend.device)
    for grad in found:
        assert (grad[~cells] == 0).all()
        assert all((grad[b] == 0).all() for b in range(2) if loss[b] == INF)
    assert (loss == INF).any()


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_lowest_number_masks_as_well_as_infinity(backend, way, dtype):
    """Of a class, of a duration, of both: the sum of two is less than the lowest."""
    batch = random_batch(2, 6, 3, 9)
    masked = batch.x.clone()
    masked[0, 1, 0, batch.labels[0, 0]] = masked[1, 2, 1, 0] = -INF
    for of_more in (False, True):
        found = []
        for mask in (-INF, torch.finfo(dtype).min, torch.finfo(dtype).min / 2):
            x, more, ids = inputs_of(backend, batch._replace(x=masked.to(dtype).clamp(min=mask)), dtype)
            if of_more and way in (tdt, joint):
                more = more.detach().clone()
                more[0, 1, 0, 1] = more[1, 2, 1, 4] = mask
                more.requires_grad_()
            found.append([way(backend.rnnt, x, more, *ids).detach(), *gradients(backend, way, x, more, ids)])
        for got in found[1:]:
            for tensor, wanted in zip(got, found[0], strict=True):
                assert tensor.isfinite().all()
                torch.testing.assert_close(tensor, wanted)


def test_forward_mode_is_refused(backend):
    alignment, lp = backend.rnnt.alignment, X3.x.log_softmax(-1).to(backend.device)
    ids = [tensor.to(backend.device) for tensor in X3[1:4]]
    bias = torch.zeros(lp.shape[:3], dtype=lp.dtype, device=lp.device)
    for name in ("posteriors", "expected_frames", "entropy"):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(bias, torch.ones_like(bias))
            with pytest.raises(NotImplementedError, match="forward-mode"):
                getattr(alignment, name)(lp, *ids, blank_bias=dual)
    heads = torch.zeros(*lp.shape[:3], 5, dtype=lp.dtype, device=lp.device)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(heads, torch.ones_like(heads))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            alignment.posteriors_tdt(lp, dual, *ids, DURATIONS)


def test_sequences_of_durations(backend):
    x, more, ids = inputs_of(backend, random_batch(2, 5, 3, 40))
    rnnt = backend.rnnt
    again = rnnt.multiblank_rnnt_loss(x, ids[0] - 1, *ids[1:], iter([2, 3]), -1)
    assert again == rnnt.multiblank_rnnt_loss(x, ids[0] - 1, *ids[1:], (2, 3), -1)
    blank, _ = rnnt.alignment.posteriors_tdt(x, more, *ids, iter(DURATIONS))
    assert blank.shape[-1] == 5
    for durations, error, words in [
        ({0, 1, 2, 3, 4}, TypeError, "durations must be a sequence of ints"),
        (iter([False, 1, 2, 3, 4]), TypeError, "durations must be a sequence of ints"),
        ([0, 1, 2, 3, 2**20], ValueError, "durations must be different and at least 0 and less than 1048576"),
        ([0, 1, 2, 3, 2**70], ValueError, "durations must be different and at least 0 and less than 1048576"),
        (range(17), ValueError, "durations must be at most 16, got 17"),
    ]:
        with pytest.raises(error, match=words):
            rnnt.tdt_loss(x, more, *ids, durations)
    with pytest.raises(ValueError, match="big_blank_durations must be at most 30, got 31"):
        rnnt.multiblank_rnnt_loss(x, ids[0] - 1, *ids[1:], range(1, 32), -1)
    with pytest.raises(TypeError, match="generator must be a torch.Generator or None, got int"):
        rnnt.tdt_loss(x, more, *ids, DURATIONS, omega=0.5, generator=5)
    with pytest.raises(TypeError, match="generator must be a torch.Generator or None, got int"):
        rnnt.alignment.sample_paths(x, *ids, from_logits=True, generator=5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_scores_of_log_probs_are_the_log_probs(backend, dtype):
    batch = random_batch(3, 5, 3, 6, ragged=True, scale=30.0).front(False).to(dtype)
    scores, softmax, _ = backend.rnnt.ops.score(*(x.to(backend.device) for x in batch[:4]), 0, "none", False)
    label = batch.x[:, :, :3].gather(3, batch.labels[:, None, :, None].expand(-1, 5, -1, -1))[..., 0]
    cells, with_label = batch.cells, batch.cells[:, :, 1:]
    assert torch.equal(scores[0].cpu()[cells], batch.x[..., 0][cells].to(scores.dtype)) and softmax.numel() == 0
    assert torch.equal(scores[1, :, :, :3].cpu()[with_label], label[with_label].to(scores.dtype))
    assert (scores[0].cpu()[~cells] == 0).all() and (scores[1, :, :, :3].cpu()[~with_label] == 0).all()


@pytest.mark.parametrize("normalizer", ["softmax", "hat"])
def test_a_sure_row_keeps_the_digits_of_its_score(backend, normalizer):
    """log p is near 0, and as exact as the distance to the others: not the rounded logarithm of a number near 1."""
    batch = random_batch(1, 60, 3, 40, seed=1)
    batch.x[..., 0] += torch.linspace(5, 40, 60, dtype=torch.float64)[:, None]
    single = batch.to(torch.float32)

    def scores(given):
        ids = (x.to(backend.device) for x in given[:4])
        return backend.rnnt.ops.score(*ids, 0, normalizer, False)[0].cpu().double()

    exact = scores(single.to(torch.float64))
    error = (scores(single) / exact - 1)[0, 0]
    assert exact[0].abs().min() < 1e-12 and error.abs().max() < 40 * 2.0**-24
