"""PyTorch loads compiled graphs from disk, and evt loads the results of its pass for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor import config as inductor
from torch._inductor.codecache import FxGraphCache
from torch.fx import Graph

import evt
from evt.compilation import Cache, KernelSource, source_key
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.functions import TABLE
from evt.fx import kernels, stored
from evt.fx.backend import FusePass
from evt.fx.cost_model import Benefit
from evt.fx.options import read_options
from evt.fx.records import RECORDS
from evt.measured import Measurement, Store, Timing
from evt.runtime import folded
from evt.runtime.call import caller_of
from tests.fx.compiling import ALWAYS, Net, close, compiled, inputs
from tests.support.depth import in_depth
from tests.support.stub_device import plan_for_h200

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler", "own_cache", "inductors")]

#: Forgets the compiled graphs of this process, as a new process would.
Restart = Callable[[], None]


@pytest.fixture
def inductors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give PyTorch empty caches of graphs."""
    kinds: tuple[Any, ...] = (FxGraphCache, AOTAutogradCache)
    for kind in kinds:
        monkeypatch.setattr(kind, "_get_tmp_dir", staticmethod(lambda name=kind.__name__: str(tmp_path / name)))
    with inductor.patch(fx_graph_cache=True), functorch.patch(enable_autograd_cache=True):
        yield


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Return the graphs that the pass has seen."""
    seen: list[Graph] = []
    run = FusePass.__call__

    def spy(self: FusePass, graph: Graph) -> None:
        seen.append(graph)
        run(self, graph)

    monkeypatch.setattr(FusePass, "__call__", spy)
    return seen


@pytest.fixture
def restart() -> Restart:
    def again() -> None:
        torch._dynamo.reset()
        RECORDS.clear()
        caller_of.cache_clear()

    return again


@pytest.fixture
def model() -> Net:
    return Net().half().eval()


def build(sources: Sequence[KernelSource], **_: Any) -> list[Path]:
    """Put libraries that nobody can load into the cache."""
    cache = Cache()
    cache.prepare()
    found: list[Path] = []
    for source in sources:
        key: str = source_key(source)
        cache.put(key, lambda: {"kernel.so": b"library", "kernel.cu": b"source"}, {})
        library = cache.find(key)[0]
        assert library is not None
        found.append(library)
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan regions on the CPU as on an H200, and build them with :func:`build`."""
    plan_for_h200(monkeypatch.setattr)
    monkeypatch.setattr(kernels, "build", build)


def run(model: Net, options: Mapping[str, Any] = ALWAYS, **keywords: Any) -> None:
    close(compiled(model, options, **keywords)(inputs()), model(inputs()))


@pytest.mark.usefixtures("built")
def test_a_second_process_runs_no_pass(model: Net, passes: list[Graph], restart: Restart) -> None:
    run(model)
    (first,) = RECORDS
    (digest,) = stored.counts()
    graph = stored.find(digest, stored.identity(read_options(None, ALWAYS)))
    assert graph is not None
    assert [each.kernel.plan.route for each in graph.kernels] == ["gemm-own-3x", "gemm-own-3x"]
    calls = {each.program: caller_of(each.program)._built for each in graph.kernels}
    restart()
    run(model)
    hits = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
    assert len(passes) == hits == 1
    assert [each.rows for each in RECORDS] == [first.rows]
    assert [row.fused for row in evt.report(model).rows] == [True, True]
    for text, known in calls.items():
        assert caller_of(text)._built == known != {}


@pytest.mark.parametrize("bundled", [False, True])
def test_weights_are_folded_before_a_cuda_graph_replays(bundled: bool, passes: list[Graph], restart: Restart) -> None:
    """Also in a graph that PyTorch loads instead of compiling it. A bundled graph folds in each replay."""
    model = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GELU()).half()
    folded._kept.clear()
    with functorch.patch(bundled_autograd_cache=bundled):
        for _ in range(2):
            mine = compiled(model, {**ALWAYS, "triton.cudagraphs": True})
            close(mine(inputs()), model(inputs()))
            (kept,) = folded._kept.values()
            first = [each.data_ptr() for each in kept.results]
            for parameter in model.parameters():
                parameter.mul_(1.25)
            close(mine(inputs()), model(inputs()))
            assert [each.data_ptr() for each in kept.results] == first
            restart()
    assert len(passes) == 1


def test_graphs_without_products_are_loaded_too(passes: list[Graph], restart: Restart) -> None:
    for _ in range(2):
        compiled(torch.nn.Tanh())(inputs())
        restart()
    assert len(passes) == 1


def test_a_training_step_is_loaded(passes: list[Graph], restart: Restart) -> None:
    rows = []
    for _ in range(2):
        torch.manual_seed(0)
        mine = Net()
        with torch.enable_grad():
            compiled(mine)(torch.ones(8, 16)).sum().backward()
        rows.append(sorted(str(row) for row in evt.report(mine).rows))
        restart()
    assert rows[0] == rows[1]
    assert len({row.split("graph=")[1] for row in rows[0]}) == 2
    assert len(passes) == 2


