"""What keeps to itself: NaN and infinity in their utterance, a row's and an utterance's bits in any company."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from batches import INF, Batch, random_batch
from cases import DTYPES, FRONT_ENDS, TOPOLOGIES
from compare import assert_same_bits, assert_within_budget
from reference import Twin

EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def patterns(dtype: torch.dtype) -> torch.Tensor:
    """+inf, and NaN of many bits: quiet and signalling, of both signs, with payloads."""
    integer, mantissa, inf = {
        torch.float64: (torch.int64, 52, 0x7FF0000000000000),
        torch.float32: (torch.int32, 23, 0x7F800000),
        torch.float16: (torch.int16, 10, 0x7C00),
        torch.bfloat16: (torch.int16, 7, 0x7F80),
    }[dtype]
    payloads = [0, 1, 0x23, 1 << mantissa - 1, (1 << mantissa - 1) + 1, (1 << mantissa) - 1]
    sign = torch.iinfo(integer).min
    return torch.tensor([inf + p for p in payloads] + [sign + inf + p for p in payloads[1:]], dtype=integer).view(dtype)


@EVERY_DTYPE
@FRONT_ENDS
@TOPOLOGIES
@pytest.mark.parametrize("V", [3, 35])
def test_nan_or_inf_in_any_entry_spoils_its_utterance_and_no_other(backend, dtype, from_logits, topology, V):
    """One utterance per entry that is read, with NaN or +inf there; the last one is clean."""
    T, U, blank = 2, 2, 1
    one = random_batch(1, T, U, V, blank=blank).front(from_logits).to(dtype)
    cells = [(t, u) for t in range(T) for u in range(U + 1)]
    read = {u: [blank, *one.labels[0, u : u + 1].tolist()] for u in range(U + 1)}
    entries = [(t, u, k) for t, u in cells for k in (range(V) if from_logits else read[u])]
    many = one.take([0] * (len(entries) + 1))
    bits = patterns(dtype)
    for b, entry in enumerate(entries):
        many.x[(b, *entry)] = bits[b % len(bits)]
    loss, grad = backend.loss_and_grad(many, from_logits, topology=topology)
    assert loss[:-1].isnan().all(), f"not NaN: {[e for e, value in zip(entries, loss) if not value.isnan()]}"
    assert grad[:-1].isnan().all()
    clean = backend.loss_and_grad(one, from_logits, topology=topology)
    assert_same_bits("loss", loss[-1:], clean[0])
    assert_same_bits("gradient", grad[-1:], clean[1])


@EVERY_DTYPE
@pytest.mark.parametrize("V", [1, 3, 35])
@TOPOLOGIES
def test_a_row_of_minus_infinity_has_no_softmax(backend, dtype, V, topology):
    T, U = 2, min(2, V - 1)
    one = random_batch(1, T, U, V).to(dtype)
    cells = [(t, u) for t in range(T) for u in range(U + 1)]
    many = one.take([0] * (len(cells) + 1))
    for b, (t, u) in enumerate(cells):
        many.x[b, t, u] = -INF
    loss, grad = backend.loss_and_grad(many, topology=topology)
    assert loss.isnan().tolist() == [True] * len(cells) + [False]
    assert grad.flatten(1).isnan().all(1).tolist() == loss.isnan().tolist()


def one_cell(x: torch.Tensor) -> Batch:
    """Utterances of one frame and no label, from x [B, 1, 1, V]."""
    B = x.shape[0]
    return Batch(x, torch.zeros(B, 0, dtype=torch.long), torch.ones(B).long(), torch.zeros(B).long())


@EVERY_DTYPE
@pytest.mark.parametrize("V", [5, 16, 37, 512])
def test_a_row_depends_on_itself_alone(backend, V, dtype):
    """With one frame and no label the loss is a row's -log p(blank): the same in any company."""
    rows = torch.randn(24, 1, 1, V, dtype=torch.float64).mul(8).to(dtype)
    alone = [torch.cat(parts) for parts in zip(*(backend.loss_and_grad(one_cell(row[None])) for row in rows))]
    for order in (torch.arange(24), torch.randperm(24)):
        for poisoned in (True, False):
            together = backend.loss_and_grad(one_cell(rows[order]), poisoned=poisoned)
            for name, got, wanted in zip(("loss", "gradient"), together, alone):
                assert_same_bits(name, got, wanted[order])


