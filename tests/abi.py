"""What a built library asks of the systems that load it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

# Asked for by the headers of newer compilers than manylinux_2_28's, and by no source here.
FROM_HEADERS = {
    "__libc_single_threaded",
    "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev",
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev",
    "_ZSt28__throw_bad_array_new_lengthv",
}


def names(library: Path, *options: str) -> str:
    """What nm prints of its dynamic symbols."""
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    return subprocess.run(["nm", "-D", *options, library], capture_output=True, text=True, check=True).stdout


def undefined(library: Path) -> dict[str, str]:
    """What it expects of others, by name, demangled: U, or w where it can do without."""
    lines = (line.split(maxsplit=1) for line in names(library, "-C", "--undefined-only").splitlines())
    return {symbol: kind for kind, symbol in lines}


def unstable(library: Path) -> list[str]:
    """Of torch, outside of its stable ABI."""
    return [symbol for symbol in undefined(library) if re.match(r"(c10|at|torch)::(?!stable::|headeronly::)", symbol)]


def newer_than_manylinux(library: Path, tag: str = "manylinux_2_28") -> list[str]:
    """What systems of that age lack, as far as can be told on a newer one: since a linker takes the newest version of a
    function, those that the C library here has in an older version too are left out."""
    checker = pytest.importorskip("kernel_abi_check")
    mapped = set(re.findall(r"/\S*/lib[cm]\.so\S*", Path("/proc/self/maps").read_text()))
    older = {name for path in mapped for name in re.findall(r" (\w+)@GLIBC_", names(Path(path), "--defined-only"))}
    return sorted({violation.name for violation in checker.ObjectFile(library).check_manylinux(tag)} - older)


def not_of_python_3_9(library: Path) -> list:
    """What Python's stable ABI does not have, or not yet in 3.9."""
    return pytest.importorskip("kernel_abi_check").ObjectFile(library).check_python_abi("3.9")
