"""Planning: the graph of visitors, the source, and names in C++."""

from __future__ import annotations

import math
import re
import struct

import pytest

import evt
from evt.emission import emit
from evt.emission.expressions import literal
from evt.emission.kernel import spell
from evt.ir.dtype import F32
from evt.plan import LayoutClass, Problem, find_target, natural_signature, plan
from evt.plan.epilogue.broadcasts import RowBroadcast, ScalarBroadcast
from evt.plan.epilogue.computes import Apply, Compute
from evt.plan.epilogue.loads import AccFetch, AuxLoad, SourceFetch
from evt.plan.epilogue.regions import Call, Value
from evt.plan.epilogue.values import Access, Destination, Number
from evt.plan.epilogue.writes import AuxStore
from tests.support.plans import RELU, accesses, computed, dag_of, kinds, make, with_layout

# Visitors


def test_one_region_is_one_functor_in_a_tree() -> None:
    made = make(RELU)
    assert made.tree
    assert kinds(made) == [ScalarBroadcast, AccFetch, ScalarBroadcast, SourceFetch, AuxLoad, Apply]
    (region,) = made.regions
    last = region.statements[-1]
    assert isinstance(last, Call)
    assert (last.function, last.operands) == ("add", (Value("t2", F32), Value("in_residual", F32)))
    assert "return t2 + in_residual;" in emit(made)
    assert kinds(make(RELU, "sm80")) == [*[ScalarBroadcast, AccFetch, ScalarBroadcast], *[AuxLoad] * 2, Apply, AuxStore]


@pytest.mark.parametrize(
    ("formula", "functor"),
    [
        ("D = acc", ("", "cutlass::epilogue::thread::Identity")),
        ("D = acc + bias", ("add", "cutlass::plus")),
        ("D = relu(acc)", ("relu", "cutlass::epilogue::thread::ReLu")),
    ],
)
def test_a_single_stock_operation_keeps_the_stock_functor(formula, functor) -> None:
    made = make(formula, route="evt")
    function, spelled = functor
    assert computed(made) == [function]
    assert f"fusion::Sm90Compute<{spelled}, " in emit(made)
    assert not made.regions


def test_stock_functors_keep_the_order_of_their_operands() -> None:
    made = make("out D, Z; Z = acc + bias; D = Z - bias")
    assert computed(made) == ["add", "sub"]
    assert [type(made.steps[operand]) for operand in made.steps[-1].operands] == [Compute, RowBroadcast]


def test_a_region_of_several_operations_reads_its_operands_by_name() -> None:
    made = make("D = (C - acc)*(C + acc)")
    (region,) = made.regions
    assert list(map(str, region.statements)) == ["t0 = sub(in_C, acc)", "t1 = add(in_C, acc)", "t2 = mul(t0, t1)"]
    (functor,) = spell(made).functors
    assert [statement.expression for statement in functor.statements] == ["in_C - acc", "in_C + acc", "t0 * t1"]


def test_a_stored_intermediate_flows_through_its_store() -> None:
    made = make("out D, Z; Z = acc + bias; D = silu(Z)")
    assert made.tree
    assert kinds(made) == [AccFetch, RowBroadcast, Compute, AuxStore, Apply]


def test_a_shared_value_makes_a_topological_visitor() -> None:
    made = make("out D, E; T = tanh(alpha*acc); D = T + C; E = T*R")
    assert not made.tree
    assert len(computed(made)) == 3  # T is kept: it costs more than an instruction
    assert isinstance(root := made.steps[-1], Compute | Apply)
    assert root.output is Destination.D


def test_cheap_shared_values_are_computed_again() -> None:
    made = make("out D, E; t = acc + 1; D = t*C; E = t*C")
    assert len(made.regions) == 1  # D and E are one value
    made = make("out D, E; t = acc + 1; D = t*C; E = t - C")
    assert len(made.regions) == 2


def test_a_value_that_others_read_is_not_the_root() -> None:
    made = make("out D, E: f32[m, n]; D = acc*C; E = gelu(D)")
    assert isinstance(root := made.steps[-1], Compute)
    assert (root.function, root.output) == ("", Destination.D)


def test_a_constant_output_is_a_scalar_broadcast() -> None:
    for arch in ("sm80", "sm90"):
        made = make("out D, E; D = relu(acc); E = 2*3", arch)
        (constant,) = [node for node in made.steps if isinstance(node, ScalarBroadcast)]
        assert constant.value == Number(F32, 6.0)
        assert f"arguments_of_{constant.name}.scalars[0] = 6.0f;" in emit(made)
        assert not made.regions


