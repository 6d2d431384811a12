"""Build one variant of the kernel from build.toml, laid out as the hub lays it out: build/<variant>/.

    python tools/build_variant.py cpu
    python tools/build_variant.py cuda
    python tools/build_variant.py emulated          # or emulated-check: for the tests, into build/emulated/

kernel-builder makes the released binaries; this makes the same variant from the same list of sources with the
compilers at hand (g++, and nvcc for cuda), so that a change can be tried in seconds. Objects are kept by the hash of
what they are made from, so that a build does only what a change asks for.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
EMULATOR = ROOT / "tests" / "emulator"
REGISTRATION_H = """\
// Written by tools/build_variant.py, in place of kernel-builder's: the names torch_binding.cpp uses.
#pragma once
#include <Python.h>
#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) STABLE_TORCH_LIBRARY(NAME, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) STABLE_TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)
#define RNNT_CONCAT_(A, B) A##B
#define RNNT_CONCAT(A, B) RNNT_CONCAT_(A, B)
#define RNNT_STRING_(A) #A
#define RNNT_STRING(A) RNNT_STRING_(A)
#define REGISTER_EXTENSION(NAME)                                                                               \\
  PyMODINIT_FUNC RNNT_CONCAT(PyInit_, NAME)(void) {                                                            \\
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, RNNT_STRING(NAME), nullptr, 0, nullptr, nullptr,       \\
                                 nullptr, nullptr, nullptr};                                                   \\
    return PyModule_Create(&module);                                                                           \\
  }
"""
OPS_PY = """\
import torch
from . import {ops}
ops = torch.ops.{ops}


def add_op_namespace_prefix(op_name: str):
    \"\"\"Prefix op by namespace.\"\"\"
    return f"{ops}::{{op_name}}"
"""


def git(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "g++"))
    if not command or shutil.which(command[0]) is None:
        sys.exit(f"there is no C++ compiler {' '.join(command)!r}: install g++ or set CXX")
    return command


def unique_id(sources: list[Path]) -> str:
    """kernel-builder's: the commit's tree, marked when tracked files differ from it. Without git, of the sources."""
    tree = git("rev-parse", "HEAD^{tree}")
    if tree is None or git("rev-parse", "--show-prefix"):  # no repository, or another one around this folder
        return digest(*(source.read_bytes() for source in sources))[:7]
    return tree[:7] + ("_dirty" if git("status", "--porcelain", "--untracked-files=no") else "")


def digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


def write_if_changed(path: Path, content: str) -> None:
    if not path.exists() or path.read_text() != content:
        path.write_text(content)


def find_nvcc() -> Path:
    """nvcc of the toolkit's own bin folder: a wrapper elsewhere on PATH may not find its headers."""
    found = shutil.which(
        "nvcc",
        path=os.pathsep.join(
            filter(None, [os.environ.get("CUDA_HOME") and f"{os.environ['CUDA_HOME']}/bin", os.environ.get("PATH")])
        ),
    )
    if found is None:
        sys.exit("the cuda variant needs nvcc: put it on PATH or set CUDA_HOME")
    listed = subprocess.run([found, "--dryrun", "-c", "-x", "cu", "-"], input="", capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.+)$", listed, re.M)
    return Path(top[1]).resolve() / "bin" / "nvcc" if top else Path(found)


