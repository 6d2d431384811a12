"""release_check.py's checks of build/, whether kernel-builder made it, as for a release, or tools/build_variant.py."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import abi
import tomllib

NEWEST_CUDA = 13  # older toolkits do not know every capability of build.toml


def folders(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("build/torch-*/metadata.json"))


def metadata(folder: Path) -> dict:
    return json.loads((folder / "metadata.json").read_text())


def variants(root: Path) -> Iterator[str]:
    """build/ has a variant of each backend, made from this tree"""
    build = tomllib.loads((root / "build.toml").read_text())
    there = {metadata(folder)["backend"]["type"] for folder in folders(root)}
    for backend in build["general"]["backends"]:
        if backend not in there:
            command = "make build" if backend == "cpu" else f"make build-{backend}"
            yield f"there is no {backend} variant in build/: run {command}"
    for folder in folders(root):
        for problem in variant(root, build, folder):
            yield f"{folder.name}: {problem}"


def variant(root: Path, build: dict, folder: Path) -> Iterator[str]:
    general, found = build["general"], metadata(folder)
    backend, package = found["backend"]["type"], general["name"].replace("-", "_")
    wanted = {key: general[key] for key in ("name", "version", "license")} | {"python-depends": []}
    for key, value in wanted.items():
        if found.get(key) != value:
            yield f"metadata.json's {key} must be {value!r}, got {found.get(key)!r}"
    yield from revision(root, found, f"_{package}_{backend}_")

    stable_abi = build["torch"]["stable-abi"].replace(".", "")
    system = {"cpu": "cpu", "cuda": r"cu(\d\d)\d"}[backend]
    named = re.fullmatch(rf"torch-stable-abi{stable_abi}-{system}-(x86_64|aarch64)-linux", folder.name)
    if named is None:
        yield f"is not a name for a {backend} variant of the stable ABI {build['torch']['stable-abi']}"
    elif backend == "cuda":
        archs, every = set(found["backend"]["archs"]), capabilities(build)
        if not archs or archs - set(every) or int(named[1]) >= NEWEST_CUDA and archs != set(every):
            yield f"metadata.json's archs must be {' '.join(every)}, got {' '.join(sorted(archs))}"

    if not (folder / f"{found['id']}.abi3.so").exists():
        yield f"there is no library {found['id']}.abi3.so"
    sources = root / "torch-ext" / package
    for source in sorted(sources.rglob("*.py")):
        name = source.relative_to(sources)
        if name.name != "_ops.py" and not same_text(source, folder / name):
            yield f"{name} is not that of torch-ext/{package}: build again"


def revision(root: Path, found: dict, prefix: str) -> Iterator[str]:
    """The id ends in the name of a commit, or of its tree, as in a build outside of nix."""
    git = ["git", "-C", root, "rev-parse", "HEAD", "HEAD^{tree}"]
    commit, tree = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split()
    made_from = found["id"].removeprefix(prefix)
    if len(made_from) < 7 or not (commit.startswith(made_from) or tree.startswith(made_from)):
        wanted = f"{prefix}{commit[:7]} or {prefix}{tree[:7]}"
        yield f"is made from another tree, build again: its id must be {wanted}, got {found['id']}"
    source = found.get("provenance", {}).get("kernel", {"commit": commit})
    if source["commit"] != commit or source.get("dirty"):
        got = source["commit"] + (" with changes" if source.get("dirty") else "")
        yield f"its provenance must be commit {commit}, got {got}"


def capabilities(build: dict) -> list[str]:
    listed = {one for kernel in build["kernel"].values() for one in kernel.get("cuda-capabilities", [])}
    return sorted(listed, key=float)


def same_text(one: Path, other: Path) -> bool:
    return other.exists() and one.read_text() == other.read_text()


def abis(root: Path) -> Iterator[str]:
    """libraries keep to the stable ABIs"""
    for folder in folders(root):
        for library in sorted(folder.glob("*.so")):
            for name in abi.not_of_python(library):
                yield f"{folder.name}: {name} is not in Python's stable ABI {abi.PYTHON_ABI}"
            for name in abi.unstable(library):
                yield f"{folder.name}: {name} is not in torch's stable ABI"
            # A local compiler takes the symbols of its own glibc: only kernel-builder's toolchain can pass.
            for name in abi.newer_than_manylinux(library) if "provenance" in metadata(folder) else []:
                yield f"{folder.name}: {name} is newer than {abi.MANYLINUX}"