@EVERY_DTYPE
@FRONT_ENDS
@TOPOLOGIES
def test_an_utterance_depends_on_itself_alone(backend, dtype, from_logits, topology):
    """The same bits alone, among others, with other neighbours, more padding, and any number of threads."""
    one = random_batch(1, 9, 5, 33, scale=4.0).front(from_logits).to(dtype)
    others = random_batch(6, 14, 8, 33, seed=1, ragged=True).front(from_logits).to(dtype)
    wanted = backend.loss_and_grad(one, from_logits, topology=topology)
    padded = one.poisoned((5, 3))
    threads = torch.get_num_threads()
    try:
        for n, position in [(1, 0), (2, 3), (3, 6)]:
            torch.set_num_threads(n)
            parts = [others.take(range(position)), padded, others.take(range(position, 6))]
            together = Batch(*(torch.cat([part[i] for part in parts]) for i in range(4)), 0)
            loss, grad = backend.loss_and_grad(together, from_logits, topology=topology)
            assert_same_bits("loss", loss[position, None], wanted[0])
            assert_same_bits("gradient", grad[position, None, :9, :6], wanted[1])
    finally:
        torch.set_num_threads(threads)


def test_small_numbers_are_not_flushed_to_zero_afterwards(backend):
    """The sweeps may flush subnormals on every thread that they use, and have to restore what was set."""
    backend.loss_and_grad(random_batch(8, 40, 10, 50).to(torch.float32))
    subnormal = torch.full((1 << 20,), 1e-40, device=backend.device)
    assert (subnormal * 0.5 > 0).all()


# ---- instruction sets, each in a process of its own

KINDS = [
    (V, dtype, from_logits, topology)
    for V in (3, 77, 1100)
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    for from_logits in (True, False)
    for topology in ("standard", "modified")
]
IN_A_PROCESS = """
import sys, torch
from conftest import BACKENDS
from test_isolation import KINDS, kind
backend = BACKENDS["cpu"]()
results = [backend.loss_and_grad(kind(*k), k[2], topology=k[3]) for k in KINDS]
torch.save(results, sys.argv[1])
"""


def kind(V: int, dtype: torch.dtype, from_logits: bool, topology: str) -> Batch:
    return random_batch(2, 9, 17, V, scale=4.0, ragged=True).front(from_logits).to(dtype)


def test_instruction_sets(backend, tmp_path):
    """Each is within the budget, and those that fuse multiply and add agree in every bit."""
    if backend.name != "cpu":
        pytest.skip("RNNT_LOSS_ISA is the CPU's")
    results, path = {}, os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    for isa in ("baseline", "avx2", "avx512"):
        command = [sys.executable, "-c", IN_A_PROCESS, str(tmp_path / isa)]
        environment = {**os.environ, "PYTHONPATH": path, "RNNT_LOSS_ISA": isa}
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode == 0:
            results[isa] = torch.load(tmp_path / isa)
        else:
            assert isa != "baseline" and "one this machine has" in process.stderr, process.stderr
    for i, (V, dtype, from_logits, topology) in enumerate(KINDS):
        batch = kind(V, dtype, from_logits, topology)
        truth, twin = (Twin(batch, from_logits, topology, acc_t) for acc_t in (torch.float64, torch.float32))
        for isa, result in results.items():
            assert_within_budget(f"{isa}: loss", result[i][0], truth.loss, twin.loss)
            assert_within_budget(f"{isa}: gradient", result[i][1], truth.grad, twin.grad.to(dtype))
    for narrow, wide in zip(results.get("avx2", []), results.get("avx512", [])):
        assert_same_bits("loss", narrow[0], wide[0])
        assert_same_bits("gradient", narrow[1], wide[1])


def test_an_unknown_instruction_set_is_an_error(backend):
    if backend.name != "cpu":
        pytest.skip("RNNT_LOSS_ISA is the CPU's")
    command = [sys.executable, "-c", IN_A_PROCESS, "nowhere"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RNNT_LOSS_ISA": "mmx"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode and "RNNT_LOSS_ISA must be" in process.stderr and "got mmx" in process.stderr
