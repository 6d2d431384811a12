"""Write docs/api.md from the docstrings of what the package exports. griffe reads the sources; nothing is built or run.

    python tools/api_reference.py            # or make docs

The docstrings are text that reads well in help(): sections at the margin, what belongs to them indented.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[1]
API = ROOT / "docs" / "api.md"
INTRODUCTION = """\
# API reference

Made from the docstrings by `make docs`. Names are those of the module that `get_kernel` returns. Examples go on from

```pycon
>>> import torch
>>> from kernels import get_kernel
>>> rnnt = get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True)
>>> globals().update({name: getattr(rnnt, name) for name in rnnt.__all__})
```

`ops`, the native operators, is not here: the [README](../README.md#api) has the two that are meant for users.
"""
WIDTH = 120
SECTION = re.compile(r"((?:Args|Returns|Differs|Edges|Raises|Source|Example)(?:, [A-Z][a-z]+)*): *")


def documented(module: griffe.Module, prefix: str = "") -> "Iterator[tuple[str, griffe.Object]]":
    """Name and object of what a module exports: functions, classes, its modules, each before what it exports."""
    public = [
        member.final_target if member.is_alias else member
        for member in module.members.values()
        if (member.is_public if module.exports is None else member.name in module.exports) and member.name != "ops"
    ]
    for kind in (griffe.Kind.FUNCTION, griffe.Kind.CLASS):
        yield from ((prefix + member.name, member) for member in public if member.kind is kind)
    for member in sorted(public, key=lambda member: member.name):
        if member.kind is griffe.Kind.MODULE:
            yield prefix + member.name, member
            yield from documented(member, f"{prefix}{member.name}.")


def signature(name: str, function: griffe.Function, returns: bool = True) -> str:
    """On one line, or a line per argument."""
    whole = function.signature(name=name, return_type=returns)
    if len(whole) <= WIDTH:
        return whole
    arguments, result = whole[len(name) + 1 :].rsplit(")", 1)
    # Commas between brackets, as in tuple[Tensor, Tensor], part no arguments.
    lines = re.sub(r", (?=\*|\w+: |\w+=)", ",\n    ", arguments)
    return f"{name}(\n    {lines},\n){result}"


def fenced(text: str, language: str) -> str:
    return f"```{language}\n{textwrap.dedent(text).strip()}\n```"


def one_line(text: str) -> str:
    return " ".join(text.split())


def paragraphs(text: str) -> "list[str]":
    """Prose and lists; what is indented is an equation."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    return [
        fenced(block, "text") if block.startswith(" ")
        else "\n".join(one_line(line) for line in re.split(r"\n(?=- )", block))
        for block in blocks
    ]  # fmt: skip


def items(text: str) -> str:
    """A list of `names: what they are`, each at the margin and continued deeper."""
    entries = re.split(r"\n(?! )", textwrap.dedent(text).strip())
    split = (one_line(entry).split(": ", 1) for entry in entries)
    return "\n".join(f"- **{names}**: {what}" for names, what in split)


def rendered(docstring: str) -> str:
    """Markdown of a docstring."""
    # Sections begin at the margin; before the first is what the function is.
    starts = [match.start() for match in re.finditer(rf"^{SECTION.pattern}", docstring, re.M)]
    parts = paragraphs(docstring[: starts[0] if starts else None])
    for start, end in zip(starts, [*starts[1:], None]):
        title, text = SECTION.match(docstring, start)[1], docstring[SECTION.match(docstring, start).end() : end]
        if not text.startswith("\n"):
            parts += [f"**{title}**: {one_line(text)}"]
        elif title == "Example":
            parts += [f"**{title}**", fenced(text, "pycon")]
        elif title in ("Args", "Raises"):
            parts += [f"**{title}**", items(text)]
        else:
            parts += [f"**{title}**", *paragraphs(textwrap.dedent(text))]
    return "\n\n".join(parts)


def entry(name: str, public: griffe.Object) -> str:
    parts = [f"## {heading(name, public)}"]
    calls = [(None, public)]
    if public.kind is griffe.Kind.FUNCTION:
        calls = [(signature(name, public), public)]
    elif public.kind is griffe.Kind.CLASS:
        made, forward = public.members.get("__init__"), public.members["forward"]
        calls = [(signature(name, made, returns=False) if made else f"{name}()", public)]
        calls += [(signature("forward", forward), forward)]
    for call, described in calls:
        parts += [fenced(call, "text")] if call else []
        parts += [rendered(described.docstring.value)] if described.docstring else []
    return "\n\n".join(parts)


def heading(name: str, public: griffe.Object) -> str:
    return f"Module {name}" if public.kind is griffe.Kind.MODULE else name


def anchor(text: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def reference() -> str:
    package = griffe.load("rnnt_loss", search_paths=[ROOT / "torch-ext"])
    found = list(documented(package))
    headings = [heading(*each) for each in found]
    contents = "\n".join(f"- [{each}](#{anchor(each)})" for each in headings)
    return "\n\n".join([INTRODUCTION + "\n" + contents, *(entry(*each) for each in found)]) + "\n"


if __name__ == "__main__":
    API.parent.mkdir(exist_ok=True)
    API.write_text(reference())
