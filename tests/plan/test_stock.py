"""Stock epilogues: which formulas they compute, which class of CUTLASS does, and the reasons of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

import evt
from evt.diagnostics import Source
from evt.emission import emit
from evt.plan import LayoutClass, Plan, Problem, convolution_class, find_target, natural_signature, plan
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.stock.match import ONE, Activation, Factor, Stock, Term, match_stock
from evt.plan.stock_epilogue import StockOperator, StockTensor
from evt.plan.verdict import Refusal
from evt.program import Program
from evt.request import optimised_graph
from tests.support.route_taken import route_of

THREAD = "cutlass::epilogue::thread::"
RELU = Activation(f"{THREAD}ReLu")
GELU = Activation(f"{THREAD}GELU", has_fast=True, is_slow=True)
ALPHA, BETA = Factor("alpha"), Factor("beta")
BIAS, C, R = Term("bias"), Term("C"), Term("residual")


def matched(formula: str, dtype: str = "f16", **settings) -> Stock | Refusal:
    return match_stock(optimised_graph(evt.gemm(formula, **settings).request, dtype, dtype))


def refused(formula: str, dtype: str = "f16") -> str:
    """Return the reason a formula is no stock epilogue."""
    found = matched(formula, dtype)
    assert isinstance(found, Refusal)
    return found.reason


def clamp(lower: float, upper: float) -> Activation:
    return Activation(f"{THREAD}Clamp", (("lower_bound", lower), ("upper_bound", upper)))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("D = acc", Stock()),
        ("D = -acc", Stock(Factor(value=-1))),
        ("D = alpha*acc", Stock(ALPHA)),
        ("D = acc*0.5", Stock(Factor(value=0.5))),
        ("D = alpha*acc + beta*C", Stock(ALPHA, (replace(C, factor=BETA),))),
        ("D = C*beta + acc*alpha", Stock(ALPHA, (replace(C, factor=BETA),))),
        ("D = C + acc", Stock(ONE, (C,))),
        ("D = C - acc", Stock(Factor(value=-1), (C,))),
        ("D = acc - C", Stock(ONE, (replace(C, factor=Factor(value=-1)),))),
        ("D = 2*acc + C/4", Stock(Factor(value=2), (replace(C, factor=Factor(value=0.25)),))),
        ("D = relu(acc)", Stock(last=RELU)),
        ("D = max(0, bias + acc)", Stock(ONE, (BIAS,), last=RELU)),
        ("D = gelu(acc + bias)", Stock(ONE, (BIAS,), last=GELU)),
        ("x = acc; D = 0.5*x*(1 + erf(x*0.70710678))", Stock(last=GELU)),
        ("D = min(max(acc, 0), 6)", Stock(last=clamp(0, 6))),
        ("D = clamp(acc + bias, -1, 2)", Stock(ONE, (BIAS,), last=clamp(-1, 2))),
        ("D = hardtanh(acc)", Stock(last=clamp(-1, 1))),
        ("D = leaky_relu(acc, 0.25)", Stock(last=Activation(f"{THREAD}LeakyReLU", (("leaky_alpha", 0.25),)))),
        ("D = hardswish(acc)", Stock(last=Activation(f"{THREAD}HardSwish"))),
        ("D = acc + bias + C", Stock(ONE, (BIAS, C))),
        ("D = acc + C + bias", Stock(ONE, (C, BIAS))),  # sums of floats are not rearranged
        ("D = C + (bias + acc)", Stock(ONE, (BIAS, C))),
        ("D = relu(acc + bias) + residual", Stock(ONE, (BIAS,), RELU, (R,))),
        ("D = residual*beta + relu(acc)", Stock(ONE, (), RELU, (replace(R, factor=BETA),))),
        ("D = relu(relu(acc + bias) + C + residual)", Stock(ONE, (BIAS,), RELU, (C, R), RELU)),
        ("D = relu(acc + bias) * C", Stock(ONE, (BIAS,), RELU, (replace(C, operation="*"),))),
        ("D = alpha*acc*C", Stock(ALPHA, (), outer=(replace(C, operation="*"),))),
        ("D = C*acc + residual", Stock(ONE, (), outer=(replace(C, operation="*"), R))),
        ("D = relu(alpha*acc + beta*C) + residual", Stock(ALPHA, (replace(C, factor=BETA),), RELU, (R,))),
        ("in s[n]; D = s*acc + bias", Stock(Factor("s"), (BIAS,))),
        ("out D, Z; Z = acc + bias; D = relu(Z)", Stock(ONE, (BIAS,), last=RELU, stored="Z")),
        ("out D, Z; D = relu(acc + bias); Z = acc + bias", Stock(ONE, (BIAS,), last=RELU, stored="Z")),
    ],
)
def test_formulas_of_stock_epilogues(formula, expected) -> None:
    assert matched(formula) == expected


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("D = silu(acc)", "CUTLASS has no functor with the values of `silu`"),
        ("D = tanh(acc + bias)", "CUTLASS has no functor with the values of `tanh`"),
        ("D = acc*acc", "CUTLASS has no functor with the values of `square`"),
        ("D = acc*sigmoid(acc + C)", "`acc` is used more than once"),
        ("D = acc + 1", "a number is added, and no input times a factor"),
        ("D = acc + alpha", "the scalar `alpha` is added"),
        ("D = acc + (bias + C)", "a function of inputs is added, and no input times a factor"),
        ("D = acc - beta*C", "`beta * C` is subtracted"),
        ("D = (acc + bias)*2", "2 multiplies more than `acc`"),
        ("D = alpha*relu(acc)", "`alpha` multiplies more than `acc`"),
        ("in s[m], t[n]; D = s*t*acc", "a factor is neither a number nor an input"),
        ("D = bf16(acc) + bias", "bf16(...) rounds in between"),
        ("D = clamp(acc, 0, C)", "`max` of `clamp` is no finite number"),
        ("D = leaky_relu(acc, alpha)", "`negative_slope` of `leaky_relu` is no finite number"),
        ("D = acc + C + C", "an input is used more than once"),
        ("D = relu(C*acc) + residual", "stock epilogues end with terms and an activation, and this formula goes on"),
        ("D = relu(gelu(acc))", "stock epilogues end with terms and an activation, and this formula goes on"),
        ("out D, r: f32[m]; D = acc; r = sum[n](acc)", "`r` is a second output, and no value before an activation"),
        ("out D, Z; Z = acc; D = relu(acc + C)", "`Z` is a second output, and no value before an activation"),
        ("out D, Z; Z = relu(acc); D = Z + C", "`Z` is a second output, and no value before an activation"),
        ("out D: f32[m]; D = sum[n](acc)", "a reduce is no element-wise function"),
        ("D = silu(even(acc)) * odd(acc)", "`acc` is used more than once"),
    ],
)
def test_other_formulas_have_a_reason(formula, reason) -> None:
    assert refused(formula) == reason


def test_types_other_than_f32_have_a_reason() -> None:
    assert refused("out D: f64; D = acc", "f64") == "D is computed in f64, not in f32"
    assert refused("out D: i32; D = acc + C; in C: i32[m, n]", "i8") == "D is computed in i32, not in f32"
    assert matched("D = alpha*acc + bias", "i8") == Stock(ALPHA, (BIAS,))


def text(formula: str, arch: str, dtype: str = "f16", route: str | None = "stock", **settings) -> str:
    generated = evt.gemm(formula, route=route, **settings).emit(arch, dtype, dtype)
    return generated.partition("\n// YOUR EPILOGUE\n")[2]


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        (
            "D = acc",
            "LinearCombination<ElementD, kElementsPerAccess, ElementAccumulator, float, {S}Nothing, kRoundStyle>",
        ),
        (
            "D = alpha*acc",
            "LinearCombination<ElementD, kElementsPerAccess, ElementAccumulator, float, {S}OnlyAlphaScaling",
        ),
        ("D = acc + 0.5*C", "LinearCombination<ElementD, kElementsPerAccess, ElementAccumulator, float, {S}Default"),
        (
            "D = relu(acc + C)",
            "LinearCombinationGeneric<{T}ReLu, ElementD, kElementsPerAccess, ElementAccumulator, float, ",
        ),
        ("D = gelu(acc + bias)", "{S}NoBetaScaling, kRoundStyle>"),
        ("in bias: f32[n]; D = gelu(acc + bias)", "BiasElementwise<ElementD, ElementAccumulator, float, ElementD, "),
        ("D = acc + C + bias", "{T}Identity<float>, cutlass::plus<float>, false, cutlass::half_t>"),
        ("out D, Z: f32[m, n]; Z = acc + C; D = relu(Z)", "float, ElementD, float, kElementsPerAccess, {T}ReLu<float>"),
        (
            "D = alpha*acc + beta*C",
            "kElementsPerAccess, {T}Identity, cutlass::plus, {T}Identity, {T}detail::NoOp, false",
        ),
        ("D = relu(acc + bias) + C", "kElementsPerAccess, {T}ReLu, cutlass::plus, {T}Identity, {T}detail::NoOp, false"),
        ("D = relu(acc + bias + C)", "kElementsPerAccess, {T}Identity, cutlass::plus, {T}ReLu, {T}detail::NoOp, false"),
        ("D = relu(acc) * C", "kElementsPerAccess, {T}ReLu, cutlass::multiplies, {T}Identity, {T}detail::NoOp, false"),
        ("D = relu(acc)*C + residual", "{T}ReLu, cutlass::multiplies, {T}Identity, cutlass::plus, false, ElementD>"),
    ],
)
def test_output_operators(formula, wanted) -> None:
    generated = text(formula, "sm80")
    assert wanted.format(T=THREAD, S=f"{THREAD}ScaleType::") in generated
    assert "Visitor" not in generated


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        ("D = acc", "ScaledAcc<ElementD, ElementCompute, float, kRoundStyle>"),
        ("D = alpha*acc + C", "LinearCombination<ElementD, ElementCompute, ElementC, float, kRoundStyle>"),
        ("D = hardswish(acc)", "LinCombEltAct<{T}HardSwish, ElementD, ElementCompute, ElementC, float, kRoundStyle>"),
        (
            "D = acc + bias",
            "LinCombPerColBias<ElementD, ElementCompute, cutlass::half_t, ElementC, float, 1, kRoundStyle>",
        ),
        ("in b: f32[m]; D = relu(acc + b + C)", "LinCombPerRowBiasEltAct<{T}ReLu, ElementD, ElementCompute, float, "),
        ("out D, Z; Z = acc + bias; D = gelu(Z)", "LinCombPerColBiasEltActAux<cutlass::layout::RowMajor, {T}GELU"),
        (
            "in s: f32[m], t: f32[m], b[m]; D = relu(s*acc + b + t*C)",
            "PerRowLinCombPerRowBiasEltAct<{T}ReLu, ElementD, ElementCompute, cutlass::half_t, ElementC, float, 1, 1, ",
        ),
        ("in s: f32[n], t: f32[n]; D = s*acc + bias + t*C", "PerColLinCombPerColBiasEltAct<{T}Identity, ElementD, "),
        ("in s: f32[n], t: f32[n]; D = relu(s*acc + bias) + t*C", "PerColResAddPerColBiasEltAct<{T}ReLu, ElementD, "),
    ],
)
def test_fusion_operations(formula, wanted) -> None:
    for arch in ("sm90", "sm100"):
        generated = text(formula, arch)
        assert f"cutlass::epilogue::fusion::{wanted.format(T=THREAD)}" in generated
        assert "Sm90EVT" not in generated
    assert "FusionCallbacks<" in text(formula, "sm120", "e4m3")


@pytest.mark.parametrize(
    ("formula", "reason_2x", "reason_3x"),
    [
        ("D = alpha*acc + beta*C", None, "the stock operation leaves `C` out where its factor is 0"),
        ("D = acc + 0*C", None, "the stock operation leaves `C` out where its factor is 0"),
        ("D = clamp(acc + beta*C, 0, 1)", "does not pass arguments to Clamp", "leaves `C` out where its factor is 0"),
        ("D = acc + C + bias", None, "`bias` is added after `C`, and the stock operation adds it before"),
        ("out D, Z; Z = acc + bias + C; D = relu(Z)", "`bias` is added before `C`, and the operator", None),
        ("D = relu(acc) + C", None, "with a residual after the activation reads alpha and beta as vectors"),
        ("D = acc * C", None, "`C` multiplies, and the stock operations add C"),
        ("D = acc + C + residual", None, "`C` and `residual` are two tensors, and there is one source C"),
        ("D = relu(acc + C) + residual", "`C` enters before the activation and `residual` after it", "two tensors"),
        ("in b[m]; D = acc + b", "`b` has one value for each of the kernel's rows", None),
        (
            "in s[n]; D = s*acc",
            "`s` is a vector, and CUTLASS 2.x scales by a number",
            "has one for acc, one for C, and",
        ),
        ("in s[m?]; D = s*acc", "`s` is a vector, and CUTLASS 2.x", "`s` is a vector or a single value"),
        ("in b[n?]; D = acc + b", *["`b` is a vector or a single value, as a call decides"] * 2),
        ("in s: bf16; D = s[]*acc", *["the scalar `s` is bf16[], and not f32[]"] * 2),
        ("in g: f32[l]; D = g*acc", *["the scalar `g` is f32[l], and not f32[]"] * 2),
        ("in C: f32[l, m, n]; D = acc + C", "`C` is f32 and D is f16: CUTLASS 2.x reads C in the type of D", None),
        ("in C[n, m]; D = acc + C", "`C` is not contiguous along n, as D is", "`C` is the same for every batch"),
        ("D = relu(acc) + bias", *["the vector `bias` comes after the activation"] * 2),
        ("in b[n]; D = acc + bias + b", *["`bias` and `b` are vectors: stock epilogues add one"] * 2),
        ("D = acc + beta*bias", *["the vector `bias` has a factor"] * 2),
        ("out D, Z; Z = acc; D = relu(Z)", None, "the stock operation that stores `Z` adds a vector"),
        ("out D: i8; D = relu(alpha*acc)", *["D is computed in i8, not in f32"] * 2),
        ("in C: i8[m, n]; D = acc + C", *["a function of inputs is added, and no input times a factor"] * 2),
        ("out D: e4m3; D = relu(acc)", "D is e4m3: the stock operators for 8 bits scale", None),
        ("in C[m, n]; D = acc + C", None, "`C` is the same for every batch"),
    ],
)
def test_what_no_class_computes_has_a_reason(formula, reason_2x, reason_3x) -> None:
    for arch, route, reason in (("sm80", "stock-2x", reason_2x), ("sm90", "stock-3x", reason_3x)):
        if reason is None:
            assert text(formula, arch, route=route)
            continue
        with pytest.raises(evt.TargetError, match="E0502") as caught:
            text(formula, arch, route=route)
        assert reason in str(caught.value)


def test_settings_that_stock_epilogues_do_not_keep() -> None:
    with pytest.raises(evt.TargetError, match='numerics="eager" rounds products on their own'):
        text("D = relu(acc)", "sm80", numerics="eager", route="stock-2x")
    with pytest.raises(evt.TargetError, match="fast_math=True approximates the activation"):
        text("D = gelu(acc)", "sm90", fast_math=True, route="stock-3x")
    assert text("D = relu(acc)", "sm90", fast_math=True)


def test_stock_epilogues_are_preferred_and_either_kind_can_be_forced() -> None:
    for arch, family in (("sm80", "2x"), ("sm90", "3x"), ("sm120", "2x")):
        dag = optimised_graph(evt.gemm("D = relu(acc + bias)").request)
        problem = Problem(dag, natural_signature(dag), find_target(arch))
        assert route_of(problem) == ("gemm-own-3x" if family == "3x" else f"stock-{family}")
        assert route_of(problem, "stock") == f"stock-{family}"
        assert route_of(problem, "evt") == f"evt-{family}"
    assert "Visitor" in text("D = relu(acc + bias)", "sm80", route="evt")
    assert isinstance(evt.gemm("D = silu(acc)").explain("sm90").plan.epilogue, EpilogueProgram)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("alignment", [1, 2, 4, 8])
@pytest.mark.parametrize("narrow", ["D", "residual", "bias"])
def test_an_i32_accumulator_is_stored_in_16_bits_by_whole_accesses(dtype, alignment, narrow) -> None:
    dag = optimised_graph(
        evt.gemm(
            f"in residual: {dtype}[m, n], bias: {dtype}[n]; out D: {dtype}[m, n]\nD = relu(acc + bias) + residual"
        ).request,
        "i8",
        "i8",
    )
    signature = natural_signature(dag)
    tensors = tuple(
        (name, replace(layout, alignment=alignment) if name == narrow else layout) for name, layout in signature.tensors
    )
    problem = Problem(dag, replace(signature, tensors=tensors), find_target("sm80"))
    if dtype == "f32" or alignment == 8:
        assert route_of(problem) == "stock-2x"
    else:
        assert route_of(problem) == "evt-2x"
        with pytest.raises(evt.TargetError, match=f"`{narrow}` is aligned to {alignment} of its elements"):
            route_of(problem, "stock")


def test_a_slow_functor_comes_after_the_visitors() -> None:
    """CUTLASS's GELU calls erff, which branches: a stock epilogue has it where that is asked for."""
    for arch, family in (("sm80", "2x"), ("sm90", "3x"), ("sm120", "2x")):
        op = evt.gemm("D = gelu(acc + bias)")
        dag = optimised_graph(op.request)
        problem = Problem(dag, natural_signature(dag), find_target(arch))
        assert route_of(problem) == ("gemm-own-3x" if family == "3x" else f"evt-{family}")
        assert op.plan(arch).route == f"evt-{family}"
        assert route_of(problem, "stock") == f"stock-{family}"
        assert "GELU" in text("D = gelu(acc + bias)", arch, route="stock")
        assert "GELU" not in text("out D, Z; Z = acc + bias; D = gelu(Z)", arch, route="evt")  # a separate region
    explained = evt.gemm("D = gelu(acc)").explain("sm90").details()
    assert "with lower priority: cutlass::epilogue::thread::GELU takes longer than evt's function" in explained


