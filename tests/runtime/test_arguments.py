"""Checks of a call's arguments: names, kinds, dtypes, shapes, strides, and the layouts that follow."""

from __future__ import annotations

import re

import pytest
import torch

import evt
from evt.ir.dtype import STORAGE
from evt.plan import TARGETS, find_target
from evt.runtime.arguments import bind
from evt.runtime.kernels import plan_kernels, refuse_capture

A, B = torch.zeros(40, 24, dtype=torch.float16), torch.zeros(24, 16, dtype=torch.float16)
C = torch.zeros(40, 16, dtype=torch.float16)
BIAS = torch.zeros(16, dtype=torch.float16)


def codes(op: evt.Program, a=A, b=B, out=None, **inputs) -> list[str]:
    with pytest.raises(evt.EvtError) as caught:
        op(a, b, out=out, **inputs)
    return [diagnostic.code for diagnostic in caught.value.diagnostics]


ADD = evt.gemm("D = acc + C")
SCALED = evt.gemm("D = alpha*acc + bias")


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, ["E0601"]),
        ({"C": C, "E": C}, ["E0602"]),
        ({"c": C}, ["E0602", "E0601"]),
        ({"C": None}, ["E0607"]),
        ({"C": 1.0}, ["E0607"]),
        ({"C": "text"}, ["E0607"]),
        ({"C": C.numpy()}, ["E0607"]),
        ({"C": C.float()}, ["E0603"]),
        ({"C": C.to(torch.int8)}, ["E0603"]),
        ({"C": C.T}, ["E0604"]),
        ({"C": C[None]}, ["E0604"]),
        ({"C": C[:, :1]}, ["E0604"]),
        ({"C": C.to_sparse()}, ["E0606"]),
        ({"C": C.to("meta")}, ["E0605"]),
        ({"C": torch.zeros(40, 16, dtype=torch.float16, requires_grad=True), "out": C.clone()}, ["E0610"]),
        ({"C": C, "out": C[:8]}, ["E0608"]),
        ({"C": C, "out": C.float()}, ["E0603"]),
        ({"C": C, "out": 7}, ["E0608"]),
        ({"C": C, "out": {"Q": C}}, ["E0602"]),
        ({"C": C, "out": C[:1].expand(40, 16)}, ["E0608"]),
        ({"C": C, "D": C, "out": C}, ["E0602"]),
    ],
)
def test_each_mistake_has_its_code(inputs, expected) -> None:
    assert codes(ADD, **inputs) == expected


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (C, "in C: f16[m, n]"),
        (C[:, 0], "in C: f16[m]"),
        (BIAS.float(), "in C: f32[n]"),
        (C[:8, :8], "in C: f16[m, n]"),
        (torch.zeros(7), "in C: f32[n]"),
    ],
)
@pytest.mark.parametrize("text", ["in C: f16; D = acc + C", "in C; D = acc + C", "in C: i32 = 1; D = acc + C"])
def test_a_tensor_for_a_scalar_is_told_its_declaration(text, given, declared) -> None:
    with pytest.raises(evt.ArgumentError) as caught:
        evt.gemm(text)(A, B, C=given)
    (found,) = caught.value.diagnostics
    assert found.code == "E0604"
    assert found.help == f"an input without a subscript is a scalar; declare what this is: `{declared}`"


def test_an_image_for_a_scalar_of_a_convolution_is_told_its_declaration() -> None:
    x, weight, image = torch.zeros(2, 8, 5, 5).half(), torch.zeros(16, 8, 3, 3).half(), torch.zeros(2, 16, 3, 3).half()
    with pytest.raises(evt.ArgumentError, match=r"declare what this is: `in residual: f16\[m, n\]`"):
        evt.conv2d("in residual: f16; D = acc + residual")(x, weight, residual=image)