def test_every_operation_by_itself_when_not_fused() -> None:
    made = evt.gemm(RELU).plan("sm90", "f16", "f16", fused=False)
    # One of CUTLASS's multiply-adds omits a source that is scaled by 0.
    assert computed(made) == ["mul", "Region0", "relu", "add"]


# The source C, and auxiliary tiles


def test_the_source_is_the_tile_that_shares_shared_memory_with_d() -> None:
    made = make("in r: f32[m, n], t: f16[n, m]; D = acc + r + t + C")
    assert made.source is not None
    assert made.source.pointer.tensor == "C"
    assert kinds(made).count(SourceFetch) == 1
    assert accesses(made, AuxLoad) == [Access.TILE, Access.TILE]


def test_a_tile_shared_by_all_batches_is_not_the_source() -> None:
    made = make("in C[m, n]; D = acc + C")
    assert made.source is None
    (tile,) = [node for node in made.steps if isinstance(node, AuxLoad)]
    assert tile.strides[2] == 0


def test_unaligned_and_surplus_tiles_are_loaded_directly() -> None:
    dag = dag_of("D = acc + C")
    signature = with_layout(natural_signature(dag), "C", LayoutClass("n", 1))
    assert accesses(plan(Problem(dag, signature, find_target("sm90"))), AuxLoad) == [Access.DIRECT]
    made = make("in a1: f32[m, n], a2: f32[m, n], a3: f32[m, n], a4: f32[m, n]; D = acc + C + a1 + a2 + a3 + a4")
    assert set(accesses(made, AuxLoad)) == {Access.TILE, Access.DIRECT}
    assert made.shared_memory <= made.target.shared_memory


def test_2x_reads_other_layouts_element_by_element() -> None:
    assert accesses(make("in C[n, m]; D = acc + C", "sm80"), AuxLoad) == [Access.STRIDED]
    assert Access.STRIDED in accesses(make("out D, Z[n, m]; Z = acc; D = relu(acc)", "sm80"), AuxStore)


# Text


def test_names_are_mangled_and_bounded() -> None:
    long = "x" * 5000
    text = evt.emit(f"in {long}, NULL, template; D = acc + {long}*NULL - template")
    assert "in_NULL" in text
    assert "in_template" in text
    assert not re.search(r"\w{200}", text)


@pytest.mark.parametrize("length", [32, 33, 38, 40, 41, 80])
def test_no_two_names_are_mangled_to_one(length) -> None:
    tails = ("LONGTAIL_abcdefghijk", "", *(f"_{index}" for index in range(4)), "_LONGTAIL")
    names = [f"{'x' * length}{tail}" for tail in tails]
    made = make(f"in {', '.join(names)}: f16[m, n]; D = acc + {' + '.join(names)}")
    fields = {field.name: field.tensor for field in made.fields if field.kind == "pointer"}
    assert set(names) <= set(fields.values())


def test_inputs_cannot_collide_with_our_own_names() -> None:
    made = make("in C[m, n], C_stride_m[m, n], stride_m_of_in_C: f16[m, n]; D = acc + C*C_stride_m + stride_m_of_in_C")
    names = [field.name for field in made.fields]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", ["*/ #error", "\\", "x ??/", '" "', "// evil \\"])
def test_comments_of_the_user_stay_comments(text) -> None:
    for line in evt.emit(f"D = acc # {text}\n# {text}\n").splitlines():
        if "evil" in line or "#error" in line:
            assert line.startswith("//")
            assert not line.endswith("\\")


@pytest.mark.parametrize("value", [0.1, 1.0, -2.5, 1e-45, 3.4028234e38, 1 / 3, math.pi, -0.0, 6.0, 1e20])
def test_literals_read_back(value) -> None:
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    text = literal(rounded).strip("()")
    assert text.endswith("f")
    assert "." in text or "e" in text
    assert struct.pack("<f", float(text[:-1])) == struct.pack("<f", rounded)


def test_only_the_headers_that_are_needed_are_pasted() -> None:
    assert "// evt/functions.hpp" not in evt.emit("D = acc + bias")
    assert "// evt/functions.hpp" in evt.emit("D = mish(acc)")
    assert "// evt/epilogue/matrix.hpp" in evt.emit("in C[n, m]; D = acc + C", arch="sm80")
    for arch in ("sm80", "sm90", "sm100"):
        assert "philox" not in evt.emit("D = acc*iota(n)", arch=arch)
        assert "// evt/philox.hpp" in evt.emit("D = acc*rand(seed, 3)", arch=arch)
