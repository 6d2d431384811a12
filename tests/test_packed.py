"""rnnt_loss_packed: bit for bit what a padded batch gives, with errors of its own; pack_rows and unpack_rows."""

import re

import pytest
import torch
from batches import JUNK_LABEL, Batch, random_batch
from cases import COMBINATIONS, DTYPES, FRONT_ENDS, TOPOLOGIES
from compare import assert_opcheck, assert_same_bits
from conftest import surrounded
from test_ops import Counting, assert_same_step

RAGGED = random_batch(3, 6, 4, 9, ragged=True)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
WAYS = pytest.mark.parametrize("way", [{}, {"sigma": 0.1}], ids=["fused", "arc_scores"])


def packed(backend, batch: Batch) -> Batch:
    """Itself with its rows packed, on the device, in the middle of NaN; padded labels are junk."""
    x, labels, *lengths = batch.poisoned()[:4]
    rows = surrounded(backend.rnnt.pack_rows(x, *lengths).to(backend.device))
    return Batch(rows, *(ids.to(backend.device) for ids in (labels, *lengths)), batch.blank)


def call(backend, batch: Batch, from_logits: bool = True, **keywords) -> torch.Tensor:
    return backend.rnnt.rnnt_loss_packed(*batch, **{"reduction": "none", "from_logits": from_logits, **keywords})


def loss_and_grad(backend, batch: Batch, from_logits: bool = True, upstream=1.0, **keywords):
    """As the backend's: on the CPU, the gradient padded with zeros."""
    rows = packed(backend, batch)
    loss = call(backend, rows._replace(x=rows.x.requires_grad_()), from_logits, **keywords)
    upstream = torch.as_tensor(upstream, dtype=loss.dtype, device=loss.device).expand_as(loss)
    (grad,) = torch.autograd.grad(loss, rows.x, upstream)
    assert grad.shape == rows.x.shape and grad.dtype == rows.x.dtype
    B, T, W, _ = batch.x.shape
    return loss.detach().cpu(), backend.rnnt.unpack_rows(grad.cpu(), *batch[2:4], T, W - 1)


def assert_same_as_padded(backend, batch: Batch, from_logits: bool = True, **keywords):
    wanted = backend.loss_and_grad(batch, from_logits, **{k: v for k, v in keywords.items() if k != "max_input_length"})
    for name, got, same in zip(("loss", "gradient"), loss_and_grad(backend, batch, from_logits, **keywords), wanted):
        assert_same_bits(name, got, same)


# ---- the same bits


@pytest.mark.parametrize("case, from_logits, topology", COMBINATIONS)
def test_every_case(backend, case, from_logits, topology):
    batch = case.batch(from_logits, torch.float32)
    if backend.name == "emulated" and batch.x.numel() > 5e5:
        pytest.skip("long, and done by the CPU")
    assert_same_as_padded(backend, batch, from_logits, topology=topology)


@EVERY_DTYPE
@FRONT_ENDS
@TOPOLOGIES
@pytest.mark.parametrize(
    "shape", [(5, 20, 9, 3), (3, 7, 4, 16), (40, 3, 2, 37), (2, 3, 2, 3000), (2, 4, 40, 2)], ids=str
)
def test_ragged(backend, dtype, from_logits, topology, shape):
    batch = random_batch(*shape, ragged=True).front(from_logits).to(dtype)
    upstream = torch.linspace(1, -2, shape[0])
    assert_same_as_padded(backend, batch, from_logits, topology=topology, upstream=upstream)


@FRONT_ENDS
@pytest.mark.parametrize(
    "keywords",
    [{"clamp": 0.1}, {"clamp": 1e-3, "topology": "modified"}, {"zero_infinity": True, "topology": "modified"}]
    + [{"reduction": reduction} for reduction in ("sum", "mean", "mean_volume")]
    + [{"max_input_length": T} for T in (6, 7, 40)]
    + [{"validate": validate} for validate in (True, False)],
    ids=str,
)
def test_options(backend, from_logits, keywords):
    assert_same_as_padded(backend, RAGGED.front(from_logits), from_logits, **keywords)


