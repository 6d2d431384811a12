"""The backends under test, their poisoned memory, and a fixed seed."""

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

REPO = "phanerozoic/rnnt-loss"
ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
tested = os.environ.setdefault("LOCAL_KERNELS", f"{REPO}={BUILD}")  # kernels reads it when it is imported
OWN_BUILD = BUILD in (Path(entry.partition("=")[2]).resolve() for entry in tested.split(":"))
SEED = os.environ.setdefault("RNNT_EMULATOR_SEED", str(random.SystemRandom().randrange(1 << 32)))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep: the cores may be shared
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic

import pytest  # noqa: E402
import torch  # noqa: E402
from batches import Batch  # noqa: E402
from torch import Tensor  # noqa: E402

if OWN_BUILD:
    sys.path.insert(0, str(ROOT / "tools"))
    from load_variant import folder_of, load
else:
    # A release's build, under `-m kernels_ci`: kernel-builder has neither the rest of the tree nor what it imports.
    collect_ignore = [path.name for path in ROOT.glob("tests/test_*.py") if "mark.kernels_ci" not in path.read_text()]

try:
    import kernels
except ImportError:  # as on a machine that is lent for its GPU
    kernels = None

MARGIN = 64  # elements on either side of a tensor, filled with NaN; keeps 64-byte alignment


@dataclass(frozen=True)
class Backend:
    name: str
    device: torch.device
    rnnt: ModuleType
    data_errors: str = "raise"  # bad lengths or ids: "raise", or "nan" for that utterance's loss
    max_cells: float = float("inf")  # V-wide elements of the longest case worth running

    def needs(self, *shape: int) -> None:
        """Skips the test where a case of this shape would take too long."""
        if torch.Size(shape).numel() > self.max_cells:
            pytest.skip(f"{shape} is too long for {self.name}")

    def leaf(self, batch: Batch) -> Batch:
        return batch._replace(x=batch.x.to(self.device).detach().clone().requires_grad_())

    def loss(self, batch: Batch, from_logits: bool = True, **keywords) -> Tensor:
        """The plain call, with ids on the backend's device."""
        function = self.rnnt.rnnt_loss_from_logits if from_logits else self.rnnt.rnnt_loss
        return function(*(tensor.to(self.device) for tensor in batch[:4]), batch.blank, **keywords)

    def loss_and_grad(
        self, batch: Batch, from_logits: bool = True, poisoned: bool = True, upstream: Tensor | float = 1.0, **keywords
    ) -> tuple[Tensor, Tensor]:
        """The loss (reduction none unless given) and d(upstream . loss)/dx, on the CPU.

        Poisoned: padding of NaN, +inf and junk labels is added and NaN surrounds x; its gradient has to be exactly 0.
        """
        self.needs(*batch.x.shape)
        padded = batch.poisoned() if poisoned else batch
        x = surrounded(padded.x.to(self.device)) if poisoned else moved(padded.x, self.device)
        loss = self.loss(padded._replace(x=x.requires_grad_()), from_logits, **{"reduction": "none", **keywords})
        upstream = torch.as_tensor(upstream, dtype=loss.dtype, device=loss.device)
        (grad,) = torch.autograd.grad(loss, x, upstream.expand_as(loss))
        assert grad.dtype == x.dtype and grad.shape == x.shape
        loss, grad = loss.detach().cpu(), grad.cpu()
        assert (grad[~padded.cells] == 0).all(), "the gradient of padding is not exactly 0"
        return loss, grad[:, : batch.x.shape[1], : batch.x.shape[2]]


def surrounded(x: Tensor) -> Tensor:
    """A contiguous copy in the middle of NaN."""
    buffer = x.new_full((x.numel() + 2 * MARGIN,), float("nan"))
    view = buffer[MARGIN : MARGIN + x.numel()].view(x.shape)
    return view.copy_(x).detach()


def moved(x: Tensor, device: torch.device) -> Tensor:
    """On the device, with the strides that it has and the memory between its rows; itself if it is there."""
    if x.device.type == device.type:
        return x.detach()
    memory = x.new_empty(0).set_(x.untyped_storage())
    return memory.to(device).as_strided(x.shape, x.stride(), x.storage_offset()).detach()


def loaded() -> ModuleType:
    return kernels.get_kernel(REPO, version=1, trust_remote_code=True)


def cpu() -> Backend:
    if OWN_BUILD and not any(BUILD.glob("torch-*")):
        pytest.fail("there is nothing in build/ to test: run make build", pytrace=False)
    return Backend("cpu", torch.device("cpu"), load(folder_of("cpu")) if kernels is None else loaded())


def cuda() -> Backend:
    return Backend("cuda", torch.device("cuda"), load(folder_of("cuda")) if OWN_BUILD else loaded(), "nan")


def emulated(name: str, place: str, max_cells: float) -> Backend:
    folder = BUILD / "emulated" / place / "rnnt_loss"
    if not folder.exists():
        pytest.fail("there is no emulated variant in build/: run make build-emulated", pytrace=False)
    return Backend(name, torch.device("cpu"), load(folder), "nan", max_cells)


BACKENDS: dict[str, Callable[[], Backend]] = {"cpu": cpu}
if OWN_BUILD:
    BACKENDS["emulated"] = lambda: emulated("emulated", "plain", float("inf"))
    BACKENDS["checked"] = lambda: emulated("checked", "check", 5e5)  # every access of the kernels is checked
if torch.cuda.is_available():
    BACKENDS["cuda"] = cuda


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"RNNT_EMULATOR_SEED={SEED}")


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request) -> Backend:
    return BACKENDS[request.param]()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_outputs(request):
    """Where a test runs the product, memory from torch.empty starts as NaN."""
    if "backend" not in request.fixturenames:
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