class Variant:
    """The CPU's variant, and what the others have in common with it."""

    backend = "cpu"  # of the components of build.toml that it is made of
    defines = ["-DCPU_KERNEL"]
    libraries: list[str] = []
    # gcc's own vector intrinsics start from what it then calls uninitialized
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]

    def __init__(self, kind: str):
        import torch

        self.kind = kind
        self.torch_root, self.torch_version = Path(torch.__file__).parent, torch.__version__
        self.torch_cuda = torch.version.cuda  # None of a build for the CPU
        build_toml = tomllib.loads((ROOT / "build.toml").read_text())
        self.general, self.torch_section = build_toml["general"], build_toml["torch"]
        self.components = [kernel for kernel in build_toml["kernel"].values() if kernel["backend"] == self.backend]
        self.package = self.general["name"].replace("-", "_")
        # Every source, and the section of build.toml that says how it is compiled.
        self.sections = {
            ROOT / name: section for section in [self.torch_section, *self.components] for name in section["src"]
        }
        missing = [str(path.relative_to(ROOT)) for path in self.sections if not path.exists()]
        if missing:
            sys.exit(f"build.toml lists files that do not exist: {', '.join(missing)}")
        self.ops = f"_{self.package}_{kind.replace('-', '_')}_{unique_id(list(self.sections))}"
        abi = self.torch_section["stable-abi"]
        self.abi = abi if isinstance(abi, str) else abi[self.backend]
        self.objects = ROOT / "build" / ".objects" / kind

    @property
    def folder(self) -> Path:
        name = f"torch-stable-abi{self.abi.replace('.', '')}-{self.system()}-{platform.machine()}-linux"
        return ROOT / "build" / name

    def system(self) -> str:
        return "cpu"

    def cxx(self, *flags: str, standard: str = "c++17") -> list[str]:
        """The host compiler, for any of the sources."""
        fixed = ["-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fmax-errors=5", f"-ffile-prefix-map={ROOT}/="]
        return [*compiler(), f"-std={standard}", *fixed, *flags, *self.defines]

    def binding_flags(self) -> list[str]:
        """What the binding alone knows: its name, and torch."""
        python = sysconfig.get_path("include")
        if not (Path(python) / "Python.h").exists():
            sys.exit(f"Python.h is not in {python}: install Python's development headers (Debian: python3-dev)")
        major, minor = map(int, self.abi.split("."))
        return [
            f"-I{python}",
            f"-I{self.torch_root / 'include'}",
            f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000ULL",
            "-DPy_LIMITED_API=0x03090000",
            f"-DTORCH_EXTENSION_NAME={self.ops}",
        ]

    def command(self, source: Path) -> list[str]:
        """What compiles a source, but for the names of source and object."""
        section = self.sections[source]
        if section is self.torch_section:
            return self.cxx(*section.get("cxx-flags", []), *self.binding_flags())
        return self.cxx(*self.warnings, *section.get("cxx-flags", []))

    def compile(self, source: Path) -> Path:
        """The object of one source, made anew only if the source, a header, the command or the compiler changed."""
        command = self.command(source)
        version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
        headers = sorted(path for path in self.sections if path.suffix in {".h", ".cuh", ".inc"})
        key = digest(
            " ".join(command).encode(),
            version,
            self.torch_version.encode(),
            REGISTRATION_H.encode(),
            *(path.read_bytes() for path in [source, *headers]),
        )
        made = self.objects / f"{source.stem}-{key[:16]}.o"
        if not made.exists():
            print(f"  {source.relative_to(ROOT)}", flush=True)
            partial = made.with_suffix(f".{os.getpid()}")
            done = subprocess.run([*command, "-c", str(source), "-o", str(partial)])
            if done.returncode:
                sys.exit(f"could not compile {source.relative_to(ROOT)}")
            partial.replace(made)
        return made

    def build(self) -> None:
        print(f"building {self.folder.relative_to(ROOT)}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_if_changed(ROOT / "torch-ext" / "registration.h", REGISTRATION_H)
        sources = [path for path in self.sections if path.suffix in {".cpp", ".cu"}]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [str(made) for made in pool.map(self.compile, sources)]
        library = self.folder / f"{self.ops}.abi3.so"
        self.link(objects, library)
        package = ROOT / "torch-ext" / self.package
        wanted = {library.name, "_ops.py", "metadata.json"}
        for source in package.rglob("*.py"):
            name = source.relative_to(package)
            if name.name == "_ops.py":
                continue
            wanted.add(str(name))
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_if_changed(self.folder / name, source.read_text())
        write_if_changed(self.folder / "_ops.py", OPS_PY.format(ops=self.ops))
        write_if_changed(self.folder / "metadata.json", json.dumps(self.metadata(), indent=2) + "\n")
        for path in self.folder.rglob("*"):  # what an earlier build left
            if path.is_file() and str(path.relative_to(self.folder)) not in wanted:
                path.unlink()
        for path in self.objects.glob("*.o"):
            if str(path) not in objects:
                path.unlink()

    def link(self, objects: list[str], library: Path) -> None:
        # libtorch by name: a CUDA variant takes the current stream from it, and nothing else would bring it in.
        torch = [f"-L{self.torch_root / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-ltorch_cpu"]
        partial = self.objects / "linked.so"
        subprocess.run([*compiler(), "-shared", *objects, *torch, *self.libraries, "-o", str(partial)], check=True)
        partial.replace(library)

    def metadata(self) -> dict:
        return {
            "name": self.general["name"],
            "id": self.ops,
            "version": self.general["version"],
            "license": self.general["license"],
            "python-depends": [],
            "backend": {"type": self.kind},
        }


class CudaVariant(Variant):
    backend = "cuda"
    defines = ["-DCUDA_KERNEL", "-DUSE_CUDA"]

    def __init__(self, kind: str):
        super().__init__(kind)
        self.compiler = find_nvcc()
        # The runtime inside the library: a torch without CUDA, which has none, can load it too.
        runtime = self.compiler.parent.parent / "lib64"
        self.libraries = [f"-L{runtime}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]

    def system(self) -> str:
        version = subprocess.run([self.compiler, "--version"], capture_output=True, text=True, check=True).stdout
        return "cu" + "".join(re.search(r"release (\d+)\.(\d+)", version).groups())

    def capabilities(self) -> list[str]:
        """build.toml's, or those of RNNT_CUDA_CAPABILITIES, such as "9.0": one is built in a fraction of the time."""
        if wanted := os.environ.get("RNNT_CUDA_CAPABILITIES"):
            return sorted(wanted.split(), key=float)
        return sorted({c for component in self.components for c in component["cuda-capabilities"]}, key=float)

    def nvcc(self, capabilities: list[str], *flags: str) -> list[str]:
        """nvcc, for any of the .cu sources. Spills, local memory and warnings are errors."""
        numbers = [capability.replace(".", "") for capability in capabilities]
        return [
            str(self.compiler),
            "-std=c++17",
            *(f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers),
            *flags,
            *self.defines,
            *("-Xptxas", "-warn-spills,-warn-lmem-usage", "-Werror", "all-warnings"),
            *("-Xcompiler", f"-fPIC,-fvisibility=hidden,-Wall,-ffile-prefix-map={ROOT}/="),
        ]

    def command(self, source: Path) -> list[str]:
        if source.suffix != ".cu":
            return super().command(source)
        return self.nvcc(self.capabilities(), *self.sections[source].get("cuda-flags", []))

    def metadata(self) -> dict:
        return {**super().metadata(), "backend": {"type": self.kind, "archs": self.capabilities()}}


# A product and a sum are one operation on a GPU; so they are here, where the processor has it.
CPU_INFO = Path("/proc/cpuinfo")
FUSED = ["-ffp-contract=fast", "-mfma"] if CPU_INFO.exists() and " fma " in CPU_INFO.read_text() else []


class EmulatedVariant(Variant):
    """The CUDA variant's sources with the CPU for the device, for the tests (tests/emulator)."""

    backend = "cuda"
    place = "plain"
    defines = ["-DRNNT_EMULATE"]
    kernel_flags = ["-O2", *FUSED]

    def __init__(self, kind: str):
        super().__init__(kind)
        # First, since of a function that several objects have, the linker takes the first: not one with checks in it.
        self.sections = {**{path: {} for path in [*self.emulator_sources(), *EMULATOR.glob("*.h")]}, **self.sections}

    @property
    def folder(self) -> Path:
        return ROOT / "build" / "emulated" / self.place / self.package

    def emulator_sources(self) -> list[Path]:
        return sorted(EMULATOR.glob("*.cpp"))

    def command(self, source: Path) -> list[str]:
        if source.suffix != ".cu" and source.parent != EMULATOR:
            return super().command(source)
        flags = ["-O2"]
        if source.suffix == ".cu":  # nvcc includes its own header unasked, too
            flags = [*self.kernel_flags, f"-I{EMULATOR}", "-include", "cuda_emulator.h", "-xc++"]
        return self.cxx(*self.warnings, "-Wno-unknown-pragmas", *flags, standard="c++20")


class CheckedVariant(EmulatedVariant):
    """The same with every access to memory checked."""

    place = "check"
    defines = ["-DRNNT_EMULATE", "-DEMULATOR_CHECKS"]
    kernel_flags = ["-O1", "-g1", "-fsanitize=thread,undefined", "-fno-sanitize=vptr,null", *FUSED]


VARIANTS = {"cpu": Variant, "cuda": CudaVariant, "emulated": EmulatedVariant, "emulated-check": CheckedVariant}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=VARIANTS)
    kind = parser.parse_args().variant
    variant = VARIANTS[kind](kind)
    variant.objects.mkdir(parents=True, exist_ok=True)
    with open(variant.objects / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time, the second finds the first's work done
        variant.build()
    if kind == "cpu" and variant.torch_cuda:
        print(
            f"this torch is built for CUDA {variant.torch_cuda}, with which get_kernel takes a CUDA variant alone: "
            "run make build-cuda too, or install torch's CPU build"
        )


if __name__ == "__main__":
    main()
