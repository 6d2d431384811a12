"""The drop-ins beside the libraries themselves: torchaudio, NeMo's and SpeechBrain's Python where they are installed.

NeMo and SpeechBrain import half of the world; their losses need torch and numpy. So their files are read one by one.
"""

import ast
import importlib.util
import math
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from arc_oracles import tdt_arcs, without_a_last_label
from batches import random_batch
from compare import assert_within_budget
from reference import lattice
from test_compat import NEMO, SIGNATURES, bare

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import torchaudio_cpu  # noqa: E402

BLANK = 3
BATCHES = [(1, 2, 1, 5), (3, 8, 5, 9), (4, 20, 9, 30)]
SHAPES = pytest.mark.parametrize("B, T, U, V", BATCHES)
FLOOR = 2e-6  # per frame and label: all of them have float32 recursions


@pytest.fixture(scope="module")
def torchaudio():
    try:
        return torchaudio_cpu.load()
    except ImportError as error:
        pytest.skip(f"torchaudio cannot be had: {error}")


def installed(distribution: str, name: str) -> Path:
    try:
        return Path(metadata.distribution(distribution).locate_file(name))
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")


def definition(path: Path, name: str) -> ast.FunctionDef:
    """Of a function, or of Class.method."""
    body = ast.parse(path.read_text()).body
    for part in name.split("."):
        (found,) = (node for node in body if getattr(node, "name", None) == part)
        body = found.body
    return found


def written(path: Path, name: str) -> str:
    """The signature, as `bare` has it, of what is not imported."""
    arguments = definition(path, name).args
    for argument in arguments.args:
        argument.annotation = None
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    return f"({ast.unparse(arguments)})"


def alone(path: Path, name: str, **names):
    """A function of a file, without what decorates it and with these names for what it knows."""
    function = definition(path, name)
    function.decorator_list = []
    exec(compile(ast.Module([function], []), str(path), "exec"), names)
    return names[function.name]


