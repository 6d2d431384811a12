"""What an import and a first loss bring in: the package needs torch, and `kernels` to be loaded.

Which modules are imported, not how long that takes: benchmarks/startup.py prints the time.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

kernels = pytest.importorskip("kernels", reason="its own requirements are looked up")

ROOT = Path(__file__).resolve().parents[1]
(VARIANT,) = (ROOT / "build").glob("torch-stable-abi*-cpu-*")
ID = json.loads((VARIANT / "metadata.json").read_text())["id"]

HIDE_THE_REST = """
import json, sys
from importlib.machinery import PathFinder

absent = json.loads(sys.argv[1])

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
try:
    import pytest
except ModuleNotFoundError:
    pass
else:
    sys.exit("pytest could be imported: so could anything")
"""
BY_PATH = """
import torch, importlib.util
before = set(sys.modules)
folder, name = sys.argv[2:]
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py")
rnnt = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rnnt)
"""
BY_THE_CLIENT = """
import torch
from kernels import get_kernel
before = set(sys.modules)
rnnt = get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True)
"""
# Of the fused kernels: with a keyword that leaves them, torch.autograd.grad imports sympy for the upstream gradient.
A_LOSS = """
logits = torch.zeros(1, 5, 2, 7, requires_grad=True)
rnnt.rnnt_loss_from_logits(logits, torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1])).backward()
assert logits.grad.any()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def with_requirements(distribution: str, found: set[str]) -> set[str]:
    """Itself, what it requires here, what that requires, and so on; extras left out."""
    if distribution not in found:
        found.add(distribution)
        for requirement in map(Requirement, importlib.metadata.requires(distribution) or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                with_requirements(requirement.name.lower().replace("_", "-"), found)
    return found


def modules_but_of(*distributions: str) -> list[str]:
    """All that is installed here, less what these distributions bring."""
    wanted = set().union(*(with_requirements(name, set()) for name in distributions))
    owners = importlib.metadata.packages_distributions()
    return [module for module, by in owners.items() if not {name.lower().replace("_", "-") for name in by} & wanted]


def imported(load: str, *distributions: str) -> list[str]:
    """Modules that came with the kernel and its first loss, where nothing but these distributions is installed."""
    code = HIDE_THE_REST + load + A_LOSS
    absent = modules_but_of(*distributions)
    assert "pytest" in absent
    command = [sys.executable, "-I", "-c", code, json.dumps(absent), str(VARIANT), ID]
    environment = os.environ | {"LOCAL_KERNELS": f"phanerozoic/rnnt-loss={ROOT / 'build'}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_beyond_torch_it_imports_itself_alone():
    own = {ID, *(f"{ID}.{path.stem}" for path in VARIANT.glob("*.py") if path.stem != "__init__")}
    came = set(imported(BY_PATH, "torch"))
    assert own <= came
    others = {module for module in came if module.partition(".")[0] not in {ID, *sys.stdlib_module_names}}
    assert not others, "torch had not imported these"


def test_torch_and_kernels_are_all_it_takes():
    assert ID in imported(BY_THE_CLIENT, "torch", "kernels")


def test_the_benchmark_times_every_step(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import startup

    times = startup.measure()
    assert len(times) == len(startup.STEPS) and all(seconds > 0 for seconds in times)