def test_a_newer_generation_comes_before_a_stock_epilogue() -> None:
    assert evt.gemm("D = relu(acc) + C").plan("sm90").route == "evt-3x"


def tensors_of(made: Plan) -> dict[str, StockTensor]:
    """Return the tensors that an output operator has, by the kernel's names."""
    assert isinstance(made.epilogue, StockOperator)
    return {role: tensor for role, tensor in made.epilogue.tensors if tensor is not None}


def test_narrow_tensors_narrow_the_accesses() -> None:
    dag = optimised_graph(evt.gemm("D = acc + bias").request)
    signature = natural_signature(dag)
    tensors = dict(signature.tensors)
    for name, alignment in (("D", 2), ("bias", 4)):
        narrow = replace(signature, tensors=tuple({**tensors, name: LayoutClass("n", alignment)}.items()))
        made = plan(Problem(dag, narrow, find_target("sm80")), "stock-2x")
        assert made.elements_per_access == alignment
        assert f"kElementsPerAccess = {alignment};" in emit(made)


def test_a_column_major_d_is_the_transposed_problem() -> None:
    made = evt.gemm("in b: f16[m]; out D[n, m]; D = relu(acc + b)", route="stock").plan("sm80")
    assert (made.rows, made.columns) == ("n", "m")
    assert tensors_of(made)["C"].pitch == 0  # a bias is a C whose rows are all the same
    assert "result.ldc = 0;" in emit(made)
    swapped = evt.gemm("D = acc + bias", route="stock").plan("sm90", "f32")
    assert swapped.rows == "n"
    assert "LinCombPerRowBias" in emit(swapped)


