"""The halo kernel as a matrix product: its plan, its arguments as text, its refusals, and its preference."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import evt
from evt.emission import emit
from evt.emission.kernel import spell
from evt.ir.dtype import BY_NAME
from evt.plan import Plan, plan, survey
from evt.plan.epilogue.loads import AuxLoad
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.halo import INTEGER_PIXELS, PIXELS
from evt.plan.plan import HaloProduct
from evt.plan.speed import fastest
from evt.request import packed_problem
from evt.runtime.kernels import check_sizes

RESIDUAL = "D = relu(acc + bias + residual)"
OFFERED = ["halo_192x64x64", "halo_256x64x64", "halo_160x64x64", "halo_64x64x64"]
OFFERED += ["halo_shared_128x64x64", "halo_shared_64x64x64"]


def planned(text: str = RESIDUAL, dtype: str = "f16", operation: str = "linear", **keywords: object) -> Plan:
    op = evt.Program(evt.diagnostics.Source(text), operation, route="halo-3x", **keywords)
    return op.plan("sm90", dtype, dtype)


# The plan


def test_tma_moves_c_and_d() -> None:
    made = planned()
    assert (made.family, made.template, made.shared_memory) == ("own", "own_sm90", SHARED_BYTES)
    assert isinstance(made.mainloop, HaloProduct)
    assert (made.mainloop.a.name, made.mainloop.b.name, made.transposed) == ("A", "B", False)
    assert made.source is not None
    assert made.destination is not None
    assert (made.source.pointer.name, made.destination.pointer.name) == ("in_residual", "out_D")
    (store,) = (node for node in made.steps if isinstance(node, AuxStore))
    assert store.access is Access.TILE
    assert {"tile_rows", "tile_columns", "images"}.isdisjoint(field.name for field in made.fields)
    assert made.with_pdl


def test_a_column_major_d_is_stored_element_by_element() -> None:
    made = planned("in C[n, m]; out D[n, m]; D = relu(acc + C)")
    assert (made.source, made.destination) == (None, None)
    assert [node.access for node in made.steps if isinstance(node, AuxLoad | AuxStore)] == [Access.DIRECT] * 2


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "tf32", "e4m3", "e5m2", "i8", "u8"])
def test_configurations(dtype: str) -> None:
    op = evt.linear("out D: f16; D = acc + bias", route="own")
    (found,) = survey(packed_problem(op.request, "sm90", dtype, dtype), "halo-3x").asked
    offered = [config.name for config in found.configs if config.use == "always"]
    assert offered == [name.rpartition("x")[0] + f"x{128 * 8 // BY_NAME[dtype].bits}" for name in OFFERED]
    assert len({config.name for config in found.configs}) == len(found.configs)
    widths = {config.tile[0] for config in found.configs if config.schedule == "halo"}
    assert widths == set(PIXELS if BY_NAME[dtype].is_float else INTEGER_PIXELS)


# Its text


def test_the_kernel_is_given_a_matrix_product() -> None:
    text = emit(planned(config="halo_256x64x64"), "k")
    sizes = ", ".join(f"static_cast<int>(arguments.{mode})" for mode in "mnk")
    assert f"  result.problem = evt::kit::matrix_product({sizes});\n" in text
    assert "using Mainloop = evt::kit::HaloMainloop<Mma, 64, 2, true>;" in text
    assert "result.a_strides[2] = arguments.stride_m_of_A;" in text
    assert "result.b_strides[0] = arguments.stride_n_of_B;" in text
    assert "using Kernel = evt::kit::Kernel<Mainloop, Epilogue>;" in text
    assert "/// The matrix product.\n" in text
    assert "if (arguments->l != 1) return evt::report(evt::Failure::arguments);" in text
    assert re.search(r"int64_t l; +// batches: 1\n", text)
    assert "convolution_of" not in text
    assert "cute::" not in text
    shared = emit(planned(config="halo_shared_64x64x64"), "k")
    assert "using Kernel = evt::kit::Kernel<Mainloop, Epilogue, true>;" in shared


def test_rows_of_columns_are_transposed_filters() -> None:
    text = emit(planned(operation="gemm"), "k")
    assert "static constexpr bool kTransposed = true;" in text
    assert "}, a, b, p, 1, 1, 1, 0;" in text
    assert "result.b_strides[0] = arguments.stride_k_of_B;" in text
    assert "static constexpr bool kTransposed = false;" in emit(planned(), "k")


# Refusals


REFUSED = {
    "a column-major A": ("gemm(A: f16[k, m], B: f16[n, k])\nD = acc", "`A` is f16 and contiguous along m"),
    "f32 rows of columns": ("gemm(A: f32[m, k], B: f32[k, n])\nD = acc", "`B` is f32 and contiguous along n"),
    "f64": ("gemm(A: f64[m, k], B: f64[n, k])\nD = acc", "f64 is multiplied by the mma instructions of 2.x kernels"),
    "f64 values": ("gemm(A: f16[m, k], B: f16[n, k])\nin x: f64[n]; D = acc + x", "`x` is f64"),
    "wide pairs": (
        "gemm(A: f16[m, k], B: f16[n, k])\nout D[m, n/2]; D = silu(even(acc, 32))*odd(acc, 32)",
        "64 columns are taken together, and a warp has 16",
    ),
    "a mainloop fusion": ("gemm(A: f16[m, k], B: f16[n, k])\nA = relu(A); D = acc", "`A` has a mainloop fusion"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    text, reason = REFUSED[what]
    with pytest.raises(evt.TargetError) as raised:
        evt.gemm(text, route="halo-3x").plan("sm90")
    (found,) = raised.value.diagnostics
    assert found.code == "E0502"
    assert reason in f"{found.message} {found.notes}"


def test_targets_without_wgmma() -> None:
    for arch in ("sm80", "sm100", "sm120"):
        with pytest.raises(evt.TargetError, match=f"the target is {arch}"):
            evt.linear("D = acc", route="halo-3x").plan(arch)


# When it is taken


def test_it_is_taken_where_it_is_asked_for() -> None:
    assert evt.linear(RESIDUAL).plan("sm90").route == "stock-3x"
    assert evt.linear(RESIDUAL, route="own").plan("sm90").route == "halo-3x"
    explained = evt.linear(RESIDUAL).explain("sm90")
    (route,) = (each for each in explained.routes if each.name == "halo-3x")
    assert (route.applies, route.chosen, route.beside) == (True, False, False)
    assert 'it applies, and is preferred where `route="own"` asks for it' in explained.details()
    assert evt.linear("in x: f16[m]; D = acc*x").plan("sm80").route == "evt-2x"


def test_a_problem_that_cutlass_3x_refuses_goes_to_2x() -> None:
    """The own product takes no batches, which only a call knows."""
    problem = packed_problem(evt.linear(RESIDUAL).request, "sm90", "f16", "f16", ((64, 72), (133, 72)))
    found = survey(problem)
    applying = {each.route.name for each in found.candidates if each.applies}
    assert {"halo-3x", "stock-2x"} <= applying
    assert applying.isdisjoint({"evt-3x", "stock-3x"})
    assert found.plan.route == "stock-2x"


def test_explain_counts_batches() -> None:
    """That there are too many is known once the sizes are; several launches take most of them."""
    shapes = (300, 64, 32), (300, 32, 16)
    for route, refused in (("own", True), ("evt", False)):
        op = evt.gemm("D = acc", route=route)
        (chosen,) = (each for each in op.explain("sm90", shapes=shapes).routes if each.chosen)
        reason = "there are 300, which take 300 launches of at most 256"
        assert (("batches are at most 1 in a launch", reason) in chosen.rules) == refused
        assert chosen.applies == (not refused)
        assert "batches" not in op.explain("sm90", shapes=((3, 64, 32), (3, 32, 16))).details()
    shapes = (70_000, 8, 32), (70_000, 32, 16)
    assert "batches" not in evt.gemm("D = acc", route="evt").explain("sm80", shapes=shapes).details()
    many = evt.gemm("D = acc + iota(l)", route="evt").explain("sm80", shapes=shapes)
    assert "fails  batches are at most 65535 in a launch: there are 70000, and the program counts all" in many.details()


def test_operands_that_batches_share_are_refused_before_they_are_counted() -> None:
    op = evt.gemm("D = acc", route="halo-3x")
    problem = packed_problem(op.request, "sm90", "f16", "f16")
    shared = replace(problem, signature=replace(problem.signature, b=replace(problem.signature.b, batch="shared")))
    with pytest.raises(evt.TargetError, match=r"E0502\](.|\n)*several batches share `B`"):
        plan(shared, "halo-3x")
    assert plan(shared).route == "stock-3x"


def test_values_of_the_batch_are_those_of_its_one() -> None:
    """If the modes of a tensor have a batch, the epilogue has equal classes with equal arguments."""

    def parts(text: str) -> list[tuple[str, object]]:
        found = spell(planned(text, operation="gemm")).fragment
        assert found is not None
        return [(part.type, part.arguments) for part in found.parts]

    batched = "in b: f16[l, n], s: f32[l, m], g: f32[l], x[l, m, n]; out D[l, m, n], r: f32[l]; D = g*acc*s + b + x"
    assert parts(batched + "; r = max[m, n](acc)") == parts(
        "in b: f16[n], s: f32[m], g: f32, x[m, n]; out D[m, n], r: f32; D = g*acc*s + b + x; r = max[m, n](acc)"
    )


def test_one_plane_is_not_shared() -> None:
    plans = survey(packed_problem(evt.linear("D = acc").request, "sm90", "f16", "f16"), "own").defaults
    alone = next(each for each in plans if each.config.name == "halo_64x64x64")
    shared = next(each for each in plans if each.config.name == "halo_shared_64x64x64")
    for k, taken in ((64, alone), (8192, shared)):
        pair = (shared, alone)
        assert pair[fastest(pair, {"m": 16, "n": 64, "k": k, "l": 1}, 132)] is taken
    sizes = {"m": 16, "n": 64, "k": 64, "l": 1}
    with pytest.raises(evt.LaunchError, match=r"E0804\]: k = 64: halo_shared_64x64x64 shares tiles(.|\n)*`config`"):
        check_sizes(shared, sizes)
    check_sizes(shared, {**sizes, "k": 65})
    check_sizes(alone, sizes)