def test_a_batch_of_matrices_for_one_is_told_its_declaration() -> None:
    a = A.expand(3, 40, 24)
    with pytest.raises(evt.ArgumentError, match=r"one for each batch is declared `in C: f16\[l, m, n\]`"):
        evt.gemm("in C: f16[m, n]; D = acc + C")(a, B, C=C.expand(3, 40, 16))
    assert evt.gemm("in C: f16[l, m, n]; D = acc + C").reference(A, B, C=C).shape == (40, 16)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (A, B.T, "E0604"),
        (A.float(), B, "E0603"),
        (A.to(torch.complex64), B, "E0603"),
        (A[0], B, "E0604"),
        (A, B[None].expand(3, 24, 16)[:, :20], "E0604"),
        (torch.zeros(2, 40, 24).half(), torch.zeros(3, 24, 16).half(), "E0604"),
        (None, B, "E0607"),
        (A[:, ::2], B[::2], "E0606"),
        (A[:1].expand(40, 24), B, "E0606"),
        (A.to("meta"), B, "E0605"),
        (A, B.to("meta"), "E0605"),
    ],
)
def test_operands(a, b, expected) -> None:
    assert codes(evt.gemm("D = acc"), a, b)[0] == expected


def test_an_expanded_operand_is_told_from_a_strided_one() -> None:
    """Its strides can have a 1, so the rule for strided ones would contradict the message."""
    with pytest.raises(evt.ArgumentError, match=r"strides \(0, 1\); it must not be expanded"):
        evt.gemm("D = acc")(A[:1].expand(40, 24), B)


#: Programs that read `v`, and its shape.
READERS = {
    "D = acc + v[n]": (16,),
    "D = acc*v[m, n]": (40, 16),
    "in v: f32; D = acc*v": (1,),
    "in v: f32[m?]; D = acc*v": (40,),
    "in v: i32[m]; D = acc + T[v[m], n]": (40,),
    "in v: i32[m]; out D: f16[v[m], n]; D = acc": (40,),
    "in v: i64; D = dropout(acc, 0.5, v, 0)": (1,),
}


@pytest.mark.parametrize("text", READERS)
def test_the_help_for_another_type_is_a_program(text: str) -> None:
    """It names a declaration only if the program may have it: an index is i32, a seed an integer."""
    body = text.partition("; ")[2] if text.startswith("in v") else text
    for dtype in STORAGE:
        given = {"v": torch.ones(READERS[text]).to(getattr(torch, dtype.torch))}
        given |= {"T": torch.zeros(40, 16)} if "T[" in text else {}
        try:
            evt.gemm(text)(A, B, **given)
        except evt.EvtError as error:
            for found in error.diagnostics:
                if declared := re.search("declare it in the program: `(.*?)`", found.help):
                    evt.gemm(f"{declared[1]}; {body}")


@pytest.mark.parametrize("alpha", [True, "1", None, [1.0], torch.ones(2), torch.ones(1).half(), 10**400, 1j])
def test_scalars_that_are_none(alpha) -> None:
    assert codes(SCALED, alpha=alpha, bias=BIAS)[0] in {"E0607", "E0604", "E0603"}


@pytest.mark.parametrize("alpha", [1, 2.5, float("inf"), torch.ones(()), torch.ones(1), torch.ones(1, 1)])
def test_scalars(alpha) -> None:
    assert SCALED(A, B, alpha=alpha, bias=BIAS).shape == (40, 16)


def test_subclasses_and_numpy_scalars_are_taken_for_what_they_are() -> None:
    import numpy

    bias = torch.nn.Parameter(BIAS, requires_grad=False)
    assert SCALED(A, B, alpha=numpy.float32(2), bias=bias).shape == (40, 16)


def test_a_requirement_of_gradients_is_lifted_by_no_grad() -> None:
    a = torch.zeros(40, 24, dtype=torch.float16, requires_grad=True)
    with torch.no_grad():
        assert ADD(a, B, C=C).shape == (40, 16)


def test_outputs_go_where_they_are_asked_to() -> None:
    op = evt.gemm("out E: f32[m, n], D; D = acc + C; E = acc")
    e, d = torch.full((40, 16), torch.nan), torch.full((40, 16), torch.nan, dtype=torch.float16)
    result = op(A, B, C=C + 1, out=(e, d))
    assert result.E is e
    assert result.D is d
    assert e.isfinite().all()
    assert (d == 1).all()
    assert op(A, B, C=C, D=d).D is d