def test_scalars_come_by_value_or_by_pointer() -> None:
    for arch in ("sm80", "sm90"):
        generated = text("D = alpha*acc", arch)
        assert ".alpha = static_cast<float>(arguments.value_of_in_alpha);" in generated
        assert ".alpha_ptr = static_cast<float const*>(arguments.in_alpha);" in generated


def test_batches_have_strides() -> None:
    made = evt.gemm("in b[l, n]; D = acc + b + C", route="stock").plan("sm80")
    found = tensors_of(made)
    assert {role: str(tensor.batch) for role, tensor in found.items()} == {
        "D": "stride_l_of_out_D",
        "C": "stride_l_of_in_C",
        "Vector": "stride_l_of_in_b",
    }
    assert found["Vector"].pitch == 0
    assert "result.batch_stride_Vector = arguments.stride_l_of_in_b;" in emit(made)
    generated = text("in b[l, n]; D = acc + b + C", "sm90")
    assert "dBias = {cute::_0{}, cute::_1{}, arguments.stride_l_of_in_b};" in generated


def test_what_a_formula_does_not_have_is_null() -> None:
    assert "result.ptr_Vector = nullptr;" in text("D = alpha*acc + beta*C", "sm80")
    assert "result.ptr_Tensor = nullptr;" in text("D = alpha*acc + beta*C", "sm80")
    assert "result.ptr_C = nullptr;" in text("D = relu(acc)", "sm80")
    assert "result.ptr_Vector = nullptr;" in of_convolution("D = alpha*acc + beta*C")


