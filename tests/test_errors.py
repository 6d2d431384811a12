"""Bad arguments: each error has the right type and names the argument, what was wanted and what was got."""

import re

import pytest
import torch
from batches import random_batch
from cases import FRONT_ENDS
from compare import assert_same_bits

B, T, U, V = 2, 4, 3, 5
GOOD = random_batch(B, T, U, V)
NAMES = ("labels", "input_lengths", "label_lengths")


def call(backend, from_logits: bool, as_module: bool = False, **changes):
    """The function or its module, on good arguments with some changed; `x` by that name."""
    arguments = dict(zip(("x", *NAMES), (tensor.to(backend.device) for tensor in GOOD))) | {"blank": 0} | changes
    tensors = [arguments.pop(name) for name in ("x", *NAMES)]
    if as_module:
        return backend.rnnt.RNNTLoss(from_logits=from_logits, **arguments)(*tensors)
    function = backend.rnnt.rnnt_loss_from_logits if from_logits else backend.rnnt.rnnt_loss
    return function(*tensors, **arguments)


def assert_names(error: pytest.ExceptionInfo, name: str, wanted: str, got: str):
    message = str(error.value)
    assert re.match(rf"{re.escape(name)}.* must .*{re.escape(wanted)}.*, got {re.escape(got)}", message), message
    assert "/" not in message, f"a path of the machine that built it: {message}"


def ids(*shape: int, dtype=torch.int64) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


# argument, its value, error, wanted, got; the argument x is called logits or log_probs in messages
METADATA = [
    ("x", [[1.0]], TypeError, "torch.Tensor", "list"),
    ("x", None, TypeError, "torch.Tensor", "NoneType"),
    *[
        ("x", torch.ones(B, T, U + 1, V).to(d), TypeError, "float32", str(d))
        for d in (torch.int64, torch.bool, torch.cfloat)
    ],
    ("x", torch.ones(T, U + 1, V), ValueError, "[B, T, U + 1, V]", "[4, 4, 5]"),
    ("x", torch.ones(1, B, T, U + 1, V), ValueError, "[B, T, U + 1, V]", "[1, 2, 4, 4, 5]"),
    ("x", torch.ones(B, T, 0, V), ValueError, "[B, T, U + 1, V]", "[2, 4, 0, 5]"),
    ("x", torch.ones(B, T, U + 1, 0), ValueError, "[B, T, U + 1, V]", "[2, 4, 4, 0]"),
    *[
        (name, value, TypeError, wanted, got)
        for name in NAMES
        for value, wanted, got in [
            ([1, 1], "torch.Tensor", "list"),
            (3, "torch.Tensor", "int"),
            (ids(B, dtype=torch.float32), "int32 or int64", "torch.float32"),
            (ids(B, dtype=torch.int16), "int32 or int64", "torch.int16"),
            (ids(B, dtype=torch.uint8), "int32 or int64", "torch.uint8"),
            (ids(B, dtype=torch.bool), "int32 or int64", "torch.bool"),
        ]
    ],
    ("labels", ids(B, U + 1), ValueError, "[2, 3]", "[2, 4]"),
    ("labels", ids(B, U - 1), ValueError, "[2, 3]", "[2, 2]"),
    ("labels", ids(B + 1, U), ValueError, "[2, 3]", "[3, 3]"),
    ("labels", ids(B * U), ValueError, "[2, 3]", "[6]"),
    *[
        (name, ids(*shape), ValueError, "[2]", str(list(shape)))
        for name in NAMES[1:]
        for shape in [(), (1,), (B + 1,), (B, 1), (0,)]
    ],
    *[(name, getattr(GOOD, name).to("meta"), ValueError, "CPU", "meta") for name in NAMES],
    *[("blank", value, ValueError, "[-5, 5)", str(value)) for value in (V, -V - 1, 10**6)],
    *[("blank", value, TypeError, "int", type(value).__name__) for value in (0.0, "0", None)],
    *[("reduction", value, ValueError, "none, sum, mean, mean_volume", repr(value)) for value in ("average", "", None)],
    *[("topology", value, ValueError, "standard, modified", repr(value)) for value in ("ctc", "Standard", None)],
    *[("clamp", value, ValueError, "> 0", repr(value)) for value in (0, 0.0, -1.0, float("nan"))],
    *[
        ("fastemit_lambda", value, ValueError, "finite float >= 0", repr(value))
        for value in (-1, -0.001, float("nan"), float("inf"))
    ],
    *[
        ("fastemit_lambda", value, TypeError, "finite float >= 0", type(value).__name__)
        for value in (None, "0.1", True)
    ],
    ("scale_loss", 1, TypeError, "bool", "int"),
    *[(name, 10**400, ValueError, "finite float", "1000") for name in ("fastemit_lambda", "sigma", "delay_penalty")],
]


@pytest.mark.kernels_ci
@pytest.mark.parametrize("name, value, error, wanted, got", METADATA)
@FRONT_ENDS
@pytest.mark.parametrize("as_module", [False, True], ids=["function", "module"])
def test_metadata(backend, name, value, error, wanted, got, from_logits, as_module):
    if isinstance(value, torch.Tensor) and value.device.type != "meta":
        value = value.to(backend.device)
    with pytest.raises(error) as raised:
        call(backend, from_logits, as_module, **{name: value})
    shown = ("logits" if from_logits else "log_probs") if name == "x" else name
    assert_names(raised, shown, wanted, got)


