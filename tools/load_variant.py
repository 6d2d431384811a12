"""Load a built variant by its path, where there is no `kernels` package or one variant of several is meant."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

BUILD = Path(__file__).resolve().parent.parent / "build"


def folder_of(backend: str) -> Path:
    """The variant for "cpu" or "cuda" in build/; of several the one built last."""
    found = [path for path in BUILD.glob("torch-*") if backend_of(path) == backend]
    if not found:
        raise FileNotFoundError(f"there is no {backend} variant in {BUILD.name}/: run tools/build_variant.py {backend}")
    return max(found, key=lambda path: (path / "metadata.json").stat().st_mtime)


def backend_of(folder: Path) -> str | None:
    metadata = folder / "metadata.json"
    return json.loads(metadata.read_text())["backend"]["type"] if metadata.exists() else None


def load(folder: Path) -> ModuleType:
    """The variant's package. What is loaded already, by whomever, is not loaded again: ops are registered once."""
    start = folder.resolve() / "__init__.py"
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) and Path(module.__file__).resolve() == start:
            return module
    name = json.loads((folder / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[str(folder)])
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