def test_explain_names_the_class_and_what_it_is_given() -> None:
    shown = evt.gemm("D = relu(alpha*acc + bias) + C").explain("sm80").details()
    assert "-> stock-2x: CUTLASS output operator" in shown
    assert "epilogue of CUTLASS:" in shown
    assert "   LinearCombinationResidualBlock of ReLu, plus, Identity, NoOp" in shown
    assert "   alpha: value_of_in_alpha" in shown
    assert "   ptr_Vector: in_bias" in shown
    shown = evt.gemm("D = relu(alpha*acc + beta*C) + residual").explain("sm90").details()
    assert "fails  the formula is what a fusion operation computes: `C` and `residual` are two tensors" in shown


# Convolutions


def convolution(formula: str, operation: str = "conv2d", dtype: str = "f16", arch: str = "sm80", **keywords):
    program = Program(Source(formula), operation, **{"padding": 1, **keywords})
    dag = optimised_graph(program.request, dtype, dtype)
    of = convolution_class(program.request.convolution, None)
    return Problem(dag, natural_signature(dag, of), find_target(arch))


def of_convolution(formula: str, operation: str = "conv2d", arch: str = "sm80", **keywords) -> str:
    """Return the text of the kernel by the stock route."""
    problem = convolution(formula, operation, arch=arch, **keywords)
    made = plan(problem, "conv-stock-2x")
    return emit(made).partition("\n// YOUR EPILOGUE\n")[2]


