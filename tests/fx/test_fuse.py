"""``evt.fuse``: its result, and the text of a region."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import evt
from evt.fx.fuse import fusion
from evt.fx.module import FusedModule

from .fusing import Function, compare


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3)).eval()


def test_a_module_is_called_as_before() -> None:
    plain, x = model(), torch.randn(4, 5)
    fused = evt.fuse(plain, (x,))
    with torch.no_grad():
        compare(plain(x), fused(x))
    assert isinstance(fused, FusedModule)


def test_keyword_arguments() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return (x @ x) * scale

    inputs = {"x": torch.randn(5, 5), "scale": torch.randn(5)}
    compare(Two()(**inputs), evt.fuse(Two(), inputs)(**inputs))


def test_a_submodule_makes_constants() -> None:
    """PyTorch names a constant by the submodule that makes it: its name has a dot."""

    class Shifted(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.where(x > 0, torch.tensor([0.0] * 7 + [1.0]), 2.0)

    module, x = torch.nn.Sequential(Shifted(8, 8), Shifted(8, 8)).eval(), torch.randn(4, 8)
    made = evt.fuse(module, (x,))
    with torch.no_grad():
        torch.testing.assert_close(made(x), module(x))
    assert fusion(made).regions


def test_a_graph_module_is_taken() -> None:
    x = torch.randn(4, 5)
    traced = torch.export.export(model(), (x,)).module()
    assert len(fusion(evt.fuse(traced, (x,))).regions) == 2


def test_a_region_knows_its_nodes_and_is_a_formula() -> None:
    fused = evt.fuse(model(), (torch.randn(4, 5),))
    first, second = fusion(fused).regions
    assert [node.name for node in first.nodes] == ["linear", "gelu"]
    assert str(first.program) == "in x0: f32[n]\nout D: f32[m, n]\nD = gelu(acc + x0)"
    a, b, x0 = torch.randn(4, 5), torch.randn(7, 5), torch.randn(7)
    typed = evt.linear(str(first.program))
    assert torch.equal(typed(a, b, x0=x0), first.program(a, b, x0=x0))
    assert str(fusion(fused)).splitlines()[:3] == ["2 of 2 products fused", "linear, gelu:", "    in x0: f32[n]"]
    assert second.arguments[0].name == "x0"


def test_values_know_their_nodes() -> None:
    first, _ = fusion(evt.fuse(model(), (torch.randn(4, 5),))).regions
    names = {origin.name for origin in first.program.request.dag.origins}
    assert names == {"linear", "gelu"}


def test_programs_pickle() -> None:
    fused = evt.fuse(model(), (torch.randn(4, 5),))
    (program,) = {region.program for region in fusion(fused).regions[:1]}
    assert pickle.loads(pickle.dumps(program)) == program


def test_views_of_results_take_any_memory() -> None:
    """A result may lie in another order than PyTorch's, where the graph views it."""
    run = Function(lambda x, w: torch.relu(torch.nn.functional.conv2d(x, w)).permute(0, 2, 3, 1).reshape(-1, 6).t())
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    inputs = x, torch.randn(6, 4, 3, 3)
    compare(run(*inputs), evt.fuse(run, inputs)(*inputs))


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "same": lambda y: y.view(6, 8),
    "rows divided": lambda y: y.view(3, 2, 8),
    "transposed": lambda y: y.t(),
    "tokens of an image": lambda y: y.view(2, 3, 8).permute(0, 2, 1).reshape(2, 8, 3, 1).flatten(2).transpose(1, 2),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(
    "reduce", ["amax", pytest.param("sum", marks=pytest.mark.slow), pytest.param("mean", marks=pytest.mark.slow)]
)
def test_a_product_reads_a_view_that_a_region_reduces(name: str, reduce: str) -> None:
    """Other readers get a copy of the view, and the product is one of them: as A, or as B."""

    def first(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = VIEWS[name](x @ w)
        return torch.relu(y @ y.new_ones(y.shape[-1], 4)), getattr(y, reduce)(-1)

    def second(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = VIEWS[name](x @ w)
        return torch.relu(y.new_ones(4, y.shape[-2]) @ y), getattr(y, reduce)(-1)

    inputs = torch.randn(6, 8), torch.randn(8, 8)
    for run in (first, second):
        compare(run(*inputs), evt.fuse(Function(run), inputs)(*inputs), torch.float32)


def test_importing_evt_does_not_import_torch() -> None:
    code = "import sys, evt; assert 'fuse' in dir(evt); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.9's own, as it loads
def test_a_fused_module_is_saved_as_exported_programs_are(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU()).half().eval()
    x = torch.randn(8, 16).half()
    fused = evt.fuse(model, (x,))
    file = tmp_path / "fused.pt2"
    torch.export.save(torch.export.export(fused, (x,)), file)
    found = torch.export.load(file).module()
    assert "torch.ops.evt.run" in found.code
    with torch.no_grad():
        assert torch.equal(found(x), fused(x))