@pytest.fixture(scope="module")
def nemo():
    """NeMo's reference, which its own tests hold the kernels to."""
    path = installed("nemo_toolkit", "nemo/collections/asr/parts/numba/rnnt_loss/rnnt_numpy.py")
    spec = importlib.util.spec_from_file_location("nemo_rnnt_numpy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def speechbrain(torchaudio):
    """SpeechBrain's transducer_loss alone."""
    path = installed("speechbrain", "speechbrain/nnet/losses.py")
    return alone(path, "transducer_loss", torch=torch)


def test_signatures_of_torchaudio(torchaudio):
    assert bare(torchaudio.functional.rnnt_loss) == SIGNATURES["torchaudio.rnnt_loss"]
    module = torchaudio.transforms.RNNTLoss
    assert (bare(module.__init__), bare(module.forward)) == SIGNATURES["torchaudio.RNNTLoss"]


@pytest.mark.parametrize(
    "distribution, path, theirs, ours",
    [
        ("nemo_toolkit", "nemo/collections/asr/losses/rnnt.py", "RNNTLoss", "nemo.RNNTLoss"),
        ("nemo_toolkit", "nemo/collections/asr/parts/numba/rnnt_loss/rnnt_pytorch.py", "RNNTLossNumba",
         "nemo.RNNTLossNumba"),
    ],
)  # fmt: skip
def test_signatures_of_nemo(distribution, path, theirs, ours):
    path = installed(distribution, path)
    assert tuple(written(path, f"{theirs}.{method}") for method in ("__init__", "forward")) == SIGNATURES[ours]


def test_signature_of_speechbrain(speechbrain):
    assert bare(speechbrain) == SIGNATURES["speechbrain.transducer_loss"]


def beside(theirs, ours, batch, upstream=None):
    """Loss and gradient of both, for the same upstream gradient."""
    results = []
    for function in (theirs, ours):
        x = batch.x.clone().requires_grad_()
        loss = function(x)
        (grad,) = torch.autograd.grad(loss, x, torch.full_like(loss, 0.5) if upstream is None else upstream)
        results.append((loss.detach(), grad))
    (wanted, wanted_grad), (got, got_grad) = results
    floor = FLOOR * sum(batch.x.shape[1:3])
    assert got.shape == wanted.shape
    assert_within_budget("loss", got.view(-1), wanted.view(-1).double(), floor=floor)
    assert_within_budget("gradient", got_grad, wanted_grad.double(), floor=floor)


def float_batch(B, T, U, V, **keywords):
    """Ragged, with a label at least, which is what these libraries need."""
    batch = random_batch(B, T, U, V, ragged=True, **keywords).to(torch.float32)
    return batch._replace(label_lengths=batch.label_lengths.clamp(min=1))


@SHAPES
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clamp", [-1.0, 0.0, 0.05])
def test_torchaudio(backend, torchaudio, B, T, U, V, reduction, fused, clamp):
    """The function, and the module with its defaults besides."""
    batch = float_batch(B, T, U, V, blank=-1)
    ids = [tensor.int() for tensor in batch[1:4]]
    options = {"reduction": reduction, "clamp": clamp, "fused_log_softmax": fused}

    def call(library, rnnt_loss, RNNTLoss):
        def losses(x):
            x = x if fused else x.log_softmax(-1)
            return rnnt_loss(x, *ids, **options) + RNNTLoss(**options)(x, *ids) + RNNTLoss()(x, *ids)

        return losses

    ours = backend.rnnt.compat.torchaudio
    theirs = torchaudio.functional.rnnt_loss, torchaudio.transforms.RNNTLoss
    beside(call("theirs", *theirs), call("ours", ours.rnnt_loss, ours.RNNTLoss), batch)


@SHAPES
@pytest.mark.parametrize("fastemit_lambda", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("clamp", [-1.0, 0.1])
def test_nemo(backend, nemo, B, T, U, V, fastemit_lambda, clamp):
    """Its reference sums, and bounds what comes from upstream too: so that is 1."""
    batch = float_batch(B, T, U, V, blank=BLANK)
    options = {"fastemit_lambda": fastemit_lambda, "clamp": clamp}
    theirs, ids = nemo.RNNTLoss(BLANK, **options), batch[1:4]
    for ours in (
        backend.rnnt.compat.nemo.RNNTLossNumba(BLANK, "sum", **options),
        lambda x, *ids: backend.rnnt.compat.nemo.RNNTLoss(BLANK, "sum", loss_kwargs=options)(x, *ids).view(1),
    ):
        beside(lambda x: theirs(x, *ids), lambda x, ours=ours: ours(x, *ids), batch, upstream=torch.ones(1))


@pytest.mark.parametrize("reduction", NEMO)
def test_nemos_reduce(backend, reduction):
    path = installed("nemo_toolkit", "nemo/collections/asr/losses/rnnt.py")
    theirs = alone(path, "RNNTLoss.reduce", torch=torch, List=list)
    criterion = backend.rnnt.compat.nemo.RNNTLoss(BLANK, reduction)
    losses, lengths = torch.rand(5).split([2, 3]), torch.tensor([3, 1, 4, 1, 5]).split([2, 3])
    for arguments in ((losses[1], lengths[1]), (list(losses), list(lengths))):
        torch.testing.assert_close(criterion.reduce(*arguments), theirs(criterion, *arguments))


DURATIONS, TOKENS = [0, 1, 2, 4], 6


@pytest.fixture(scope="module")
def nemos_tdt_gradient():
    """Of the logits of both heads, by NeMo's kernel: its blocks and threads, which never wait, in turn."""
    path = "nemo/collections/asr/parts/numba/rnnt_loss/utils/cuda_utils/gpu_rnnt_kernel.py"
    cuda = SimpleNamespace(blockIdx=SimpleNamespace(), threadIdx=SimpleNamespace())
    threads = len(DURATIONS)
    kernel = alone(installed("nemo_toolkit", path), "compute_tdt_grad_kernel", torch=torch, math=math, cuda=cuda,
                   GPU_RNNT_THREAD_SIZE=threads)  # fmt: skip

    def gradient(batch, found, sigma, fastemit_lambda, clamp):
        tokens, frames = batch.x.split([TOKENS, len(DURATIONS)], -1)
        frames = frames.log_softmax(-1)
        grads = [[0.0] * tensor.numel() for tensor in (tokens, frames)]
        inputs = [tensor.flatten().tolist() for tensor in (tokens, frames, -tokens.logsumexp(-1))]
        of_lattice = [tensor.flatten().tolist() for tensor in (found.alpha, found.beta, found.log_z)]
        ids = batch.input_lengths.tolist(), batch.label_lengths.tolist(), batch.labels.tolist()
        for cuda.blockIdx.x in range(len(inputs[2])):
            for cuda.threadIdx.x in range(threads):
                kernel(*grads, *inputs, sigma, *of_lattice, *ids, *tokens.shape, batch.blank, DURATIONS, threads,
                       fastemit_lambda, clamp)  # fmt: skip
        tokens, grad = (torch.tensor(grad, dtype=torch.float64).view(*batch.x.shape[:3], -1) for grad in grads)
        return torch.cat([tokens, grad - frames.exp() * grad.sum(-1, keepdim=True)], -1)  # NeMo's are of log_softmax

    return gradient


@pytest.mark.parametrize("sigma", [0.0, 0.1])
@pytest.mark.parametrize("fastemit_lambda", [0.0, 0.3])
@pytest.mark.parametrize("clamp", [0.0, 0.05])
def test_nemos_tdt(backend, nemos_tdt_gradient, sigma, fastemit_lambda, clamp):
    """FastEmit and clamp are of tokens alone."""
    batch = random_batch(3, 6, 3, TOKENS + len(DURATIONS), blank=TOKENS - 1, ragged=True)
    batch = batch._replace(labels=batch.labels % (TOKENS - 1))
    tokens, frames = batch.x.split([TOKENS, len(DURATIONS)], -1)
    arcs = tdt_arcs(batch._replace(x=tokens), DURATIONS, tokens, frames, sigma)
    found = lattice(without_a_last_label(arcs, batch.input_lengths), *batch[2:4])
    options = {"sigma": sigma, "fastemit_lambda": fastemit_lambda, "clamp": clamp}
    criterion = backend.rnnt.compat.nemo.RNNTLoss(batch.blank, None, "tdt", {"durations": DURATIONS, **options})
    x, *ids = (tensor.to(backend.device) for tensor in batch[:4])
    x = x.clone().requires_grad_()
    loss = criterion(x, *ids)
    assert_within_budget("loss", loss.detach(), -(1 + fastemit_lambda) * found.log_z)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    assert_within_budget("gradient", grad, nemos_tdt_gradient(batch, found, **options))


@SHAPES
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_speechbrain(backend, speechbrain, B, T, U, V, reduction):
    batch = float_batch(B, T, U, V, blank=BLANK)
    lengths = (batch.input_lengths + 0.3) / (T + 0.3), (batch.label_lengths + 0.2) / (U + 0.2)  # rounded to the same
    arguments = (batch.labels, *lengths, BLANK, reduction)
    ours = backend.rnnt.compat.speechbrain.transducer_loss
    beside(lambda x: speechbrain(x, *arguments), lambda x: ours(x, *arguments), batch)
