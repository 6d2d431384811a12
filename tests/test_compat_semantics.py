"""What the libraries' arguments mean, against recursions in plain PyTorch."""

import pytest
import torch
from batches import INF, NAN, random_batch
from compare import assert_within_budget
from test_compat import flat

B, T, U, V, BLANK = 4, 7, 4, 5, 1
BATCH = random_batch(B, T, U, V, blank=BLANK, ragged=True)
PARTS = [[0, 0, 4, 7], [1, 0, 3, 5], [0, 2, 2, 7], [2, 1, 4, 6]]  # begin_symbol, begin_frame, end_symbol, end_frame
TYPES = pytest.mark.parametrize("rnnt_type", ["regular", "modified", "constrained"])


def part_loss(logits, symbols, blank, part, rnnt_type="regular", delay_penalty=0.0, ends_by_blank=False):
    """The loss of one utterance over a part of its lattice, logits [T, U + 1, V]."""
    log_probs = logits.log_softmax(-1)
    first_s, first_t, last_s, last_t = part

    def symbol(t, s):
        delay = delay_penalty * ((last_t - 1) / 2 - t)
        forced = log_probs[t, s + 1, blank] if rnnt_type == "constrained" else 0
        return log_probs[t, s, symbols[s]] + forced + delay

    total = {(first_t, first_s): log_probs.new_zeros(())}
    for t in range(first_t, last_t + 1):
        for s in range(first_s, last_s + 1):
            arrivals = []
            if (t - 1, s) in total:
                arrivals.append(total[t - 1, s] + log_probs[t - 1, s, blank])
            before = t if rnnt_type == "regular" else t - 1
            if (before, s - 1) in total and before < last_t - ends_by_blank:
                arrivals.append(total[before, s - 1] + symbol(before, s - 1))
            if arrivals:
                total[t, s] = torch.stack(arrivals).logsumexp(0)
    return -total[last_t, last_s]


def by_parts(x, labels, parts, **keywords):
    return torch.stack([part_loss(x[b], labels[b], BLANK, parts[b], **keywords) for b in range(len(parts))])


def leaves(backend, x):
    return x.to(backend.device).clone().requires_grad_(), x.cpu().clone().requires_grad_()


def assert_same(loss, x, reference, other):
    """Losses and gradients, for an upstream gradient of another number for each utterance."""
    torch.testing.assert_close(loss.cpu(), reference, rtol=1e-12, atol=0)
    upstream = torch.linspace(0.5, 2, len(reference), dtype=torch.float64)
    (grad,) = torch.autograd.grad(loss, x, upstream.to(loss.device))
    (wanted,) = torch.autograd.grad(reference, other, upstream)
    assert_within_budget("gradient", grad.cpu(), wanted)


@TYPES
@pytest.mark.parametrize("delay_penalty", [0.0, 0.3])
@pytest.mark.parametrize(
    "parts", [None, [[0, 0, 4, 7], [0, 0, 3, 5], [0, 0, 0, 1], [0, 0, 2, 7]], PARTS], ids=["all", "ends", "parts"]
)
def test_k2s_boundary(backend, rnnt_type, delay_penalty, parts):
    x, other = leaves(backend, BATCH.x)
    boundary = None if parts is None else torch.tensor(parts, device=backend.device)
    options = {"rnnt_type": rnnt_type, "delay_penalty": delay_penalty}
    symbols = BATCH.labels.to(backend.device)
    loss = backend.rnnt.compat.k2.rnnt_loss(x, symbols, BLANK, boundary, reduction="none", **options)
    reference = by_parts(other, BATCH.labels.tolist(), parts or [[0, 0, U, T]] * B, **options)
    assert_same(loss, x, reference, other)


