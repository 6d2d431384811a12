"""Every variant of the two-arc losses and every pair of them: against every path, and against the twin's recursion."""

import math

import pytest
import torch
from arc_oracles import ALONE_AND_IN_PAIRS, VARIANTS, log_z, options_of, recursion, row_scores, variant_arcs, walk
from batches import INF, NAN, random_batch
from cases import X1, X3, probabilities
from compare import FLOORS, assert_same_bits, assert_within_budget
from reference import TOPOLOGIES
from torch.nn.functional import pad


def run(backend, batch, from_logits=True, upstream=1.0, **options):
    """Losses, and the gradients of x and of biases by name."""
    leaf = lambda x: x.detach().to(backend.device).clone().requires_grad_()  # noqa: E731
    biases = {key: leaf(value) for key, value in options.items() if key.endswith("bias")}
    rest = {key: x.to(backend.device) if torch.is_tensor(x) else x for key, x in options.items() if key not in biases}
    x = leaf(batch.x)
    loss = backend.loss(batch._replace(x=x), from_logits, **{"reduction": "none", **rest, **biases})
    grads = torch.autograd.grad((loss * upstream).sum(), [x, *biases.values()])
    return loss.detach().cpu(), dict(zip(["x", *biases], (grad.cpu() for grad in grads)))


@pytest.mark.parametrize("variants", ALONE_AND_IN_PAIRS, ids="-".join)
@pytest.mark.parametrize("T, U", [(1, 0), (1, 1), (3, 2), (4, 3)])
def test_every_path(backend, T, U, variants):
    batch = random_batch(1, T, U, 4, blank=2, seed=T)
    options = options_of(variants, batch)
    leaves = {"x": batch.x.clone().requires_grad_()}
    leaves |= {key: value.clone().requires_grad_() for key, value in options.items() if key.endswith("bias")}
    arcs = variant_arcs(batch, leaves["x"], **{**options, **{k: v for k, v in leaves.items() if k != "x"}})
    wanted = walk([(dt, du, score[0]) for dt, du, score in arcs], T, U, ends_by_blank=False)
    loss, grads = run(backend, batch, **options)
    assert_within_budget("loss", loss, wanted[None].detach())
    if wanted == INF:
        assert all((grad == 0).all() for grad in grads.values())
        return
    truth = torch.autograd.grad(wanted, list(leaves.values()), allow_unused=True, materialize_grads=True)
    for name, grad in zip(leaves, truth, strict=True):
        assert_within_budget(name, grads[name], grad)