@pytest.mark.parametrize("output", ["D[n/2, m]", "D[l, n/16, m]", "D[n, m]"])
def test_what_a_call_allocates_may_be_given_to_one(output) -> None:
    value = "even(acc)" if "n/2" in output else "max[n%16](acc)" if "n/16" in output else "acc"
    op = evt.gemm(f"out {output}; D = {value}")
    fresh = op(A, B)
    assert op(A, B, out=torch.full_like(fresh, 3)).equal(fresh)


def layout(op: evt.Program, name: str, a=A, b=B, **inputs):
    return bind(op.request, a, b, inputs, {}).tensors[name]


def test_layouts_follow_strides() -> None:
    assert layout(ADD, "A", C=C).layout.contiguous == "k"
    assert layout(ADD, "A", A.T.contiguous().T, C=C).layout.contiguous == "m"
    assert layout(ADD, "C", C=C).layout.alignment == 8
    wide = torch.zeros(40, 20, dtype=torch.float16)
    assert layout(ADD, "C", C=wide[:, :16]).layout.alignment == 4
    assert layout(ADD, "C", C=torch.zeros(16, 40).half().T).layout.contiguous == "m"
    assert layout(ADD, "C", C=torch.zeros(16).half().expand(40, 16)).layout.contiguous is None
    assert layout(ADD, "C", C=torch.zeros(80, 32).half()[::2, ::2]).layout.contiguous is None


def test_batches_are_strided_or_shared() -> None:
    a = torch.zeros(3, 40, 24).half()
    batched = torch.zeros(3, 40, 16).half()
    assert layout(ADD, "B", a, C=C).layout.batch == "shared"
    assert layout(ADD, "C", a, C=C).layout.batch == "shared"
    assert layout(ADD, "C", a, C=batched).layout.batch == "strided"
    assert layout(ADD, "C", a, C=batched).strides == {"l": 640, "m": 16, "n": 1}
    assert ADD(a, B, C=batched).shape == (3, 40, 16)
    assert ADD(torch.zeros(2, 3, 40, 24).half(), B, C=C).shape == (2, 3, 40, 16)


def test_declared_shapes_are_strict_and_transposes_are_read() -> None:
    strict = evt.gemm("in C[m, n]; D = acc + C")
    a = torch.zeros(3, 40, 24).half()
    assert codes(strict, a, C=torch.zeros(3, 40, 16).half()) == ["E0604"]
    transposed = evt.gemm("in C[n, m]; out D[n, m]; D = acc + C")
    assert transposed(A, B, C=C.T).shape == (16, 40)


def test_linear_folds_leading_dimensions() -> None:
    op = evt.linear("in s: f32[m]; D = acc*s + bias + C")
    x, weight = torch.ones(2, 5, 24), torch.ones(16, 24)
    inputs = {"bias": torch.ones(16), "C": torch.ones(2, 5, 16), "s": torch.full((2, 5), 2.0)}
    assert torch.equal(op(x, weight, **inputs), torch.full((2, 5, 16), 50.0))
    assert torch.equal(op(x, weight, **{**inputs, "s": torch.full((10,), 2.0)}), torch.full((2, 5, 16), 50.0))
    assert op(x[0, 0], weight, bias=torch.ones(16), C=torch.ones(16), s=torch.ones(())).shape == (16,)


def test_extents_of_one_get_legal_strides() -> None:
    argument = layout(ADD, "A", torch.zeros(24).half()[None], C=torch.zeros(1, 16).half())
    assert argument.strides["m"] * 2 % 16 == 0
    assert argument.layout.contiguous == "k"


@pytest.mark.parametrize(("m", "n", "k"), [(0, 16, 24), (40, 0, 24), (40, 16, 0)])
def test_empty_problems(m, n, k) -> None:
    bias = torch.ones(n).half()
    got = evt.gemm("D = acc + bias")(torch.zeros(m, k).half(), torch.zeros(k, n).half(), bias=bias)
    assert torch.equal(got, torch.ones(m, n).half())


def test_an_overlapping_buffer_is_refused_on_every_device() -> None:
    storage = torch.zeros(41, 16, dtype=torch.float16)
    assert codes(ADD, C=storage[:40], out=storage[1:]) == ["E0609"]
    assert codes(SCALED, alpha=1.0, bias=storage[0], out=storage[:40]) == ["E0609"]
    c = torch.ones(40, 16, dtype=torch.float16)
    assert ADD(A, B, C=c, out=c) is c  # element by element