@pytest.mark.parametrize("arch", ["sm80", "sm89"])
def test_convolution_relu_add_runs_by_both_routes(arch) -> None:
    problem = convolution("D = relu(acc + bias) + residual", arch=arch)
    assert route_of(problem) == "conv-stock-2x"
    assert route_of(problem, "evt") == "conv-evt-2x"
    generated = of_convolution("D = relu(acc + bias) + residual", arch=arch)
    assert "DefaultConv2dFpropWithBroadcast<" in generated
    assert f"kElementsPerAccess, {THREAD}ReLu, cutlass::plus, {THREAD}Identity, {THREAD}detail::NoOp" in generated
    assert "result.ptr_Vector = static_cast<cutlass::half_t*>(const_cast<void*>(arguments.in_bias));" in generated


@pytest.mark.parametrize(
    ("formula", "operation", "keywords", "wanted"),
    [
        ("D = gelu(acc + bias)", "conv2d", {}, "DefaultConv2dFprop<"),
        ("D = relu(acc + bias + C)", "conv3d", {}, "DefaultConv3dFpropWithBroadcast<"),
        ("D = acc + C", "conv2d_wgrad", {"kernel_size": 3}, "DefaultConv2dWgrad<"),
        ("D = relu(acc + bias)", "conv2d_dgrad", {}, "StrideSupport::kUnity"),
        (
            "D = relu(acc + bias)",
            "conv2d_dgrad",
            {"stride": 2},
            "threadblock::StridedDgradIdentityThreadblockSwizzle<8>",
        ),
        ("D = relu(acc + bias)", "conv3d_dgrad", {"stride": 2}, "IteratorAlgorithm::kAnalytic, "),
        ("D = relu(acc + bias)", "conv2d", {"groups": 2}, "DefaultConv2dGroupFprop<"),
    ],
)
def test_convolutions_with_output_operators(formula, operation, keywords, wanted) -> None:
    assert wanted in of_convolution(formula, operation, **keywords)