def test_log_probs_have_no_normalizer(backend):
    for normalizer, words in [("hat", "must be softmax or none without from_logits, got 'hat'"), ("x", "got 'x'")]:
        with pytest.raises(ValueError, match=f"normalizer .*{words}"):
            call(backend, RAGGED, from_logits=False, normalizer=normalizer)


@FRONT_ENDS
@pytest.mark.parametrize(
    "keywords",
    [{"fastemit_lambda": 0.3}, {"topology": "constrained", "delay_penalty": 0.2, "sigma": 0.1}],
    ids=str,
)
def test_variants(backend, keywords, from_logits):
    assert_same_as_padded(backend, RAGGED.front(from_logits), from_logits, **keywords)
    if from_logits:
        assert_same_as_padded(backend, RAGGED, normalizer="hat", **keywords)


def test_windows_and_biases(backend):
    B, T, W, _ = RAGGED.x.shape
    windows = torch.tensor([[0, 4]] * (W - 1)).expand(B, -1, -1).to(backend.device)
    leaf = lambda: torch.linspace(-1, 1, B * T * W, device=backend.device).view(B, T, W).requires_grad_()  # noqa: E731
    bias, same_bias = leaf(), leaf()
    ids = [tensor.to(backend.device) for tensor in RAGGED[1:4]]
    x, y = (RAGGED.x.to(backend.device).clone().requires_grad_() for _ in range(2))
    wanted = backend.rnnt.rnnt_loss_from_logits(x, *ids, windows=windows, label_bias=bias, reduction="sum")
    rows = backend.rnnt.pack_rows(y, *ids[1:])
    got = backend.rnnt.rnnt_loss_packed(rows, *ids, windows=windows, label_bias=same_bias, reduction="sum")
    assert_same_bits("loss", got.detach(), wanted.detach())
    wanted.backward(), got.backward()
    assert_same_bits("gradient", y.grad, x.grad)
    assert_same_bits("gradient of the bias", same_bias.grad, bias.grad)


@pytest.mark.parametrize("int32", [True, False])
def test_ids_of_either_type_and_in_either_place(backend, int32):
    rows = packed(backend, RAGGED)
    ids = [tensor.int() if int32 else tensor for tensor in rows[1:4]]
    wanted = call(backend, rows)
    assert_same_bits("on the device", call(backend, Batch(rows.x, *ids)), wanted)
    assert_same_bits("on the CPU", call(backend, Batch(rows.x, *(tensor.cpu() for tensor in ids))), wanted)


def test_any_distance_between_rows(backend):
    rows = packed(backend, RAGGED)
    wanted = call(backend, rows)
    wide = torch.nn.functional.pad(rows.x, (3, 2), value=float("nan"))[:, 3:-2]
    assert_same_bits("wide", call(backend, rows._replace(x=wide)), wanted)
    assert_same_bits("by columns", call(backend, rows._replace(x=rows.x.t().contiguous().t())), wanted)


def test_blank_counts_from_the_end(backend):
    rows = packed(backend, random_batch(3, 6, 4, 9, blank=8, ragged=True))
    assert_same_bits("loss", call(backend, rows._replace(blank=-1)), call(backend, rows))


@pytest.mark.parametrize("max_input_length", [None, 0, 5])
@FRONT_ENDS
def test_an_empty_batch(backend, max_input_length, from_logits):
    x = torch.zeros(0, 9, device=backend.device, requires_grad=True)
    ids = [torch.zeros(shape, dtype=torch.long, device=backend.device) for shape in ((0, 4), (0,), (0,))]
    keywords = {"max_input_length": max_input_length, "from_logits": from_logits}
    assert call(backend, Batch(x, *ids), **keywords).shape == (0,)
    assert call(backend, Batch(x, *ids), reduction="mean", **keywords).isnan()
    loss = call(backend, Batch(x, *ids), reduction="sum", **keywords)
    loss.backward()
    assert loss == 0 and x.grad.shape == (0, 9)


