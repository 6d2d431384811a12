"""The lattice by itself: alpha, beta and posteriors of the native ops, and what float32 keeps of a long one."""

import pytest
import torch
from batches import INF, NAN, Batch, collate, edit, random_batch
from cases import CASES, NO_LABEL_1, TOPOLOGIES, WIDE, X1, X1_BLANK, X1_LABEL, X3
from compare import assert_same_bits, assert_within_budget
from reference import Twin

SMALL = [case for case in CASES if not case.large]
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
MIXED = collate(X1, NO_LABEL_1, X3).front(False)
# on either side of what a vector, a warp and a strip of columns hold
WIDTHS = [(T, U) for T in (1, 2, 5, 16, 33) for U in (0, 1, 7, 14, 15, 16, 17, 31, 32, 33, 64)]


def arguments(backend, batch: Batch) -> tuple:
    """Of a native op, from x on; blank counts from the front there."""
    return *(tensor.to(backend.device) for tensor in batch[:4]), batch.blank % batch.x.shape[3]


def forward(backend, batch: Batch) -> tuple[torch.Tensor, ...]:
    """loss, alpha and beta of the poisoned batch, less the padding, which has to be -inf."""
    loss, alpha, beta = (out.cpu() for out in backend.rnnt.ops.rnnt_forward(*arguments(backend, batch.poisoned())))
    T, W = batch.x.shape[1:3]
    for name, values in {"alpha": alpha, "beta": beta}.items():
        assert values.dtype == torch.float64
        assert (values[~batch.poisoned().cells] == -INF).all(), f"{name} is not -inf outside the utterance"
    return loss, alpha[:, :T, :W], beta[:, :T, :W]


@pytest.mark.kernels_ci
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@DTYPES
def test_alpha_and_beta(backend, case, dtype):
    batch = case.batch(False, dtype)
    loss, alpha, beta = forward(backend, batch)
    truth = Twin(batch, False)
    assert_within_budget("loss", loss, truth.loss)
    assert_within_budget("alpha", alpha, truth.lattice.alpha)
    assert_within_budget("beta", beta, truth.lattice.beta)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@DTYPES
def test_ends_and_cuts(backend, case, dtype):
    """alpha starts at 0, beta ends with the last blank, and every diagonal of nodes cuts all paths."""
    batch = case.batch(False, dtype)
    loss, alpha, beta = forward(backend, batch)
    log_z = beta[:, 0, 0]
    assert (alpha[:, 0, 0] == 0).all()
    assert_within_budget("loss", loss, -log_z)
    for b, (T, U) in enumerate(zip(batch.input_lengths.tolist(), batch.label_lengths.tolist())):
        last_blank = batch.x[b, T - 1, U, batch.blank].double()
        assert_within_budget("beta(T-1, U)", beta[b, None, T - 1, U], last_blank[None])
        both = (alpha + beta)[b, :T, : U + 1].flip(1)
        cuts = torch.stack([both.diagonal(d).logsumexp(0) for d in range(-T + 1, U + 1)])
        assert_within_budget("log Z of the cuts", cuts, log_z[b].expand_as(cuts))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@DTYPES
def test_gradient_from_alpha_and_beta(backend, case, dtype):
    batch = case.batch(False, dtype)
    padded, (T, W) = batch.poisoned(), batch.x.shape[1:3]
    x, *ids, blank = arguments(backend, padded)
    _, alpha, beta = backend.rnnt.ops.rnnt_forward(x, *ids, blank)
    upstream = torch.linspace(1, -0.5, batch.x.shape[0], dtype=dtype)
    grad = backend.rnnt.ops.rnnt_backward(upstream.to(x.device), x, *ids, alpha, beta, blank).cpu()
    assert grad.dtype == dtype and (grad[~padded.cells] == 0).all()
    each = upstream.double()[:, None, None, None]
    truth, twin = Twin(batch, False), Twin(batch, False, dtype=torch.float32)
    # exp(alpha + score + beta - log Z) keeps what the size of log Z leaves
    floor = max(
        1e-12 if dtype == torch.float64 else 1e-6, 1e-15 * alpha.masked_fill(alpha == -INF, 0).abs().max().item()
    )
    wanted = truth.grad * each
    assert_within_budget(
        "gradient", grad[:, :T, :W], wanted, None if dtype == torch.float64 else twin.grad * each, floor
    )


def test_posteriors_of_the_first_case(backend):
    grad = backend.loss_and_grad(X1.front(False), from_logits=False)[1][0]
    assert grad[..., 0].tolist() == [pytest.approx([-p for p in row], abs=6e-7) for row in X1_BLANK]
    for u, label in enumerate([1, 2]):
        assert grad[:, u, label].tolist() == pytest.approx([-row[u] for row in X1_LABEL], abs=6e-7)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@TOPOLOGIES
def test_posteriors_sum_to_frames_and_to_one_per_label(backend, dtype, topology):
    batch = random_batch(4, 30, 9, 11, ragged=True, scale=4.0).front(False).to(dtype)
    grad = -backend.loss_and_grad(batch, from_logits=False, topology=topology)[1].double()
    tolerance = 40 * torch.finfo(dtype).eps
    for b, (T, U) in enumerate(zip(batch.input_lengths.tolist(), batch.label_lengths.tolist())):
        if topology == "modified" and T < U:
            assert (grad[b] == 0).all()
            continue
        blanks = T if topology == "standard" else T - U
        assert grad[b, ..., 0].sum().item() == pytest.approx(blanks, rel=tolerance, abs=tolerance)
        for u in range(U):
            assert grad[b, :, u, batch.labels[b, u]].sum().item() == pytest.approx(1, rel=tolerance)


