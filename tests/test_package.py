"""The package as the hub's tools see it: build.toml, the built variant, the rules for its Python."""

import ast
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import abi  # in tools/, as what follows
import build_variant
import pytest
import release_check
import tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "torch-ext" / "rnnt_loss"
PYTHON = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_ops.py")
VARIANT = ROOT / "build" / f"torch-stable-abi211-cpu-{platform.machine()}-linux"


def components():
    build = tomllib.loads((ROOT / "build.toml").read_text())
    return {"torch": build["torch"], **build["kernel"]}


@pytest.fixture
def hub():
    """The hub's own parsers."""
    return pytest.importorskip("kernels._rust")


def test_the_hubs_parser_accepts_build_toml(hub):
    assert sorted(str(backend).lower() for backend in hub.Build.open(ROOT).general.backends) == ["cpu", "cuda"]
    general = tomllib.loads((ROOT / "build.toml").read_text())["general"]
    assert (general["name"], general["version"], general["edition"]) == ("rnnt-loss", 1, 5)
    assert general["hub"]["repo-id"] == "phanerozoic/rnnt-loss" and general["license"] == "Apache-2.0"


def test_every_source_is_listed_and_every_listed_one_exists():
    assert list(release_check.sources(ROOT)) == []


def test_a_cuda_variant_has_every_cpu_source_too():
    cpu, cuda = (set(components()[f"rnnt_loss_{backend}"]["src"]) for backend in ("cpu", "cuda"))
    assert cpu <= cuda


def test_the_hubs_parser_refuses_what_is_wrong(hub, tmp_path):
    text = (ROOT / "build.toml").read_text()
    (tmp_path / "build.toml").write_text(text.replace("edition = 5", "edition = 5\ncolour = 'blue'"))
    with pytest.raises(ValueError, match="colour"):
        hub.Build.open(tmp_path)


def test_the_built_variant_is_laid_out_as_the_hubs(hub):
    metadata = hub.Metadata.read_from_file(VARIANT / "metadata.json")
    assert metadata.version == 1 and str(metadata.backend.backend_type) == "cpu"
    assert re.fullmatch(r"_rnnt_loss_cpu_[0-9a-f]{7}(_dirty)?", metadata.id)
    files = (path for path in VARIANT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    names = {path.relative_to(VARIANT).as_posix() for path in files}
    python = {path.relative_to(PACKAGE).as_posix() for path in PYTHON}
    assert names == python | {"_ops.py", "metadata.json", f"{metadata.id}.abi3.so"}
    assert f'"{metadata.id}::' in (VARIANT / "_ops.py").read_text()
    assert json.loads((VARIANT / "metadata.json").read_text())["python-depends"] == []


def test_a_second_build_has_nothing_to_compile():
    command = [sys.executable, ROOT / "tools" / "build_variant.py", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"building {VARIANT.relative_to(ROOT)}"]


@pytest.fixture
def library():
    (found,) = VARIANT.glob("*.abi3.so")
    return found


def test_the_library_needs_only_the_stable_abi(library):
    assert any("torch_parallel_for" in symbol for symbol in abi.undefined(library))
    assert abi.unstable(library) == []


def test_the_library_runs_on_the_systems_and_pythons_of_the_hub(library):
    """As far as can be told here: of what the sources call, nothing is newer than manylinux_2_28 (glibc 2.28, GCC 8).

    That the released library asks for no newer version of it either, only kernel-builder's toolchain can prove, and its
    build checks: the compiler here takes the newest versions that this machine has."""
    assert abi.not_of_python(library) == []
    assert set(abi.new_to_manylinux(library)) <= abi.FROM_HEADERS


def test_what_is_asked_of_other_systems_is_found(tmp_path):
    """pow has a version newer than manylinux_2_28, and an old one; gettid is newer."""
    source, library = tmp_path / "asks.cpp", tmp_path / "asks.abi3.so"
    source.write_text("""
namespace at { double unstable(double); }
namespace torch::stable { double stable(double); }
extern "C" double pow(double, double);
extern "C" int gettid(), PyUnicode_GetMax();
double all(double x) { return pow(x, at::unstable(x)) + torch::stable::stable(x) + gettid() + PyUnicode_GetMax(); }
""")
    subprocess.run(
        [*build_variant.compiler(), "-std=c++17", "-shared", "-fPIC", source, "-lm", "-o", library], check=True
    )
    assert abi.unstable(library) == ["at::unstable(double)"]
    assert abi.new_to_manylinux(library) == ["gettid"]
    assert abi.newer_than_manylinux(library) == ["gettid", "pow"]
    assert abi.not_of_python(library) == ["PyUnicode_GetMax"]


def test_the_library_knows_no_path_of_the_machine_that_built_it(library):
    assert str(ROOT).encode() not in library.read_bytes()


@pytest.mark.parametrize("path", [*PYTHON, VARIANT / "_ops.py"], ids=lambda path: path.name)
def test_the_python_is_3_9_and_imports_only_torch_and_itself(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module]
        for module in modules:
            assert module.split(".")[0] in {"torch", *sys.stdlib_module_names}, module


def test_the_kernel_sources_know_no_torch():
    for path in (ROOT / "rnnt_loss").rglob("*.[chi]*"):
        assert not re.search(r"#include\s*[<\"](torch|ATen|c10)", path.read_text()), path


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_ops_are_registered_by_the_prefixed_name(path):
    """kernel-builder checks that the first argument of a registration is literally add_op_namespace_prefix(...)."""
    registrations = {"register_fake", "register_autograd", "register_kernel", "custom_op", "triton_op"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in registrations:
            prefix = node.args[0]
            assert isinstance(prefix, ast.Call) and prefix.func.id == "add_op_namespace_prefix"
            assert isinstance(prefix.args[0], ast.Constant)