@pytest.mark.parametrize(
    ("formula", "operation", "keywords", "reason"),
    [
        ("D = relu(acc + bias) + C", "conv2d_dgrad", {}, "CUTLASS has such convolutions for fprop without groups only"),
        ("D = relu(acc + bias) + C", "conv2d", {"groups": 2}, "CUTLASS has such convolutions for fprop without groups"),
        ("D = acc + bias + C + R", "conv2d", {}, "`C` and `R` are two tensors, and convolutions read one"),
        ("D = acc", "conv2d_dgrad", {"stride": 2, "dilation": 2}, "CUTLASS's dgrad with a stride has no dilation"),
        ("D = silu(acc)", "conv2d", {}, "CUTLASS has no functor with the values of `silu`"),
    ],
)
def test_convolutions_without_output_operators_have_a_reason(formula, operation, keywords, reason) -> None:
    problem = convolution(formula, operation, **keywords)
    with pytest.raises(evt.TargetError, match="E0502") as caught:
        route_of(problem, "conv-stock-2x")
    assert reason in str(caught.value)


def test_a_gradient_of_the_input_with_a_stride_has_the_stock_route_only() -> None:
    problem = convolution("D = relu(acc + bias)", "conv2d_dgrad", stride=2)
    assert route_of(problem) == "conv-stock-2x"
    with pytest.raises(evt.TargetError, match="E0503"):
        route_of(problem, "evt")


def test_accesses_of_a_weights_gradient_stay_within_a_tap() -> None:
    problem = convolution("D = acc", "conv2d_wgrad", kernel_size=3)
    signature = replace(problem.signature, b=LayoutClass("n", 2))
    made = plan(replace(problem, signature=signature), "conv-stock-2x")
    assert made.elements_per_access == 2


def test_a_pointwise_convolution_is_a_product_of_matrices() -> None:
    problem = convolution("D = relu(acc + bias)", arch="sm90")
    pointwise = replace(problem.signature.convolution, unit_filter=True, padded=False)
    problem = replace(problem, signature=replace(problem.signature, convolution=pointwise))
    assert route_of(problem) == "gemm-own-3x"
    assert route_of(problem, "stock") == "stock-3x"
