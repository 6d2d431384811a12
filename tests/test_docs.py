"""The Python blocks of the README and of docs/, and the docstrings' examples, run as they stand.

A `text` block behind a Python block is the error that this one raises, up to line breaks and what stands for "...".
A block marked `python hub` is the client's, before the kernel is loaded: `offline` with HF_HUB_OFFLINE=1, `unknown` of
a hub that has never heard of the publisher.
"""

import ast
import doctest
import importlib.util
import re
from inspect import isclass, isfunction, ismodule, signature
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hub.server import Branch, Hub

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "api.md")  # of docstrings, see below
PAGES = [ROOT / "README.md", *GUIDES]
FENCE = re.compile(r"^```(\w+) *([^\n]*)\n(.*?)^```$", re.M | re.S)
LAYERS = ["layers.RNNTLoss", "layers.TDTLoss"]


class Block(NamedTuple):
    code: str
    line: int
    marks: list[str]
    error: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    fences = list(FENCE.finditer(text))
    found = []
    for fence, following in zip(fences, [*fences[1:], None]):
        if fence[1] == "python":
            raises = following and following[1] == "text" and re.match(r"[A-Z]\w+: ", following[3])
            line = text.count("\n", 0, fence.start(3))
            found.append(Block(fence[3], line, fence[2].split(), following[3] if raises else None))
    return found


def error_of(code, namespace: dict) -> str:
    try:
        exec(code, namespace)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def assert_reads(message: str, wanted: str, where: str = "") -> None:
    """The same words, where "..." is any."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in wanted.split("..."))
    assert re.fullmatch(pattern, " ".join(message.split())), f"{where}: {message}, not {wanted}"


@pytest.fixture(scope="module")
def hub_url():
    """A hub whose kernel has a version 1, built for another system, by a publisher whom nobody vouches for."""
    variant = "build/torch-stable-abi211-cpu-aarch64-darwin/__init__.py"
    with Hub("phanerozoic/rnnt-loss", Branch("v1", {variant: b""})) as hub:
        yield hub.url


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "release.md"], ids=lambda path: path.name)
def test_the_pages_blocks(page, hub_url, tmp_path, monkeypatch):
    """One after the other in one namespace, as a reader would type them."""
    pytest.importorskip("kernels", reason="the pages load with it")
    from huggingface_hub import constants

    namespace = {"__name__": page.stem}
    assert blocks(page)
    for block in blocks(page):
        code = compile("\n" * block.line + block.code, page, "exec")
        with monkeypatch.context() as patch:
            if "hub" in block.marks:
                patch.delenv("LOCAL_KERNELS")
                patch.setenv("KERNELS_CACHE", str(tmp_path))
                patch.setenv("NO_PROXY", "127.0.0.1")
                patch.setattr(constants, "ENDPOINT", hub_url + "/nowhere" * ("unknown" in block.marks))
                patch.setattr(constants, "HF_HUB_OFFLINE", "offline" in block.marks)
            if block.error is None:
                exec(code, namespace)
                continue
            assert_reads(error_of(code, namespace), block.error, f"line {block.line}")


def test_errors_are_compared():
    assert_reads("ValueError: x must\nbe 1, got 2", "ValueError: x must be ..., got 2\n")
    with pytest.raises(AssertionError):
        assert_reads("ValueError: x must be 1, got 2", "ValueError: x must be 1")


def exported(module, prefix="") -> dict:
    """Functions and classes by name: of __all__, or a module's own where it has none, and of the modules in it."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    found = {}
    for name, each in ((name, getattr(module, name)) for name in names if not name.startswith("_")):
        if ismodule(each):
            found |= exported(each, f"{prefix}{name}.")
        elif isfunction(each) or isclass(each):
            found[prefix + name] = each
    return found


def test_docstring_examples(backend):
    finder = doctest.DocTestFinder(recurse=False)
    names = {"torch": torch, **{key: getattr(backend.rnnt, key) for key in backend.rnnt.__all__}}
    found = exported(backend.rnnt)
    assert {"rnnt_loss", "RNNTLoss", "alignment.posteriors", *LAYERS} <= set(found)
    for name, documented in found.items():
        (test,) = finder.find(documented, name, globs=dict(names)) or [None]
        assert test and test.examples, f"{name} has no example"
        report = []
        assert not doctest.DocTestRunner().run(test, out=report.append).failed, "".join(report)


def test_the_reference_is_that_of_the_docstrings():
    pytest.importorskip("griffe", reason="it reads the docstrings")
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "tools" / "api_reference.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.API.read_text() == tool.reference(), "docs/api.md is stale: run make docs"


def test_the_reference_has_all_that_is_exported(backend):
    headings = re.findall(r"^## (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(headings) == sorted(exported(backend.rnnt))


ALIGNMENT = ["posteriors", "expected_frames", "entropy", "align", "sample_paths", "posteriors_tdt", "align_tdt",
             "posteriors_multiblank", "align_multiblank"]  # fmt: skip


def test_every_public_function_documents_its_arguments(backend):
    for name in ("rnnt_loss", "rnnt_loss_from_logits", "rnnt_loss_packed", "pack_rows", "unpack_rows", *LAYERS):
        documented = attrgetter(name)(backend.rnnt)
        for section in ("Args:", "Returns:", "Edges:", "Raises:", "Source:", "Example:"):
            assert section in documented.__doc__, (name, section)
        for argument in set(signature(getattr(documented, "forward", documented)).parameters) - {"self"}:
            assert re.search(rf"\b{argument}\b", documented.__doc__), (name, argument)


@pytest.mark.parametrize("name", ALIGNMENT)
def test_alignment_functions_document_what_they_return(backend, name):
    function = getattr(backend.rnnt.alignment, name)
    for section in ("Args:", "Returns:", "Edges", "Raises", "Source:", "Example:"):
        assert section in function.__doc__, (name, section)


def anchors(page: Path) -> set[str]:
    """Those that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in ("docs/api.md", "CARD.md", "rnnt_loss/README.md"))],
                         ids=lambda path: str(path.relative_to(ROOT)))  # fmt: skip
def test_pages_speak_of_the_project_alone(page):
    """No path of a machine in what is committed, and every link leads somewhere."""
    text = page.read_text()
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|opt)/", text)
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = page.parent / link if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), (link, anchor)


def test_example_sources_parse():
    for path in (ROOT / "examples").glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
