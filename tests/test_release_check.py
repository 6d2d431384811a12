"""tools/release_check.py finds what is wrong: each check is given a fault in a copy of the tree, and sees it."""

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import release_check  # noqa: E402

GIT = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false"]
CPU = f"torch-stable-abi211-cpu-{platform.machine()}-linux"
CUDA = f"torch-stable-abi211-cu130-{platform.machine()}-linux"
CAPABILITIES = ["10.0", "12.0", "8.0", "8.6", "8.9", "9.0"]  # in the order of texts, as kernel-builder writes them


def git(folder, *arguments):
    return subprocess.run([*GIT, "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """A tree that could be released. The CUDA variant is the CPU's under its name: what counts here is the layout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the tree is copied by git's list of files")
    tree = tmp_path_factory.mktemp("good") / "tree"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    git(tree.parent, "init", "--quiet", tree)
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "all")
    variant(tree, CPU, {"type": "cpu"}, git(tree, "rev-parse", "HEAD^{tree}")[:7])
    variant(tree, CUDA, {"type": "cuda", "archs": CAPABILITIES}, git(tree, "rev-parse", "HEAD")[:7])
    return tree


def variant(tree, name, backend, made_from):
    folder = tree / "build" / name
    shutil.copytree(tree / "torch-ext" / "rnnt_loss", folder)
    (library,) = (ROOT / "build" / CPU).glob("*.so")
    found = json.loads((ROOT / "build" / CPU / "metadata.json").read_text())
    found |= {"id": f"_rnnt_loss_{backend['type']}_{made_from}", "backend": backend}
    shutil.copy(library, folder / f"{found['id']}.abi3.so")
    (folder / "metadata.json").write_text(json.dumps(found))


@pytest.fixture
def tree(good, tmp_path) -> Path:
    return shutil.copytree(good, tmp_path / "tree")


def replace(name, old, new):
    """The fault: a file with another text. What is replaced has to be there, else nothing was tried."""

    def seed(tree):
        text = (tree / name).read_text()
        assert re.search(old, text), (name, old)
        (tree / name).write_text(re.sub(old, new, text, count=1))

    return seed


def write(name, text="\n"):
    return lambda tree: (tree / name).write_text(text)


def remove(name):
    return lambda tree: shutil.rmtree(tree / name) if (tree / name).is_dir() else (tree / name).unlink()


def metadata(variant, **changes):
    def seed(tree):
        path = tree / "build" / variant / "metadata.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return seed


def library(source, **changes):
    """The CPU variant's library is another, of this C."""

    def seed(tree):
        (library,) = (tree / "build" / CPU).glob("*.so")
        command = ["g++", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
        subprocess.run(command, input=source, text=True, check=True)
        metadata(CPU, **changes)(tree)

    return seed


def rename(old, new):
    return lambda tree: (tree / old).rename(tree / new)


INIT = "torch-ext/rnnt_loss/__init__.py"
LOSS = "torch-ext/rnnt_loss/loss.py"
CLEAN = {"kernel": {"commit": "0" * 40, "dirty": False}}
FAULTS = {
    "a file too many": ("clean", write("notes.txt"), "notes.txt is not committed"),
    "a changed file": ("clean", replace("README.md", "# ", "## "), "README.md is not committed"),
    "no git": ("clean", remove(".git"), "not a git repository"),
    "a source that is not listed": ("sources", write("rnnt_loss/core/more.h"), "does not list rnnt_loss/core/more.h"),
    "a listed source that is gone": ("sources", remove("rnnt_loss/dtype.h"), "rnnt_loss/dtype.h, which is not there"),
    "another version": ("versions", replace("build.toml", "version = 1", "version = 2"), "build.toml's version is 2"),
    "no changelog": ("versions", remove("CHANGELOG.md"), "no entry"),
    "another order": ("versions", replace("CHANGELOG.md", "$", "\n## 1.1 (2026-01-31)\n"), "not in order"),
    "an old entry without a date": (
        *("versions", replace("CHANGELOG.md", r"## 1\.0", "## 1.1 (2026-01-31)\n\n## 1.0"), "calls an old entry"),
    ),
    "a README of another version": ("versions", replace("README.md", "version=1", "version=2"), "README.md loads vers"),
    "a name without a word": ("documented", replace(INIT, r'"ops",', '"ops", "secret",'), "does not have `secret`"),
    "names that are computed": ("documented", replace(INIT, r"__all__ = \[", "__all__ = [] + ["), r"no __all__ = \["),
    "no README": ("documented", remove("README.md"), "does not have `rnnt_loss`"),
    "a card that is cut off": ("card", replace("CARD.md", "{% endfor %}", ""), "does not render"),
    "a card with another variable": ("card", replace("CARD.md", "{{ repo_id }}", "{{ repo }}"), "does not render"),
    "a card without its library": ("card", replace("CARD.md", "library_name: kernels\n", ""), "library_name: kernels"),
    "a card without the names": ("card", replace("CARD.md", "in functions", "in []"), "does not list `rnnt_loss`"),
    "no CUDA variant": ("variants", remove(f"build/{CUDA}"), "no cuda variant in build/: run make build-cuda"),
    "no CPU variant": ("variants", remove(f"build/{CPU}"), "no cpu variant in build/: run make build$"),
    "metadata of another version": ("variants", metadata(CPU, version=2), "version must be 1, got 2"),
    "metadata of another licence": ("variants", metadata(CUDA, license="MIT"), "license must be 'Apache-2.0', got 'MI"),
    "a build of another tree": ("variants", metadata(CPU, id="_rnnt_loss_cpu_0000000"), "made from another tree"),
    "a build of a dirty tree": ("variants", metadata(CPU, id="_rnnt_loss_cpu_0000000_dirty"), "made from another tree"),
    "a build under no name": ("variants", metadata(CPU, id="_rnnt_loss_cpu_"), "made from another tree"),
    "another provenance": ("variants", metadata(CPU, provenance=CLEAN), "provenance must be commit"),
    "one capability": ("variants", metadata(CUDA, backend={"type": "cuda", "archs": ["9.0"]}), "archs must be 8.0 8.6"),
    "a capability too many": (
        "variants",
        lambda tree: (
            metadata(CUDA, backend={"type": "cuda", "archs": ["7.5"]})(tree),
            rename(f"build/{CUDA}", f"build/{CUDA.replace('cu130', 'cu126')}")(tree),
        ),
        "archs must be 8.0 8.6",
    ),
    "a folder of another name": ("variants", rename(f"build/{CPU}", "build/torch-cpu"), "is not a name for a cpu vari"),
    "no library": ("variants", metadata(CPU, id="_rnnt_loss_cpu_1234567"), "no library _rnnt_loss_cpu_1234567.abi3.so"),
    "stale Python": ("variants", replace(f"build/{CPU}/loss.py", "$", "\n"), "loss.py is not that of"),
    "missing Python": ("variants", remove(f"build/{CPU}/tdt.py"), "tdt.py is not that of"),
    "Python's own symbols": (
        *(
            "abis",
            library("void _PyObject_Dump(void*); void f(void* x) { _PyObject_Dump(x); }"),
            "_PyObject_Dump is not i",
        ),
    ),
    "torch's own symbols": (
        *(
            "abis",
            library("void _ZN2at5emptyEv(void); void f() { _ZN2at5emptyEv(); }"),
            r"at::empty\(\) is not in torch",
        ),
    ),
    "a sibling": (
        "benchmark",
        replace("benchmarks/benchmark.py", "import math", "import math, peers"),
        "peers, a file",
    ),
    "a package": (
        "benchmark",
        replace("benchmarks/benchmark.py", "import math", "import math, numpy"),
        "imports numpy",
    ),
    "a relative import": (
        *(
            "benchmark",
            replace("benchmarks/benchmark.py", "import math", "import math\nfrom . import peers"),
            "a file beside",
        ),
    ),
    "a pickle": ("safety", replace(LOSS, "import torch", "import pickle, torch"), "loss.py imports pickle"),
    "an eval": ("safety", replace(LOSS, r"\Z", "\nx = eval('1')\n"), "loss.py names eval"),
    "an open file": ("safety", replace(LOSS, r"\Z", "\nx = open('/dev/null')\n"), "loss.py names open"),
    "torch.load": ("safety", replace(LOSS, r"\Z", "\nx = torch.load\n"), "loss.py names torch.load"),
    "torch.load by name": ("safety", replace(LOSS, r"\Z", "\nfrom torch import load\n"), "loss.py names torch.load"),
    "the hub": ("safety", replace(LOSS, r"\Z", "\nimport torch.hub\n"), "loss.py names torch.hub"),
    "no licence": ("licences", remove("LICENSE"), "LICENSE is not the text of Apache-2.0"),
    "another licence": ("licences", replace("build.toml", "Apache-2.0", "MIT"), "must be one of Apache-2.0, got 'MIT'"),
    "a README without licence": ("licences", replace("README.md", r"Apache-2\.0", ""), "does not name the licence"),
    "recordings without licence": (
        "licences",
        replace("README.md", "CC-BY-SA", ""),
        "does not say under which licence",
    ),
    "somebody's data": (
        "licences",
        lambda tree: (write("tests/speech.wav")(tree), git(tree, "add", "tests/speech.wav")),
        "where tests/speech.wav comes from",
    ),
}


def found(check, tree):
    return list(getattr(release_check, check)(tree))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(tree, fault):
    check, seed, message = FAULTS[fault]
    assert found(check, tree) == []
    seed(tree)
    assert any(re.search(message, problem) for problem in found(check, tree)), found(check, tree)


def test_every_check_has_a_fault():
    assert {check.__name__ for check in release_check.CHECKS} == {check for check, *_ in FAULTS.values()}


def test_manylinux_is_asked_of_a_release_alone(tree):
    opens = "void* dlopen(const char*, int); void* f(void) { return dlopen(0, 0); }"
    library(opens)(tree)
    assert found("abis", tree) == []
    metadata(CPU, provenance=CLEAN)(tree)
    if not found("abis", tree):
        pytest.skip("the glibc of this machine is as old as manylinux's")
    assert "dlopen is newer than" in found("abis", tree)[0]


@pytest.mark.parametrize(
    "date, tag, problems",
    [
        ("unreleased", "v1.0", ["CHANGELOG.md has no date for 1.0"]),
        ("2026-01-31", "v1.1", ["CHANGELOG.md's newest entry is for the tag v1.0, got v1.1"]),
        ("2026-01-31", "v1.0", []),
        ("unreleased", None, []),
    ],
)
def test_a_tag_wants_an_entry_with_a_date(tree, date, tag, problems):
    (tree / "CHANGELOG.md").write_text(f"## 1.0 ({date})\n")
    assert list(release_check.versions(tree, tag)) == problems


def test_the_table_and_the_exit_status(tree, capsys):
    assert release_check.main([], tree) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "this tree could be released"
    remove("LICENSE")(tree)
    assert release_check.main([], tree) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no  git's tree") and lines[1].strip() == "LICENSE is not committed"
    assert lines[-1] == f"2 of {len(release_check.CHECKS)} checks failed"
    assert sum(line.startswith("ok  ") for line in lines) == len(release_check.CHECKS) - 2
