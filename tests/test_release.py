"""What a release is made of besides the sources: the flake, the card, and the subset of tests for every build."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import release_check  # noqa: E402

BUILD_TOML = tomllib.loads((ROOT / "build.toml").read_text())


@pytest.fixture
def nix(tmp_path):
    """Runs nix with a store of its own, and no registry to ask."""
    if shutil.which("nix") is None:
        pytest.skip("no nix (Debian: nix-bin)")
    options = ["--extra-experimental-features", "nix-command flakes", "--store", tmp_path / "store"]
    options += ["--option", "flake-registry", ""]

    def run(*arguments, cwd):
        environment = {**os.environ, "HOME": str(tmp_path)}
        return subprocess.run(["nix", *options, *arguments], env=environment, cwd=cwd, capture_output=True, text=True)

    return run


def test_nix_takes_the_flake_and_its_lock(nix, tmp_path):
    flake = tmp_path / "flake"
    flake.mkdir()
    for name in ("flake.nix", "flake.lock"):
        shutil.copy(ROOT / name, flake)
    metadata = ["flake", "metadata", "--no-update-lock-file", "--json", f"path:{flake}"]
    done = nix(*metadata, cwd=flake)
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout)["locks"]["nodes"]
    assert nodes["root"]["inputs"] == {"kernel-builder": "kernel-builder"}
    assert all(re.fullmatch("[0-9a-f]{40}", node["locked"]["rev"]) for name, node in nodes.items() if name != "root")

    text = (flake / "flake.nix").read_text()
    (flake / "flake.nix").write_text(
        text.replace("inputs.", f'inputs.other.url = "path:{tmp_path}/other";\n  inputs.', 1)
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "flake.nix").write_text("{ outputs = _: { }; }")
    done = nix(*metadata, cwd=flake)
    assert done.returncode and "lock file changes" in done.stderr, "an input without a lock was not seen"


def test_the_flake_asks_kernel_builder_for_this_tree(nix):
    """Its outputs, with what kernel-builder is given in kernel-builder's place."""
    given = "a // { path = toString a.path; pythonCheckInputs = a.pythonCheckInputs { numpy = ''numpy''; }; }"
    outputs = f"(import ./flake.nix).outputs {{ self = 1; kernel-builder.lib.genKernelFlakeOutputs = a: {given}; }}"
    done = nix("eval", "--impure", "--json", "--expr", outputs, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"self": 1, "path": str(ROOT), "pythonCheckInputs": ["numpy"]}


def test_the_card_renders_and_its_code_runs():
    pytest.importorskip("kernels", reason="the card's code loads with it")
    card = release_check.render_card(ROOT)
    assert not re.search(r"{[{%]|[}%]}|\bNone\b", card) and "\n\n\n" not in card
    assert card.startswith("---\nlibrary_name: kernels\nlicense: apache-2.0\n")
    assert "- `rnnt_loss`\n" in card and "## Layers\n- `RNNTLoss`\n- `TDTLoss`\n" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
    names = dict(joint=torch.zeros(1, 5, 2, 7), labels=torch.tensor([[1]]))
    names |= dict(input_lengths=torch.tensor([5]), label_lengths=torch.tensor([1]))
    exec(code, names)
    assert names["loss"].item() == pytest.approx(10.066022981897778)
    assert f'get_kernel("{BUILD_TOML["general"]["hub"]["repo-id"]}"' in code


def source_set(folder: Path) -> None:
    """What kernel-builder takes of a tree: listed sources, build.toml, the Python of the package and of the tests."""
    names = {name for section in [BUILD_TOML["torch"], *BUILD_TOML["kernel"].values()] for name in section["src"]}
    names |= {
        path.relative_to(ROOT).as_posix() for place in ("torch-ext", "tests") for path in (ROOT / place).rglob("*.py")
    }
    for name in {"build.toml", *names}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def test_the_subset_for_every_build_runs_where_kernel_builder_runs_it(tmp_path):
    """On its source set, with a build from elsewhere, and with no package but torch, kernels, pytest and numpy."""
    pytest.importorskip("kernels", reason="the subset loads with it")
    source, released, absent = tmp_path / "source", tmp_path / "released", tmp_path / "absent"
    source_set(source)
    for variant in (ROOT / "build").glob("torch-*-cpu-*"):
        shutil.copytree(variant, released / variant.name)
    absent.mkdir()
    for package in (
        "hypothesis",
        "kernel_abi_check",
        "matplotlib",
        "minijinja",
        "tabulate",
        "torchaudio",
        "transformers",
    ):
        (absent / f"{package}.py").write_text("raise ModuleNotFoundError(__name__)\n")
    environment = {
        **os.environ,
        "LOCAL_KERNELS": f"{BUILD_TOML['general']['hub']['repo-id']}={released}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(absent),
    }
    command = [sys.executable, "-m", "pytest", source / "tests", "-m", "kernels_ci", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"^(\d+) passed", done.stdout, re.M)
    assert int(passed) > 500 and "skipped" not in done.stdout
