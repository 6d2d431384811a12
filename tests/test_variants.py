"""What changes a row or its gradient and nothing of the lattice: HAT's normalization and FastEmit."""

import pytest
import torch
from batches import INF, NAN, Batch, collate, edit, random_batch
from cases import CASES, COMBINATIONS, DTYPES, FRONT_ENDS, NARROW_COMBINATIONS, NO_LABEL_1, TOPOLOGIES, X1, X1_LOSS, X3
from compare import assert_same_bits, assert_within_budget
from reference import Twin, enumerate_paths, hat

EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Sums of scores that leave the range of exact exponents (rnnt_loss/README.md, Precision): HAT's choice adds 1e30.
HOSTILE = {case.name for case in CASES if "e30" in case.name or case.name in ("one_certain_path", "times_1e8")}
VARIANTS = {
    "hat": {"normalizer": "hat"},
    "fastemit": {"fastemit_lambda": 0.3},
    "hat_fastemit": {"normalizer": "hat", "fastemit_lambda": 0.3},
}
ROW_SIZES = [2, 3, 8, 15, 16, 17, 31, 33, 64, 65, 100, 129, 500, 1025, 5003]


def fits(combination, variant: str) -> bool:
    case, from_logits, *_ = combination.values
    return not case.large and ("hat" not in variant or from_logits and case.name not in HOSTILE)


def combined(combinations) -> list:
    return [
        pytest.param(*combination.values, options, id=f"{combination.id}-{name}")
        for combination in combinations
        for name, options in VARIANTS.items()
        if fits(combination, name)
    ]


def assert_all_right(backend, batch: Batch, from_logits: bool = True, topology="standard", floor=None, **keywords):
    """Loss and gradient are the twin's."""
    loss, grad = backend.loss_and_grad(batch, from_logits, topology=topology, **keywords)
    acc_t = torch.float64 if batch.x.dtype == torch.float64 else torch.float32
    truth, twin = (Twin(batch, from_logits, topology, dtype, **keywords) for dtype in (torch.float64, acc_t))
    assert_within_budget("loss", loss, truth.loss, twin.loss, floor)
    assert_within_budget("gradient", grad, truth.grad, twin.grad.to(batch.x.dtype), floor)
    return loss, grad


@pytest.mark.parametrize("case, from_logits, topology, keywords", combined(COMBINATIONS))
def test_every_case(backend, case, from_logits, topology, keywords):
    assert_all_right(backend, case.batch(from_logits), from_logits, topology, case.floor, **keywords)


@pytest.mark.parametrize("case, from_logits, topology, dtype, keywords", combined(NARROW_COMBINATIONS))
def test_every_case_in_narrower_dtypes(backend, case, from_logits, topology, dtype, keywords):
    assert_all_right(backend, case.batch(from_logits, dtype), from_logits, topology, **keywords)


# ---- the twin


@TOPOLOGIES
@pytest.mark.parametrize("blank", [0, 2, -1])
def test_twin_of_hat_is_the_sum_over_paths(blank, topology):
    batch = random_batch(1, 4, 3, 4, blank=blank)
    logits = batch.x.clone().requires_grad_()
    log_probs = hat(logits, blank % 4)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones_like(logits[..., 0]))
    loss = enumerate_paths(log_probs[0], batch.labels[0].tolist(), blank % 4, topology)
    twin = Twin(batch, True, topology, normalizer="hat")
    assert_within_budget("loss", twin.loss, loss[None].detach())
    assert_within_budget("gradient", twin.grad, torch.autograd.grad(loss, logits)[0])


# ---- FastEmit


def test_known_values_of_fastemit(backend):
    loss, grad = backend.loss_and_grad(X1, fastemit_lambda=0.1)
    assert loss.item() == pytest.approx(X1_LOSS, rel=1e-12)
    assert grad[0, 0, 0].tolist() == pytest.approx([-0.118920, -0.448915, *[0.189278] * 3], abs=6e-7)
    assert grad[0, 0, 1].tolist() == pytest.approx([-0.178937, 0.129262, -0.208848, 0.129262, 0.129262], abs=6e-7)
    assert_same_bits("rows without a label", grad[:, :, 2], backend.loss_and_grad(X1)[1][:, :, 2])


