"""The arguments of a kernel, member by member, without a GPU: the packing of addresses, numbers and sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import evt
from evt.diagnostics import Source
from evt.runtime import call as call_module
from evt.runtime import prepare as prepare_module

A, B = torch.zeros(40, 24, dtype=torch.float16), torch.zeros(24, 16, dtype=torch.float16)
C = torch.zeros(40, 16, dtype=torch.float16)


def test_every_member_gets_its_value(launches) -> None:
    op = evt.gemm("in gamma = 3; D = relu(alpha*acc + beta*C) + gamma*residual", route="evt-3x")
    wide = torch.zeros(40, 32, dtype=torch.float16)[:, 8:24]
    beta = torch.ones(1)
    D = op(A, B, residual=wide, alpha=1.5, C=C, beta=beta)  # noqa: N806
    (members,) = launches
    assert (members["m"], members["n"], members["k"], members["l"]) == (40, 16, 24, 1)
    assert (members["A"], members["B"]) == (A.data_ptr(), B.data_ptr())
    assert (members["in_C"], members["in_residual"]) == (C.data_ptr(), wide.data_ptr())
    assert members["out_D"] == D.data_ptr()
    assert (members["value_of_in_alpha"], members["in_alpha"]) == (1.5, 0)
    assert members["in_beta"] == beta.data_ptr()
    assert (members["value_of_in_gamma"], members["in_gamma"]) == (3.0, 0)
    assert members["stride_m_of_A"] == 24
    assert members["stride_k_of_B"] == 16
    assert members["stride_m_of_in_residual"] == 32
    assert members["stride_l_of_out_D"] == 0
    assert (members["swizzle"], members["raster"]) == (0, 0)


def test_the_remembered_call_fills_in_new_addresses_and_numbers(launches) -> None:
    op = evt.gemm("out D, E: f32[m, n]; D = alpha*acc + C; E = acc")
    first = op(A, B, alpha=1.0, C=C)
    other = torch.ones(40, 24, dtype=torch.float16)
    second = op(other, B, alpha=-2.5, C=C)
    (known,) = op._caller._prepared.values()
    assert repr(known)  # does not read the prototypes, which have no memory
    assert [members["value_of_in_alpha"] for members in launches] == [1.0, -2.5]
    assert [members["A"] for members in launches] == [A.data_ptr(), other.data_ptr()]
    assert [members["out_E"] for members in launches] == [first.E.data_ptr(), second.E.data_ptr()]
    assert second.E.dtype == torch.float32
    assert second.D.shape == (40, 16)


def test_buffers_are_written_where_they_are(launches) -> None:
    op = evt.gemm("out D, E: f32[m, n]; D = acc + C; E = acc")
    e, d = torch.zeros(40, 16), torch.zeros(40, 32, dtype=torch.float16)[:, :16]
    op(A, B, C=C, E=e)
    result = op(A, B, C=C, out=(d, e))
    assert result.D is d
    assert [members["out_E"] for members in launches] == [e.data_ptr()] * 2
    assert (launches[1]["out_D"], launches[1]["stride_m_of_out_D"]) == (d.data_ptr(), 32)
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(A, B, C=C, out={"D": A.view(-1)[:640].view(40, 16)})


def test_what_an_index_names_comes_with_its_extent(launches) -> None:
    op = evt.gemm("D[i[m], n] = acc + x[i[m], n]*s[i[m]]")
    x, s = torch.zeros(7, 32, dtype=torch.float16)[:, :16], torch.zeros(9, dtype=torch.float16)
    i, d = torch.zeros(40, dtype=torch.int32), torch.zeros(50, 16, dtype=torch.float16)
    for rows in (d, torch.zeros(60, 16, dtype=torch.float16)):
        assert op(A, B, x=x, s=s, i=i, out=rows) is rows
    first, second = launches
    assert (first["in_i"], first["in_x"], first["out_D"]) == (i.data_ptr(), x.data_ptr(), d.data_ptr())
    assert (first["stride_m_of_in_x"], first["extent_m_of_in_x"], first["extent_m_of_in_s"]) == (32, 7, 9)
    assert [members["extent_m_of_out_D"] for members in (first, second)] == [50, 60]
    assert len(op._caller._kernels) == 1


def test_batches_and_alignments_are_combinations_of_their_own(launches) -> None:
    op = evt.gemm("D = acc + C")
    op(A, B, C=C)
    storage = torch.zeros(40 * 16 + 8, dtype=torch.float16)
    op(A, B, C=storage[1 : 1 + 640].view(40, 16))  # misaligned
    batch = torch.zeros(3, 40, 24, dtype=torch.float16)
    op(batch, B, C=C)
    assert len(op._caller._prepared) == 3
    assert len(op._caller._kernels) == 3
    assert (launches[2]["l"], launches[2]["stride_l_of_A"], launches[2]["stride_l_of_out_D"]) == (3, 960, 640)
    assert "stride_l_of_in_C" not in launches[2]


def test_mistakes_are_found_in_remembered_calls_too(launches) -> None:
    op = evt.gemm("D = alpha*acc")
    op(A, B, alpha=2)
    for wrong in ({"alpha": 10**400}, {"alpha": True}, {"alpha": 1, "beta": 2}, {}, {"alpha": "2"}):
        with pytest.raises(evt.ArgumentError):
            op(A, B, **wrong)
    assert len(launches) == 1


# Convolutions


def channels_last(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(shape[0], *shape[2:], shape[1], dtype=dtype).movedim(-1, 1)


X, W = channels_last(2, 16, 9, 7), channels_last(24, 16, 3, 5)
RESIDUAL, BIAS = channels_last(2, 24, 4, 10), torch.zeros(24, dtype=torch.float16)
GEOMETRY = {"stride": (2, 1), "padding": ((0, 1), (3, 4)), "dilation": (1, 1)}


def numbers(text: str) -> dict[str, int]:
    """``m=2 n=3`` as members and their values; ``k`` is the channels of an activation A."""
    return {name: int(value) for name, value in (word.split("=") for word in text.split())}


CONVOLUTION = numbers("""
    images=2 channels=16 filters=24 m=80 n=24 k=16 l=1
    height=9 width=7 filter_height=3 filter_width=5 output_height=4 output_width=10
    pad_height=0 pad_width=3 stride_height=2 stride_width=1 dilation_height=1 dilation_width=1
    stride_outer_of_A=1008 stride_height_of_A=112 stride_width_of_A=16
    stride_outer_of_B=240 stride_height_of_B=80 stride_width_of_B=16
    stride_m_of_in_residual=24 stride_m_of_out_D=24
