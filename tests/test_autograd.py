"""The derivative as torch sees it: gradcheck, upstream gradients, grad modes, autocast and the module."""

import pytest
import torch
from batches import INF, collate, random_batch
from cases import FRONT_ENDS, NO_LABEL_1, TOPOLOGIES, X1, X3
from compare import assert_same_bits, assert_within_budget

MIXED = collate(X1, NO_LABEL_1, X3)
RAGGED = random_batch(3, 4, 3, 5, ragged=True)


@FRONT_ENDS
@TOPOLOGIES
def test_gradcheck(backend, from_logits, topology):
    batch = backend.leaf(RAGGED.front(from_logits))
    for reduction in ("none", "mean", "mean_volume"):
        keywords = {"reduction": reduction, "topology": topology, "zero_infinity": True}
        assert torch.autograd.gradcheck(
            lambda x, k=keywords: backend.loss(batch._replace(x=x), from_logits, **k), batch.x
        )


def test_backward_twice_gives_the_same_gradient_twice(backend):
    batch = backend.leaf(RAGGED)
    loss = backend.loss(batch, reduction="sum")
    first, second = (torch.autograd.grad(loss, batch.x, retain_graph=True)[0] for _ in range(2))
    assert first.any() and torch.equal(first, second)
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(batch.x.grad, 2 * first)


@FRONT_ENDS
@TOPOLOGIES
def test_upstream_gradients_are_per_utterance(backend, from_logits, topology):
    batch = RAGGED.front(from_logits)
    upstream = torch.tensor([3.0, -0.5, 0.0], dtype=torch.float64)
    grad = backend.loss_and_grad(batch, from_logits, topology=topology, upstream=upstream)[1]
    wanted = backend.loss_and_grad(batch, from_logits, topology=topology)[1] * upstream[:, None, None, None]
    assert_within_budget("gradient", grad, wanted)
    assert (grad[2] == 0).all()


@FRONT_ENDS
def test_upstream_zero_on_an_infinite_loss_gives_zero(backend, from_logits):
    upstream = torch.tensor([1.0, 0.0, 1.0])
    loss, grad = backend.loss_and_grad(MIXED.front(from_logits), from_logits, upstream=upstream)
    assert loss[1] == INF and (grad[1] == 0).all() and grad.isfinite().all()


@FRONT_ENDS
def test_no_second_derivative(backend, from_logits):
    batch = backend.leaf(RAGGED.front(from_logits))
    (grad,) = torch.autograd.grad(backend.loss(batch, from_logits, reduction="sum"), batch.x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.square().sum().backward()


@FRONT_ENDS
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_graph(backend, from_logits, mode):
    batch = backend.leaf(RAGGED.front(from_logits))
    wanted = backend.loss(batch, from_logits, reduction="none")
    with mode():
        loss = backend.loss(batch, from_logits, reduction="none")
    assert not loss.requires_grad and wanted.requires_grad
    assert_same_bits("loss", loss.clone(), wanted.detach())
    assert not backend.loss(RAGGED.front(from_logits), from_logits).requires_grad


@pytest.mark.parametrize("victim", ["x", "labels", "input_lengths", "label_lengths"])
def test_changing_an_argument_before_backward_is_an_error(backend, victim):
    batch = backend.leaf(RAGGED)
    batch = batch._replace(
        x=batch.x * 1, **{name: getattr(batch, name).to(backend.device) for name in batch._fields[1:4]}
    )
    loss = backend.loss(batch)
    getattr(batch, victim).add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_arguments_are_not_written(backend):
    batch = RAGGED.poisoned()
    before = [tensor.clone() for tensor in batch[:4]]
    x, *ids = (tensor.to(backend.device) for tensor in batch[:4])
    backend.loss(batch._replace(x=x.requires_grad_(), labels=ids[0], input_lengths=ids[1], label_lengths=ids[2]),
                 reduction="sum").backward()  # fmt: skip
    for name, old, new in zip(batch._fields, before, [x.detach(), *ids], strict=False):
        assert_same_bits(name, new.cpu(), old)


def test_through_a_network_under_autocast(backend):
    """Autocast changes the network's dtype, and the loss takes what it gets: no cast to or from float32 of its own."""
    features = torch.randn(3, 4, 4, 8, device=backend.device)
    network = torch.nn.Linear(8, 5).to(backend.device)
    with torch.autocast(backend.device.type, dtype=torch.bfloat16):
        logits = network(features)
        loss = backend.loss(RAGGED._replace(x=logits))
        wide = backend.loss(RAGGED._replace(x=logits.float()))
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
    outside = backend.loss(RAGGED._replace(x=logits.detach().float()))
    assert loss.item() == pytest.approx(outside.item(), rel=1e-6) and wide.item() == outside.item()
    loss.backward()
    assert network.weight.grad.any() and network.weight.grad.isfinite().all()


@FRONT_ENDS
@pytest.mark.parametrize(
    "topology, clamp, reduction, blank", [("standard", None, "mean", 0), ("modified", 0.1, "sum", 4)]
)
def test_module_is_the_function_without_state(backend, from_logits, topology, clamp, reduction, blank):
    batch = backend.leaf(random_batch(3, 4, 3, 5, blank=blank, ragged=True).front(from_logits))
    options = {"clamp": clamp, "topology": topology, "zero_infinity": True}
    module = backend.rnnt.RNNTLoss(blank, reduction, from_logits, **options)
    assert not module.state_dict() and not list(module.parameters()) and not list(module.buffers())
    before = dict(vars(module))
    wanted = backend.loss(batch, from_logits, reduction=reduction, **options)
    for _ in range(2):
        loss = module(batch.x, *(tensor.to(backend.device) for tensor in batch[1:4]))
        assert_same_bits("loss", loss.detach(), wanted.detach())
        gradients = [torch.autograd.grad(value, batch.x, retain_graph=True)[0] for value in (loss, wanted)]
        assert_same_bits("gradient", *gradients)
    assert vars(module) == before


def test_module_defaults_are_those_of_log_probs(backend):
    loss = backend.rnnt.RNNTLoss()(*(tensor.to(backend.device) for tensor in RAGGED.front(False)[:4]))
    assert_same_bits("loss", loss, backend.loss(RAGGED.front(False), from_logits=False))