def test_a_first_call_inside_graph_capture_is_refused(monkeypatch) -> None:
    refuse_capture()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(evt.LaunchError, match="inside CUDA graph capture"):
        refuse_capture()


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2, 24).half()])
    assert codes(ADD, nested, C=C)[0] == "E0606"


@pytest.mark.parametrize("text", [None, b"D = acc", 3])
def test_a_program_is_a_string(text) -> None:
    with pytest.raises(evt.ArgumentError, match=r"E0607.*a program is a str"):
        evt.gemm(text)


def test_torch_dtypes_name_types() -> None:
    assert evt.emit("D = acc", dtype=torch.bfloat16) == evt.emit("D = acc", dtype="bf16")
    with pytest.raises(evt.TargetError, match="E0303"):
        evt.emit("D = acc", dtype=torch.complex64)
    with pytest.raises(evt.TargetError, match="E0501"):
        evt.emit("D = acc", op=None)


# None

OPTIONAL = "in bias: f16[n] = 0, beta: f32[] = 1, s: f32[m?] = 1, C: f16[m, n] = 0; D = (beta*acc + bias + C)*s"
GIVEN = {"bias": BIAS + 3, "beta": 2.0, "s": torch.full((40,), 2.0), "C": C + 1}


@pytest.mark.parametrize("names", [("bias",), ("beta",), ("s",), ("C",), ("bias", "C"), tuple(GIVEN)])
def test_none_leaves_out_what_has_a_default(names) -> None:
    op = evt.gemm(OPTIONAL)
    given = {name: value for name, value in GIVEN.items() if name not in names}
    nothing = dict.fromkeys(names)
    want = op(A + 1, B + 1, **given)
    assert torch.equal(op(A + 1, B + 1, **given, **nothing), want)
    assert torch.equal(op.reference(A + 1, B + 1, **given, **nothing), want)
    linear = evt.linear(OPTIONAL)
    assert torch.equal(linear(A + 1, (B + 1).mT, **given, **nothing), want)
    many = {name: [value, value] for name, value in given.items()}
    grouped = evt.grouped_gemm(OPTIONAL)
    for left_out in (nothing, {name: [None, None] for name in names}):
        for run in (grouped, grouped.reference):
            for got in run([A + 1] * 2, [B + 1] * 2, **many, **left_out):
                assert torch.equal(got, want)


def test_none_in_a_convolution() -> None:
    op = evt.conv2d("in bias: f32[n] = 0; D = relu(acc + bias)", padding=1)
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(8, 3, 3, 3)
    assert torch.equal(op(x, weight, bias=None), op(x, weight))
    assert torch.equal(op.reference(x, weight, bias=None), op(x, weight))


def test_none_in_the_place_of_a_buffer() -> None:
    op = evt.gemm("out D, E: f32[m, n]; D = acc; E = acc + 1")
    e = torch.zeros(40, 16)
    for out in ({"D": None, "E": e}, (None, e)):
        found = op(A, B, out=out)
        assert found.E is e
        assert found.D.shape == (40, 16)
    assert op(A, B, D=None, E=e).E is e
    assert op(A, B, D=None, out=(None, e)).E is e
    grouped = evt.grouped_gemm("out D, E: f32[m, n]; D = acc; E = acc + 1")
    for buffers in (
        {"D": [None, None]},
        {"D": None, "out": ([None, None], [e, e.clone()])},
        {"out": {"D": [None] * 2}},
    ):
        assert len(grouped([A, A], [B, B], **buffers).D) == 2


def test_none_in_some_groups() -> None:
    grouped = evt.grouped_gemm(OPTIONAL)
    pair = [A, A], [B, B]
    assert len(grouped(*pair, beta=[None, 2.0], s=[None, 2.0])) == 2  # single values have the default's number
    for name in ("bias", "C"):
        with pytest.raises(evt.ArgumentError, match=f"`{name}` is given in group 1 and left out of group 0"):
            grouped(*pair, **{name: [None, GIVEN[name]]})
    with pytest.raises(evt.ArgumentError, match=r"E0608.*the buffer `D` of group 1 is None"):
        grouped(*pair, D=[C, None])


