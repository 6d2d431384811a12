"""Bugs of the project's own kernels are seen by the emulator: a dozen here, all of them in `make mutants`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EMULATOR = Path(__file__).resolve().parent / "emulator"
sys.path.insert(0, str(EMULATOR))

from mutants import KERNELS, MUTANTS, ROOT  # noqa: E402

DOZEN = [mutant.name for mutant in MUTANTS if mutant.in_test]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By name, all built and tried at once."""
    path = tmp_path_factory.mktemp("mutants") / "results.json"
    command = [sys.executable, str(EMULATOR / "mutants.py"), *DOZEN, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert path.exists(), done.stdout + done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_bug_changes_is_there_once(mutant):
    assert (ROOT / KERNELS / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old


def test_right_kernels_pass(results):
    assert results["no bug"] is None


@pytest.mark.parametrize("name", DOZEN)
def test_a_bug_is_seen(results, name):
    assert isinstance(results[name], dict), results[name]
    assert results[name]["kinds"]
