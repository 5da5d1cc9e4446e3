"""``op.verify``: a call and the formula in PyTorch's operators, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt

HALF = torch.float16


def whole(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


#: A program of evt.linear, and a part of its PyTorch code.
LINEAR: dict[str, tuple[str, str]] = {
    "bias": ("D = relu(acc + bias)", "torch.addmm(input_bias"),
    "addmm": ("D = relu(alpha*acc + beta*C)*C", "torch.addmm(input_c"),
    "addmm of ones": ("D = 1*acc + C", "torch.addmm(input_c"),
    "a vector": ("D = 2*acc + bias", "torch.addmm(input_bias"),
    "mm": ("D = acc + C", "input_c"),
    "a cast ends the product": ("D = f16(acc) + bias", "input_bias"),
    "a row scale": ("in s: f16[m]; D = acc*s + C", "input_s"),
    "two outputs": ("out D, s: f16[m]; D = acc + bias; s = max[n](D)", "amax"),
    "functions": ("D = hardswish(acc + bias)*C", "hardswish"),
}


@pytest.mark.parametrize("lead", [(24,), (2, 12)], ids=str)
@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str, lead: tuple[int, ...]) -> None:
    text, code = LINEAR[name]
    op = evt.linear(text, numerics="eager")
    given = {"bias": whole(64), "C": whole(*lead, 64), "alpha": 0.5, "beta": -2.0, "s": whole(*lead)}
    found = op.verify(whole(*lead, 16), whole(64, 16), **{each: given[each] for each in op.inputs})
    assert found, found
    assert code in found.code
    assert ("addmm" in found.code) == ("addmm" in code or "bias" in text.partition("f16(acc)")[0])
    assert [each.name for each in found.outputs] == list(op.outputs)
    assert found.outputs[0].elements == 24 * 64
    assert str(found).startswith(f"{op.outputs[0]}: all bits of 1536 elements are eager's")


def test_a_difference_has_its_share() -> None:
    op = evt.linear("D = gelu(acc*0.1 + C) + C")  # precise rounds once
    found = op.verify(torch.randn(64, 32).half(), torch.randn(64, 32).half(), C=torch.randn(64, 64).half())
    assert not found
    assert 0.05 < found.outputs[0].share < 0.9
    assert "% of 4096 elements have other bits than eager's" in str(found)
    assert found.to_json()["equal"] is False


def test_batches_convolutions_and_scaled_products() -> None:
    batched = evt.gemm("D = relu(alpha*acc + C)", numerics="eager")
    found = batched.verify(whole(3, 8, 16), whole(3, 16, 24), C=whole(3, 8, 24), alpha=0.5)
    assert found
    assert "baddbmm" in found.code
    image = evt.conv2d("D = relu(acc + bias + C)", padding=1, numerics="eager")
    last: Any = {"memory_format": torch.channels_last}
    x, c = whole(2, 8, 6, 6).to(**last), whole(2, 16, 6, 6).to(**last)
    assert image.verify(x, whole(16, 8, 3, 3), bias=whole(16), C=c)
    text = "gemm(A: e4m3[m, k], B: e4m3[k, n]); in sa: f32[m], sb: f32[n], bias: bf16[n]; out D: bf16[m, n]"
    scaled = evt.gemm(f"{text}; D = relu(sa*(sb*acc) + bias)", numerics="eager")
    a, b = (whole(16, 32, dtype=torch.float8_e4m3fn), whole(32, 32, dtype=torch.float8_e4m3fn).t())
    found = scaled.verify(a, b, sa=torch.rand(16), sb=torch.rand(32), bias=torch.randn(32).bfloat16())
    assert found
    assert found.code.count("scaled_product(") == 1


def test_defaults_and_numbers() -> None:
    op = evt.gemm("in s: f32[m?] = 2, alpha: f32 = 0.5; D = alpha*acc*s", numerics="eager")
    calls: list[dict[str, Any]] = [{}, {"s": 3.0}, {"s": torch.rand(8)}, {"alpha": torch.tensor(0.25)}]
    for given in calls:
        assert op.verify(whole(8, 16), whole(16, 24), **given)


@pytest.mark.parametrize(
    "text", ["D = acc*(rand(1, 2) > 0.5)", "A = A*2; D = acc", "in k: b1[m, n]; D = where(k, acc, 0)"]
)
def test_programs_that_pytorch_cannot_write(text: str) -> None:
    op = evt.gemm(text)
    given = {"k": torch.zeros(8, 3, dtype=torch.uint8)} if "k" in op.inputs else {}
    with pytest.raises(evt.ArgumentError, match="E0615"):
        op.verify(whole(8, 16), whole(16, 24), **given)