# ---- in place


def overwritten(backend, make=lambda w: w * 2, dtype=torch.float64, **keywords):
    """The logits make(w) after backward, and the gradient at w."""
    rows = packed(backend, RAGGED.to(dtype))
    w = rows.x.requires_grad_()
    logits = make(w)
    loss = call(backend, rows._replace(x=logits), reduction="sum", **keywords)
    return logits.detach(), torch.autograd.grad(loss, w)[0]


@EVERY_DTYPE
@TOPOLOGIES
def test_in_place(backend, dtype, topology):
    logits, grad = overwritten(backend, dtype=dtype, topology=topology, inplace_grad=True)
    wanted = overwritten(backend, dtype=dtype, topology=topology)[1]
    assert_same_bits("gradient", grad, wanted)
    assert_same_bits("logits", logits * 2, wanted)  # twice the gradient of 2 w at w


def test_in_place_between_other_rows(backend):
    def make(w):
        return torch.nn.functional.pad(w * 2, (1, 3, 1, 1), value=7.0)[1:-1, 1:-3]

    logits, grad = overwritten(backend, make, inplace_grad=True)
    assert_same_bits("gradient", grad, overwritten(backend)[1])
    around = logits._base if logits._base is not None else logits
    whole = torch.as_strided(around, (len(logits) + 2, 13), (13, 1), 0)
    assert (whole[0] == 7).all() and (whole[-1] == 7).all() and (whole[:, 0] == 7).all() and (whole[:, -3:] == 7).all()


@pytest.mark.parametrize(
    "wanted, make",
    [
        ("leaf", lambda w: w.detach().requires_grad_()),
        ("view of one", lambda w: w[:]),
        ("expanded or overlapping", lambda w: (w[:1] * 1).expand_as(w)),
        ("contiguous rows", lambda w: (w.t() * 1).contiguous().t()),
    ],
)
def test_what_cannot_be_overwritten_is_refused(backend, wanted, make):
    with pytest.raises(ValueError, match=f"logits must .*{wanted}"):
        overwritten(backend, make, inplace_grad=True)


# ---- bad arguments

ROWS = int((RAGGED.input_lengths * (RAGGED.label_lengths + 1)).sum())
IDS = torch.ones(3, dtype=torch.long)


@pytest.mark.parametrize(
    "keywords, error, message",
    [
        ({"logits": [[1.0]]}, TypeError, "logits must be a torch.Tensor, got list"),
        ({"logits": torch.ones(ROWS, 9).int()}, TypeError, "logits must be float32, .*, got torch.int32"),
        ({"logits": torch.ones(3, 6, 5, 9)}, ValueError, r"logits must have shape \[sum .*, got \[3, 6, 5, 9\]"),
        ({"logits": torch.ones(ROWS, 0)}, ValueError, rf"logits must have shape .*V >= 1, got \[{ROWS}, 0\]"),
        ({"logits": torch.ones(0, 9)}, ValueError, "logits must have at least a row for each of 6 frames .*, got 0"),
        ({"labels": IDS}, ValueError, r"labels must have shape \[B, U\], got \[3\]"),
        ({"labels": IDS[None].float()}, TypeError, "labels must be int32 or int64, got torch.float32"),
        ({"input_lengths": IDS[:2]}, ValueError, r"input_lengths must have shape \[3\] for labels .*, got \[2\]"),
        ({"label_lengths": IDS[None]}, ValueError, r"label_lengths must have shape \[3\] for labels .*, got \[1, 3\]"),
        ({"blank": 9}, ValueError, r"blank must be in \[-9, 9\), got 9"),
        ({"from_logits": None}, TypeError, "from_logits must be a bool, got NoneType"),
        ({"max_input_length": 6.0}, TypeError, "max_input_length must be None or an int >= 0, got float"),
        ({"max_input_length": True}, TypeError, "max_input_length must be None or an int >= 0, got bool"),
        ({"max_input_length": -1}, ValueError, "max_input_length must be None or an int >= 0 .*, got -1"),
        ({"max_input_length": 2**31}, ValueError, "max_input_length must be .*, got 2147483648"),
        (
            {"max_input_length": 1},
            RuntimeError,
            r"logits must have at most B .* = 18 rows, got |max_input_length must be at least",
        ),
        ({"reduction": "median"}, ValueError, "reduction must be one of .*, got 'median'"),
    ],
)
def test_metadata(backend, keywords, error, message):
    arguments = dict(zip(("logits", "labels", "input_lengths", "label_lengths"), packed(backend, RAGGED)))
    with pytest.raises(error) as raised:
        backend.rnnt.rnnt_loss_packed(**{**arguments, **keywords})
    assert re.match(message, str(raised.value)), str(raised.value)