""")
SETTINGS_OF_ROUTES = {
    "conv-evt-2x": numbers("groups=1 stride_l_of_in_residual=0 stride_l_of_out_D=0"),
    "conv-stock-2x": numbers("groups=1"),
    "conv-evt-3x": numbers("upper_pad_height=1 upper_pad_width=4 swizzle=0 raster=0"),
}


@pytest.mark.parametrize("route", SETTINGS_OF_ROUTES)
def test_every_member_of_a_convolution_gets_its_value(launches, route) -> None:
    op = evt.conv2d("D = relu(acc + bias) + residual", route=route, **GEOMETRY)
    D = op(X, W, bias=BIAS, residual=RESIDUAL)  # noqa: N806
    (members,) = launches
    addresses = {"A": X, "B": W, "in_bias": BIAS, "in_residual": RESIDUAL, "out_D": D}
    assert members == {
        **{name: tensor.data_ptr() for name, tensor in addresses.items()},
        **CONVOLUTION,
        **SETTINGS_OF_ROUTES[route],
    }
    assert D.shape == (2, 24, 4, 10)
    assert D.stride() == RESIDUAL.stride()


@pytest.mark.parametrize(
    ("operation", "keywords", "a", "b", "expected"),
    [
        (
            *("conv3d", {"padding": (1, 2, 3), "stride": (1, 2, 3)}, (2, 16, 4, 9, 7), (24, 16, 1, 2, 3)),
            """
            depth=4 height=9 width=7 filter_depth=1 filter_height=2 filter_width=3
            output_depth=6 output_height=6 output_width=4 pad_depth=1 pad_height=2 pad_width=3
            stride_depth=1 stride_height=2 stride_width=3 dilation_depth=1
            stride_outer_of_A=4032 stride_depth_of_A=1008 stride_height_of_A=112 stride_width_of_A=16
            stride_outer_of_B=96 stride_depth_of_B=96 stride_height_of_B=48 stride_width_of_B=16
            stride_m_of_out_D=24 m=288 n=24 k=16
            """,
        ),
        (
            *("conv2d_dgrad", {"dilation": (1, 2)}, (2, 24, 7, 5), (24, 16, 3, 3)),
            """
            height=9 width=9 output_height=7 output_width=5 channels=16 filters=24 dilation_height=1 dilation_width=2
            stride_outer_of_A=840 stride_height_of_A=120 stride_width_of_A=24 stride_outer_of_B=144
            stride_m_of_out_D=16 m=162 n=16 k=24
            """,
        ),
        (
            *("conv2d_wgrad", {"kernel_size": 3}, (2, 24, 7, 5), (2, 16, 9, 7)),
            """
            height=9 width=7 output_height=7 output_width=5 filter_height=3 filter_width=3
            stride_outer_of_A=840 stride_width_of_A=24 stride_outer_of_B=1008 stride_width_of_B=16
            stride_m_of_out_D=144 m=24 n=144 k=70
            """,
        ),
        (
            *("conv1d", {"padding": 1}, (2, 16, 9), (24, 16, 3)),
            """
            height=1 width=9 filter_height=1 filter_width=3 output_height=1 output_width=9 pad_height=0 pad_width=1
            stride_height=1 dilation_height=1 stride_outer_of_A=144 stride_height_of_A=144 stride_width_of_A=16
            stride_m_of_out_D=24 m=18 n=24 k=16
            """,
        ),
    ],
)
@pytest.mark.parametrize("route", ["conv-evt-2x", "evt"])
def test_members_of_every_operator_and_rank(launches, operation, keywords, a, b, expected, route) -> None:
    D = evt.Program(Source("D = acc"), operation, route=route, **keywords)(channels_last(*a), channels_last(*b))  # noqa: N806
    (members,) = launches
    wanted = numbers(expected)
    assert {name: members.get(name) for name in wanted} == wanted
    assert members["out_D"] == D.data_ptr()


def test_a_pointwise_convolution_is_called_as_a_gemm(launches) -> None:
    wide = channels_last(2, 64, 9, 7)
    D = evt.conv2d("D = silu(acc)", route="evt")(wide[:, 16:32], channels_last(24, 16, 1, 1))  # noqa: N806
    (members,) = launches
    assert (members["m"], members["n"], members["k"], members["l"]) == (126, 24, 16, 1)
    assert (members["stride_m_of_A"], members["stride_n_of_B"], members["stride_m_of_out_D"]) == (64, 16, 24)
    assert (members["A"], members["out_D"]) == (wide.data_ptr() + 32, D.data_ptr())
    assert D.shape == (2, 24, 9, 7)


@pytest.fixture
def copies(monkeypatch):
    """Return the copies that calls make, as (address of the tensor, copy)."""
    made: list[tuple[int, torch.Tensor]] = []
    convert = prepare_module.copied_channels_last  # type: ignore[attr-defined]

    def recorded(tensor):
        made.append((tensor.data_ptr(), convert(tensor)))
        return made[-1][1]

    monkeypatch.setattr(prepare_module, "copied_channels_last", recorded)
    return made


def test_what_is_not_channels_last_is_copied_once_a_call(launches, copies) -> None:
    op = evt.conv2d("D = acc + residual", **GEOMETRY)
    x, w, residual = (tensor.contiguous() for tensor in (X, W, RESIDUAL))
    for count, (a, b, c) in enumerate([(X, W, RESIDUAL), (x, W, RESIDUAL), (x, w, RESIDUAL), (x, w, residual)]):
        for _ in range(2):  # the remembered call copies as well
            copies.clear()
            D = op(a, b, residual=c)  # noqa: N806
            taken = {"A": a, "B": b, "in_residual": c}
            assert [address for address, _ in copies] == [x.data_ptr(), w.data_ptr(), residual.data_ptr()][:count]
            read = {name: tensor.data_ptr() for name, tensor in taken.items()}
            read |= {name: copy.data_ptr() for name, (_, copy) in zip(taken, copies, strict=False)}
            assert {name: launches[-1][name] for name in taken} == read
            assert {name: launches[-1][name] for name in CONVOLUTION} == CONVOLUTION
            contiguous = count >= 2  # neither x nor the weight is channels_last
            assert (D.data_ptr() == launches[-1]["out_D"]) is not contiguous
            assert D.is_contiguous() is contiguous
            assert D.shape == RESIDUAL.shape
    assert len(op._caller._kernels) == 1


def test_a_converted_weight_is_read_where_it_is(launches, copies) -> None:
    op = evt.conv2d("D = acc", padding=1)
    weight = evt.channels_last(torch.zeros(24, 16, 3, 3, dtype=torch.float16))
    x = X.contiguous()
    D = op(x, weight)  # noqa: N806
    assert [address for address, _ in copies] == [x.data_ptr()]
    assert launches[-1]["B"] == weight.data_ptr()
    assert launches[-1]["out_D"] == D.data_ptr()  # the weight is channels_last, and so is the result
    assert D.is_contiguous(memory_format=torch.channels_last)


def test_slices_and_buffers_of_a_convolution_are_used_in_place(launches, copies) -> None:
    op = evt.conv2d("D = acc + residual", **GEOMETRY)
    wide, out = channels_last(2, 48, 9, 7), channels_last(2, 72, 4, 10)
    result = op(wide[:, 16:32], W, residual=out[:, :24], out=out[:, 24:48])
    (members,) = launches
    assert not copies
    assert (members["A"], members["stride_width_of_A"], members["stride_height_of_A"]) == (
        wide.data_ptr() + 32,
        48,
        336,
    )
    assert (members["in_residual"], members["out_D"]) == (out.data_ptr(), out.data_ptr() + 48)
    assert members["stride_m_of_in_residual"] == members["stride_m_of_out_D"] == 72
    assert result.data_ptr() == members["out_D"]
    op(X, W, residual=RESIDUAL, out=RESIDUAL)  # in place
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(wide[:, 16:32], W, residual=out[:, :24], out=out[:, 8:32])


def test_a_contiguous_buffer_is_written_through_a_channels_last_one(launches, copies, monkeypatch):
    op = evt.conv2d("out D, z; z = acc + residual; D = relu(z)", **GEOMETRY)
    z = torch.zeros(2, 24, 4, 10, dtype=torch.float16)
    filled: list[torch.Tensor] = []

    def fill(prototype, empty_like=torch.empty_like):
        filled.append(empty_like(prototype).fill_(7.0))  # in the place of the kernel
        return filled[-1]

    monkeypatch.setattr(prepare_module.torch, "empty_like", fill)  # type: ignore[attr-defined]
    for _ in range(2):  # the remembered call as well
        version = z.zero_()._version
        found = op(X, W, residual=RESIDUAL, out={"z": z})
        assert not copies
        assert found.z is z
        assert (z == 7).all()
        assert z._version > version
        assert launches[-1]["out_z"] == filled[-1].data_ptr() != z.data_ptr()
        assert filled[-1].stride() == RESIDUAL.stride()
        assert launches[-1]["out_D"] == found.D.data_ptr()
    op(X, W, residual=z, out={"z": z})  # in place: it is read before it is written
    assert launches[-1]["in_residual"] == copies[-1][1].data_ptr()
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(X, W, residual=RESIDUAL, out={"z": z, "D": z})


@pytest.mark.parametrize("shape", [(2, 16, 9, 7), (1, 16, 9, 7), (2, 1, 9, 7), (2, 16, 1, 1), (1, 16, 1, 7)])
@pytest.mark.parametrize("formats", [(a, b) for a in (True, False) for b in (True, False)])
def test_results_have_the_memory_format_of_pytorch(launches, shape, formats) -> None:
    x, weight = channels_last(*shape), channels_last(24, shape[1], 4, 4)
    if not formats[0]:
        x = x.contiguous()
    if not formats[1]:
        weight = weight.contiguous()
    found = evt.conv2d("out D, Z, t: f32[n]; Z = acc; D = relu(acc); t = sum[m](acc)", padding=2)(x, weight)
    eager = torch.nn.functional.conv2d(x.float(), weight.float(), padding=2)
    assert found.D.stride() == found.Z.stride() == eager.stride()
    assert found.t.shape == (24,)


def test_calls_of_a_convolution_that_are_wrong(launches) -> None:
    op = evt.conv2d("D = acc + residual", **GEOMETRY)
    op(X, W, residual=RESIDUAL)
    for wrong, code in (
        ((X, W, {"residual": RESIDUAL[:1]}), "E0604"),
        ((X[:, :8], W, {"residual": RESIDUAL}), "E0604"),
        ((X, W, {"residual": RESIDUAL, "out": torch.zeros(2, 24, 4, 10)}), "E0603"),
        ((X, W, {}), "E0601"),
        ((X.float(), W, {"residual": RESIDUAL}), "E0603"),
    ):
        with pytest.raises(evt.ArgumentError, match=code):
            op(wrong[0], wrong[1], **wrong[2])
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("code", "expected"), [(2 << 16, "E0804"), (3 << 16 | 100, "E0801"), (4 << 16 | 209, "E0802"), (5 << 16, "E0805")]
)
def test_failures_of_the_library_are_diagnostics(launches, code, expected) -> None:
    op = evt.gemm("D = acc")
    op(A, B)
    launched = op._caller._launched
    ((key, known),) = launched.items()
    launched[key] = replace(known, run=lambda *arguments: code)
    with pytest.raises(evt.LaunchError, match=expected):
        op(A, B)


def test_none_is_a_launch_like_any_other_without_it(launches) -> None:
    op = evt.gemm("in bias: f16[n] = 0, gamma: f32[] = 3; D = gamma*acc + bias")
    op(A, B)
    op(A, B, bias=None)
    op(A, B, bias=None, gamma=None)
    assert len(op._caller._prepared) == 1
    assert [members["value_of_in_gamma"] for members in launches] == [3.0] * 3
    assert "in_bias" not in launches[0]
    with pytest.raises(evt.ArgumentError, match="E0602"):
        op(A, B, A=A)
    with pytest.raises(evt.ArgumentError, match="E0602"):
        op(A, B, beta=None)


def test_later_calls_check_nothing_again(launches, monkeypatch) -> None:
    op = evt.gemm("in bias: f16[n] = 0; D = acc + C + bias")
    op(A, B, C=C)
    op(A, B, C=C, D=C)

    def fail(*arguments) -> None:
        raise AssertionError("a remembered call is checked")

    monkeypatch.setattr(call_module, "bind", fail)
    monkeypatch.setattr(call_module, "plain_value", fail)
    monkeypatch.setattr(call_module, "reaches_memory", fail)
    op(A, B, C=C, bias=None)
    assert op(A, B, C=C, D=C) is C
    assert op(A, B, C=C, bias=None, D=None) is not C
    assert len(launches) == 5


def test_what_is_remembered_is_bounded(launches, monkeypatch) -> None:
    monkeypatch.setattr(call_module, "_MAX_LAUNCHED", 3)
    monkeypatch.setattr(call_module, "_MAX_PREPARED", 2)
    op = evt.gemm("D = acc")
    wide = torch.zeros(400, 24, dtype=torch.float16)
    for rows in (40, 41, 42, 43):
        for start in range(5):
            op(wide[start : start + rows], B)
    assert [members["A"] for members in launches] == [wide[start:].data_ptr() for start in range(5)] * 4
    assert len(op._caller._launched) <= 3
    assert len(op._caller._prepared) <= 2
    op._caller.forget()
    op(wide[:43], B)
    assert (len(launches), len(op._caller._launched), len(op._caller._prepared)) == (21, 1, 1)
