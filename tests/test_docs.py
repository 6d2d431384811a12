"""The README's Python blocks and the docstrings' examples run as they stand."""

import ast
import doctest
import re
from inspect import signature
from operator import attrgetter
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
LAYERS = ["layers.RNNTLoss", "layers.TDTLoss"]


def test_the_readme_has_blocks():
    assert len(BLOCKS) >= 2


def test_the_readmes_blocks(backend):
    """One after the other in one namespace, as a reader would type them."""
    pytest.importorskip("kernels", reason="the README loads with it")
    namespace = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)


ALIGNMENT = ("posteriors", "expected_frames", "entropy", "align", "sample_paths", "posteriors_tdt", "align_tdt")


@pytest.mark.parametrize(
    "name",
    [
        *("rnnt_loss", "rnnt_loss_from_logits", "RNNTLoss", "rnnt_loss_packed", "pack_rows", "unpack_rows"),
        *("tdt_loss", "tdt_loss_from_joint_logits", "TDTLoss", "multiblank_rnnt_loss", *LAYERS),
        *(f"alignment.{name}" for name in (*ALIGNMENT, "frames_to_seconds")),
    ],
)
def test_docstring_examples(backend, name):
    documented = attrgetter(name)(backend.rnnt)
    (test,) = [t for t in doctest.DocTestFinder(recurse=False).find(documented, name) if t.examples]
    test.globs = {"torch": torch, **{key: getattr(backend.rnnt, key) for key in backend.rnnt.__all__}}
    report = []
    results = doctest.DocTestRunner().run(test, out=report.append)
    assert results.attempted and not results.failed, "".join(report)


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


def test_files_speak_of_the_project_alone():
    """No path of a machine in what is committed, and every README link leads somewhere."""
    for path in [ROOT / "README.md", ROOT / "CARD.md", ROOT / "rnnt_loss" / "README.md"]:
        text = path.read_text()
        assert not re.search(r"(?<![\w.])/(home|root|tmp|work|opt)/", text), path
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", text):
            assert (path.parent / link).exists(), (path, link)


def test_example_sources_parse():
    for path in (ROOT / "examples").glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