def changed(name: str, index: int, value: int) -> dict[str, torch.Tensor]:
    lengths = getattr(RAGGED, name).clone()
    lengths[index] = value
    return {name: lengths}


@pytest.mark.parametrize(
    "changes, keywords, message",
    [
        ({}, {"max_input_length": 5}, "max_input_length must be at least input_lengths[0] = 6, got 5"),
        (
            {"x": ROWS - 1},
            {},
            f"logits must have {ROWS} rows, the sum of input_lengths (label_lengths + 1), got {ROWS - 1}",
        ),
        (
            {"x": ROWS + 1},
            {},
            f"logits must have {ROWS} rows, the sum of input_lengths (label_lengths + 1), got {ROWS + 1}",
        ),
        (changed("input_lengths", 0, 5), {}, "logits must have "),
        (changed("input_lengths", 2, -1), {}, "input_lengths[2] must be in [1, 6], got -1"),
        (changed("input_lengths", 2, 0), {}, "input_lengths[2] must be in [1, 6], got 0"),
        (changed("label_lengths", 0, 6), {}, "label_lengths[0] must be in [0, 5], got 6"),
        (changed("label_lengths", 1, -1), {}, "label_lengths[1] must be in [0, 5], got -1"),
    ],
    ids=str,
)
@FRONT_ENDS
@WAYS
@pytest.mark.parametrize("validate", [None, True])
def test_lengths_that_do_not_fit(backend, changes, keywords, message, from_logits, way, validate):
    """An error, or where the data are not looked at, NaN; nothing outside of the rows is touched (backend checked)."""
    batch = packed(backend, RAGGED.front(from_logits))
    changes = {name: value.to(backend.device) if name != "x" else batch.x for name, value in changes.items()} | (
        {"x": surrounded(batch.x.new_zeros(changes["x"], 9))} if "x" in changes else {}
    )
    batch = batch._replace(**changes)
    x = batch.x.requires_grad_()
    if backend.data_errors == "raise" or validate:
        with pytest.raises(RuntimeError) as raised:
            call(backend, batch, from_logits, validate=validate, **keywords, **way)
        assert str(raised.value).startswith(message), str(raised.value)
        return
    loss = call(backend, batch, from_logits, **keywords, **way)
    assert loss.isnan().all()
    assert torch.autograd.grad(loss.sum(), x)[0].isnan().all()


@WAYS
def test_a_bad_label_spoils_its_utterance_alone(backend, way):
    if backend.data_errors == "raise":
        pytest.skip("is an error")
    rows = packed(backend, RAGGED)
    rows.x.requires_grad_()
    results = []
    for label in (rows.labels[0, 0].item(), JUNK_LABEL):
        rows.labels[0, 0] = label
        loss = call(backend, rows, **way)
        results.append((loss.detach(), torch.autograd.grad(loss.sum(), rows.x)[0]))
    (wanted, wanted_grad), (loss, grad) = results
    own = int(RAGGED.input_lengths[0] * (RAGGED.label_lengths[0] + 1))
    assert loss[0].isnan() and grad[:own].isnan().all()
    assert_same_bits("loss", loss[1:], wanted[1:])
    assert_same_bits("gradient", grad[own:], wanted_grad[own:])


