"""The benchmarks run, and they do not pass or time what is wrong."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import benchmark  # noqa: E402
import cpu_floors  # noqa: E402
import peers  # noqa: E402

LOAD = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import torchaudio_cpu; torchaudio_cpu.load()"
FRAME = [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.6, 0.1, 0.1], [0.1, 0.1, 0.2, 0.8, 0.1]]
LAST_FRAME = [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.1, 0.1], [0.7, 0.1, 0.2, 0.1, 0.1]]


def run(*command, **environment):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", **environment}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def torchaudio_loads():
    done = run(sys.executable, "-c", LOAD)
    return done.returncode == 0, done.stderr.strip().splitlines()[-1:]


@pytest.fixture
def inputs():
    return benchmark.random_inputs((2, 7, 4, 6))


def test_the_plain_lattice_gives_the_known_values():
    logits = torch.tensor([[FRAME, LAST_FRAME, FRAME]] * 2, dtype=torch.float64)
    labels, input_lengths, label_lengths = torch.tensor([[1, 2]] * 2), torch.tensor([2, 3]), torch.tensor([2, 2])
    loss = benchmark.plain_loss(logits, labels, input_lengths, label_lengths)
    assert loss.tolist() == pytest.approx([4.495666773770733, 5.7367250428101615], rel=1e-12)


def test_the_truth_is_the_float64_gradient_and_sees_an_error(inputs):
    truth = peers.Truth(*inputs)
    losses, grad = peers.training(benchmark.plain_loss, (inputs[0].double(), *inputs[1:]))
    assert truth.loss_error(losses) < 1e-14 and truth.gradient_error(grad) < 1e-13
    grad[1, 3, 2, 5] += 0.25 * grad.abs().max()
    assert truth.gradient_error(grad) == pytest.approx(0.25, rel=1e-6)
    grad[1, 3, 2, 5] = math.nan
    assert math.isnan(truth.gradient_error(grad))


def test_the_error_of_a_gradient_of_log_probs_sees_every_class(inputs):
    log_probs = inputs[0].double().log_softmax(-1).requires_grad_()
    label = log_probs[:, :, :-1].gather(3, inputs[1].long()[:, None, :, None].expand(-1, 7, -1, 1)).squeeze(3)
    benchmark.lattice_loss(log_probs[..., 0], label, *inputs[2:]).sum().backward()
    truth, grad = peers.Truth(log_probs.detach(), *inputs[1:]), log_probs.grad
    assert cpu_floors.arc_gradient_error(truth, grad) < 1e-13
    with pytest.raises(SystemExit, match="disagrees"):
        cpu_floors.require("this", 0.0, cpu_floors.arc_gradient_error(truth, grad * 1.1))
    grad[1, 3, 4, 5] = 1e-9  # the last row has no label
    with pytest.raises(SystemExit, match="disagrees"):
        cpu_floors.require("this", 0.0, cpu_floors.arc_gradient_error(truth, grad))


def scaled_gradient(logits, *rest):
    return benchmark.plain_loss(logits * 1.1 - logits.detach() * 0.1, *rest)


WRONG = {
    "loss": lambda *inputs: benchmark.plain_loss(*inputs) * 1.03,
    "gradient": scaled_gradient,
    "labels": lambda logits, labels, *rest: benchmark.plain_loss(logits, labels % 5 + 1, *rest),
    "order": lambda *inputs: benchmark.plain_loss(*inputs).flip(0),
    "nan": lambda logits, *rest: benchmark.plain_loss(logits * math.nan, *rest),
}


def passes(loss, training):
    """The runner's comparison of one workload."""
    pytest.importorskip("kernels.benchmark", reason="the runner is its")
    workload = benchmark.RnntLoss()
    workload.kernel = SimpleNamespace(rnnt_loss_from_logits=lambda *inputs, reduction: loss(*inputs))
    workload.prepare((2, 7, 4, 6), training)
    workload.run()
    return torch.allclose(workload.out, workload.verify(), atol=1e-2)


@pytest.mark.parametrize("wrong", WRONG)
def test_the_hubs_comparison_refuses_what_is_wrong(wrong):
    assert passes(benchmark.plain_loss, training=False) and passes(benchmark.plain_loss, training=True)
    assert not passes(WRONG[wrong], training=wrong != "order")  # the training objective is the same in any order


@pytest.mark.parametrize("wrong", WRONG)
def test_peers_times_nothing_that_disagrees(wrong, monkeypatch):
    monkeypatch.setattr(peers, "extra_memory", lambda name, shape: dict.fromkeys(peers.STEPS))
    losses = {"wrong": WRONG[wrong], "plain PyTorch": benchmark.plain_loss}
    rows = {row["contender"]: row for row in peers.compare("2,7,4,6", losses, [torch.get_num_threads()], rounds=1)}
    assert rows["plain PyTorch"]["agrees"] and rows["plain PyTorch"]["training_ms"] > 0
    assert not rows["wrong"]["agrees"] and rows["wrong"]["forward_ms"] is rows["wrong"]["training_ms"] is None
    assert peers.table(list(rows.values())).count("\n") == 4
    json.dumps(rows, allow_nan=False)


