"""Own kernels become cubins by NVRTC, without nvcc, a host compiler and CUDA's headers."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import evt
from evt.compilation import BuildEvent, Cache, KernelSource, build, builder, toolchain
from evt.compilation.jit import Missing, find_nvrtc
from evt.compilation.own import find_way, headers, is_cubin, options
from evt.diagnostics import Diagnostic
from evt.emission import emit
from evt.errors import ArgumentError, BuildError
from evt.launch.recipe import Kernel, recipe_of, workspace_of
from evt.plan import Plan, find_target
from evt.plan.cards import find_card
from evt.plan.survey import Candidate
from evt.runtime import kernels as kernels_module
from evt.runtime.arguments import bind
from evt.runtime.kernels import make_kernels, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.support.depth import in_depth

pytestmark = pytest.mark.skipif(isinstance(find_nvrtc(), Missing), reason="NVRTC is missing")

WEIGHTS = {"shapes": ((8, 64, 28, 28), (64, 64, 3, 3))}
PLANS = {
    "product": lambda: evt.gemm("D = gelu(alpha*acc + bias)", route="gemm-own-3x").plan("sm90", "f16", "f16"),
    "reduction": lambda: evt.gemm(
        "out rms: f32[m], D, a: f32; D = acc*2; rms = rsqrt(sum[n](acc*acc)/size(n) + 1e-5); a = max[m, n](abs(acc))",
        route="gemm-own-3x",
    ).plan("sm90", "bf16", "bf16"),
    "pairs": lambda: evt.linear("out D[m, n/2]; D = silu(even(acc))*odd(acc)", route="own").plan("sm90", "f16", "f16"),
    "mask": lambda: evt.linear("out D, mask: b1[m, n]; D = relu(acc); mask = acc > 0", route="own").plan(
        "sm90", "f16", "f16"
    ),
    "convolution": lambda: evt.conv2d("D = relu(acc + bias[n] + residual)", padding=1, route="conv-halo-3x").plan(
        "sm90", "f16", "f16", **WEIGHTS
    ),
    "groups": lambda: evt.conv2d("D = relu(acc + bias)", padding=1, groups=9, route="own").plan(
        "sm90", "f16", "f16", shapes=((8, 216, 28, 28), (216, 24, 3, 3))
    ),
    "depthwise": lambda: evt.conv2d("D = relu(acc)", padding=1, groups=64, route="conv-depthwise-3x").plan(
        "sm90", "f16", "f16", shapes=((8, 64, 28, 28), (64, 1, 3, 3))
    ),
}


@pytest.fixture(autouse=True)
def default_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(toolchain.WAY, raising=False)


@pytest.fixture
def without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide nvcc, the host compiler, CUTLASS and the toolkit; the packages of PyPI stay."""
    for name in ("PATH", "CUDA_HOME", "CUDA_PATH", "CUDACXX", "CUTLASS_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(toolchain, "SYSTEM_CUDA", "/nonexistent")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def source(name: str) -> tuple[Plan, KernelSource]:
    plan = PLANS[name]()
    (made,) = kernel_sources([plan])
    return plan, made


@pytest.mark.usefixtures("without_tools")
@pytest.mark.parametrize("name", in_depth(PLANS, quick=("product", "reduction", "groups", "depthwise")))
def test_a_kernel_is_built_without_any_tool(name, monkeypatch, tmp_path):
    """Its code has no constants in bank 3: with a table there, each launch took up to 1.3 us longer on an H100."""
    with pytest.raises(BuildError, match="no CUDA compiler"):
        toolchain.find_toolchain()
    plan, made = source(name)
    (cubin,) = build([made], cache=Cache(tmp_path))
    assert is_cubin(cubin)
    content = cubin.read_bytes()
    assert b".nv.constant0" in content
    assert b".nv.constant3" not in content
    kernel = Kernel.of(plan, content, made.name)
    assert [each.size % 8 for each in kernel.layouts] == [0] * len(kernel.structs)
    assert all(kind for name, (_, kind) in kernel.layouts[0].members.items() if "." in name)


@pytest.mark.usefixtures("without_tools")
def test_the_error_without_any_compiler_names_both_ways(monkeypatch, tmp_path):
    monkeypatch.setattr(builder, "find_way", lambda: Missing("nvrtc was not found", "pip install nvidia-cuda-nvrtc"))
    _, made = source("product")
    with pytest.raises(BuildError, match="E0701") as raised:
        build([made], cache=Cache(tmp_path))
    assert "own kernels need NVRTC alone: nvrtc was not found" in str(raised.value)
    assert "pip install nvidia-cuda-nvrtc" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"), [(toolchain.WAY, toolchain.PARTS), (toolchain.WAY, toolchain.WHOLE), ("NVCC_APPEND_FLAGS", "-G")]
)
def test_nvcc_compiles_own_kernels_if_variables_ask_for_it(monkeypatch, name, value):
    _, made = source("product")
    assert builder._way_of_own([made]) == find_way()
    assert builder._way_of_own([replace(made, alone=False)]) is None
    monkeypatch.setenv(name, value)
    assert builder._way_of_own([made]) is None


