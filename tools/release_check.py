"""Could this tree be released? A line for each check and what is wrong; exit status 1 if anything is.

    make release-check              # the tree, and the variants that are in build/
    make release-check TAG=v1.0     # and whether the changelog is ready for that tag

A check takes the root of a tree and yields a sentence for each thing that is wrong. It builds nothing: where a variant
is missing or was built from another tree, it says how to make it.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import minijinja
import tomllib
from release_variants import abis, variants

ROOT = Path(__file__).resolve().parent.parent
Problems = Iterator[str]

LICENCES = {"Apache-2.0": "Apache License\n                           Version 2.0"}
DATA = {".bin", ".flac", ".gz", ".jpg", ".mp3", ".npy", ".npz", ".png", ".pt", ".safetensors", ".wav", ".zip"}
# All that the package may import, and what of that would load, run or write something.
SAFE_MODULES = set(
    "__future__ collections dataclasses enum functools itertools math numbers operator torch typing".split()
)
UNSAFE_NAMES = set(
    "__import__ breakpoint compile eval exec input open torch.classes.load_library torch.hub torch.load"
    " torch.ops.load_library torch.package torch.save torch.serialization torch.utils.cpp_extension".split()
)


def build_toml(root: Path) -> dict:
    return tomllib.loads((root / "build.toml").read_text())


def package(root: Path) -> Path:
    return root / "torch-ext" / build_toml(root)["general"]["name"].replace("-", "_")


def clean(root: Path) -> Problems:
    """git's tree is clean"""
    # With the untracked files, which make nix call a build dirty.
    done = subprocess.run(["git", "-C", root, "status", "--porcelain"], capture_output=True, text=True)
    if done.returncode:
        yield done.stderr.strip()
    for line in done.stdout.splitlines():
        yield f"{line[3:]} is not committed"


def sources(root: Path) -> Problems:
    """build.toml lists the sources there are"""
    build = build_toml(root)
    listed = {name for section in [build["torch"], *build["kernel"].values()] for name in section["src"]}
    there = {
        path.relative_to(root).as_posix()
        for folder in ("rnnt_loss", "torch-ext")
        for path in (root / folder).rglob("*")
        if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".inc"}
    }
    for name in sorted(listed - there):
        yield f"build.toml lists {name}, which is not there"
    for name in sorted(there - listed - {"torch-ext/registration.h"}):  # generated
        yield f"build.toml does not list {name}"


def versions(root: Path, tag: str | None = None) -> Problems:
    """versions agree: build.toml, changelog, tag, README"""
    version = build_toml(root)["general"]["version"]
    entries = re.findall(r"^## (\d+)\.(\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$", read(root, "CHANGELOG.md"), re.M)
    if not entries:
        yield "CHANGELOG.md has no entry like '## 1.0 (unreleased)' or '## 1.0 (2026-01-31)'"
        return
    numbers = [(int(major), int(minor)) for major, minor, _ in entries]
    (major, minor, date), name = entries[0], f"v{entries[0][0]}.{entries[0][1]}"
    if numbers != sorted(set(numbers), reverse=True):
        yield "CHANGELOG.md's entries are not in order, newest first"
    if "unreleased" in [date for *_, date in entries[1:]]:
        yield "CHANGELOG.md calls an old entry unreleased"
    if int(major) != version:
        yield f"CHANGELOG.md's newest entry is {major}.{minor}, and build.toml's version is {version}"
    if tag is not None and tag != name:
        yield f"CHANGELOG.md's newest entry is for the tag {name}, got {tag}"
    if tag is not None and date == "unreleased":
        yield f"CHANGELOG.md has no date for {major}.{minor}"
    for got in set(re.findall(r"get_kernel\(.*version=(\d+)", read(root, "README.md"))) - {str(version)}:
        yield f"README.md loads version {got}, and build.toml's is {version}"