# ---- derivatives and compilers


@FRONT_ENDS
@TOPOLOGIES
def test_gradcheck(backend, from_logits, topology):
    rows = packed(backend, random_batch(3, 4, 3, 5, ragged=True).front(from_logits))
    keywords = {"topology": topology, "zero_infinity": True}
    assert torch.autograd.gradcheck(
        lambda x: call(backend, rows._replace(x=x), from_logits, **keywords), rows.x.requires_grad_()
    )


@FRONT_ENDS
def test_no_second_derivative(backend, from_logits):
    rows = packed(backend, RAGGED.front(from_logits))
    loss = call(backend, rows._replace(x=rows.x.requires_grad_()), from_logits)
    (grad,) = torch.autograd.grad(loss.sum(), rows.x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


@EVERY_DTYPE
@FRONT_ENDS
@TOPOLOGIES
@pytest.mark.parametrize("B", [3, 0])
def test_opcheck(backend, dtype, from_logits, topology, B):
    x, *ids, _ = packed(backend, RAGGED.to(dtype).take(range(B)))
    normalizer = "softmax" if from_logits else "none"
    ops, options, T = backend.rnnt.ops, (0, normalizer, topology, None, 0.1), 6
    for keep in (True, False):
        assert_opcheck(ops.loss_forward, x.detach().requires_grad_(keep), *ids, *options, False, keep, False, T)
    loss, *kept = ops.loss_forward(x.detach(), *ids, *options, False, True, False, T)
    assert_opcheck(ops.loss_backward, torch.ones_like(loss), x.detach(), *ids, loss, *kept, *options, T)
    assert_opcheck(ops.loss_backward_, torch.ones_like(loss), x.detach().clone(), *ids, loss, *kept, *options, T)


def step_of(backend, **keywords):
    def step(x, labels, input_lengths, label_lengths, max_input_length):
        batch = Batch(x * 1.5, labels, input_lengths, label_lengths)
        return call(backend, batch, reduction="mean", max_input_length=max_input_length, **keywords)

    return step


@FRONT_ENDS
def test_compiled_once_for_any_shape(backend, from_logits):
    torch._dynamo.reset()
    counting, eager = Counting(), step_of(backend, from_logits=from_logits)
    compiled = torch.compile(eager, fullgraph=True, backend=counting, dynamic=True)
    for i, shape in enumerate([(3, 6, 4, 11), (2, 9, 3, 7), (5, 3, 20, 6), (4, 17, 15, 40)]):
        x, *ids, _ = packed(backend, random_batch(*shape, ragged=True))
        with torch._dynamo.config.patch(error_on_recompile=i > 0):
            assert_same_step(compiled, eager, [x.detach().requires_grad_(), *ids, shape[1]])
    assert counting.made == 1 and counting.run == 4


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize("inplace_grad", [False, True])
def test_compiled_backward(backend, compiler, inplace_grad):
    torch._dynamo.reset()
    x, *ids, _ = packed(backend, RAGGED)
    eager = step_of(backend, inplace_grad=inplace_grad)
    assert_same_step(
        torch.compile(eager, fullgraph=True, backend=compiler), eager, [x.detach().requires_grad_(), *ids, 6]
    )


def test_shapes_without_data(backend):
    """On the meta device the fakes answer, if nothing has to be read."""
    rows = Batch(*(tensor.to("meta") for tensor in packed(backend, RAGGED)[:4]))
    loss = call(backend, rows._replace(x=rows.x.requires_grad_()), max_input_length=6)
    assert loss.shape == (3,) and loss.device.type == "meta"
    loss.sum().backward()
    assert rows.x.grad.shape == rows.x.shape


# ---- pack_rows and unpack_rows


@pytest.mark.parametrize("rest", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_rows_follow_each_other(backend, rest, dtype):
    _, _, T, U, _ = RAGGED
    x = torch.arange(3 * 6 * 5 * (torch.Size(rest).numel())).view(3, 6, 5, *rest).to(dtype).to(backend.device)
    rows = backend.rnnt.pack_rows(x, T, U)
    wanted = [x[b, t, u] for b in range(3) for t in range(T[b]) for u in range(U[b] + 1)]
    assert torch.equal(rows, torch.stack(wanted))
    padded = backend.rnnt.unpack_rows(rows, T, U, 8, 7, fill=-3)
    assert padded.shape == (3, 8, 8, *rest) and padded.dtype == dtype
    cells = Batch(padded, None, T, U).cells
    assert torch.equal(padded[cells], rows) and (padded[~cells] == -3).all()
    assert backend.rnnt.unpack_rows(rows, T, U).shape == x.shape


def test_packing_is_differentiable(backend):
    T, U = RAGGED.input_lengths, RAGGED.label_lengths
    x = RAGGED.x.to(backend.device).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: backend.rnnt.pack_rows(x, T, U), x)
    rows = backend.rnnt.pack_rows(x, T, U).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: backend.rnnt.unpack_rows(rows, T, U), rows)


