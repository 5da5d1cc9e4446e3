"""Rows and columns that an index names: gathered as they are read, scattered as they are stored."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import evt
from evt.cli import main
from evt.eager import straight_line
from evt.ir import Acc, Apply, Builder, Input, Load, Output, Store, format_dag, parse_dag, verify
from evt.language import parse
from evt.language.tree import format_tree
from evt.request import optimised_graph, typed_graph

M, N, K, ROWS = 20, 24, 16, 30
PROGRAMS = [
    "D = acc + x[index[m], n]",
    "D = acc * s[index[m]] + b[j[n]]",
    "D = acc + x[p[m], q[n]]",
    "in x: f32[index[m], n], index: i32[m]\nD = acc + x",
    "out D: f32[index[m], n]\nD = acc",
    "D[index[m], n] = w[m]*acc",
    "D[m, j[n]] = acc",
    "D[index[l, m], n] = acc + x[l, p[l, m], n]",
    "in x: f16[index[m], n] = 0\nD = acc + x",
]
REFUSED = [
    ("D = acc + x[index, n]", "E0301", "there is no mode `index` here"),
    ("D = acc + x[i[j[m]], n]", "E0301", "`i[j[m]]` names neither rows nor columns"),
    ("D = acc + x[i[m, n], n]", "E0301", "`i[m, n]` names neither rows nor columns"),
    ("D = acc + x[i[m?], n]", "E0301", "`i[m?]` names neither rows nor columns"),
    ("D = acc + x[i[m], m]", "E0301", "a subscript names a mode once"),
    ("D = acc + sum[i[m]](acc)", "E0301", "cannot reduce over `[i]`"),
    ("i = acc\nD = acc + x[i[m], n]", "E0302", "`i` is computed here, but an index must be an input"),
    ("D = acc[i[m], n]", "E0302", "`acc` is [m, n]"),
    ("in i: i32[n]\nD = acc + x[i[m], n]", "E0302", "`i` is [n], not [m]"),
    ("D = acc + x[i[m], n] + x[j[m], n]", "E0302", "`x` is [i[m], n], not [j[m], n]"),
    ("out D, s[i[m]]\nD = acc; s = sum[n](acc)", "E0304", "the results of a reduction are stored in order"),
    ("D = acc + s[i[k]]", "E0304", "`s` is [i[k]], but the product sums over k"),
    ("in i: f32[m]\nD = acc + x[i[m], n]", "E0308", "`i` is f32, and says where `x` is read"),
    ("in i: u8[m]\nD[i[m], n] = acc", "E0308", "`i` is u8, and says where `D` is stored"),
    ("in i: i32[m] = 0\nD = acc + x[i[m], n]", "E0308", "`i` has a default, and says where `x` is read"),
    ("in x: b1[i[m], n]\nD = where(x, acc, 0)", "E0308", "`x` is b1 of [i[m], n]: bits are packed"),
    ("out D: b1[i[m], n]\nD = acc > 0", "E0308", "`D` is b1 of [i[m], n]: bits are packed"),
    ("D = even(acc) + x[i[m], n/2]", "E0308", "`x` is [i[m], n/2]: fewer columns are not read by an index"),
    ("D[i[m], n/2] = even(acc)", "E0308", "`D` is [i[m], n/2]: fewer columns are not stored by an index"),
    ("A = s[i[k]]*A\nD = acc", "E0411", "`s` is [i[k]] and `A` is [m, k]"),
]


def typed(text: str) -> str:
    return str(typed_graph(evt.gemm(text).request))


def tensors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(M, K, dtype=dtype), torch.randn(K, N, dtype=dtype)


def rows_of(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def index(extent: int = ROWS, count: int = M) -> Tensor:
    """Places in any order, each at most once; the first two are out of range."""
    found = torch.randperm(extent)[:count].to(torch.int32)
    found[0], found[1] = -1, extent
    return found


def gathered(x: Tensor, at: Tensor) -> Tensor:
    """Rows of x, zeros where there is no such row."""
    inside = (at >= 0) & (at < len(x))
    rows = x[at.long().clamp(0, len(x) - 1)]
    return torch.where(inside.reshape(-1, *[1] * (x.dim() - 1)), rows, 0.0)


def scattered(held: Tensor, at: Tensor, value: Tensor) -> Tensor:
    inside = (at >= 0) & (at < len(held))
    return held.index_copy(0, at[inside].long(), value[inside])


# The language


@pytest.mark.parametrize("text", PROGRAMS)
def test_reads_back(text: str) -> None:
    tree = parse(text)
    assert format_tree(parse(format_tree(tree))) == format_tree(tree)
    program = evt.gemm(text)
    for dag in (program.request.dag, typed_graph(program.request), optimised_graph(program.request)):
        verify(dag)
        assert parse_dag(format_dag(dag)) == dag
    assert pickle.loads(pickle.dumps(program)) == program


@pytest.mark.parametrize(("text", "code", "message"), REFUSED)
def test_refuses(text: str, code: str, message: str) -> None:
    with pytest.raises(evt.ProgramError) as raised:
        typed(text)
    found = [(each.code, each.message) for each in raised.value.diagnostics]
    assert any(code == each and message in said for each, said in found), found
    assert all(each.help for each in raised.value.diagnostics if each.code == code and "once" not in each.message)


def test_a_value_varies_over_the_modes_of_its_index() -> None:
    assert "load x : f16[l, m, n]" in typed("D = acc + x[index[l, m], n]")
    assert "load s : f16[m]" in typed("D = acc + s[index[m]]")
    assert "in index: i32[m]" in typed("D = acc + s[index[m]]")


def test_inputs_are_in_order_of_first_use() -> None:
    assert evt.gemm("D[i[m], n] = acc + x[j[m], n] * C").inputs == ("x", "j", "C", "i")


def test_what_is_not_read_needs_no_index_in_the_kernel() -> None:
    program = evt.gemm("D = acc + 0*x[index[m], n] * (0 + 0)", relaxed=True)
    assert program.inputs == ("x", "index")
    assert optimised_graph(program.request).inputs == ()


def test_graphs_that_are_no_programs() -> None:
    def program(x: Input, *others: Input) -> evt.Program:
        builder = Builder()
        value = builder.add(Apply("add"), builder.add(Acc()), builder.add(Load("x")))
        builder.add(Store("D"), value)
        return evt.Program.from_dag(builder.finish("gemm", (), (x, *others), (Output("D", None, ("m", "n")),)))

    x, places = Input("x", None, ("index[m]", "n")), Input("index", None, ("m",))
    assert program(x, places) == evt.gemm("D = acc + x[index[m], n]")
    for wrong in ((x,), (x, Input("index", None, ("n",))), (Input("x", None, ("index[n]", "n")), places)):
        with pytest.raises(evt.ProgramError, match="E0412"):
            program(*wrong)


# The reference, which calls on the CPU get


def test_gathers_rows() -> None:
    a, b = tensors()
    x, at = torch.randn(7, N).double(), torch.randint(-2, 9, (M,), dtype=torch.int32)
    assert torch.equal(evt.gemm("D = acc + x[index[m], n]")(a, b, x=x, index=at), a @ b + gathered(x, at))


def test_gathers_vectors_and_columns() -> None:
    a, b = tensors()
    at, along = torch.randint(-2, 9, (M,), dtype=torch.int32), torch.randint(-2, 9, (N,), dtype=torch.int32)
    s, bias, x = torch.randn(7).double(), torch.randn(8).double(), torch.randn(7, 8).double()
    got = evt.gemm("D = acc*s[p[m]] + c[q[n]] + x[p[m], q[n]]")(a, b, s=s, p=at, q=along, c=bias, x=x)
    both = gathered(gathered(x, at).T.contiguous(), along).T
    torch.testing.assert_close(got, a @ b * gathered(s, at)[:, None] + gathered(bias, along) + both)


def test_scatters_rows_and_keeps_the_others() -> None:
    a, b = tensors()
    w, at, held = torch.randn(M).double(), index(), torch.randn(ROWS, N).double()
    want = scattered(held, at, w[:, None] * (a @ b))
    op = evt.gemm("D[index[m], n] = w[m]*acc")
    assert torch.equal(op.reference(a, b, w=w, index=at, D=held), want)
    buffer = held.clone()
    assert op(a, b, w=w, index=at, out=buffer) is buffer
    assert torch.equal(buffer, want)
    by_name = held.clone()
    op(a, b, w=w, index=at, D=by_name)
    assert torch.equal(by_name, want)


def test_scatters_columns() -> None:
    a, b = tensors()
    at, held = index(ROWS, N), torch.randn(M, ROWS).double()
    want = scattered(held.T.contiguous(), at, (a @ b).T).T
    assert torch.equal(evt.gemm("D[m, j[n]] = acc")(a, b, j=at, out=held), want)


def test_duplicates_store_one_of_their_rows() -> None:
    a, b = tensors()
    held = torch.zeros(2, N).double()
    evt.gemm("D[index[m], n] = acc")(a, b, index=torch.zeros(M, dtype=torch.int32), out=held)
    assert any(torch.equal(held[0], row) for row in a @ b)
    assert not held[1].any()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32", "i8"])
def test_what_a_buffer_holds_is_kept_in_every_type(dtype: str) -> None:
    a, b = tensors(torch.float16)
    op = evt.gemm(f"out D: {dtype}[index[m], n]\nD = 8*acc")
    kind = getattr(torch, typed_graph(op.request).outputs[0].dtype.torch)
    held = torch.randint(-100, 100, (ROWS, N)).to(kind)
    dense = evt.gemm(f"out D: {dtype}[m, n]\nD = 8*acc").reference(a, b)
    at = index()
    assert torch.equal(op.reference(a, b, index=at, D=held), scattered(held, at, dense))


@pytest.mark.parametrize("dtype", ["e5m2", "f16", "f32", "f64"])
def test_what_a_buffer_holds_is_kept_to_the_bit(dtype: str) -> None:
    """Infinities too, to which no store rounds, and NaN with its bits."""
    a, b = tensors(torch.float16)
    op = evt.gemm(f"out D: {dtype}[index[m], n]\nD = acc")
    kind = getattr(torch, typed_graph(op.request).outputs[0].dtype.torch)
    held = torch.tensor([torch.inf, -torch.inf, torch.nan, -torch.nan] * 6).to(kind).repeat(ROWS, 1)
    bits = held.clone().view(torch.uint8)
    op(a, b, index=torch.full((M,), -1, dtype=torch.int32), out=held)
    assert torch.equal(held.view(torch.uint8), bits)


def test_scatters_vectors_of_rows() -> None:
    a, b = tensors()
    s, at, held = torch.randn(M).double(), index(), torch.randn(ROWS).double()
    op = evt.gemm("in s: f64[m]\nout D, t: f64[index[m]]\nD = acc; t = 2*s")
    assert torch.equal(op.reference(a, b, s=s, index=at, t=held).t, scattered(held, at, 2 * s))


def test_batches() -> None:
    a, b = torch.randn(3, M, K).double(), torch.randn(K, N).double()
    at = torch.stack([index() for _ in range(3)])
    x, p = torch.randn(3, 5, N).double(), torch.randint(-1, 6, (M,), dtype=torch.int32)
    held = torch.randn(3, ROWS, N).double()
    want = torch.stack([scattered(held[i], at[i], a[i] @ b + gathered(x[i], p)) for i in range(3)])
    got = evt.gemm("D[index[l, m], n] = acc + x[l, p[m], n]")(a, b, index=at, x=x, p=p, out=held)
    assert torch.equal(got, want)


def test_rows_of_several_dimensions() -> None:
    """The index of ``linear`` has the dimensions of its rows; the gathered tensor has one."""
    a, weight = torch.randn(4, 5, K).double(), torch.randn(N, K).double()
    x, at = torch.randn(7, N).double(), torch.randint(-2, 9, (4, 5), dtype=torch.int32)
    got = evt.linear("D = acc + x[index[m], n]")(a, weight, x=x, index=at)
    assert torch.equal(got, a @ weight.T + gathered(x, at.reshape(-1)).reshape(4, 5, N))


def test_rows_of_a_convolution_are_pixels() -> None:
    images, weight = torch.randn(2, 8, 5, 6).half(), torch.randn(16, 8, 3, 3).half()
    at, x = index(150, 24).reshape(2, 3, 4), torch.randn(150, 16).half()
    conv = torch.nn.functional.conv2d(images.double(), weight.double()).movedim(1, -1)
    held = torch.zeros(150, 16).half()
    op = evt.conv2d("D[index[m], n] = acc + x[index[m], n]")
    got = op.reference(images, weight, float64=True, index=at, x=x, D=held)
    value = conv.reshape(-1, 16) + gathered(x.double(), at.reshape(-1))
    torch.testing.assert_close(got, scattered(held.double(), at.reshape(-1), value))
    assert torch.equal(op(images, weight, index=at, x=x, out=held), got.half())


def test_no_rows_to_gather_and_nothing_to_store() -> None:
    a, b = tensors()
    at = torch.zeros(M, dtype=torch.int32)
    assert torch.equal(evt.gemm("D = acc + x[i[m], n]")(a, b, x=torch.zeros(0, N).double(), i=at), a @ b)
    held = torch.ones(3, N).double()
    evt.gemm("D[i[m], n] = acc")(a[:0], b, i=at[:0], out=held)
    assert bool((held == 1).all())


# Checks of a call


def call(text: str, **given: Tensor) -> str:
    a, b = tensors(torch.float16)
    with pytest.raises(evt.ArgumentError) as raised:
        evt.gemm(text)(a, b, **given)
    return str(raised.value)


def test_a_scattered_output_needs_a_buffer() -> None:
    said = call("D[i[m], n] = acc", i=index())
    assert "E0608" in said
    assert "`D` is stored as [i[m], n], and the call gives no buffer" in said


def test_shapes_and_types() -> None:
    x, at = torch.zeros(7, N).half(), index()
    assert "expected [rows, 24]" in call("D = acc + x[i[m], n]", x=x[:, 1:], i=at)
    assert "expected [20, columns]" in call("D = acc + x[m, i[n]]", x=x, i=at[:N])
    assert "`i` has shape [3]; expected [20]" in call("D = acc + x[i[m], n]", x=x, i=at[:3])
    assert "`i` is torch.int64; expected torch.int32" in call("D = acc + x[i[m], n]", x=x, i=at.long())
    with pytest.raises(evt.ProgramError, match="`i` is i64, and says where `x` is read"):
        evt.gemm("in i: i64[m]; D = acc + x[i[m], n]")
    assert "expected [rows, 24]" in call("D[i[m], n] = acc", i=at, D=torch.zeros(ROWS, N + 1).half())


@pytest.mark.parametrize(
    "at", [torch.zeros(2 * M, dtype=torch.int32)[::2], torch.zeros(1, dtype=torch.int32).expand(M)]
)
@pytest.mark.parametrize("text", ["D = acc + x[i[m], n]", "D[i[m], n] = acc + x[m, n]"])
def test_an_index_has_stride_1(text: str, at: torch.Tensor) -> None:
    """Kernels read indices one after the other."""
    x = torch.zeros(M, N).half()
    buffer = {"D": torch.zeros(ROWS, N).half()} if text.startswith("D[") else {}
    said = call(text, x=x, i=at, **buffer)
    assert "E0606" in said
    assert "the vector `i` has a stride other than 1" in said


@pytest.mark.parametrize(
    "text", ["D[i[m], n] = acc + x[i[m], n]", "D = acc + x[i[m], n]", "D[i[m], n] = acc + x[m, n]"]
)
def test_is_not_computed_in_place(text: str) -> None:
    x = torch.zeros(M, N).half()
    assert "the buffer `D` shares memory with `x`" in call(text, x=x, D=x, i=index(M))


# Plans and kernels


@pytest.mark.parametrize("arch", ["sm80", "sm89", "sm90", "sm100", "sm120"])
@pytest.mark.parametrize("text", PROGRAMS)
def test_every_target_emits(text: str, arch: str) -> None:
    emitted = evt.gemm(text).emit(arch, "bf16", "bf16")
    assert "evt::At<int32_t>" in emitted
    header = "evt/epilogue/indexed.hpp"
    assert emitted.count(f"// {header}") == 1


def test_no_stock_epilogue_and_no_source() -> None:
    for text in ("D = acc + C[i[m], n]", "D[i[m], n] = acc + C"):
        plan = evt.gemm(text).plan("sm90")
        assert plan.route == "evt-3x"
        assert (plan.source is None) == ("C[" in text) or plan.destination is None
        assert evt.gemm(text).plan("sm80").route == "evt-2x"


def test_8_bit_floats_on_sm120_say_why_not_3x() -> None:
    op = evt.gemm("gemm(A: e4m3[m, k], B: e4m3[n, k])\nD = acc + x[i[m], n]")
    assert op.plan("sm120").route == "evt-2x"
    assert "there are no 3.x visitors for rows or columns that an index names on sm120" in op.explain("sm120").details()


def test_explain_says_what_is_gathered_and_scattered() -> None:
    said = evt.gemm("D[i[m], n] = acc + x[i[m], j[n]] + b[j[n]]").explain("sm90").details()
    assert "in_x: gathered rows and columns" in said
    assert "in_b: gathered columns" in said
    assert "out_D: scattered rows" in said
    assert "D` is stored where an index says" in said or "x` is read where an index says" in said


def test_convolutions_emit() -> None:
    for arch in ("sm80", "sm90"):
        assert "evt::At<int32_t>" in evt.conv2d("D[i[m], n] = acc + x[i[m], n]", padding=1).emit(arch, "f16", "f16")


def test_groups() -> None:
    text = "D[i[m], n] = acc + x[i[m], n]"
    with pytest.raises(evt.TargetError, match="an index of each group has no place in a grouped kernel"):
        evt.grouped_gemm(text).emit("sm90", "f16", "f16")
    a, b = tensors()
    x, at = torch.randn(ROWS, N).double(), [index(), index()]
    held = [torch.zeros(ROWS, N).double() for _ in at]
    evt.grouped_gemm(text, route="loop")([a, 2 * a], [b, b], i=at, x=x, out=held)
    whole = evt.grouped_gemm("D = acc + x[i[m], n]", route="loop")
    together = whole(torch.cat([a, 2 * a]), torch.stack([b, b]), i=torch.cat(at), x=x, offsets=[0, M, 2 * M])
    torch.testing.assert_close(together[M:], 2 * (a @ b) + gathered(x, at[1]))
    zeros = [torch.zeros(ROWS, N).double() for _ in at]
    assert torch.equal(evt.grouped_gemm(text).reference([a, 2 * a], [b, b], i=at, x=x, D=zeros)[1], held[1])
    for factor, places, got in zip((1, 2), at, held, strict=True):
        want = scattered(torch.zeros(ROWS, N).double(), places, factor * (a @ b) + gathered(x, places))
        torch.testing.assert_close(got, want)


# Services


@pytest.mark.parametrize(
    "text", ["D = acc + x[i[m], n]*s[i[m]] + b[j[n]]", "D[i[m], n] = acc", "D[m, j[n]] = acc*x[m, j[n]]"]
)
def test_straight_line_is_the_reference(text: str) -> None:
    op = evt.gemm(text)
    a, b = tensors(torch.float32)
    square = torch.randn(M, N)
    given: dict[str, Tensor] = {"x": square, "s": torch.randn(M), "b": torch.randn(N)}
    given |= {"i": torch.randperm(M).int(), "j": torch.randperm(N).int()}
    dag = typed_graph(op.request, "f32", "f32")
    inputs = {name: given[name] for name in op.inputs}
    buffers = {output.name: torch.zeros(M, N) for output in dag.outputs if output.is_indexed}
    got = straight_line(dag, {})(a, b, *inputs.values())
    torch.testing.assert_close(got, op.reference(a, b, **inputs, **buffers), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("words", [("D[i[m], n] = acc + x[i[m], n]",), ("D[i[m], n] = acc", "--op", "conv2d")])
def test_run_command(words: Sequence[str]) -> None:
    sizes = ("--m", "40", "--n", "24", "--k", "16") if len(words) == 1 else ()
    result = CliRunner().invoke(main, ["run", *words, *sizes, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "  ok" in result.output


def test_a_default_is_not_gathered() -> None:
    a, b = tensors()
    op = evt.gemm("in x: f64[index[m], n] = 2\nD = acc + x")
    assert torch.equal(op(a, b, index=index()), a @ b + 2)
    x = torch.randn(3, N).double()
    assert torch.equal(op(a, b, x=x, index=rows_of(*[1] * M)), a @ b + x[1])