@pytest.mark.parametrize("T, U", WIDTHS)
@DTYPES
@TOPOLOGIES
def test_lattices_of_every_width(backend, T, U, dtype, topology):
    batch = random_batch(2, T, U, 3, seed=T * U).front(False).to(dtype)
    loss, grad = backend.loss_and_grad(batch, from_logits=False, topology=topology)
    truth, twin = Twin(batch, False, topology), Twin(batch, False, topology, dtype)
    assert_within_budget("loss", loss, truth.loss, twin.loss)
    assert_within_budget("gradient", grad, truth.grad, twin.grad)


@DTYPES
def test_only_the_loss_is_differentiable(backend, dtype):
    batch = backend.leaf(MIXED.to(dtype))
    x, *ids, blank = arguments(backend, batch)
    loss, alpha, beta = backend.rnnt.ops.rnnt_forward(x, *ids, blank)
    assert loss.requires_grad and not alpha.requires_grad and not beta.requires_grad
    upstream = torch.tensor([2.0, 0.0, -1.0], dtype=loss.dtype, device=loss.device)
    (grad,) = torch.autograd.grad(loss, x, upstream, create_graph=True)
    assert_same_bits(
        "gradient", grad.detach(), backend.rnnt.ops.rnnt_backward(upstream, x.detach(), *ids, alpha, beta, blank)
    )
    assert (grad[1] == 0).all() and loss[1] == INF
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


@pytest.mark.parametrize("shape", [(0, 3, 3, 5), (2, 3, 1, 5)], ids=["no_utterance", "no_label"])
def test_empty_dimensions(backend, shape):
    B, T, W, V = shape
    batch = random_batch(B, T, W - 1, V) if B else MIXED.take([])
    loss, alpha, beta = backend.rnnt.ops.rnnt_forward(*arguments(backend, batch))
    assert loss.shape == (B,) and alpha.shape == beta.shape == batch.x.shape[:3]
    assert_within_budget("loss", loss, Twin(batch, False).loss)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("entry", [(0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 1, 2), (1, 2, 0)])
def test_nan_stays_in_its_utterance(backend, value, entry):
    clean = forward(backend, MIXED)
    loss, alpha, beta = forward(backend, edit(MIXED, value, (0, *entry)))
    assert loss.isnan().tolist() == [True, False, False]
    for name, got, wanted in zip(("loss", "alpha", "beta"), (loss, alpha, beta), clean):
        assert_same_bits(name, got[1:], wanted[1:])


# ---- long lattices: the largest error of a float32 gradient is 1e-5 of the largest gradient

LONG = (1, 1500, 200, 500)


@pytest.fixture(scope="module")
def noise() -> torch.Tensor:
    B, T, U, V = LONG
    return torch.randn(B, T, U + 1, V, generator=torch.Generator().manual_seed(3))


def peaks(noise: torch.Tensor) -> torch.Tensor:
    classes = torch.randint(0, LONG[3], (*noise.shape[:3], 1), generator=torch.Generator().manual_seed(4))
    return noise.scatter_add(-1, classes, torch.full(classes.shape, 300.0))


@pytest.mark.parametrize(
    "logits",
    [lambda noise: noise, lambda noise: noise * 15, lambda noise: noise * 60, peaks],
    ids=["random", "times_15", "times_60", "one_peak_of_300_per_cell"],
)
def test_long_logits_in_float32(backend, noise, logits):
    backend.needs(*LONG)
    batch = random_batch(1, 1500, 200, 2, seed=5)
    batch = batch._replace(x=logits(noise), labels=batch.labels * torch.randint(1, 500, (1, 200)))
    loss, grad = backend.loss_and_grad(batch, poisoned=False)
    truth = Twin(batch, True)
    assert_within_budget("loss", loss, truth.loss)
    largest = grad.abs().max().item()
    for frames, wanted in truth.grad_slices():
        error = (grad[:, frames] - wanted).abs_()
        assert error.max() <= 1e-5 * largest, f"in frames from {frames.start}: {error.max():.3g} of {largest:.3g}"


@pytest.mark.parametrize("T, U, V", [(300, 40, 100), (60, 10, 7), (50, 0, 500)])
@pytest.mark.parametrize("peak", [5.0, 12.0, 20.0])
@TOPOLOGIES
def test_a_confident_model_keeps_its_gradient(backend, T, U, V, peak, topology):
    """Probabilities near 1 along one alignment: the gradient is what they lack, and no difference of ones has it."""
    batch = random_batch(1, T, U, V)
    batch.x[..., 0] += peak
    for u in range(U):
        batch.x[0, int((u + 0.5) * T / U), u, batch.labels[0, u]] += 2 * peak
    batch = batch.to(torch.float32)
    loss, grad = backend.loss_and_grad(batch, poisoned=False, topology=topology)
    truth = Twin(batch, True, topology)
    assert (loss - truth.loss).abs() < 1e-7 * (T + U)
    error, largest = (grad - truth.grad).abs().max(), truth.grad.abs().max()
    assert error <= 1e-5 * largest, f"{error:.3g} of {largest:.3g}"


@pytest.mark.parametrize("B, T, U, V", [(1, 1500, 200, 3), (1, 4, 1100, 3), (2, 1500, 1, 2)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 60.0])
@TOPOLOGIES
def test_long_log_probs_in_float32(backend, B, T, U, V, scale, topology):
    batch = random_batch(B, T, U, V, scale=scale, ragged=B > 1).front(False).to(torch.float32)
    loss, grad = backend.loss_and_grad(batch, from_logits=False, topology=topology)
    truth = Twin(batch, False, topology)
    assert_within_budget("loss", loss, truth.loss)
    assert_within_budget("gradient", grad, truth.grad, floor=1e-5)