def test_an_unknown_way_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(toolchain.WAY, "fast")
    with pytest.raises(ArgumentError, match="`EVT_BUILD_WAY` is 'fast'; expected 'nvrtc', 'parts' or 'whole'"):
        build([source("product")[1]], cache=Cache(tmp_path))


def test_an_error_of_the_caller_stops_the_build(tmp_path):
    """An OSError too, which is then no failure of the cache."""

    def stop(event: BuildEvent) -> None:
        raise TimeoutError

    _, made = source("product")
    with pytest.raises(TimeoutError):
        build([made], cache=Cache(tmp_path), on_event=stop)
    assert is_cubin(build([made], cache=Cache(tmp_path))[0])


def test_a_built_kernel_is_found_again_and_a_damaged_one_is_rebuilt(tmp_path):
    _, made = source("product")
    cache, events = Cache(tmp_path), list[BuildEvent]()
    (first,) = build([made, made], cache=cache, on_event=events.append)[:1]
    assert [(each.kind, each.stage) for each in events] == [("start", "device"), ("end", "device"), ("built", "")]
    events.clear()
    assert build([made], cache=cache, on_event=events.append) == [first]
    assert [each.kind for each in events] == ["hit"]
    content = first.read_bytes()
    first.write_bytes(content[:-1])
    events.clear()
    build([made], cache=cache, on_event=events.append)
    assert [each.kind for each in events] == ["damaged", "start", "end", "built"]
    assert first.read_bytes() == content
    assert [each.library for each in cache.entries()] == [first]
    assert not list(tmp_path.glob("??/.*"))  # no lock and no working directory is left


@pytest.mark.usefixtures("without_tools")
def test_a_refused_text_is_a_diagnostic(tmp_path):
    _, made = source("product")
    wrong = replace(made, text=made.text.replace("struct Epilogue {", "struct Epilogue { int x = ;", 1))
    with pytest.raises(BuildError, match="NVRTC did not accept generated code for sm_90a") as raised:
        build([wrong], cache=Cache(tmp_path))
    assert "kernel.cu(" in str(raised.value)
    (log,) = tmp_path.glob("failed/*/nvcc.log")
    assert "nvrtc --gpu-architecture=sm_90a" in log.read_text()


@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc")
def test_a_text_that_nvrtc_refuses_is_compiled_by_nvcc(tmp_path, monkeypatch):
    plain = KernelSource(
        'extern "C" __global__ void k() {}\n#include <vector>\n#ifndef EVT_DEVICE_PASS\n#endif\n', "sm_90a"
    )
    asked: list[KernelSource] = []

    def find() -> toolchain.Toolchain:
        asked.append(plain)
        raise BuildError(Diagnostic("E0701", "asked for nvcc"))

    monkeypatch.setattr(builder, "find_toolchain", find)
    with pytest.raises(BuildError, match="NVRTC did not accept"):
        build([replace(plain, alone=True)], cache=Cache(tmp_path))
    assert asked == [plain]