def test_the_hubs_runner_verifies_every_workload(tmp_path):
    pytest.importorskip("kernels", reason="the runner is its")
    if not (ROOT / "build").is_dir():
        pytest.skip("the runner's local mode wants build/: run make build")
    output = tmp_path / "results.json"
    command = [Path(sys.executable).with_name("kernels"), "benchmark", str(ROOT), "--iterations", "2", "--warmup", "1"]
    done = run(*command, "--output", output, RNNT_BENCHMARK_SHAPES="2,9,4,8;1,30,12,40")
    assert done.returncode == 0, done.stderr
    verified = {result["workload"]: result["verified"] for result in json.loads(output.read_text())["results"]}
    names = [f"{kind}_{shape}" for kind in ("forward", "training") for shape in ("2x9x4x8", "1x30x12x40")]
    assert verified == {f"RnntLoss.{name}": True for name in names}


def test_peers_writes_a_complete_result(tmp_path, torchaudio_loads):
    pytest.importorskip("kernels", reason="peers.py loads with it")
    output = tmp_path / "results.json"
    command = [
        sys.executable,
        BENCHMARKS / "peers.py",
        "--quick",
        "--recycle",
        "--shapes",
        "2,9,4,8",
        "--threads",
        "1",
        "2",
    ]
    done = run(*command, "--json", output)
    assert done.returncode == 0, done.stderr
    results = json.loads(output.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the result"))
    assert str(tmp_path) not in output.read_text() and results["recycled_memory"]
    assert results["machine"]["cpu"] and results["machine"]["torch"] == torch.__version__
    assert results["command"].endswith("--threads 1 2 --json results.json") and results["commit"] and results["date"]
    contenders = {"ours", "plain PyTorch"} | ({"torchaudio"} if torchaudio_loads[0] else set())
    rows = {(row["contender"], row["threads"]): row for row in results["rows"]}
    assert set(rows) == {(name, threads) for name in contenders | {"floor"} for threads in (1, 2)}
    for (name, _), row in rows.items():
        assert row["shape"] == [2, 9, 4, 8] and row["forward_ms"] > 0 and row["training_ms"] > 0
        assert (row["torchaudio_over_training"] is not None) == torchaudio_loads[0]
        if name == "floor":
            assert row["forward_over_floor"] == row["training_over_floor"] == 1
        else:
            assert row["agrees"] and row["loss_error"] < 1e-6 and row["gradient_error"] < 1e-4
            assert row["training_extra_memory"] is None or row["training_extra_memory"] >= 0
    assert rows["ours", 1]["gradient_error"] < 1e-6
    if not torchaudio_loads[0]:
        pytest.skip(f"all but torchaudio was checked: {torchaudio_loads[1]}")


def test_cpu_floors_writes_a_complete_result(tmp_path, torchaudio_loads):
    pytest.importorskip("kernels", reason="cpu_floors.py loads with it")
    output = tmp_path / "results.json"
    done = run(sys.executable, BENCHMARKS / "cpu_floors.py", "--quick", "--json", output)
    assert done.returncode == 0, done.stderr
    results = json.loads(output.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the result"))
    assert str(tmp_path) not in output.read_text() and results["commit"] and results["date"]
    assert results["command"] == "python benchmarks/cpu_floors.py --quick --json results.json"
    measures = {row["measure"] for row in results["rows"]}
    absent = set() if torchaudio_loads[0] else {"fresh gradient"}
    absent |= set() if Path("/proc/self/status").exists() else set(cpu_floors.MEMORY_STEPS)
    assert measures == set(cpu_floors.BOUNDS) - absent
    for row in results["rows"]:
        assert row["measure"].startswith("memory") or row["value"] > 0
        assert row["measure"] in done.stdout and isinstance(row["holds"], bool)
        if "ms" in row:
            assert row["value"] == row["ms"] / row["floor_ms"]


def test_two_processes_may_build_the_stubs_at_once(tmp_path, torchaudio_loads):
    if not torchaudio_loads[0]:
        pytest.skip(f"torchaudio does not import: {torchaudio_loads[1]}")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-c", LOAD], env=environment) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert {path.name for path in tmp_path.glob("rnnt-loss/*/*")} <= set(peers.torchaudio_cpu.STUBS)


def test_no_compiler_is_an_import_error(tmp_path, torchaudio_loads):
    if not torchaudio_loads[0] or run(sys.executable, "-c", "import torchaudio").returncode == 0:
        pytest.skip("torchaudio needs no stubs here, or does not import with them")
    done = run(sys.executable, "-c", LOAD, PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert "ImportError: torchaudio's stub libraries need a C compiler" in done.stderr