@pytest.mark.parametrize("op", [ADD, evt.gemm("in C: f16[m, n]; D = acc + C"), evt.linear("D = acc + C")])
def test_none_without_a_default(op) -> None:
    b = B if op.request.operation == "gemm" else B.mT
    for run in (op, op.reference):
        with pytest.raises(evt.ArgumentError, match=r"E0607.*`C` is None, and the program gives it no default"):
            run(A, b, C=None)
    with pytest.raises(evt.ArgumentError, match=r"E0607.*group 0: `C` is None, and"):
        evt.grouped_gemm("D = acc + C")([A], [B], C=None)
    with pytest.raises(evt.ArgumentError, match="E0602"):
        op(A, b, C=C, Q=None)


def test_an_argument_of_an_operands_name_is_unknown() -> None:
    for name in ("A", "B", "acc"):
        assert codes(ADD, C=C, **{name: C}) == ["E0602"]
        assert codes(ADD, C=C, **{name: None}) == ["E0602"]


# Inputs that cancel out


def test_an_input_that_cancels_out_is_taken_and_checked() -> None:
    op = evt.gemm("def first(x, y) = x\nin v: f32[n], C: f16[m, n]; D = first(acc, s) + first(0, v) + first(0, C)")
    assert op.inputs == ("s", "v", "C")
    given = {"s": torch.ones(40, 16).half(), "v": torch.ones(16), "C": C}
    for run in (op, op.reference):
        assert torch.equal(run(A + 1, B + 1, **given), run(A + 1, B + 1, **{**given, "C": C + 1}))
    assert codes(op, **{**given, "s": None}) == ["E0607"]
    assert codes(op, v=given["v"], C=C) == ["E0601"]
    assert codes(op, **{**given, "v": torch.ones(7)}) == ["E0604"]
    assert codes(op, **{**given, "C": C.float()}) == ["E0603"]
    assert codes(op, **given, q=1) == ["E0602"]
    grouped = evt.grouped_gemm("def first(x, y) = x\nD = first(acc, alpha)")
    assert len(grouped([A, A], [B, B], alpha=[1.0, 2.0])) == 2


@pytest.mark.parametrize("text", ["def first(x, y) = x\nD = first(acc, C)", "D = where(2 > 1, acc, C)"])
@pytest.mark.parametrize("arch", TARGETS)
def test_no_kernel_reads_an_input_that_cancels_out(text, arch) -> None:
    """Also for errors that only the optimiser finds, which planning must not meet again."""
    op = evt.gemm(text)
    plain = evt.gemm("D = acc")
    for c in (C, torch.zeros(40, 17, dtype=torch.float16)[:, 1:], C.T.contiguous().T):
        made = plan_kernels(op.request, bind(op.request, A, B, {"C": c}, {}), find_target(arch))
        want = plan_kernels(plain.request, bind(plain.request, A, B, {}, {}), find_target(arch))
        assert [each.fields for each in made] == [each.fields for each in want]


SUMS = {
    "s: f32; s = sum[m, n]": ((1,), (1, 1)),
    "s: f32[m]; s = sum[n]": ((40, 1), (1, 40), (8, 5)),
    "s: f32[n]; s = sum[m]": ((1, 16), (4, 4)),
}


@pytest.mark.parametrize(("reduction", "shape"), [(each, shape) for each, shapes in SUMS.items() for shape in shapes])
def test_the_help_for_a_buffer_of_another_shape_names_a_view_that_fits(reduction, shape) -> None:
    op = evt.linear(f"out {reduction}(acc)")
    a, b = torch.ones(40, 8), torch.ones(16, 8)
    wanted, s = op(a, b), torch.zeros(shape)
    with pytest.raises(evt.ArgumentError, match="E0608") as raised:
        op(a, b, out=s)
    (view,) = re.findall(r"pass (s\.view\(.*\))$", str(raised.value), re.MULTILINE)
    op(a, b, out=eval(view))
    assert torch.equal(s.reshape(wanted.shape), wanted)