def _build(path: Path, made: KernelSource) -> None:
    os.environ["PATH"] = "/nonexistent"
    build([made], cache=Cache(path))


@pytest.mark.slow
def test_processes_build_a_kernel_once_and_a_killed_one_leaves_no_lock(tmp_path):
    """By NVRTC itself; :mod:`tests.compilation.test_own_killed` has a stand-in."""
    _, made = source("convolution")
    context = multiprocessing.get_context("spawn")
    killed = context.Process(target=_build, args=(tmp_path, made))
    killed.start()
    while not list(tmp_path.glob("??/.*.lock")) and killed.is_alive():
        killed.join(0.02)
    killed.kill()
    killed.join()
    both = [context.Process(target=_build, args=(tmp_path, made)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [each.exitcode for each in both] == [0, 0]
    assert len(Cache(tmp_path).entries()) == 1
    assert not list(tmp_path.glob("??/.*-*"))


def test_the_way_is_nvrtc_of_a_known_version():
    found = find_way()
    assert not isinstance(found, Missing)
    assert found.version >= (12, 0)


def test_recipes_have_the_launches_of_reductions(tmp_path):
    plan, made = source("reduction")
    (cubin,) = build([made], cache=Cache(tmp_path))
    kernel = Kernel.of(plan, cubin.read_bytes(), made.name)
    sizes = {field.name: 4096 for field in plan.fields if field.kind == "size"} | {
        "m": 1000,
        "n": 768,
        "k": 512,
        "l": 1,
    }
    recipe = recipe_of(kernel, sizes, 132)
    assert recipe is not None
    assert [each.kernel for each in recipe.launches] == ["kernel", "finish"]
    main, finish = recipe.launches
    assert {each.member for _, _, each in main.maps} == {"a", "b", "stores[0]"}
    assert finish.grid == (250, 2)  # a block for four of 1000 rows; and of a scalar
    assert recipe.workspace == workspace_of(plan, sizes) > 0


def test_blocks_of_columns_share_the_values_of_rows():
    """Lanes exchange a value for each row of a tile, however many blocks of columns read it."""
    nvrtc = find_nvrtc()
    assert not isinstance(nvrtc, Missing)
    exchanges = set()
    for config in ("own_pingpong_64x64x64", "own_pingpong_64x128x64"):
        plan = evt.linear("in scale: f32[m]; D = scale*acc", route="own", config=config).plan("sm90", "bf16", "bf16")
        made = nvrtc.compile(emit(plan), options("sm_90a"), output="ptx", headers=headers())
        exchanges.add(made.count(b"shfl.sync.idx"))
    assert len(exchanges) == 1


@pytest.mark.usefixtures("without_tools")
def test_own_kernels_stand_in_for_those_of_cutlass(monkeypatch, tmp_path):
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Candidate, "default_configs", property(lambda self: self.configs[:1]))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(kernels_module, "device_card", lambda *_: find_card("h100"))
    a, b, bias = (torch.ones(shape, dtype=torch.float16) for shape in ((64, 64), (64, 64), (64,)))
    op = evt.gemm("in bias: f16[n]; out D[n, m]; D = relu(acc + bias)")  # TMA stores rows
    bound, target = bind(op.request, a, b, {"bias": bias}, {}), find_target("sm90")
    assert plan_kernels(op.request, bound, target)[0].family == "3x"
    kernels = make_kernels(op.request, bound, target)
    assert [plan.route for plan in kernels.plans] == ["gemm-own-3x"]
    assert all(is_cubin(kernel.library.path) for kernel in kernels.each)
    with pytest.raises(BuildError, match="no CUDA compiler"):  # the user asks for CUTLASS's
        make_kernels(evt.gemm(op.request.source.text, route="evt-3x").request, bound, target)
