"""Every example runs, as a user would start it, and does what it says. That of the demo is tests/test_demo.py."""

import contextlib
import copy
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("kernels", reason="the examples load with it")

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
LEARNS = r"step +\d+: ([\d.]+) nats per label"


def run(*command, **environment: str) -> str:
    """What a Python process prints."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run([sys.executable, *map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_its_test():
    started = {path.name for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()}
    tested = re.findall(r"\w+\.py", Path(__file__).read_text() + (ROOT / "tests" / "test_demo.py").read_text())
    assert started and started <= set(tested)


def test_finetune_parakeet_learns():
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("no transformers")
    printed = run(EXAMPLES / "finetune_parakeet.py", "--steps", "31")
    for head in ("RNN-T", "TDT"):
        losses = [float(loss) for loss in re.findall(rf"^{head} {LEARNS}", printed, re.M)]
        assert len(losses) == 4 and losses[-1] < 0.6 * losses[0], printed


# ---- from_torchaudio.py

WITH_TORCHAUDIO = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
import torchaudio_cpu
try:
    torchaudio_cpu.load()
except ImportError as error:
    sys.exit(f"no torchaudio: {error}")
runpy.run_path(sys.argv[2], run_name="__main__")
"""


def test_from_torchaudio():
    code = ["-c", WITH_TORCHAUDIO, ROOT / "benchmarks", EXAMPLES / "from_torchaudio.py"]
    try:
        printed = run(*code)
    except AssertionError as error:
        if "no torchaudio: " in str(error):
            pytest.skip(str(error))
        raise
    lines = re.findall(r"^(\S+) +loss ([\d.]+)  gradient off by (\S+)", printed, re.M)
    (ours, our_loss, our_error), (theirs, their_loss, their_error) = lines
    assert (ours, theirs) == ("rnnt-loss", "torchaudio")
    assert float(our_loss) == pytest.approx(float(their_loss), rel=1e-5)
    assert float(our_error) < 1e-5 < float(their_error)


def test_from_torchaudio_without_it(tmp_path):
    (tmp_path / "torchaudio.py").write_text("raise ImportError('made to fail')")
    printed = run(EXAMPLES / "from_torchaudio.py", PYTHONPATH=str(tmp_path))
    assert "torchaudio does not import here (made to fail)" in printed and "rnnt-loss   loss" in printed


# ---- distributed.py


def test_distributed():
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, EXAMPLES / "distributed.py"]
    assert "2 processes, 9 utterances: the gradients are those of one process" in run(*command)


# ---- cuda_graphs.py


@pytest.fixture(scope="module")
def cuda_graphs():
    spec = importlib.util.spec_from_file_location("cuda_graphs", EXAMPLES / "cuda_graphs.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_cuda_graphs():
    """Where there is a GPU the example itself compares the graph's losses with those of single launches."""
    printed = run(EXAMPLES / "cuda_graphs.py")
    if torch.cuda.is_available():
        assert "launched one by one, the steps have the same losses" in printed
    else:
        assert printed == "no GPU here: CUDA graphs need one, --eager does not\n"


def test_cuda_graphs_steps_learn(cuda_graphs):
    losses = cuda_graphs.train(cuda_graphs.Step(torch.device("cpu"), with_graph=False))
    assert len(losses) == cuda_graphs.STEPS and losses[-10:].mean() < 0.5 * losses[0]


def test_cuda_graphs_batches_are_padded_rightly(cuda_graphs):
    """After other batches, whose rests are padding now, the loss is that of the batch alone."""
    step = cuda_graphs.Step(torch.device("cpu"), with_graph=False)
    random = torch.Generator().manual_seed(2)
    batches = [cuda_graphs.random_speech(random, torch.randn(cuda_graphs.V, cuda_graphs.HIDDEN)) for _ in range(6)]
    assert len({labels.shape for _, labels, _, _ in batches}) > 1
    for features, labels, *lengths in batches:
        logits = step.model(features, labels)
        alone = step.loss_of(logits, labels, *lengths, reduction="mean_volume").detach()
        torch.testing.assert_close(step(features, labels, *lengths), alone, rtol=1e-5, atol=0)


def test_cuda_graphs_captures_once_and_replays(cuda_graphs, monkeypatch):
    """With a graph that runs the step when it is replayed: what is left to a GPU is that a real one does so too."""
    cpu = torch.device("cpu")
    step, done = cuda_graphs.Step(cpu, with_graph=True), []

    class Graph:
        def replay(self):
            done.append("replay")
            step.loss.copy_(step.run())

    @contextlib.contextmanager
    def capture(graph):
        """Nothing is computed in a capture, so what was is taken back."""
        done.append("capture")
        kept = copy.deepcopy((step.model.state_dict(), step.optimizer.state_dict()))
        yield
        step.model.load_state_dict(kept[0])
        step.optimizer.load_state_dict(kept[1])

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    losses = cuda_graphs.train(step)
    assert done == ["capture", *["replay"] * (cuda_graphs.STEPS - cuda_graphs.WARMUP)]
    torch.testing.assert_close(losses, cuda_graphs.train(cuda_graphs.Step(cpu, with_graph=False)), rtol=0, atol=0)