def test_packing_nothing(backend):
    none = torch.zeros(0, dtype=torch.long)
    rows = backend.rnnt.pack_rows(torch.zeros(0, 3, 4, 5), none, none)
    assert rows.shape == (0, 5) and backend.rnnt.unpack_rows(rows, none, none).shape == (0, 0, 1, 5)


def test_packing_refuses(backend):
    T, U = RAGGED.input_lengths, RAGGED.label_lengths
    pack, unpack, rows = backend.rnnt.pack_rows, backend.rnnt.unpack_rows, torch.zeros(ROWS, 9)
    for function, message in [
        (lambda: pack(rows, T, U), r"x must have shape \[B, T, U \+ 1, \.\.\.\], got"),
        (lambda: pack(RAGGED.x[:, :5], T, U), r"input_lengths must be in \[0, 5\], got \[6"),
        (lambda: pack(RAGGED.x, T, U - 1), r"label_lengths must be in \[0, 4\], got \[3"),
        (lambda: pack(RAGGED.x[:2], T, U), r"input_lengths must have shape \[2\], got \[3\]"),
        (lambda: pack(RAGGED.x, T, U[:2]), r"label_lengths must have shape \[3\], got \[2\]"),
        (lambda: unpack(rows, T, U, T=5), r"input_lengths must be in \[0, 5\]"),
        (lambda: unpack(rows, T, U, U=-1), r"U must be None or an int >= 0, got -1"),
        (lambda: unpack(rows, T[0], U), r"input_lengths must have shape \[B\], got \[\]"),
        (lambda: unpack(rows[1:], T, U), rf"packed must have {ROWS} rows, .*, got {ROWS - 1}"),
        (lambda: unpack(rows[0, 0], T, U), r"packed must have shape .*, got \[\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            function()
    for function, message in [
        (lambda: pack([rows], T, U), "x must be a torch.Tensor, got list"),
        (lambda: pack(RAGGED.x, T.tolist(), U), "input_lengths must be a torch.Tensor, got list"),
        (lambda: pack(RAGGED.x, T.double(), U), "input_lengths must be int32 or int64, got torch.float64"),
        (lambda: unpack(rows, T, U.tolist()), "label_lengths must be a torch.Tensor, got list"),
        (lambda: unpack(rows, T, U, T=1.5), "T must be an int, got float"),
    ]:
        with pytest.raises(TypeError, match=message):
            function()