@FRONT_ENDS
@EVERY_DTYPE
def test_fastemit_of_0_changes_no_bit(backend, from_logits, dtype):
    batch = random_batch(3, 7, 5, 40, ragged=True).front(from_logits).to(dtype)
    got, wanted = (backend.loss_and_grad(batch, from_logits, **k) for k in ({"fastemit_lambda": 0}, {}))
    assert_same_bits("loss", got[0], wanted[0])
    assert_same_bits("gradient", got[1], wanted[1])


@FRONT_ENDS
@pytest.mark.parametrize("keywords", [{}, {"reduction": "mean"}, {"clamp": 0.1}, {"zero_infinity": True}], ids=str)
def test_scale_loss_is_of_the_value_alone(backend, from_logits, keywords):
    batch = collate(X1, NO_LABEL_1, X3).front(from_logits)
    if "reduction" in keywords:
        batch = batch.take([0, 2])
    plain, grad = backend.loss_and_grad(batch, from_logits, fastemit_lambda=0.1, **keywords)
    scaled, same = backend.loss_and_grad(batch, from_logits, fastemit_lambda=0.1, scale_loss=True, **keywords)
    assert_same_bits("gradient", same, grad)
    assert_within_budget("loss", scaled.reshape(-1), 1.1 * plain.reshape(-1))
    unscaled = backend.loss_and_grad(batch, from_logits, scale_loss=True, **keywords)[0]
    assert_same_bits("loss", unscaled.reshape(-1), plain.reshape(-1))


@FRONT_ENDS
@TOPOLOGIES
def test_the_clamp_comes_after_fastemit_and_before_the_upstream_gradient(backend, from_logits, topology):
    batch = random_batch(3, 7, 5, 9, ragged=True).front(from_logits)
    keywords = {"topology": topology, "fastemit_lambda": 0.5}
    grad = backend.loss_and_grad(batch, from_logits, clamp=0.2, upstream=-3.0, **keywords)[1]
    assert_within_budget("gradient", grad, Twin(batch, from_logits, **keywords).grad.clamp(-0.2, 0.2) * -3)


def test_an_impossible_utterance_has_no_fastemit(backend):
    loss, grad = backend.loss_and_grad(NO_LABEL_1, fastemit_lambda=0.1)
    assert loss.item() == INF and (grad == 0).all()


# ---- HAT


def test_known_value_of_hat(backend):
    assert backend.loss_and_grad(X1, normalizer="hat")[0].item() == pytest.approx(3.6860361981524465, rel=1e-12)


@FRONT_ENDS
@TOPOLOGIES
def test_no_normalizer_is_rnnt_loss(backend, from_logits, topology):
    batch = random_batch(3, 7, 5, 9, ragged=True).front(False)
    keywords = {"normalizer": "none"} if from_logits else {}
    loss, grad = backend.loss_and_grad(batch, from_logits, topology=topology, **keywords)
    wanted = backend.loss_and_grad(batch, False, topology=topology)
    assert_same_bits("loss", loss, wanted[0])
    assert_same_bits("gradient", grad, wanted[1])


