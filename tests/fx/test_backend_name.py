"""``backend="evt"`` is known once evt is imported, before torch or after it, installed or in a source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A machine where evt is not installed, and one where an entry point of it is.
MACHINES = {
    "a source tree": "[]",
    "an installation": "[Installed()]",
}
MACHINE = """
import importlib.metadata as metadata, sys
class Installed(metadata.Distribution):
    def read_text(self, name):
        entry = "[torch_dynamo_backends]\\nevt = evt.fx.backend:backend\\n"
        return {{"METADATA": "Name: evt-compiler\\n", "entry_points.txt": entry}}.get(name)
    def locate_file(self, path):
        return path
found = metadata.distributions
metadata.distributions = lambda **given: [
    *(each for each in found(**given) if each.metadata["Name"] != "evt-compiler"), *{0}]
"""
ORDERS = {
    "evt first": "import evt, sys; assert 'torch' not in sys.modules; import torch",
    "torch first": "import torch, evt",
    "dynamo first": "import torch, torch._dynamo, evt",
    "another backend first": "import torch; torch.compile(lambda x: x, backend='aot_eager'); import evt",
    "backends listed first": "import torch._dynamo; torch._dynamo.list_backends(); import evt, torch",
    "evt twice": "import evt, importlib; importlib.reload(evt); import torch._dynamo; importlib.reload(evt)",
}
COMPILE = """
compiled = torch.compile(lambda x: torch.relu(x @ x), backend="evt")
assert torch._dynamo.list_backends().count("evt") == 1
import evt.fx.backend
from torch._dynamo.backends.registry import lookup_backend
assert lookup_backend("evt") is evt.fx.backend.backend
"""


def run(machine: str, *lines: str) -> str:
    code = "\n".join((MACHINE.format(MACHINES[machine]), *lines))
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("order", ORDERS)
def test_an_import_names_the_backend(machine: str, order: str) -> None:
    run(machine, ORDERS[order], COMPILE)


@pytest.mark.slow
def test_an_entry_point_alone_names_it() -> None:
    run("an installation", "import torch", "assert 'evt' not in sys.modules", COMPILE)


@pytest.mark.slow
def test_it_compiles() -> None:
    call = "x = torch.ones(4, 4); assert torch.equal(compiled(x), torch.relu(x @ x)); print(evt.report())"
    assert "kernels run on CUDA devices" in run("a source tree", ORDERS["evt first"], COMPILE, call)


def test_the_import_says_what_the_entry_point_says_and_modules_keep_their_loaders() -> None:
    found, loaders = run(
        "a source tree",
        ORDERS["evt first"],
        "import torch._dynamo.backends.registry as r, inspect; print(r._BACKENDS['evt'].value)",
        "print(type(r.__loader__), type(r.__spec__.loader))",
        "assert 'def lookup_backend' in inspect.getsource(r)",
    ).splitlines()
    entry = f'[project.entry-points.torch_dynamo_backends]\nevt = "{found}"\n'
    assert entry in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert loaders.count("SourceFile") == 2


def test_an_import_that_fails_is_awaited_no_more() -> None:
    code = (
        "from evt.imported import when_imported; when_imported('evt_absent', print)",
        "import importlib.util; assert importlib.util.find_spec('evt_absent') is None",
        "when_imported('sys', lambda module: print(module.__name__)); when_imported('this_is', print)",
    )
    assert run("a source tree", *code) == "sys\n"
