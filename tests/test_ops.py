"""The native ops under torch.library, torch.compile, torch.export and function transforms."""

import copy

import pytest
import torch
from batches import Batch, random_batch
from cases import FRONT_ENDS, NORMALIZERS, TOPOLOGIES
from compare import assert_opcheck, assert_within_budget


def arguments(backend, batch: Batch, grad: bool = True) -> list[torch.Tensor]:
    x, *ids = (tensor.to(backend.device).detach().clone() for tensor in batch[:4])
    return [x.requires_grad_(grad), *ids]


# ---- opcheck: schemas, fakes, autograd registration, ahead-of-time dispatch with dynamic shapes


@pytest.mark.parametrize("B, U", [(2, 3), (1, 0), (0, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_opcheck_of_the_lattice_ops(backend, B, U, dtype):
    batch = random_batch(max(B, 1), 4, U, 5, ragged=True).front(False).to(dtype).take(range(B))
    x, *ids = arguments(backend, batch)
    ops = backend.rnnt.ops
    assert_opcheck(ops.rnnt_forward, x, *ids, 0)
    loss, alpha, beta = ops.rnnt_forward(x.detach(), *ids, 0)
    assert_opcheck(ops.rnnt_backward, torch.ones_like(loss), x.detach(), *ids, alpha, beta, 0)


@pytest.mark.parametrize(
    "dtype, blank, clamp, B, U, int32",
    [
        (torch.float64, 0, None, 2, 3, False),
        (torch.float32, 4, 0.1, 2, 3, True),
        (torch.bfloat16, 2, None, 1, 0, False),
        (torch.float16, 0, None, 0, 2, False),
    ],
)
@NORMALIZERS
@TOPOLOGIES
def test_opcheck_of_the_loss_ops(backend, dtype, blank, clamp, B, U, int32, normalizer, topology):
    batch = random_batch(max(B, 1), 4, U, 5, blank=blank, ragged=True).to(dtype).take(range(B))
    x, *ids = arguments(backend, batch)
    ids = [tensor.int() for tensor in ids] if int32 else ids
    ops, options = backend.rnnt.ops, (blank, normalizer, topology, clamp, 0.1)
    for keep in (True, False):
        assert_opcheck(ops.loss_forward, x.detach().requires_grad_(keep), *ids, *options, False, keep, False)
    loss, *kept = ops.loss_forward(x.detach(), *ids, *options, False, True, False)
    assert_opcheck(ops.loss_backward, torch.ones_like(loss), x.detach(), *ids, loss, *kept, *options)
    assert_opcheck(ops.loss_backward_, torch.ones_like(loss), x.detach().clone(), *ids, loss, *kept, *options)


@pytest.mark.parametrize("op", ["rnnt_forward", "rnnt_backward", "loss_forward", "loss_backward"])
def test_schemas_are_functional(backend, op):
    schema = getattr(backend.rnnt.ops, op).default._schema
    assert not schema.is_mutable and all(
        argument.alias_info is None for argument in [*schema.arguments, *schema.returns]
    )


# ---- torch.compile: the graph is whole, equal to eager, and made once


class Counting:
    """A compiler backend that counts the graphs it makes and the times they run."""

    def __init__(self):
        self.made = self.run = 0

    def __call__(self, graph, _):
        self.made += 1

        def runs(*inputs):
            self.run += 1
            return graph(*inputs)

        return runs


def training_step(backend, from_logits: bool, **keywords):
    function = backend.rnnt.rnnt_loss_from_logits if from_logits else backend.rnnt.rnnt_loss

    def step(x, labels, input_lengths, label_lengths):
        return function(x * 1.5, labels, input_lengths, label_lengths, **keywords)

    return step


def assert_same_step(compiled, eager, inputs: list[torch.Tensor]) -> None:
    losses = [step(*inputs) for step in (compiled, eager)]
    grads = [torch.autograd.grad(loss.sum(), inputs[0])[0] for loss in losses]
    assert_within_budget("loss", *(loss.detach().reshape(-1) for loss in losses))
    assert_within_budget("gradient", *grads)


@FRONT_ENDS
@pytest.mark.parametrize(
    "keywords",
    [{}, {"reduction": "none", "topology": "modified", "blank": -1}, {"clamp": 0.1, "zero_infinity": True}],
    ids=["defaults", "modified", "clamp"],
)
def test_compiled_once_for_new_values_and_lengths(backend, from_logits, keywords):
    torch._dynamo.reset()
    counting, eager = Counting(), training_step(backend, from_logits, **keywords)
    compiled = torch.compile(eager, fullgraph=True, backend=counting)
    blank = keywords.get("blank", 0)
    assert_same_step(compiled, eager, arguments(backend, random_batch(3, 6, 4, 5, blank=blank)))
    assert counting.made == counting.run == 1
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (1, 2):
            inputs = arguments(backend, random_batch(3, 6, 4, 5, seed, blank=blank, ragged=True))
            assert_same_step(compiled, eager, inputs)
    assert counting.made == 1 and counting.run == 3


def test_error_on_recompile_would_be_seen(backend):
    """The control of the test above: another dtype is another graph."""
    torch._dynamo.reset()
    counting = Counting()
    compiled = torch.compile(training_step(backend, True), fullgraph=True, backend=counting)
    compiled(*arguments(backend, random_batch(2, 4, 3, 5)))
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(torch._dynamo.exc.RecompileError):
        compiled(*arguments(backend, random_batch(2, 4, 3, 5).to(torch.float32)))
    assert counting.made == counting.run == 1


@FRONT_ENDS
@TOPOLOGIES
def test_dynamic_shapes_share_a_graph(backend, from_logits, topology):
    torch._dynamo.reset()
    counting, eager = Counting(), training_step(backend, from_logits, topology=topology, reduction="mean_volume")
    compiled = torch.compile(eager, fullgraph=True, backend=counting, dynamic=True)
    assert_same_step(compiled, eager, arguments(backend, random_batch(3, 6, 4, 11, ragged=True)))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for shape in [(2, 9, 3, 7), (5, 3, 20, 6), (4, 17, 15, 40)]:
            assert_same_step(compiled, eager, arguments(backend, random_batch(*shape, ragged=True)))
    assert counting.made == 1 and counting.run == 4


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_backward(backend, compiler):
    """Through AOT autograd, where forward and backward are graphs of functional ops on the fakes' shapes."""
    torch._dynamo.reset()
    network = torch.nn.Linear(6, 5, device=backend.device, dtype=torch.float64)
    other = copy.deepcopy(network)
    module = backend.rnnt.RNNTLoss(from_logits=True)
    _, *ids = arguments(backend, random_batch(3, 6, 4, 5, ragged=True))
    features = torch.randn(3, 6, 5, 6, dtype=torch.float64, device=backend.device)
    compiled = torch.compile(lambda x, *ids: module(network(x), *ids), fullgraph=True, backend=compiler)
    loss, wanted = compiled(features, *ids), module(other(features), *ids)
    loss.backward()
    wanted.backward()
    assert_within_budget("loss", loss.detach()[None], wanted.detach()[None])
    assert_within_budget("gradient", network.weight.grad, other.weight.grad)


def test_compiled_calls_check_their_data(backend):
    torch._dynamo.reset()
    compiled = torch.compile(training_step(backend, True, validate=True), fullgraph=True, backend="aot_eager")
    batch = random_batch(2, 4, 3, 5)
    compiled(*arguments(backend, batch))
    with pytest.raises(RuntimeError, match=r"input_lengths\[1\] must be in \[1, 4\], got 5"):
        compiled(*arguments(backend, batch._replace(input_lengths=torch.tensor([4, 5]))))


# ---- torch.export


@FRONT_ENDS
def test_export_with_dynamic_shapes(backend, from_logits):
    module = backend.rnnt.RNNTLoss(from_logits=from_logits, reduction="none")
    B, T, U, V = (torch.export.Dim(name, min=2, max=64) for name in "BTUV")
    shapes = ({0: B, 1: T, 2: U + 1, 3: V}, {0: B, 1: U}, {0: B}, {0: B})
    inputs = arguments(backend, random_batch(3, 6, 4, 5, ragged=True), grad=False)
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    for shape in [(3, 6, 4, 5), (2, 9, 17, 8)]:
        inputs = arguments(backend, random_batch(*shape, seed=1, ragged=True), grad=False)
        assert_within_budget("loss", program.module()(*inputs), module(*inputs))


# ---- function transforms and devices


def per_utterance(backend, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
    return backend.rnnt.rnnt_loss_from_logits(x, *ids, reduction="none")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_a_loop(backend):
    x, *ids = arguments(backend, random_batch(2, 3, 2, 4, ragged=True), grad=False)
    many = torch.stack([x, 2 * x, x + 1e3])
    got = torch.func.vmap(lambda x: per_utterance(backend, x, *ids))(many)
    assert torch.equal(got, torch.stack([per_utterance(backend, x, *ids) for x in many]))


@pytest.mark.parametrize(
    "transform, words",
    [
        (lambda f, x: torch.func.grad(lambda x: f(x).sum())(x), "functorch transforms"),
        (lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x), "functorch transforms"),
        (lambda f, x: torch.func.jvp(f, (x,), (x,)), "forward|jvp"),
        (lambda f, x: torch.autograd.functional.hessian(lambda x: f(x).sum(), x), "double backward"),
    ],
    ids=["grad", "hessian", "jvp", "autograd_hessian"],
)
def test_transforms_that_have_no_rule_say_so(backend, transform, words):
    x, *ids = arguments(backend, random_batch(2, 3, 2, 4), grad=False)
    with pytest.raises((RuntimeError, NotImplementedError), match=words):
        transform(lambda x: per_utterance(backend, x, *ids), x)


@FRONT_ENDS
def test_shapes_without_data(backend, from_logits):
    """On the meta device the fakes answer."""
    x, *ids = (tensor.to("meta") for tensor in random_batch(2, 3, 2, 4).to(torch.bfloat16)[:4])
    function = backend.rnnt.rnnt_loss_from_logits if from_logits else backend.rnnt.rnnt_loss
    loss = function(x.requires_grad_(), *ids, reduction="none")
    assert loss.shape == (2,) and loss.dtype == torch.float32 and loss.device.type == "meta"
    loss.sum().backward()
    assert x.grad.shape == x.shape and x.grad.dtype == x.dtype