@pytest.mark.parametrize("V", ROW_SIZES)
@EVERY_DTYPE
def test_rows_of_every_size(backend, V, dtype):
    for blank in {0, V // 2, V - 1, -1}:
        rows = random_batch(2, 3, 2, V, seed=V, scale=3.0, ragged=True, blank=blank)
        assert_all_right(backend, rows.to(dtype), normalizer="hat")


@EVERY_DTYPE
@pytest.mark.parametrize("V", [5, 16, 40, 300])
def test_every_class_can_be_blank_or_label(backend, V, dtype):
    for blank, label in [(k, (k + step) % V) for k in range(0, V, max(1, V // 20)) for step in (1, V - 1)]:
        rows = random_batch(1, 2, 1, V, seed=blank, blank=blank)._replace(labels=torch.tensor([[label]]))
        assert_all_right(backend, rows.to(dtype), normalizer="hat")


@EVERY_DTYPE
@TOPOLOGIES
@pytest.mark.parametrize("V", [1, 2, 7, 33])
@pytest.mark.parametrize("value", [-INF, -1e4, -300.0, -20.0, 20.0, 300.0, 1e4])
def test_hostile_blanks(backend, value, V, topology, dtype):
    """Of one cell, of all of a label, and of all but the last frame."""
    U = 2 if V > 1 else 0
    for where in [(0, 1, U), (0, slice(None), 0), (0, slice(0, 2))]:
        rows = edit(random_batch(1, 3, U, V, blank=V // 2), value, (*where, ..., V // 2))
        assert_all_right(backend, rows.to(dtype), True, topology, normalizer="hat")


@EVERY_DTYPE
@pytest.mark.parametrize("V", [3, 16, 37, 512])
@pytest.mark.parametrize("height", [-1e4, -90.0, 90.0, 300.0, 1e4])
def test_hostile_labels(backend, height, V, dtype):
    """One class far from the others of its row: the label's, or another one."""
    for at in (1, V - 1, V // 2):
        rows = edit(random_batch(1, 3, 2, V), height, (..., at)).to(dtype)
        # log-probs of 1e4 have lost four digits of their float64
        assert_all_right(backend, rows, floor=1e-11 if dtype == torch.float64 else None, normalizer="hat")


@EVERY_DTYPE
@pytest.mark.parametrize("V", [2, 5, 16, 35, 200])
def test_the_blank_has_no_part_in_the_softmax(backend, V, dtype):
    """With one frame and one label, the label's posterior is 1: not a bit of the other classes' gradient changes."""
    rows, blank = random_batch(1, 1, 1, V, blank=V // 2).to(dtype), V // 2
    logits = (-30000.0, -8.0, 0.5, 8.0, 30000.0)
    grads = [backend.loss_and_grad(edit(rows, x, (..., blank)), normalizer="hat")[1] for x in logits]
    others = [k for k in range(V) if k != blank]
    for grad in grads[1:]:
        assert_same_bits("gradient", grad[:, :, 0, others], grads[0][:, :, 0, others])


@EVERY_DTYPE
@pytest.mark.parametrize("V", [1, 3, 35])
def test_where_no_label_is_left_only_the_blank_counts(backend, V, dtype):
    T, U, blank = 3, min(2, V - 1), V // 2
    rows = random_batch(1, T, U, V, blank=blank).to(dtype)
    wanted = assert_all_right(backend, rows, normalizer="hat")
    others = [k for k in range(V) if k != blank]
    for value in (-INF, NAN, INF):
        got = backend.loss_and_grad(edit(rows, value, (0, slice(None), U, others)), normalizer="hat")
        assert_same_bits("loss", got[0], wanted[0])
        assert_same_bits("gradient", got[1], wanted[1])


@EVERY_DTYPE
@TOPOLOGIES
@pytest.mark.parametrize("V", [3, 35])
def test_nan_or_inf_spoils_its_utterance_and_no_other(backend, dtype, topology, V):
    """In the blank of any cell, or in any class where a label is left; so do labels that are all -inf."""
    T, U, blank = 2, 2, 1
    one = random_batch(1, T, U, V, blank=blank).to(dtype)
    entries = [(t, u, k) for t in range(T) for u in range(U + 1) for k in (range(V) if u < U else [blank])]
    others = [k for k in range(V) if k != blank]
    entries = [(value, *e) for e in entries for value in (NAN, INF)] + [
        (-INF, t, u, others) for t in range(T) for u in range(U)
    ]
    many = one.take([0] * (len(entries) + 1))
    for b, (value, *entry) in enumerate(entries):
        many.x[(b, *entry)] = value
    loss, grad = backend.loss_and_grad(many, topology=topology, normalizer="hat")
    assert loss.isnan().tolist() == [True] * len(entries) + [False]
    assert grad.flatten(1).isnan().all(1).tolist() == loss.isnan().tolist()
    clean = backend.loss_and_grad(one, topology=topology, normalizer="hat")
    assert_same_bits("loss", loss[-1:], clean[0])
    assert_same_bits("gradient", grad[-1:], clean[1])


@EVERY_DTYPE
@pytest.mark.parametrize("V", [1, 3, 15, 16, 17, 40, 300])
@pytest.mark.parametrize("normalizer", ["hat", "none"])
def test_in_place(backend, dtype, V, normalizer):
    batch = random_batch(3, 6, min(4, V - 1), V, ragged=True, blank=V // 2).to(dtype)
    keywords = {"reduction": "sum", "normalizer": normalizer, "fastemit_lambda": 0.3}
    w = backend.leaf(batch).x
    logits = w * 2
    loss = backend.loss(batch._replace(x=logits), inplace_grad=True, **keywords)
    (grad,) = torch.autograd.grad(loss, w)
    (wanted,) = torch.autograd.grad(backend.loss(batch._replace(x=w * 2), **keywords), w)
    assert_same_bits("gradient", grad, wanted)
    assert_same_bits("logits", logits.detach() * 2, wanted)


@TOPOLOGIES
def test_gradcheck_of_hat(backend, topology):
    batch = backend.leaf(random_batch(3, 4, 3, 5, ragged=True, blank=2))
    for reduction in ("none", "mean", "mean_volume"):
        keywords = {"reduction": reduction, "topology": topology, "zero_infinity": True, "normalizer": "hat"}
        assert torch.autograd.gradcheck(lambda x, k=keywords: backend.loss(batch._replace(x=x), **k), batch.x)


@pytest.mark.parametrize("normalizer", ["hat", "none"])
def test_compiled(backend, normalizer):
    torch._dynamo.reset()
    batch = random_batch(3, 6, 4, 5, ragged=True)
    keywords = {"normalizer": normalizer, "fastemit_lambda": 0.1, "scale_loss": True, "clamp": 0.2}

    def function(w):
        return backend.loss(batch._replace(x=w * 2), **keywords)

    w = backend.leaf(batch).x
    wanted, got = function(w), torch.compile(function, fullgraph=True, backend="aot_eager")(w)
    assert_within_budget("loss", got.detach()[None], wanted.detach()[None])
    assert_within_budget("gradient", *(torch.autograd.grad(loss, w)[0] for loss in (got, wanted)))


# ---- the module and errors


def test_module(backend):
    options = {"normalizer": "hat", "fastemit_lambda": 0.1, "scale_loss": True}
    module = backend.rnnt.RNNTLoss(from_logits=True, **options)
    assert "normalizer='hat', clamp=None, fastemit_lambda=0.1, scale_loss=True" in repr(module)
    got = module(*(tensor.to(backend.device) for tensor in X3[:4]))
    assert_same_bits("loss", got, backend.loss(X3, **options))


@pytest.mark.parametrize("value", ["HAT", "sigmoid", None])
def test_an_unknown_normalizer(backend, value):
    with pytest.raises(ValueError, match="normalizer must be one of softmax, hat, none, got"):
        backend.loss(X1, normalizer=value)
    with pytest.raises(ValueError, match="normalizer must be one of softmax, hat, none, got"):
        backend.rnnt.RNNTLoss(from_logits=True, normalizer=value)


def test_a_module_of_log_probs_has_no_hat(backend):
    with pytest.raises(ValueError, match="normalizer must be softmax or none without from_logits, got 'hat'"):
        backend.rnnt.RNNTLoss(normalizer="hat")


@pytest.mark.parametrize("value", [-0.1, NAN, INF])
def test_native_ops_check_fastemit(backend, value):
    x, *ids = (tensor.to(backend.device) for tensor in X1[:4])
    loss, *kept = backend.rnnt.ops.loss_forward(x, *ids, 0, "hat", "standard", None, value, False, True, False)
    with pytest.raises(RuntimeError, match="fastemit_lambda must be finite and >= 0, got"):
        options = 0, "hat", "standard", None, value
        backend.rnnt.ops.loss_backward(torch.ones_like(loss), x, *ids, loss, *kept, *options)


@pytest.mark.parametrize("bad", [-INF, INF, NAN])
@pytest.mark.parametrize("V", [3, 40])
@TOPOLOGIES
def test_labels_of_hat_where_windows_leave_none(backend, bad, V, topology):
    """They have no part in the loss, whatever they are, and none in the gradient."""
    batch = random_batch(2, 3, 1, V)
    windows = torch.tensor([[[1, 2], [7, 7]], [[0, 2], [7, 7]]], device=backend.device)  # of a padded label too
    options = {"normalizer": "hat", "windows": windows, "topology": topology}
    wanted, truth = backend.loss_and_grad(batch, **options)
    loss, grad = backend.loss_and_grad(edit(batch, bad, (0, 0, 0, slice(1, None))), **options)
    assert_same_bits("loss", loss, wanted)
    assert_same_bits("gradient", grad, truth)
    assert (grad[0, 0, 0, 1:] == 0).all() and grad[0, 0, 0, 0] != 0