@pytest.mark.parametrize("variants", ALONE_AND_IN_PAIRS, ids="-".join)
def test_torchs_derivative_on_a_ragged_batch(backend, variants):
    batch = random_batch(3, 20, 7, 11, ragged=True, blank=3).to(torch.float32)
    options = options_of(variants, batch)
    leaves = {"x": batch.x.double().requires_grad_()}
    leaves |= {key: value.clone().requires_grad_() for key, value in options.items() if key.endswith("bias")}
    arcs = variant_arcs(batch, leaves["x"], **{**options, **{k: v for k, v in leaves.items() if k != "x"}})
    wanted = -log_z(arcs, *batch[2:4])
    upstream = torch.tensor([2.0, 1.0, -0.5])
    loss, grads = run(backend, batch, upstream=upstream.to(backend.device), **options)
    assert wanted.isfinite().any()
    assert_within_budget("loss", loss, wanted.detach())
    truth = torch.autograd.grad((wanted * upstream).masked_fill(wanted == INF, 0).sum(), list(leaves.values()),
                                materialize_grads=True)  # fmt: skip
    for name, grad in zip(leaves, truth, strict=True):
        assert_within_budget(name, grads[name].float(), grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("clamp", [None, 0.05])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_at_once_on_a_ragged_batch(backend, topology, clamp, from_logits, dtype):
    batch = random_batch(3, 40, 12, 19, ragged=True).front(from_logits).to(dtype)
    chosen = VARIANTS[3:] if not from_logits or clamp else VARIANTS[2:]
    options = {**options_of(chosen, batch), "topology": topology}
    padded = batch.poisoned()
    poisoned = dict(options)
    for key in ("blank_bias", "label_bias"):
        poisoned[key] = torch.full(padded.x.shape[:3], NAN, dtype=torch.float64)
        poisoned[key][padded.cells] = options[key][batch.cells]
    poisoned["windows"] = pad(
        options["windows"], (0, 0, 0, padded.x.shape[2] - 1 - options["windows"].shape[1]), value=-7
    )
    upstream = torch.tensor([2.0, 1.0, -0.5])
    loss, grads = run(backend, padded, from_logits, upstream.to(backend.device), clamp=clamp, **poisoned)

    leaves = {"x": batch.x.double().requires_grad_()}
    leaves |= {key: options[key].clone().requires_grad_() for key in ("blank_bias", "label_bias")}
    plain = {} if from_logits else {"normalizer": "none"}
    arcs = variant_arcs(batch, leaves["x"], **{**options, **plain, **{k: v for k, v in leaves.items() if k != "x"}})
    wanted, surrogate = recursion(arcs, batch, ends_by_blank=False)
    floor = FLOORS[dtype]
    assert_within_budget("loss", loss, wanted)
    for name, grad in zip(leaves, torch.autograd.grad(surrogate, list(leaves.values())), strict=True):
        grad = grad.clamp(-clamp, clamp) if clamp and name == "x" else grad
        got = grads[name]
        assert (got[~padded.cells] == 0).all(), name
        grad = grad * upstream.view(-1, *[1] * (grad.dim() - 1))
        allowed = max(floor or 0, 2e-6) if name != "x" and floor else floor
        if clamp and floor:  # of the gradient before it is bounded
            allowed *= 5
        assert_within_budget(name, got[:, : grad.shape[1], : grad.shape[2]], grad, floor=allowed)


def test_the_known_values(backend):
    value = lambda batch, **options: run(backend, batch, **options)[0].tolist()  # noqa: E731
    for penalty, wanted in [(0.1, 4.484711952), (0.5, 4.375588163), (1.0, 4.114274985)]:
        assert value(X1, delay_penalty=penalty) == pytest.approx([wanted], abs=1e-9)
    assert value(X3, delay_penalty=0.1) == pytest.approx([5.709526348], abs=1e-9)
    assert value(X1, topology="constrained") == pytest.approx([5.67267938586955], rel=1e-12)
    assert value(X3, topology="constrained") == pytest.approx([6.484090751438496], rel=1e-12)
    windows = torch.tensor([[[0, 2], [2, 3]]])
    assert value(probabilities(), topology="constrained") == pytest.approx([1.8101352749], abs=1e-10)
    assert value(probabilities(), topology="modified", windows=windows) == pytest.approx([1.2180717287], abs=1e-10)


@pytest.mark.parametrize("T, U", [(2, 2), (6, 2), (50, 20)])
def test_equal_logits_in_the_constrained_topology(backend, T, U):
    batch = random_batch(1, T, U, 7, scale=0.0)
    loss, _ = run(backend, batch, topology="constrained")
    assert loss.item() == pytest.approx((T + U) * math.log(7) - math.log(math.comb(T, U)), rel=1e-12)


def test_fewer_frames_than_labels(backend):
    batch = random_batch(2, 3, 4, 5)._replace(label_lengths=torch.tensor([4, 2]))
    loss, grads = run(backend, batch, topology="constrained")
    assert loss[0] == INF and loss[1].isfinite() and (grads["x"][0] == 0).all() and grads["x"][1].any()


def test_windows_that_leave_no_path(backend):
    batch = random_batch(2, 5, 2, 5)
    windows = torch.tensor([[[3, 4], [0, 2]], [[0, 4], [0, 4]]])
    loss, grads = run(backend, batch, windows=windows)
    assert loss[0] == INF and (grads["x"][0] == 0).all()
    alone, _ = run(backend, batch)
    torch.testing.assert_close(loss[1], alone[1])


@pytest.mark.parametrize("from_logits", [True, False])
def test_biases_of_zero_change_little(backend, from_logits):
    """The same losses by the other way through the lattice."""
    batch = random_batch(3, 60, 15, 40, ragged=True).front(from_logits).to(torch.float32)
    zero = torch.zeros(batch.x.shape[:3])
    for topology in ("standard", "modified"):
        loss, grads = run(backend, batch, from_logits, topology=topology, label_bias=zero)
        wanted, truth = run(backend, batch, from_logits, topology=topology)
        assert_within_budget("loss", loss, wanted.double())
        assert_within_budget("gradient", grads["x"], truth["x"].double(), floor=2e-6)


def test_long_audio_stays_exact(backend):
    """As the plain losses: random logits at T = 1000, U = 200, in float32."""
    backend.needs(1, 1000, 201, 4)
    batch = random_batch(1, 1000, 200, 4)
    loss, grads = run(backend, batch.to(torch.float32), sigma=0.01)
    leaf = batch.x.float().double().requires_grad_()
    arcs = variant_arcs(batch, leaf, "standard", sigma=0.01)
    wanted, surrogate = recursion(arcs, batch, ends_by_blank=False)
    assert_within_budget("loss", loss, wanted)
    assert_within_budget("gradient", grads["x"], torch.autograd.grad(surrogate, leaf)[0], floor=1e-5)


def test_in_place(backend):
    batch = random_batch(3, 9, 4, 30, ragged=True).to(torch.float32)
    wanted, truth = run(backend, batch, delay_penalty=0.1, topology="constrained")
    leaf = batch.x.to(backend.device).requires_grad_()
    loss = backend.loss(batch._replace(x=leaf * 1), delay_penalty=0.1, topology="constrained", inplace_grad=True,
                        reduction="none")  # fmt: skip
    loss.sum().backward()
    assert_same_bits("loss", loss.detach().cpu(), wanted)
    assert_same_bits("gradient", leaf.grad.cpu(), truth["x"])


def test_a_nan_stays_in_its_utterance(backend):
    batch = random_batch(3, 6, 3, 5)
    bias = torch.zeros(3, 6, 4, dtype=torch.float64)
    clean, truth = run(backend, batch, label_bias=bias)
    for bad in (NAN, INF):
        broken = bias.clone()
        broken[1, 5, 0] = bad  # an arc of no path, but of a cell
        loss, grads = run(backend, batch, label_bias=broken)
        assert loss[1].isnan() and grads["x"][1].isnan().any()
        assert torch.equal(loss[[0, 2]], clean[[0, 2]]) and torch.equal(grads["x"][[0, 2]], truth["x"][[0, 2]])


def test_forbidden_arcs_by_bias(backend):
    """-inf is a value."""
    batch = random_batch(1, 5, 2, 4)
    bias = torch.zeros(1, 5, 3, dtype=torch.float64)
    bias[0, :3, 0] = -INF
    windows = torch.tensor([[[3, 4], [0, 4]]])
    by_bias, by_windows = (run(backend, batch, **{key: x}) for key, x in (("label_bias", bias), ("windows", windows)))
    assert_same_bits("loss", by_bias[0], by_windows[0])
    assert_same_bits("gradient", by_bias[1]["x"], by_windows[1]["x"])


def test_the_module(backend):
    batch = random_batch(2, 6, 3, 5)
    module = backend.rnnt.RNNTLoss(from_logits=True, topology="constrained", delay_penalty=0.1, sigma=0.2)
    windows = torch.tensor([[[0, 4]] * 3] * 2)
    loss = module(batch.x, *batch[1:4], windows=windows)
    wanted = backend.rnnt.rnnt_loss_from_logits(batch.x, *batch[1:4], topology="constrained", delay_penalty=0.1,
                                                sigma=0.2, windows=windows)  # fmt: skip
    assert torch.equal(loss, wanted)
    assert "delay_penalty=0.1" in repr(module) and "sigma=0.2" in repr(module)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"topology": "ctc"}, ValueError, "topology must be one of standard, modified, constrained, got 'ctc'"),
        ({"sigma": INF}, ValueError, "sigma must be a finite float"),
        ({"delay_penalty": "much"}, TypeError, "delay_penalty must be a finite float, got str"),
        ({"windows": torch.zeros(2, 3, 2)}, TypeError, "windows must be an int32 or int64 tensor, got torch.float32"),
        ({"windows": torch.zeros(2, 4, 2).long()}, ValueError, r"windows must have shape \[2, 3, 2\], got \[2, 4, 2\]"),
        ({"label_bias": torch.zeros(2, 6, 3)}, ValueError, r"label_bias must have shape \[2, 6, 4\].*got \[2, 6, 3\]"),
        (
            {"blank_bias": torch.zeros(2, 6, 4).long()},
            TypeError,
            "blank_bias must be float32, float64.*got torch.int64",
        ),
        ({"blank_bias": 0.5}, TypeError, "blank_bias must be a torch.Tensor, got float"),
    ],
)
def test_errors(backend, options, error, message):
    with pytest.raises(error, match=message):
        backend.loss(random_batch(2, 6, 3, 5), **options)


def test_gradients_of_scores_that_cancel(backend):
    """An upstream gradient of 1 and -1 for the two scores of a row: their sum is 0, the row's gradient is not."""
    batch = random_batch(2, 3, 2, 40)
    ids = [tensor.to(backend.device) for tensor in batch[1:4]]
    x = batch.x.to(backend.device).requires_grad_()
    scores, *_ = backend.rnnt.ops.score(x, *ids, 0, "softmax", False)
    (grad,) = torch.autograd.grad((scores[0] - scores[1])[:, :, :2].sum(), x)
    leaf = batch.x.clone().requires_grad_()
    blank, label = row_scores(batch, leaf.log_softmax(-1))
    (truth,) = torch.autograd.grad((blank - label)[:, :, :2].sum(), leaf)
    assert_within_budget("gradient", grad.cpu(), truth)