@TYPES
def test_k2s_parts_read_nothing_else(backend, rnnt_type):
    """NaN around the parts, junk beyond their symbols."""
    x, labels = BATCH.x.clone(), BATCH.labels.clone()
    for b, (first_s, first_t, last_s, last_t) in enumerate(PARTS):
        outside = torch.ones(T, U + 1, dtype=torch.bool)
        outside[first_t:last_t, first_s : last_s + 1] = False
        x[b, outside] = NAN
        labels[b, :first_s], labels[b, last_s:] = 2147480000, -1
    boundary = torch.tensor(PARTS)
    inputs = [(leaves(backend, x)[0], labels), (leaves(backend, BATCH.x)[0], BATCH.labels)]
    losses, grads = [], []
    for leaf, symbols in inputs:
        symbols = symbols.to(backend.device)
        losses.append(backend.rnnt.compat.k2.rnnt_loss(leaf, symbols, BLANK, boundary, rnnt_type, 0.2, "none"))
        grads += torch.autograd.grad(losses[-1].sum(), leaf)
    assert torch.equal(*losses) and torch.equal(*grads) and losses[0].isfinite().all()
    assert (grads[0][x.isnan().to(backend.device)] == 0).all() and grads[0].any()


def test_k2_modified_with_fewer_frames_than_symbols(backend):
    """+inf and gradient 0 for that utterance alone."""
    x, _ = leaves(backend, BATCH.x)
    boundary = torch.tensor([[0, 0, 4, 3], [0, 0, 4, 7], [0, 0, 4, 7], [1, 5, 4, 7]])
    symbols = BATCH.labels.to(backend.device)
    loss = backend.rnnt.compat.k2.rnnt_loss(x, symbols, BLANK, boundary, "modified", reduction="none")
    assert loss.isinf().tolist() == [True, False, False, True]
    (grad,) = torch.autograd.grad(loss.sum(), x)
    assert (grad[[0, 3]] == 0).all() and grad.isfinite().all() and grad[1].any()


@pytest.mark.parametrize("from_log_softmax", [False, True])
def test_optimized_transducers_one_symbol_per_frame(backend, from_log_softmax):
    """The last frame says blank, which is not so in k2's modified transducer."""
    lengths = [(7, 4), (5, 3), (4, 0), (6, 4)]
    T_b, U_b = torch.tensor(lengths).T.contiguous().int()
    x, other = leaves(backend, BATCH.x)
    rows = backend.rnnt.pack_rows(x, T_b, U_b)
    targets, T_b, U_b = (ids.to(backend.device) for ids in (BATCH.labels.int(), T_b, U_b))
    loss = backend.rnnt.compat.optimized_transducer.transducer_loss(
        rows.log_softmax(-1) if from_log_softmax else rows, targets, T_b, U_b, BLANK, from_log_softmax, True, "sum"
    )
    options = {"rnnt_type": "modified", "ends_by_blank": True}
    reference = by_parts(other, BATCH.labels.tolist(), [[0, 0, u, t] for t, u in lengths], **options).sum()
    assert_same(loss[None], x, reference[None], other)


@pytest.mark.parametrize("frames", [1, 2])
def test_optimized_transducer_without_a_frame_for_the_last_blank(backend, frames):
    rows = torch.randn(frames * 3, V, device=backend.device, requires_grad=True)
    ids = torch.tensor([[0, 2]]), torch.tensor([frames]), torch.tensor([2])
    function = backend.rnnt.compat.optimized_transducer.transducer_loss
    loss = function(rows, *(tensor.to(backend.device) for tensor in ids), BLANK, False, True)
    assert loss == INF and (torch.autograd.grad(loss, rows)[0] == 0).all()


def test_optimized_transducer_leaves_logits_as_they_are(backend):
    x = BATCH.x[0].flatten(0, 1).to(backend.device).requires_grad_()
    ids = (tensor[:1].to(backend.device) for tensor in BATCH[1:4])
    backend.rnnt.compat.optimized_transducer.transducer_loss(x, *ids, BLANK, False).backward()
    assert torch.equal(x.detach().cpu(), BATCH.x[0].flatten(0, 1)) and x.grad.any()


def inputs(backend, x=BATCH.x):
    x = leaves(backend, x)[0]
    return x, [tensor.to(backend.device) for tensor in BATCH[1:4]]