def test_other_layouts_are_refused(backend):
    x = torch.ones(B, T, U + 1, V, device=backend.device)
    for name, value, got in [
        ("x", x.to_sparse(), "torch.sparse_coo"),
        ("x", torch.nested.nested_tensor([x[0], x[1]]), "a nested one"),
        ("labels", GOOD.labels.to_sparse(), "torch.sparse_coo"),
        ("blank_bias", x[..., 0].to_sparse(), "torch.sparse_coo"),
    ]:
        with pytest.raises(TypeError) as raised:
            call(backend, True, False, **{name: value})
        assert_names(raised, "logits" if name == "x" else name, "dense tensor", got)
    for name, value in [("x", x.to(torch.float8_e5m2)), ("label_bias", x[..., 0].to(torch.float8_e5m2))]:
        with pytest.raises(TypeError) as raised:
            call(backend, True, False, **{name: value})
        assert_names(raised, "logits" if name == "x" else name, "bfloat16", "torch.float8_e5m2")


def test_the_modules_check_what_they_can(backend):
    for make, words in [
        (lambda: backend.rnnt.RNNTLoss(blank="a"), "blank must be an int, got str"),
        (lambda: backend.rnnt.TDTLoss([1], blank="a"), "blank must be an int, got str"),
        (lambda: backend.rnnt.TDTLoss([1], generator=3), "generator must be a torch.Generator or None, got int"),
        (lambda: backend.rnnt.TDTLoss([1], joint=2), "joint must be a bool, got int"),
    ]:
        with pytest.raises(TypeError, match=words):
            make()


@pytest.mark.parametrize("option", ["reduction", "topology", "clamp"])
def test_the_module_checks_its_options_when_it_is_made(backend, option):
    with pytest.raises(ValueError, match=option):
        backend.rnnt.RNNTLoss(**{option: -1})


def test_keywords_stay_keywords(backend):
    with pytest.raises(TypeError, match="positional"):
        backend.rnnt.rnnt_loss(*GOOD[:4], 0, "mean", 0.1)


# argument, index, value, wanted
DATA = [
    *[("input_lengths", (b,), value, "[1, 4]") for b in range(B) for value in (0, -1, T + 1, 2**31 - 1)],
    *[("label_lengths", (b,), value, "[0, 3]") for b in range(B) for value in (-1, U + 1, -(2**31))],
    *[
        ("labels", index, value, "[0, 5)")
        for index in [(0, 0), (0, 2), (1, 1)]
        for value in (V, -1, 2147480000, -(2**31))
    ],
    *[("labels", index, 0, "not blank (0)") for index in [(0, 0), (1, 2)]],
]


def poked(name: str, index: tuple[int, ...], value: int, dtype: torch.dtype) -> torch.Tensor:
    tensor = getattr(GOOD, name).to(dtype, copy=True)
    tensor[index] = value
    return tensor


@pytest.mark.kernels_ci
@pytest.mark.parametrize("name, index, value, wanted", DATA)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@FRONT_ENDS
@pytest.mark.parametrize("validate", [None, True, False])
def test_data(backend, name, index, value, wanted, dtype, from_logits, validate):
    tensor = poked(name, index, value, dtype).to(backend.device)
    if backend.data_errors == "nan" and not validate:
        assert_spoils_its_utterance_alone(backend, from_logits, index[0], validate=validate, **{name: tensor})
        return
    with pytest.raises(RuntimeError) as raised:
        call(backend, from_logits, validate=validate, **{name: tensor})
    assert_names(raised, f"{name}{list(index)}", wanted, str(value))


def assert_spoils_its_utterance_alone(backend, from_logits, b, **changes):
    """Loss and gradient of utterance b are NaN, those of the other are what they are without the changes."""

    def loss_and_grad(**changes):
        x = GOOD.x.to(backend.device).detach().requires_grad_()
        loss = call(backend, from_logits, x=x, reduction="none", **changes)
        return loss.detach(), torch.autograd.grad(loss, x, torch.ones_like(loss))[0]

    for name, got, wanted in zip(("loss", "gradient"), loss_and_grad(**changes), loss_and_grad()):
        assert got[b].isnan().all(), name
        assert_same_bits(name, got[1 - b], wanted[1 - b])


@pytest.mark.parametrize("blank", [4, -1])
def test_a_label_that_equals_a_blank_counted_from_the_end(backend, blank):
    labels = ids(B, U)
    labels[1, 1] = 4
    with pytest.raises(RuntimeError) as raised:
        call(backend, True, labels=labels.to(backend.device), blank=blank, validate=True)
    assert_names(raised, "labels[1, 1]", "not blank (4)", "4")


@pytest.mark.parametrize("name, index, value, wanted", DATA)
def test_native_ops_check_data_too(backend, name, index, value, wanted):
    batch = GOOD._replace(**{name: poked(name, index, value, torch.int64)})
    *tensors, blank = (*(tensor.to(backend.device) for tensor in batch[:4]), batch.blank)
    ops = backend.rnnt.ops
    for op, more in [
        (ops.rnnt_forward, ()),
        (ops.loss_forward, ("softmax", "standard", None, 0.0, False, False, False)),
    ]:
        if backend.data_errors == "nan":
            loss, *_ = op(*tensors, blank, *more)
            assert loss.isnan().tolist() == [b == index[0] for b in range(B)]
            continue
        with pytest.raises(RuntimeError) as raised:
            op(*tensors, blank, *more)
        assert_names(raised, f"{name}{list(index)}", wanted, str(value))


def test_labels_beyond_their_length_may_be_anything(backend):
    labels = poked("labels", (1, 2), 0, torch.int64)
    lengths = torch.tensor([3, 2]).to(backend.device)
    wanted = call(backend, True, label_lengths=lengths)
    for value in (0, V, -1, 2**62, -(2**63)):
        labels[1, 2] = value
        assert call(backend, True, labels=labels.to(backend.device), label_lengths=lengths) == wanted