def public_names(root: Path) -> list[str]:
    """__all__, where it is a literal list: kernel-builder reads no other."""
    for node in ast.parse((package(root) / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value) if isinstance(node.value, ast.List) else []
    return []


def documented(root: Path) -> Problems:
    """README.md documents every public name"""
    names, readme = public_names(root), read(root, "README.md")
    if not names:
        yield f"{package(root).name}/__init__.py has no __all__ = [...], which says what is public"
    for name in names:
        if not re.search(rf"`{name}\b", readme):
            yield f"README.md does not have `{name}`, which is in __all__"


def render_card(root: Path) -> str:
    """CARD.md as kernel-builder fills it: its engine, options and variables. Another variable is an error."""
    general, names = build_toml(root)["general"], public_names(root)
    layers = ast.parse((package(root) / "layers.py").read_text()).body
    environment = minijinja.Environment(trim_blocks=True, undefined_behavior="strict")
    return environment.render_str(
        (root / "CARD.md").read_text(),
        repo_id=general["hub"]["repo-id"],
        version=general["version"],
        functions=[name for name in names if name != "layers"],
        layers=[node.name for node in layers if isinstance(node, ast.ClassDef)] if "layers" in names else None,
        has_benchmark=(root / "benchmarks" / "benchmark.py").exists(),
        upstream=general.get("upstream"),
        source=general.get("source"),
        license=general["license"].lower(),
    )


def card(root: Path) -> Problems:
    """CARD.md renders"""
    try:
        text = render_card(root)
    except minijinja.TemplateError as error:
        yield f"CARD.md does not render: {str(error).splitlines()[0]}"
        return
    front = re.match(r"---\n(.*?\n)---\n", text, re.S)
    for line in ("library_name: kernels", f"license: {build_toml(root)['general']['license'].lower()}"):
        if front is None or line not in front[1].splitlines():
            yield f"CARD.md's front matter has no line {line!r}"
    for name in public_names(root):
        if name != "layers" and f"`{name}`" not in text:
            yield f"CARD.md does not list `{name}`"


def benchmark(root: Path) -> Problems:
    """benchmarks/benchmark.py is self-contained"""
    path = root / "benchmarks" / "benchmark.py"
    tree = ast.parse(path.read_text())
    optional = {  # what may be missing: imported where an ImportError is caught
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.Try) and any("ImportError" in ast.unparse(h.type or h) for h in block.handlers)
        for node in block.body
    }
    siblings = {other.stem for other in path.parent.glob("*.py")}
    for node, module in imports(tree):
        if module in siblings or not module:
            yield f"benchmark.py imports {module or '.'}, a file beside it, line {node.lineno}"
        elif node not in optional and module not in {"torch", "kernels", *sys.stdlib_module_names}:
            yield f"benchmark.py imports {module}, which nobody promised, line {node.lineno}"


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Each import and the top-level name of its module: "" for one of the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, "" if node.level else node.module.partition(".")[0]


def safety(root: Path) -> Problems:
    """the package loads, runs and writes nothing"""
    for path in sorted(package(root).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node, module in imports(tree):
            if module and module not in SAFE_MODULES:
                yield f"{path.name} imports {module}, line {node.lineno}"
        for node, name in names(tree):
            if name in UNSAFE_NAMES:
                yield f"{path.name} names {name}, line {node.lineno}"


def names(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Each name that is read or imported, dotted."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield node, ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node, name) for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names)))


def licences(root: Path) -> Problems:
    """licences: LICENSE is build.toml's, data of others is named"""
    spdx, readme = build_toml(root)["general"]["license"], read(root, "README.md")
    if spdx not in LICENCES:
        yield f"build.toml's license must be one of {', '.join(LICENCES)}, got {spdx!r}"
    elif LICENCES[spdx] not in read(root, "LICENSE"):
        yield f"LICENSE is not the text of {spdx}, which build.toml names"
    if spdx not in readme:
        yield f"README.md does not name the licence, {spdx}"
    for fetched in fetched_packages(root):
        if not re.search(rf"{re.escape(fetched)}[^.]*\bCC-BY", readme):
            yield f"README.md does not say under which licence {fetched} is, which an example fetches"
    tracked = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True).stdout.splitlines()
    for name in tracked:
        if Path(name).suffix in DATA and name not in readme:
            yield f"README.md does not say where {name} comes from"


def fetched_packages(root: Path) -> list[str]:
    """What examples/prompts_data.py downloads: the first is the recordings, and the others are about them."""
    for node in ast.parse(read(root, "examples/prompts_data.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PACKAGES":
            return list(ast.literal_eval(node.value)[:1])
    return []


def read(root: Path, name: str) -> str:
    return (root / name).read_text() if (root / name).exists() else ""


CHECKS: list[Callable[[Path], Problems]] = [
    *(clean, sources, versions, documented, card, variants, abis, benchmark, safety, licences)
]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="the tag that is to be released, such as v1.0")
    tag = parser.parse_args(arguments).tag
    wrong = {check: list(partial(check, tag=tag)(root) if check is versions else check(root)) for check in CHECKS}
    for check, problems in wrong.items():
        print(f"{'no' if problems else 'ok':4}{check.__doc__.splitlines()[0]}")
        for problem in problems:
            print(f"      {problem}")
    failed = sum(map(bool, wrong.values()))
    print(f"{failed} of {len(wrong)} checks failed" if failed else "this tree could be released")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