@pytest.mark.parametrize("clamp", [-1.0, 0, 0.0])
def test_a_clamp_of_0_or_less_is_none(backend, clamp):
    x, ids = inputs(backend)
    compat = backend.rnnt.compat
    (wanted,) = torch.autograd.grad(backend.rnnt.rnnt_loss_from_logits(x, *ids, BLANK), x)
    for loss in (
        compat.torchaudio.rnnt_loss(x, *ids, blank=BLANK, clamp=clamp),
        compat.torchaudio.RNNTLoss(BLANK, clamp)(x, *ids),
        compat.nemo.RNNTLoss(BLANK, loss_kwargs={"clamp": clamp})(x, *ids),
        compat.nemo.RNNTLossNumba(BLANK, clamp=clamp)(x, *ids),
    ):
        assert torch.equal(torch.autograd.grad(loss.sum(), x)[0], wanted)


@pytest.mark.parametrize("clamp", [0.05, 0.2])
def test_torchaudios_clamp(backend, clamp):
    """Of both signs, before the reduction."""
    x, ids = inputs(backend)
    (grad,) = torch.autograd.grad(backend.rnnt.compat.torchaudio.rnnt_loss(x, *ids, BLANK, clamp), x)
    (unbounded,) = torch.autograd.grad(backend.rnnt.compat.torchaudio.rnnt_loss(x, *ids, BLANK, reduction="sum"), x)
    assert unbounded.max() > clamp and unbounded.min() < -clamp
    torch.testing.assert_close(grad, unbounded.clamp(-clamp, clamp) / B)


