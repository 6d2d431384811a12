"""From rows to arc scores and back: dtypes, strides, every size and shape of row, masks."""

import numpy as np
import pytest
import torch
from batches import INF, NAN, Batch, edit, random_batch
from cases import DTYPES, FRONT_ENDS, TOPOLOGIES, WIDE, X1
from compare import assert_same_bits, assert_within_budget
from reference import Twin

EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
ROW_SIZES = [
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    48,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    1000,
    1025,
    5003,
]


def assert_all_right(backend, batch: Batch, from_logits: bool, topology: str = "standard"):
    loss, grad = backend.loss_and_grad(batch, from_logits, topology=topology)
    acc_t = torch.float64 if batch.x.dtype == torch.float64 else torch.float32
    truth, twin = Twin(batch, from_logits, topology), Twin(batch, from_logits, topology, acc_t)
    assert_within_budget("loss", loss, truth.loss, twin.loss)
    assert_within_budget("gradient", grad, truth.grad, twin.grad.to(batch.x.dtype))


@pytest.mark.kernels_ci
@pytest.mark.parametrize("V", ROW_SIZES)
@EVERY_DTYPE
@FRONT_ENDS
def test_rows_of_every_size(backend, V, dtype, from_logits):
    rows = random_batch(3, 3, 2 if V > 1 else 0, V, seed=V, scale=3.0, ragged=True, blank=V // 2)
    assert_all_right(backend, rows.front(from_logits).to(dtype), from_logits)


@pytest.mark.parametrize("V", [5, 16, 40, 300])
@EVERY_DTYPE
def test_every_class_can_be_blank_or_label(backend, V, dtype):
    for blank, label in [(k, (k + step) % V) for k in range(0, V, max(1, V // 20)) for step in (1, V - 1)]:
        rows = random_batch(1, 2, 1, V, seed=blank, blank=blank)
        assert_all_right(backend, rows._replace(labels=torch.tensor([[label]])).to(dtype), True)


@EVERY_DTYPE
@FRONT_ENDS
def test_dtypes_of_loss_and_gradient(backend, dtype, from_logits):
    loss, grad = backend.loss_and_grad(random_batch(2, 3, 2, 5).to(dtype), from_logits)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert grad.dtype == dtype


# ---- strides: the values count, and nothing else

LAYOUTS = {
    "frames_first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "labels_first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "classes_first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "every_second_class": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "slice_of_classes": lambda x: torch.nn.functional.pad(x, (3, 2), value=NAN)[..., 3:-2],
    "slice_of_frames": lambda x: torch.nn.functional.pad(x, (0, 0, 0, 0, 1, 2), value=NAN)[:, 1:-2],
    "slice_of_labels": lambda x: torch.nn.functional.pad(x, (0, 0, 2, 1), value=NAN)[:, :, 2:-1],
    "every_second_frame": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "one_element_off": lambda x: torch.cat([x.new_full((1,), NAN), x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@EVERY_DTYPE
@FRONT_ENDS
@pytest.mark.parametrize("V", [5, 37])
def test_strides_change_no_bit(backend, layout, dtype, from_logits, V):
    rows = random_batch(3, 4, 3, V, ragged=True).front(from_logits).to(dtype)
    wanted = backend.loss_and_grad(rows, from_logits, poisoned=False)
    laid_out = rows._replace(x=layout(rows.x))
    assert torch.equal(laid_out.x, rows.x) and (layout is LAYOUTS["one_element_off"] or not laid_out.x.is_contiguous())
    got = backend.loss_and_grad(laid_out, from_logits, poisoned=False)
    for name, a, b in zip(("loss", "gradient"), got, wanted):
        assert_same_bits(name, a, b)


@pytest.mark.parametrize("dim", range(4), ids=["batch", "frames", "labels", "classes"])
@FRONT_ENDS
def test_an_expanded_tensor_is_its_copy(backend, dim, from_logits):
    rows = random_batch(3, 4, 3, 5, ragged=True)
    x = rows.x.narrow(dim, 0, 1).expand_as(rows.x)
    assert x.stride(dim) == 0
    got, wanted = (
        backend.loss_and_grad(rows._replace(x=values), from_logits, poisoned=False) for values in (x, x.contiguous())
    )
    for name, a, b in zip(("loss", "gradient"), got, wanted):
        assert_same_bits(name, a, b)


# ---- the softmax of a row


@pytest.mark.parametrize("constant", [-1e4, -3.0, 0.5, 1e4])
@pytest.mark.parametrize("V", [3, 29, 300])
@TOPOLOGIES
def test_a_constant_added_to_a_row_changes_nothing(backend, constant, V, topology):
    rows = random_batch(2, 4, 3, V)
    shifted = rows._replace(x=rows.x + constant * torch.randn(2, 4, 4, 1, dtype=torch.float64))
    wanted = backend.loss_and_grad(rows, topology=topology)
    got = backend.loss_and_grad(shifted, topology=topology)
    for name, a, b in zip(("loss", "gradient"), got, wanted):
        assert_within_budget(name, a, b, floor=1e-12 + 1e-16 * 4 * abs(constant))
    assert_all_right(backend, shifted.to(torch.float32), True, topology)


@EVERY_DTYPE
@pytest.mark.parametrize("V", [3, 29, 300])
def test_the_gradient_of_a_row_sums_to_zero(backend, V, dtype):
    grad = backend.loss_and_grad(random_batch(2, 6, 4, V).to(dtype))[1].double()
    assert (grad.sum(-1).abs() <= torch.finfo(dtype).eps * (1 + grad.abs().sum(-1))).all()


@EVERY_DTYPE
@pytest.mark.parametrize("V", [5, 40])
@pytest.mark.parametrize("mask", [torch.finfo(torch.float16).min, -1e30, "min", -INF], ids=str)
def test_masked_classes_are_as_if_they_were_not_there(backend, dtype, V, mask):
    kept = random_batch(2, 3, 2, V).to(dtype)
    value = torch.finfo(dtype).min if mask == "min" else mask
    x = torch.full((2, 3, 3, V + 17), value, dtype=torch.float64).to(dtype)
    x[..., :V] = kept.x
    got, wanted = backend.loss_and_grad(kept._replace(x=x)), backend.loss_and_grad(kept)
    assert_within_budget("loss", got[0], wanted[0].double())
    assert_within_budget("gradient", got[1][..., :V], wanted[1].double())
    assert (got[1][..., V:] == 0).all()


@pytest.mark.parametrize(
    "dtype, mask",
    [(dtype, m) for dtype in DTYPES for m in (-1e3, -65504.0, -1e10, -1e30) if m >= torch.finfo(dtype).min],
)
@TOPOLOGIES
def test_a_forced_mask_costs_its_value_and_leaves_the_rest(backend, mask, dtype, topology):
    """Label 1 has to come once, at `mask` in every frame: which frame is decided by the rest of the row."""
    reference, masked = (edit(X1, value, (0, slice(None), 0, 1)).to(dtype) for value in (-100.0, mask))
    truth = Twin(reference, True, topology)
    loss, grad = backend.loss_and_grad(masked, topology=topology)
    assert loss.item() == pytest.approx(truth.loss.item() - 100 - float(masked.x[0, 0, 0, 1]), rel=1e-6)
    twin = Twin(reference, True, topology, torch.float32)
    assert_within_budget("gradient", grad, truth.grad, twin.grad.to(dtype))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@TOPOLOGIES
def test_a_forced_minimum_may_overflow_but_is_never_nan(backend, dtype, topology):
    """Every label at the smallest finite number: the loss is past float32, or just not; the gradient follows it."""
    for labels in (1, 2):
        rows = random_batch(1, 3, labels, 6, seed=labels)
        rows = edit(rows, torch.finfo(dtype).min, (..., slice(1, None))).to(dtype)
        for from_logits in (True, False):
            loss, grad = backend.loss_and_grad(rows, from_logits, topology=topology)
            assert loss.item() == INF or loss.item() >= 0.99 * -torch.finfo(dtype).min
            assert grad.isfinite().all() and (loss.isfinite() or not grad.any())


def shaped_rows(V: int) -> torch.Tensor:
    """[n, V], rows whose maximum lies anywhere, far from what comes before it."""
    k = torch.arange(V, dtype=torch.float64)
    ramps = [k * slope for slope in (30.0, -30.0, 0.1, -0.1)]
    peaks = [
        torch.where(k == at, height, 0.0) for at in range(0, V, max(1, V // 12)) for height in (90.0, 300.0, -300.0)
    ]
    steps = [torch.where(k < at, low, 0.0) for at in (1, 15, 16, 17, V - 1) for low in (-INF, -1e4, 1e4)]
    waves = [torch.where(k % 2 == 0, 1e4, -1e4), torch.where(k == V - 1, 0.0, -INF), torch.where(k == 0, 0.0, -INF)]
    return torch.stack([row for row in ramps + peaks + steps + waves if row.amax() > -INF])


@pytest.mark.parametrize("V", [3, 16, 37, 512, 2049])
@EVERY_DTYPE
def test_rows_of_every_shape(backend, V, dtype):
    rows = shaped_rows(V).to(dtype)[:, None, None].expand(-1, 1, 2, -1)
    n = rows.shape[0]
    for blank, label in [(0, V - 1), (V - 1, 0), (V // 2, V // 2 - 1)]:
        full = torch.ones(n, dtype=torch.long)
        assert_all_right(backend, Batch(rows, full[:, None] * label, full, full, blank), True)


def test_other_log_probs_are_not_read(backend):
    """Of log-probs only blank and the next label count."""
    rows = random_batch(2, 3, 2, 6).front(False)
    x = torch.full_like(rows.x, NAN)
    x[..., 0] = rows.x[..., 0]
    for b, u in [(b, u) for b in range(2) for u in range(2)]:
        k = rows.labels[b, u]
        x[b, :, u, k] = rows.x[b, :, u, k]
    got, wanted = (backend.loss_and_grad(r, from_logits=False) for r in (rows._replace(x=x), rows))
    assert_same_bits("loss", got[0], wanted[0])
    assert_same_bits("gradient", got[1], wanted[1])


@FRONT_ENDS
def test_rows_far_apart(backend, from_logits):
    """Offsets of more than 31 bits; of the memory between the rows nothing is touched."""
    rows = random_batch(2, 3, 1, 4).front(from_logits).to(torch.bfloat16)
    if backend.device.type == "cpu":  # numpy's are not filled
        room = torch.from_numpy(np.empty(2**31 + 2**12, dtype=np.int16)).view(torch.bfloat16)
    else:
        room = torch.empty(2**31 + 2**12, dtype=torch.bfloat16, device=backend.device)
    for strides in [(2**31, 64, 16, 1), (512, 2**30, 16, 1), (64, 16, 2**31, 1)]:
        x = room.as_strided(rows.x.shape, strides).copy_(rows.x)
        got, wanted = (backend.loss_and_grad(r, from_logits, poisoned=False) for r in (rows._replace(x=x), rows))
        assert_same_bits("loss", got[0], wanted[0])
        assert_same_bits("gradient", got[1], wanted[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("V", [8, 40])
def test_narrow_elements_are_converted_as_torch_does(backend, dtype, V):
    """Every finite one is read, and gradients of all sizes are rounded, those beyond the dtype's range too."""
    patterns = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    values = patterns[patterns.isfinite()].flip(0).view(-1)
    values = values[: len(values) // (4 * V) * 4 * V].view(-1, 4, 1, V)  # each row within a narrow range
    ids = torch.zeros(len(values), 0), torch.full((len(values),), 4), torch.zeros(len(values))
    labels, *lengths = (tensor.to(torch.int32) for tensor in ids)
    upstream = 2.0 ** torch.linspace(-36, 17, len(values))
    found = []
    for x in (values, values.float()):
        x = x.to(backend.device).requires_grad_()
        loss = backend.rnnt.rnnt_loss_from_logits(x, labels, *lengths, reduction="none")
        (grad,) = torch.autograd.grad(loss, x, upstream.to(loss))
        found.append((loss.detach(), grad.to(dtype)))
    (loss, grad), (wanted, wanted_grad) = found
    if backend.name == "cpu":  # on a GPU a row's sum goes in another order
        assert_same_bits("loss", loss, wanted)
        assert_same_bits("gradient", grad, wanted_grad)
    else:
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(grad, wanted_grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
