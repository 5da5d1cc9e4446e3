"""Packages of whole models on a GPU, loaded by Python without evt, beside plain packages of AOTInductor.

The process that loads them prints at once and has faulthandler, so that a crash names its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evt
from evt.errors import BuildError

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # PyTorch's warning about a future removal

#: Runs packages in turn, each several times, and compares with the results that the test stored.
_LOADER = """
import sys, torch
folder, *order = sys.argv[1:]
torch.ops.load_library(f"{folder}/fused/operators.so")
paths = {"fused": f"{folder}/fused/model.pt2", "plain": f"{folder}/plain.pt2"}
models = {name: torch._inductor.aoti_load_package(paths[name]) for name in order}
assert "evt" not in sys.modules
x, want = (each.cuda() for each in torch.load(f"{folder}/values.pt"))
for turn in range(3):
    for name, model in models.items():
        off = ((model(x).float() - want).norm() / want.norm()).item()
        print(name, turn, off < 0.03 or off, flush=True)
torch.cuda.synchronize()
print("done", flush=True)
"""


class Block(torch.nn.Module):
    """A transformer's block: attention and a perceptron, each with its norm and its residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.taken, self.given = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        split = self.taken(self.before(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        seen = torch.nn.functional.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4).unbind(0))
        x = x + self.given(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Vit(torch.nn.Module):
    """A vision transformer with a class token: 197 tokens of an image of 224 pixels."""

    def __init__(self, width: int = 256, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, 16, 16)
        self.kind = torch.nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = torch.nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.blocks = torch.nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.kind.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def packaged(model: torch.nn.Module, folder: Path, options: dict[str, str]) -> int:
    """Package a model with and without evt, store a call with its result; return how many products are fused."""
    x = torch.randn(16, 3, 224, 224, device="cuda").bfloat16()
    try:
        made = evt.package(model, (x,), folder / "fused", options=options)
    except BuildError as error:
        if error.diagnostics[0].code == "E0711":  # PyTorch's own packages do not load either
            pytest.skip(str(error))
        raise
    assert made.library is not None
    with torch.no_grad():
        want = model(x).float()
        torch._inductor.aoti_compile_and_package(
            torch.export.export(model, (x,)), package_path=str(folder / "plain.pt2")
        )
    torch.save((x.cpu(), want.cpu()), folder / "values.pt")
    return len(made.report.fused)


def load(folder: Path, *order: str) -> list[str]:
    """Return the output of a process without evt that loads the packages in this order."""
    command = [sys.executable, "-X", "faulthandler", "-c", _LOADER, str(folder), *order]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("vit")
    assert packaged(Vit().eval().bfloat16().cuda(), made, {"evt.rule": "always"}) >= 6
    return made


@pytest.mark.parametrize("order", [("fused",), ("fused", "plain"), ("plain", "fused")], ids="-".join)
def test_a_vision_transformer_runs_without_evt(folder: Path, order: tuple[str, ...]) -> None:
    turns = [f"{name} {turn} True" for turn in range(3) for name in order]
    assert load(folder, *order) == [*turns, "done"]


@pytest.mark.slow
def test_timms_vision_transformer_runs_without_evt(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_base_patch16_224").eval().bfloat16().cuda()
    assert packaged(model, tmp_path, {})
    turns = [f"{name} {turn} True" for turn in range(3) for name in ("fused", "plain")]
    assert load(tmp_path, "fused", "plain") == [*turns, "done"]
