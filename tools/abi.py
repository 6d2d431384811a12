"""What a built library asks of the systems that load it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import kernel_abi_check

PYTHON_ABI, MANYLINUX = "3.9", "manylinux_2_28"  # what the hub asks of a variant
# Asked for by the headers of newer compilers than manylinux_2_28's, and by no source here.
FROM_HEADERS = {
    "__libc_single_threaded",
    "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev",
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev",
    "_ZSt28__throw_bad_array_new_lengthv",
}


def symbols(library: Path) -> list[tuple[str, str, str]]:
    """(binding, section or UND, name and version) of its dynamic symbols; readelf knows every processor's."""
    command = ["readelf", "--dyn-syms", "--wide", "--demangle", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r" (GLOBAL|WEAK) +\w+ +(UND|\d+) (\S.*)$", listed, re.M)


def undefined(library: Path) -> dict[str, str]:
    """What it expects of others, by name: GLOBAL, or WEAK where it can do without."""
    return {name.partition("@")[0]: binding for binding, section, name in symbols(library) if section == "UND"}


def unstable(library: Path) -> list[str]:
    """Of torch, outside of its stable ABI."""
    return [name for name in undefined(library) if re.match(r"(c10|at|torch)::(?!stable::|headeronly::)", name)]


def not_of_python(library: Path) -> list[str]:
    """What Python's stable ABI does not have, or not yet in the oldest Python."""
    return [symbol.name for symbol in kernel_abi_check.ObjectFile(library).check_python_abi(PYTHON_ABI)]


def newer_than_manylinux(library: Path) -> list[str]:
    """What systems of that age lack. Only the release build's toolchain leaves none."""
    return sorted({symbol.name for symbol in kernel_abi_check.ObjectFile(library).check_manylinux(MANYLINUX)})


def new_to_manylinux(library: Path) -> list[str]:
    """As far as can be told on a newer system: since a linker takes the newest version of a function, those that the C
    library here has in an older version too are left out."""
    mapped = set(re.findall(r"/\S*/lib[cm]\.so\S*", Path("/proc/self/maps").read_text()))
    older = {name.partition("@")[0] for path in mapped for *_, name in symbols(Path(path)) if "@GLIBC_" in name
             and "@@" not in name}  # fmt: skip
    return [name for name in newer_than_manylinux(library) if name not in older]