def test_speechbrains_relative_lengths(backend):
    """To the nearest count, halves to the even one."""
    x, (targets, *_) = inputs(backend)
    frames, symbols = torch.tensor([1.0, 0.5, 0.36, 0.93]), torch.tensor([1.0, 0.625, 0.1, 0.375])
    lengths = torch.tensor([7, 4, 3, 7]), torch.tensor([4, 2, 0, 2])  # of 7: 3.5, 2.52, 6.51; of 4: 2.5, 0.4, 1.5
    function = backend.rnnt.compat.speechbrain.transducer_loss
    for way in (True, False):
        loss = function(x, targets, frames.to(x.device), symbols.to(x.device), BLANK, "none", use_torchaudio=way)
        assert torch.equal(loss, backend.rnnt.rnnt_loss_from_logits(x, targets, *lengths, BLANK, "none"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_speechbrains_narrow_lengths(backend, dtype):
    """Neither dtype has 2049; targets may have any."""
    batch = random_batch(1, 2049, 1, 3)
    x, targets = leaves(backend, batch.x)[0], batch.labels.to(backend.device)
    whole = torch.ones(1, dtype=dtype, device=x.device)
    function = backend.rnnt.compat.speechbrain.transducer_loss
    wanted = backend.rnnt.rnnt_loss_from_logits(x, targets, *batch[2:4])
    for ids in (targets, targets.float(), targets.short()):
        assert torch.equal(function(x, ids, whole, whole, 0), wanted)


@pytest.mark.parametrize("shape", [(-1,), (1, -1), (-1, 1)])
def test_warp_rnnts_compact_labels(backend, shape):
    """Of any shape that has as many."""
    x, ids = inputs(backend)
    rows, labels = backend.rnnt.pack_rows(x, *ids[1:]).log_softmax(-1), flat(ids[0], ids[2]).view(shape)
    loss = backend.rnnt.compat.warp_rnnt.rnnt_loss(rows, labels, *ids[1:], blank=BLANK, compact=True)
    torch.testing.assert_close(loss, backend.rnnt.rnnt_loss_from_logits(x, *ids, BLANK, "none"))


def test_backward_twice(backend):
    """The libraries multiply their gradient in place, and give another one the second time."""
    x, ids = inputs(backend)
    compat, rows = backend.rnnt.compat, backend.rnnt.pack_rows(x, *ids[1:])
    for loss in (
        compat.warprnnt_pytorch.rnnt_loss(x, *ids, blank=BLANK),
        compat.warp_rnnt.rnnt_loss(x.log_softmax(-1), *ids, blank=BLANK, reduction="sum"),
        compat.optimized_transducer.transducer_loss(rows, *ids, BLANK, from_log_softmax=False),
    ):
        first, second = (torch.autograd.grad(3 * loss.sum(), x, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second) and first.any()


def test_compiled(backend):
    """As one graph, and with the sizes of another batch."""
    compat = backend.rnnt.compat

    def total(x, *ids):
        return compat.torchaudio.rnnt_loss(x, *ids, BLANK, 0.05) + compat.nemo.RNNTLoss(BLANK, "mean")(x, *ids)

    compiled = torch.compile(total, backend="aot_eager", fullgraph=True)
    for batch in (BATCH, random_batch(2, 5, 3, V, blank=BLANK)):
        x, ids = leaves(backend, batch.x)[0], [tensor.to(backend.device) for tensor in batch[1:4]]
        loss, wanted = compiled(x, *ids), total(x, *ids)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in (loss, wanted)))


ONE_GRAPH = {
    "torchaudio": lambda c, x, rows, *ids: c.torchaudio.rnnt_loss(x, *ids, BLANK),
    "warp_rnnt": lambda c, x, rows, *ids: c.warp_rnnt.rnnt_loss(x, *ids, blank=BLANK),
    "warprnnt_pytorch": lambda c, x, rows, *ids: c.warprnnt_pytorch.rnnt_loss(x, *ids, BLANK),
    "NeMo": lambda c, x, rows, *ids: c.nemo.RNNTLoss(BLANK)(x, *ids),
    "NeMo's numba": lambda c, x, rows, *ids: c.nemo.RNNTLossNumba(BLANK)(x, *ids),
    "k2": lambda c, x, rows, *ids: c.k2.rnnt_loss(x, ids[0], BLANK, rnnt_type="modified"),
    "fast_rnnt": lambda c, x, rows, *ids: c.fast_rnnt.rnnt_loss(x, ids[0], BLANK),
    "speechbrain": lambda c, x, rows, *ids: c.speechbrain.transducer_loss(x, ids[0], ids[1] / 7, ids[2] / 4, BLANK),
}
MORE_GRAPHS = {
    "compact": lambda c, x, rows, *ids: c.warp_rnnt.rnnt_loss(rows, ids[0][0], *ids[1:], blank=BLANK, compact=True),
    "optimized_transducer": lambda c, x, rows, *ids: c.optimized_transducer.transducer_loss(rows, *ids, BLANK, True),
    "boundary": lambda c, x, rows, *ids: c.k2.rnnt_loss(x, ids[0], BLANK, torch.tensor(PARTS[:1])),
    "delay_penalty": lambda c, x, rows, *ids: c.k2.rnnt_loss(x, ids[0], BLANK, delay_penalty=0.1),
    "constrained": lambda c, x, rows, *ids: c.k2.rnnt_loss(x, ids[0], BLANK, rnnt_type="constrained"),
    "tdt": lambda c, x, rows, *ids: c.nemo.RNNTLoss(BLANK, None, "tdt", {"durations": [1]})(x, *ids),
    "multiblank": lambda c, x, rows, *ids: c.nemo.RNNTLoss(
        BLANK, None, "multiblank_rnnt", {"big_blank_durations": []}
    )(x, *ids),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ONE_GRAPH, *MORE_GRAPHS])
def test_which_are_one_graph(backend, name):
    """What the docstring of compat says of fullgraph=True."""
    if backend.name != "cpu":
        pytest.skip("the graphs are the same")
    call = {**ONE_GRAPH, **MORE_GRAPHS}[name]
    torch._dynamo.reset()
    utterance = BATCH.take([0])
    x = leaves(backend, utterance.x)[0]
    arguments = backend.rnnt.compat, x, x.flatten(0, 2), torch.full_like(utterance.labels, 2), *utterance[2:4]

    def compiled(fullgraph):
        return torch.compile(lambda *tensors: call(arguments[0], *tensors), backend="eager", fullgraph=fullgraph)

    if name in MORE_GRAPHS:
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            compiled(fullgraph=True)(*arguments[1:])
        torch._dynamo.reset()
    assert torch.equal(compiled(fullgraph=name in ONE_GRAPH)(*arguments[1:]), call(*arguments))