def test_graphs_of_symbolic_sizes_are_loaded(model: Net, passes: list[Graph], restart: Restart) -> None:
    for rows in (8, 12, 8):
        close(compiled(model, dynamic=True)(inputs(rows)), model(inputs(rows)))
        restart()
    assert len(passes) == 1
    assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] == 2


# The identity of the pass


def _measured() -> None:
    Store().add("a problem", Measurement("H200", "sm90", "D = acc", {}, (Timing("evt-3x", "", 1.0),)))


@pytest.mark.parametrize(
    "change",
    [
        _measured,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.use_deterministic_algorithms(True),
    ],
)
def test_other_decisions_compile_the_graph_again(
    model: Net, passes: list[Graph], restart: Restart, change: Callable[[], None]
) -> None:
    run(model)
    restart()
    try:
        change()
        run(model)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
    assert len(passes) == 2


@pytest.mark.parametrize("options", [{**ALWAYS, "evt.rule": "estimate"}, {**ALWAYS, "evt.devices": ("cuda",)}])
def test_other_options_compile_the_graph_again(
    model: Net, passes: list[Graph], restart: Restart, options: Mapping[str, Any]
) -> None:
    run(model)
    restart()
    run(model, options)
    assert len(passes) == 2


def test_another_version_of_evt_compiles_the_graph_again(
    model: Net, passes: list[Graph], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(model)
    restart()
    monkeypatch.setattr(stored, "_sources", lambda: "other files")
    run(model)
    assert len(passes) == 2


def test_a_users_function_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TABLE, "_rows", TABLE._rows)
    monkeypatch.setattr(TABLE, "_aliases", TABLE._aliases)
    options = read_options(None, ALWAYS)
    known = {stored.identity(options)}
    for factor in (2, 3):
        evt.function("times(x)", cxx=f"{factor} * x", torch=lambda t, x, a=factor: a * x, check=False, replace=True)
        known.add(stored.identity(options))
    assert len(known) == 3


# Graphs that are not valid


def _remove_kernels() -> None:
    Cache().prune(max_bytes=0)


def _clear() -> None:
    Cache().clear()


def _damage() -> None:
    for path in (Cache().root / "derived").glob("graph-*"):
        path.write_bytes(b"damaged")


def _change_kernels() -> None:
    for entry in Cache().entries():
        entry.library.write_bytes(b"another")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "harm", in_depth([_remove_kernels, _clear, _damage, _change_kernels], quick=[_remove_kernels, _damage])
)
def test_a_graph_without_its_kernels_is_compiled_again(
    model: Net, passes: list[Graph], restart: Restart, harm: Callable[[], None]
) -> None:
    run(model)
    restart()
    harm()
    run(model)
    assert len(passes) == 2
    assert [row.fused for row in evt.report(model).rows] == [True, True]
    restart()
    run(model)
    assert len(passes) == 2  # the graph is valid again


@pytest.mark.usefixtures("built")
def test_other_tools_compile_the_graph_again(
    model: Net, passes: list[Graph], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(model)
    restart()
    monkeypatch.setattr(stored, "tools_digest", lambda cache: hashlib.sha256(b"another nvcc").hexdigest())
    run(model)
    assert len(passes) == 2


@pytest.mark.usefixtures("built")
def test_a_kernel_that_was_not_built_is_tried_again(
    model: Net, passes: list[Graph], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later process with better tools fuses the region."""

    def refuse(sources: Sequence[KernelSource], **_: Any) -> list[Path]:
        if any("gelu" in each.text for each in sources):
            raise BuildError(Diagnostic("E0703", "nvcc refuses the source"))
        return build(sources)

    monkeypatch.setattr(kernels, "build", refuse)
    for count in (2, 4):  # once with the kernel, and again without
        run(model)
        assert [row.fused for row in evt.report(model).rows] == [False, True]
        assert len(RECORDS) == 1
        assert len(passes) == count
        restart()
    monkeypatch.setattr(kernels, "build", build)
    run(model)
    assert [row.fused for row in evt.report(model).rows] == [True, True]


@pytest.mark.usefixtures("built")
def test_measured_regions_are_loaded(
    model: Net, passes: list[Graph], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evt.fx.choose.measured", lambda fused: Benefit(2.0, 1.0, measured=True))
    for _ in range(2):
        run(model, {"evt.tune": True, "evt.devices": ("cpu",)})
        assert all("measured" in row.gain for row in evt.report(model).rows)
        restart()
    assert len(passes) == 1


def test_graphs_are_compiled_without_a_cache_directory(
    model: Net, passes: list[Graph], restart: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVT_CACHE_DIR", "~nobody_of_this_name/cache")
    for _ in range(2):
        run(model)
        assert [row.fused for row in evt.report(model).rows] == [True, True]
        restart()
    assert len(passes) == 2


def test_old_graphs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST", 2)
    for name in "abc":
        stored.keep(name, "key", stored.StoredGraph(()))
    assert [stored.find(name, "key") is not None for name in "abc"] == [False, True, True]


def test_the_pass_beside_inductor_is_not_kept(model: Net, passes: list[Graph], restart: Restart) -> None:
    for _ in range(2):
        with inductor.patch(post_grad_custom_pre_pass=FusePass("always", ("cpu",))):
            torch.compile(model)(inputs())
        restart()
    assert len(passes) == 2
