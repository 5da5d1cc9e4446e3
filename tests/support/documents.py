"""The documents for users, and the code in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: README and the manual. `docs/first-contribution.md` changes the code, and has its own tests.
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(
        page
        for folder in ("docs", "docs/guides")
        for page in (ROOT / folder).glob("*.md")
        if page.name != "first-contribution.md"
    ),
]
_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[\w ]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """A fenced block of a document, and the comment before it."""

    place: str
    language: str
    mark: str
    text: str


def blocks(language: str) -> list[Block]:
    """Return the blocks of one language in all documents."""
    return [
        Block(
            f"{page.relative_to(ROOT)}:{text[: found.start('text')].count(chr(10))}",
            language,
            found["mark"] or "",
            found["text"],
        )
        for page in DOCUMENTS
        for text in [page.read_text(encoding="utf-8")]
        for found in _FENCE.finditer(text)
        if found["language"] == language
    ]


def section(page: str, title: str) -> str:
    """Return the text under a heading of the second level."""
    return (ROOT / page).read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


#: All warnings are errors, except PyTorch's own, and the one that the manual's model has no kernels on a CPU.
_WARNINGS = "error,ignore:`torch.jit.script,ignore:no product of the model gets a kernel"
#: The model and the inputs of examples with the mark ``model``, whose reader has a model.
_MODEL = """
import torch, evt
torch._dynamo.reset()  # a model of the same class would take the code that an earlier page compiled
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).half().to(device)
x = torch.randn(256, 512, device=device).half()
"""
#: Run the examples of standard input one after the other, and print the failures by place. Examples with a model share
#: the namespace of their page; every other example has its own namespace.
_RUNNER = f"""
import contextlib, io, json, sys, traceback, types
failures, spaces = {{}}, {{}}
for number, (place, mark, text) in enumerate(json.load(sys.stdin)):
    name = f"example{{number}}"  # a module, because TorchDynamo looks up globals there
    space = vars(sys.modules.setdefault(name, types.ModuleType(name)))
    if mark == "model":
        space = spaces.setdefault(place.partition(":")[0], space)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if mark == "model" and "model" not in space:
                exec({_MODEL!r}, space)
            exec(compile(text, place, "exec"), space)
    except BaseException:
        failures[place] = traceback.format_exc()
        continue
    for line in text.splitlines():
        code, _, shown = line.partition("  # prints ")
        if shown not in printed.getvalue():
            failures[place] = f"{{shown}} is not printed, but: {{printed.getvalue()}}"
print(json.dumps(failures))
"""


def _continued() -> list[tuple[Block, str]]:
    """Return the examples with their texts; one with the mark ``after`` continues the example before it on its page."""
    found: list[tuple[Block, str]] = []
    for block in blocks("python"):
        text = block.text
        if block.mark == "after":
            before, earlier = found[-1]
            assert before.place.partition(":")[0] == block.place.partition(":")[0]
            text = earlier + text
        found.append((block, text))
    return found


def run_examples(mark: str, *, gpu: bool = False) -> dict[str, str]:
    """Run the examples with a mark in one process, on the GPU or without one, and return the failures by place."""
    texts = [(block.place, mark, text) for block, text in _continued() if block.mark == mark]
    assert texts
    # On a GPU, Inductor issues other warnings.
    without_gpu = {"PYTHONWARNINGS": _WARNINGS, "CUDA_VISIBLE_DEVICES": ""}
    environment = os.environ if gpu else {**os.environ, **without_gpu}
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps(texts),
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    failures: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return failures
