"""What only a GPU can show: graphs, streams, devices, no synchronisation, and more elements than an int counts."""

import sys
from pathlib import Path

import pytest
import torch
from batches import random_batch
from compare import assert_same_bits

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from load_variant import folder_of, load  # noqa: E402


@pytest.fixture(scope="module")
def rnnt():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return load(folder_of("cuda"))


def on_device(seed, device="cuda", dtype=torch.float32, shape=(3, 40, 37, 50)):
    """Logits, labels, lengths; ragged, two strips wide."""
    batch = random_batch(*shape, seed=seed, ragged=True).to(dtype)
    return [tensor.to(device) for tensor in batch[:4]]


def step(rnnt, logits, *ids, **keywords):
    """Losses, and the gradient of their sum."""
    leaf = logits.detach().requires_grad_()
    loss = rnnt.rnnt_loss_from_logits(leaf, *ids, reduction="none", **keywords)
    (grad,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), grad


def assert_same_step(got, wanted):
    for name, one, other in zip(("loss", "gradient"), got, wanted):
        assert_same_bits(name, one.cpu(), other.cpu())


@pytest.fixture
def inputs(rnnt):
    return on_device(0)


@pytest.fixture
def no_synchronisation(inputs):
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_a_step_is_captured_and_replayed_with_new_values(rnnt):
    fixed = on_device(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(rnnt, *fixed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(rnnt, *fixed)
    for seed in (1, 2, 3):
        fresh = on_device(seed)  # other lengths and labels too
        for tensor, value in zip(fixed, fresh):
            tensor.copy_(value)
        graph.replay()
        assert_same_step(captured, step(rnnt, *fresh))


@pytest.mark.parametrize("name", ["rnnt_loss_from_logits", "rnnt_loss"])
def test_a_step_does_not_synchronise(rnnt, name, inputs, no_synchronisation):
    leaf, *ids = inputs
    leaf.requires_grad_()
    for reduction in ("none", "sum", "mean", "mean_volume"):
        loss = getattr(rnnt, name)(leaf, *ids, reduction=reduction, zero_infinity=True, clamp=1.0)
        torch.autograd.grad(loss.sum(), leaf)


def test_work_is_queued_on_the_current_stream(rnnt):
    """The logits are there only once the stream has come to them."""
    logits, *ids = on_device(0)
    wanted = step(rnnt, logits, *ids)
    late = torch.full_like(logits, float("nan"))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # cycles, some 25 ms
        late.copy_(logits)
        got = step(rnnt, late, *ids)
    stream.synchronize()
    assert_same_step(got, wanted)


def test_a_step_repeats_bit_for_bit(rnnt, inputs):
    assert_same_step(step(rnnt, *inputs), step(rnnt, *inputs))


def test_the_tensors_device_need_not_be_the_current_one(rnnt):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    wanted = step(rnnt, *on_device(0, "cuda:0"))
    with torch.cuda.device(0):
        got = step(rnnt, *on_device(0, "cuda:1"))
        assert got[1].device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    assert_same_step(got, wanted)


def test_labels_and_lengths_may_be_on_the_cpu(rnnt):
    logits, *ids = on_device(0)
    assert_same_step(step(rnnt, logits, *(tensor.cpu() for tensor in ids)), step(rnnt, logits, *ids))


def test_ids_on_the_cpu_are_always_checked(rnnt):
    logits, labels, input_lengths, label_lengths = (tensor.cpu() for tensor in on_device(0))
    labels[0, 1] = 50
    with pytest.raises(RuntimeError, match=r"labels\[0, 1\] must be in \[0, 50\) and not blank \(0\), got 50"):
        step(rnnt, logits.cuda(), labels, input_lengths, label_lengths)


def test_ids_on_the_device_are_checked_when_asked(rnnt):
    logits, labels, input_lengths, label_lengths = on_device(0)
    labels[0, 1] = 50
    with pytest.raises(RuntimeError, match=r"labels\[0, 1\] must be in \[0, 50\) and not blank \(0\), got 50"):
        step(rnnt, logits, labels, input_lengths, label_lengths, validate=True)
    loss, grad = step(rnnt, logits, labels, input_lengths, label_lengths)
    assert loss[0].isnan() and loss[1:].isfinite().all() and grad[1:].isfinite().all()


def test_the_variant_serves_cpu_tensors_too(rnnt, inputs):
    loss, grad = step(rnnt, *(tensor.cpu() for tensor in inputs))
    assert loss.device.type == grad.device.type == "cpu"
    other_loss, other_grad = step(rnnt, *inputs)
    torch.testing.assert_close(loss, other_loss.cpu(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, other_grad.cpu(), rtol=1e-4, atol=1e-6)


def test_more_elements_than_an_int_counts(rnnt):
    """The last utterance, all of it beyond 2^31 elements, gets what it gets alone."""
    shape = B, T, W, V = 4, 300, 31, 80_000
    size = 2 * torch.Size(shape).numel()
    if torch.cuda.mem_get_info()[0] < 3 * size:
        pytest.skip("too little memory")
    logits = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
    labels = torch.randint(1, V, (B, W - 1), device="cuda")
    lengths = [torch.full((B,), n, device="cuda") for n in (T, W - 1)]
    whole = step(rnnt, logits, labels, *lengths)
    last = slice(B - 1, B)
    alone = step(rnnt, logits[last].clone(), labels[last], *(tensor[last] for tensor in lengths))
    assert_same_step([tensor[last] for tensor in whole], alone)
