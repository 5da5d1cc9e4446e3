"""Costs of functions, and the estimate of registers: enough to tell a light epilogue from one that spills."""

from __future__ import annotations

import pytest

import evt
from evt.functions import TABLE
from evt.functions.testing import temporarily
from evt.ir import Apply, Random, ReduceBlocks, Store
from evt.ir.dtype import DType, accumulator
from evt.optimise import optimise
from evt.plan import Config, natural_signature, survey
from evt.plan.epilogue.cost import cost, is_light
from evt.plan.epilogue.program import epilogue_program
from evt.plan.epilogue.registers import accumulator_registers, estimate_registers, register_limit
from evt.plan.epilogue.scope import Scope
from evt.plan.fields import Fields, mangle
from evt.plan.routes.gemm_2x import general_config
from evt.request import packed_problem
from tests.programs import typed

CONFIG_2X = general_config(typed("D = acc").operands[0].dtype, 8)
CONFIGS_3X = {
    config.name: config
    for config in survey(packed_problem(evt.gemm("D = acc").request, "sm90", "f16", "f16"), "evt").chosen.configs
}
GENERAL = next(iter(CONFIGS_3X.values()))


def estimate(text: str, config: Config, operand: str = "f16") -> int:
    dag = optimise(typed(text, operand))
    names = mangle([value.name for value in dag.inputs], [value.name for value in dag.outputs])
    scope = Scope(dag, natural_signature(dag), names, Fields(names, ()))
    program = epilogue_program(scope, implicit_store=None if config.schedule == "multistage" else "D")
    return estimate_registers(program, config, acc_type(operand), scope.dtype("D"))


def acc_type(operand: str) -> DType:
    return accumulator(typed("D = acc", operand).operands[0].dtype)


def test_every_function_of_the_table_has_a_cost() -> None:
    assert all(cost(Apply(name)) > 0 for name in TABLE)
    with temporarily():
        evt.function("cube(x)", cxx="x * x * x", torch=lambda x: x**3)
        assert cost(Apply("cube")) == cost(Apply("exp"))


def test_costs_are_in_order() -> None:
    costs = [
        cost(op) for op in (Store("D"), Apply("add"), ReduceBlocks("max", 16), Apply("div"), Apply("exp"), Random())
    ]
    assert costs == sorted(set(costs))
    assert is_light(typed("D = relu(alpha * acc + beta * C) + residual"))
    assert not is_light(typed("D = gelu(acc + bias)"))


LIGHT = ("D = acc", "D = relu(alpha*acc + beta*C) + residual")
HEAVY = ("D = gelu(scale[m] * acc + bias)", "z = acc + bias; D = silu(z) * gate; mask = z > 0; s = sum[n](z)")


@pytest.mark.parametrize("config", [CONFIG_2X, *CONFIGS_3X.values()], ids=lambda config: config.name)
def test_ordinary_epilogues_fit(config: Config) -> None:
    """Light ones in every configuration, heavy ones beside ordinary tiles of accumulators."""
    large = accumulator_registers(acc_type("f16"), config) > 128
    for text in LIGHT if large else (*LIGHT, *HEAVY):
        assert estimate(text, config) <= register_limit(config), text


@pytest.mark.parametrize("config", [CONFIG_2X, *CONFIGS_3X.values()], ids=lambda config: config.name)
def test_more_tensors_need_more_registers(config: Config) -> None:
    counts = [estimate("D = acc" + "".join(f" + tanh(acc*x{i})" for i in range(count)), config) for count in range(9)]
    assert counts == sorted(set(counts))
    wide = "in " + ", ".join(f"x{i}: f32[m, n]" for i in range(40)) + "; D = acc" + "".join(f"+x{i}" for i in range(40))
    assert estimate(wide, config) > register_limit(config)


def test_threads_of_sm100_request_no_registers() -> None:
    """Its warps keep the registers that the compiler gives them: the limit is that of an instruction."""
    made = survey(packed_problem(evt.gemm("D = acc").request, "sm100", "f16", "f16"), "evt").chosen.configs
    assert {register_limit(config) for config in made} == {255}


def test_values_that_are_kept_count() -> None:
    kept = "; ".join(f"t{i} = exp(acc * {i + 2})" for i in range(24))
    text = f"{kept}; D = {' + '.join(f't{i}' for i in range(24))}; E = {' * '.join(f't{i}' for i in range(24))}"
    once = estimate("D = acc; E = exp(acc)", GENERAL)
    assert estimate(text, GENERAL) >= once + 22 * 4


@pytest.mark.parametrize(
    ("operand", "config", "registers"),
    [
        ("f16", CONFIG_2X, 128),
        ("f64", general_config(typed("D = acc", "f64").operands[0].dtype, 2), 64),
        ("f16", GENERAL, 128),
        ("f16", CONFIGS_3X["pingpong_192x128x64_1x2"], 192),
        ("f16", CONFIGS_3X["pingpong_64x128x64"], 64),
        ("f16", CONFIGS_3X["cooperative_128x256x64_2x1"], 128),
    ],
)
def test_accumulators(operand: str, config: Config, registers: int) -> None:
    assert accumulator_registers(acc_type(operand), config) == registers


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("D = acc; s = sum[n](acc); t = sum[m](acc); a = max[m, n](acc)", 1),
        ("D = acc; out D, M: b1; M = acc > 0", 1),
        ("in M: b1[m, n]; D = where(M, acc, 0)", 1),
        ("D = dropout(acc, 0.5, seed, offset)", 1),
        ("D = acc; H = even(acc) * odd(acc)", 1),
        ("D = acc / max[n%32](abs(acc))", 1),
        ("in h: f16[m, n/2]; D = acc; H = even(acc) * h", 1),
        ("D = acc + iota(m)", 0),
        ("D = acc * x[m?]", 1),
    ],
)
def test_every_kind_of_node_is_counted(text: str, least: int) -> None:
    for config in (CONFIG_2X, GENERAL):
        assert estimate(text, config) >= estimate("D = acc", config) + least
