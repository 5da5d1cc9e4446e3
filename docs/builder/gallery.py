"""The gallery: each sample with its text, source, graph, arithmetic, kernel and choice."""

from __future__ import annotations

import ast
import base64
import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import evt
from evt.draw import draw
from evt.errors import TargetError
from evt.ir import Cast, Interleave, Pick, Reduce, ReduceBlocks, Scale
from evt.plan import TARGETS

SAMPLES = Path(__file__).parents[2] / "samples"
#: Parts of the language by the operation of a graph.
_FEATURES = {
    "reductions": Reduce,
    "blocks of columns": ReduceBlocks,
    "pairs of columns": Pick,
    "interleaved columns": Interleave,
    "casts": Cast,
    "scales of blocks": Scale,
}
#: Targets in the order of preference for the shown kernel.
_ORDER = ("sm90", *(name for name in TARGETS if name != "sm90"))
#: The comment that begins a sample: prose, then the place of the original and its formula, which may take more lines.
_COMMENT = re.compile(r"(?:#.*\n)*")
_FIELD = re.compile(r"^#   (?P<name>source|formula) +(?P<value>.*(?:\n#    .*)*)", re.MULTILINE)
_HERE = "this repository"
_PROJECT = re.compile(r"(?P<owner>[\w.-]+/[\w.-]+): ")
#: The arithmetic of an emitted file, and its visitors.
_REGION = re.compile(r"^(?://[^\n]*\n)?struct Region\d+ \{.*?^\};$", re.DOTALL | re.MULTILINE)
_VISITOR = re.compile(r"^// The visitor.*?^using Visitor = [^;]*;$", re.DOTALL | re.MULTILINE)


class Entry(NamedTuple):
    """A sample and all that its page shows."""

    name: str
    text: str
    about: str
    source: str
    formula: str
    operation: str
    operands: str
    features: str
    graph: str
    arch: str
    choice: str
    kernel: str


@cache
def entries() -> tuple[Entry, ...]:
    """Return the samples that are programs, by name."""
    return tuple(_entry(path) for path in sorted(SAMPLES.glob("*.evt")))


def _entry(path: Path) -> Entry:
    text = path.read_text(encoding="utf-8")
    program = evt.load(path)
    arch, emitted = _emitted(program)
    comment = _comment(text)
    fields = {found["name"]: _uncommented(found["value"]) for found in _FIELD.finditer(comment)}
    return Entry(
        path.stem,
        text,
        " ".join(_uncommented(comment.split("\n#   ")[0]).split()),
        _PROJECT.sub(r"[\g<owner>](https://github.com/\g<owner>): ", " ".join(fields.get("source", _HERE).split())),
        fields.get("formula", ""),
        program.request.operation,
        _operands(program),
        _features(program),
        draw(program.request.dag, "svg"),
        arch,
        str(program.explain(arch)),
        _excerpt(emitted),
    )


def _emitted(program: evt.Program) -> tuple[str, str]:
    """Return the first target that has a kernel for a program, and its C++."""
    arch = next(arch for arch in _ORDER if _has_kernel(program, arch))
    return arch, program.emit(arch)


def _has_kernel(program: evt.Program, arch: str) -> bool:
    try:
        program.plan(arch)
    except TargetError:
        return False
    return True


def _operands(program: evt.Program) -> str:
    """Return the group of a program by its operands."""
    types = {operand.dtype for operand in program.request.dag.operands}
    if small := [each for each in types if each is not None and each.bits == 8]:
        return "8-bit floats" if any(each.is_float for each in small) else "8-bit integers"
    return "16-bit floats, or any type"


def _features(program: evt.Program) -> str:
    """Return the parts of the language that a program shows beyond arithmetic."""
    dag = program.request.dag
    kinds = {type(op) for op, _ in dag.table}
    found = [name for name, kind in _FEATURES.items() if kind in kinds]
    outputs = [f"{len(dag.outputs)} outputs"] if len(dag.outputs) > 1 else []
    outputs += ["operands of two types"] if len({each.dtype for each in dag.operands}) > 1 else []
    return ", ".join(([] if program.request.convolution is None else ["convolution"]) + outputs + found)


def _comment(text: str) -> str:
    """Return the comment that begins a sample."""
    found = _COMMENT.match(text)
    assert found is not None
    return found[0]


def _uncommented(comment: str) -> str:
    """Return the text of a comment, line by line."""
    return "\n".join(line.removeprefix("#").strip() for line in comment.splitlines())


def _excerpt(emitted: str) -> str:
    """Return the parts of an emitted file that the formula determines."""
    parts = [*_REGION.findall(emitted), *_VISITOR.findall(emitted)]
    assert parts, emitted[:500]
    return "\n\n".join(parts)


def index() -> str:
    """Return a table of the samples."""
    groups = ""
    for group in sorted({each.operands for each in entries()}):
        rows = (
            f"| [{each.name}](gallery/{each.name}.md) | {_first_sentence(each.about)} | {each.features} |\n"
            for each in entries()
            if each.operands == group
        )
        groups += f"## {group}\n\n| program | computes | shows |\n|---|---|---|\n{''.join(rows)}\n"
    scripts = (
        f"| [{path.name}](gallery/{path.name}.md) | {_docstring(path).splitlines()[0]} |\n" for path in _scripts()
    )
    return f"{groups}## Scripts\n\n| script | computes |\n|---|---|\n{''.join(scripts)}"


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".") + "."


def _scripts() -> list[Path]:
    """Return the samples that are Python."""
    return sorted(SAMPLES.glob("*.py"))


def _docstring(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text is not None
    return text.replace("``", "`")


def pictures() -> dict[str, str]:
    """Return the graph of each sample."""
    return {f"gallery/{each.name}.svg": each.graph for each in entries()}


def pages(*, playground: bool = False) -> dict[str, str]:
    """Return the page of each sample; with the playground beside the site, with a link that opens the sample there."""
    scripts = {
        f"gallery/{path.name}.md": f"# {path.name}\n\n{_docstring(path)}\n\n```python\n{path.read_text('utf-8')}```\n"
        for path in _scripts()
    }
    found = {each.name: _page(each, _opened(each) if playground else "") for each in entries()}
    return {**{f"gallery/{name}.md": text for name, text in found.items()}, **scripts}


def _opened(entry: Entry) -> str:
    """Return a link to the playground, whose address holds its state."""
    state = {"text": entry.text, "operation": entry.operation, "arch": entry.arch}
    code = base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")
    return f'<a href="../playground/index.html#{code}">Open it in the playground</a>\n\n'


def _page(entry: Entry, link: str) -> str:
    original = f"Its formula:\n\n```text\n{entry.formula}\n```\n\n" if entry.formula else ""
    return f"""# {entry.name}

{entry.about}

Source: {entry.source}

{original}{link}The program, `samples/{entry.name}.evt`:

```evt
{entry.text.removeprefix(_comment(entry.text)).strip()}
```

## The graph

![The graph of {entry.name}]({entry.name}.svg)

## The kernel for {entry.arch}

The formula determines this part of the output of `evt emit samples/{entry.name}.evt --arch {entry.arch}`:

```cuda
{entry.kernel}
```

## The choice of the kernel

`evt explain samples/{entry.name}.evt --arch {entry.arch}` prints:

```text
{entry.choice.strip()}
```
"""
