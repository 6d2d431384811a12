"""Build one variant of the kernel from build.toml, laid out as the hub lays it out: build/<variant>/.

    python tools/build_variant.py cpu
    python tools/build_variant.py cuda

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
    def __init__(self, backend: str):
        import torch

        self.backend = backend
        self.build_toml = tomllib.loads((ROOT / "build.toml").read_text())
        self.general, self.torch_section = self.build_toml["general"], self.build_toml["torch"]
        self.components = [kernel for kernel in self.build_toml["kernel"].values() if kernel["backend"] == backend]
        if not self.components:
            sys.exit(f"backend must be one of build.toml's, got {backend!r}")
        self.package = self.general["name"].replace("-", "_")
        self.torch_root = Path(torch.__file__).parent
        self.nvcc = find_nvcc() if backend == "cuda" else None
        listed = [*self.torch_section["src"], *(name for component in self.components for name in component["src"])]
        self.listed = [ROOT / name for name in listed]
        missing = [str(path.relative_to(ROOT)) for path in self.listed if not path.exists()]
        if missing:
            sys.exit(f"build.toml lists files that do not exist: {', '.join(missing)}")
        self.ops = f"_{self.package}_{backend}_{unique_id(self.listed)}"
        abi = self.torch_section["stable-abi"]
        self.abi = abi if isinstance(abi, str) else abi[backend]
        self.folder = ROOT / "build" / self.name()
        self.objects = ROOT / "build" / ".objects" / backend

    def name(self) -> str:
        system = "cpu"
        if self.backend == "cuda":
            version = subprocess.run([str(self.nvcc), "--version"], capture_output=True, text=True, check=True).stdout
            system = "cu" + "".join(re.search(r"release (\d+)\.(\d+)", version).groups())
        return f"torch-stable-abi{self.abi.replace('.', '')}-{system}-{platform.machine()}-linux"

    def includes(self) -> list[str]:
        python = sysconfig.get_path("include")
        if not (Path(python) / "Python.h").exists():
            sys.exit(f"Python.h is not in {python}: install Python's development headers (Debian: python3-dev)")
        return [f"-I{python}", f"-I{self.torch_root / 'include'}"]

    def compile(self, source: Path, flags: list[str]) -> Path:
        """The object of one source, made anew only if the source, a header, the flags or the compiler changed."""
        major, minor = self.abi.split(".")
        defines = [
            f"-DTORCH_TARGET_VERSION=0x{int(major):02x}{int(minor):02x}000000000000ULL",
            "-DPy_LIMITED_API=0x03090000",
            f"-D{self.backend.upper()}_KERNEL",
        ]
        if source.parent.name == "torch-ext":  # the binding alone knows its name and torch
            defines += [f"-DTORCH_EXTENSION_NAME={self.ops}", *self.includes()]
        if self.backend == "cuda":
            defines.append("-DUSE_CUDA")
        common = ["-std=c++17", *flags, *defines, f"-ffile-prefix-map={ROOT}/="]
        if source.suffix == ".cu":
            capabilities = {
                c.replace(".", "") for component in self.components for c in component.get("cuda-capabilities", [])
            }
            gencode = [f"-gencode=arch=compute_{c},code=sm_{c}" for c in sorted(capabilities, key=int)]
            host = [f for f in common if f.startswith("-f")]
            command = [
                str(self.nvcc),
                *gencode,
                *(f for f in common if f not in host),
                "-Xcompiler",
                ",".join(["-fPIC", *host]),
            ]
        else:
            # gcc's own vector intrinsics start from what it then calls uninitialized
            warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]
            command = [
                *compiler(),
                "-fPIC",
                "-fvisibility=hidden",
                "-fno-gnu-unique",
                "-fmax-errors=5",
                *(warnings if source.parent.name != "torch-ext" else []),
                *common,
            ]
        version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
        headers = sorted(path for path in self.listed if path.suffix in {".h", ".cuh", ".inc"})
        key = digest(
            " ".join(command).encode(),
            version,
            self.torch_version().encode(),
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

    def torch_version(self) -> str:
        import torch

        return torch.__version__

    def build(self) -> None:
        print(f"building {self.folder.relative_to(ROOT)}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_if_changed(ROOT / "torch-ext" / "registration.h", REGISTRATION_H)
        work = [
            (ROOT / name, section.get("cxx-flags", []))
            for section in [self.torch_section, *self.components]
            for name in section["src"]
            if Path(name).suffix in {".cpp", ".cu"}
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [str(made) for made in pool.map(lambda item: self.compile(*item), work)]
        library = self.folder / f"{self.ops}.abi3.so"
        # libtorch by name: a CUDA variant takes the current stream from it, and nothing else would bring it in.
        command = [
            *compiler(),
            "-shared",
            *objects,
            f"-L{self.torch_root / 'lib'}",
            "-Wl,--no-as-needed",
            "-ltorch",
            "-Wl,--as-needed",
            "-ltorch_cpu",
        ]
        partial = self.objects / "linked.so"
        subprocess.run([*command, "-o", str(partial)], check=True)
        partial.replace(library)
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

    def metadata(self) -> dict:
        backend: dict = {"type": self.backend}
        if self.backend == "cuda":
            backend["archs"] = sorted(
                {c for component in self.components for c in component["cuda-capabilities"]}, key=float
            )
        return {
            "name": self.general["name"],
            "id": self.ops,
            "version": self.general["version"],
            "license": self.general["license"],
            "python-depends": [],
            "backend": backend,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=["cpu", "cuda"])
    variant = Variant(parser.parse_args().backend)
    variant.objects.mkdir(parents=True, exist_ok=True)
    with open(variant.objects / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time, the second finds the first's work done
        variant.build()


if __name__ == "__main__":
    main()
