"""The arguments of attention that PyTorch's fused kernels take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.nn.functional import scaled_dot_product_attention as attention

from evt.fx.attention import simplify_attention

from .compiling import close, compiled

SIZE = 16
Mask = Callable[[torch.Tensor], torch.Tensor]


def everything(x: torch.Tensor) -> torch.Tensor:
    return (torch.arange(SIZE, device=x.device) >= 0)[None, None, :, None].expand(2, 1, SIZE, SIZE)


def zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros((1, 1, 1, SIZE), device=x.device, dtype=x.dtype)


def causal(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(SIZE, device=x.device)
    return (places[None, :] <= places[:, None]).to(x.device)


def causal_sequences(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(SIZE, device=x.device).unsqueeze(0).expand(2, -1)
    sequence = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return causal(x) & (sequence[:, None, :, None] == sequence[:, None, None, :])


def window(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(SIZE, device=x.device)
    return causal(x) & (places[None, :] > places[:, None] - 4)


def first(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(SIZE, device=x.device)[None] < 1  # for all queries: the first row of a causal mask


def written(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones((SIZE, SIZE), device=x.device, dtype=torch.bool)
    mask.view(-1)[3:5] = False
    return mask


def filled(x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones((SIZE, SIZE), device=x.device, dtype=torch.bool)
    mask.expand(1, 1, -1, -1)[..., 3:].fill_(False)
    return mask


def bias(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1].transpose(-1, -2).expand(-1, -1, SIZE, -1).transpose(-1, -2)


def with_mask(make: Mask) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: attention(x, x, x, make(x)).transpose(1, 2).contiguous()


def repeated(x: torch.Tensor) -> torch.Tensor:
    heads = x[:, :, None, :, :].expand(2, 3, 4, SIZE, 8).reshape(2, 12, SIZE, 8)
    return attention(x.repeat(1, 4, 1, 1), heads, heads).transpose(1, 2).reshape(2, SIZE, -1)


def repeated_parts(x: torch.Tensor) -> torch.Tensor:
    parts = x[..., None]  # five dimensions
    heads = parts[:, :, None, :, :].expand(2, 3, 4, SIZE, 8, 1).reshape(2, 12, SIZE, 8)
    return attention(x.repeat(1, 4, 1, 1), heads, heads).transpose(1, 2).reshape(2, SIZE, -1)


def copied(x: torch.Tensor) -> torch.Tensor:
    heads = x.transpose(1, 2).contiguous()
    return attention(heads, heads, heads).transpose(1, 2).contiguous()


def copied_and_viewed(x: torch.Tensor) -> torch.Tensor:
    heads = x.transpose(1, 2).contiguous()
    return attention(heads, heads, heads).view(2, -1)


def self_attention(module: torch.nn.Module, **keywords: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        rows = x[0]
        result: torch.Tensor = module(rows, rows, rows, **keywords)[0]
        return result

    return call


def simplified(
    call: Callable[[torch.Tensor], torch.Tensor],
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    gradients: bool = False,
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the keywords of attention, and the results of a function without and with simpler arguments."""
    found: list[GraphModule] = []

    def collect(module: GraphModule, _: Any) -> Callable[..., Any]:
        simplify_attention(module, (device,))
        module.graph.lint()
        found.append(module)
        return module.forward

    torch._dynamo.reset()  # it counts the compilations of a function
    x = torch.randn(2, 3, SIZE, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.set_grad_enabled(gradients):
        results = [call(x), torch.compile(call, backend=collect)(x)]
    (node,) = found[0].graph.find_nodes(op="call_function", target=attention)
    return dict(node.kwargs), results


@pytest.mark.parametrize(
    ("make", "is_causal"), [(everything, False), (zeros, False), (causal, True), (causal_sequences, True)]
)
def test_a_constant_mask_is_said_in_another_way(make: Mask, is_causal: bool) -> None:
    known, (want, got) = simplified(with_mask(make), gradients=True)
    assert known["attn_mask"] is None
    assert known.get("is_causal", False) is is_causal
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("make", [window, first, written, filled])
def test_other_masks_stay(make: Mask) -> None:
    known, (want, got) = simplified(with_mask(make))
    assert known["attn_mask"] is not None
    assert not known.get("is_causal", False)
    torch.testing.assert_close(got, want)


def test_a_strided_mask_becomes_contiguous() -> None:
    known, (want, got) = simplified(with_mask(bias))
    assert known["attn_mask"].target == "contiguous"
    torch.testing.assert_close(got, want)


def test_other_devices_keep_their_masks() -> None:
    assert not simplified(with_mask(everything), "cuda")[0]  # the arguments are as they were


@pytest.mark.parametrize("gradients", [False, True])
def test_repeated_heads_are_read_once(gradients: bool) -> None:
    known, (want, got) = simplified(repeated, dtype=torch.bfloat16, gradients=gradients)
    assert known["enable_gqa"] is True
    assert {known[name].op for name in ("key", "value")} == {"placeholder"}
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("gradients", [False, True])
def test_heads_are_not_copied(gradients: bool) -> None:
    known, (want, got) = simplified(copied, dtype=torch.bfloat16, gradients=gradients)
    assert {known[name].target for name in ("query", "key", "value")} == {"transpose"}
    torch.testing.assert_close(got, want)


def test_heads_of_several_dimensions_stay() -> None:
    known, (want, got) = simplified(repeated_parts, dtype=torch.bfloat16)
    assert known.get("enable_gqa") is None
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("gradients", [False, True])
def test_long_heads_stay_where_some_gpus_compute_no_gradients_of_them(gradients: bool) -> None:
    known, _ = simplified(lambda x: copied(x.repeat(1, 1, 1, 25)), dtype=torch.bfloat16, gradients=gradients)
    assert known["key"].target == ("contiguous" if gradients else "transpose")


def test_heads_are_copied_for_a_view_of_the_result() -> None:
    known, (want, got) = simplified(copied_and_viewed, dtype=torch.bfloat16)
    assert not known  # the arguments are as they were
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention_reads_its_heads_from_their_product(batch_first: bool, gradients: bool) -> None:
    module = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first)
    known, (want, got) = simplified(self_attention(module, need_weights=False), gradients=gradients)
    assert {known[name].target for name in ("query", "key", "value")} == {"transpose"}
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


def test_self_attention_with_weights_stays_whole() -> None:
    with pytest.raises(ValueError, match="not enough values"):  # no other attention is in the graph
        simplified(self_attention(torch.nn.MultiheadAttention(8, 2)))


def test_the_backend_simplifies_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    module = with_mask(causal)

    def compile_fx(graph: GraphModule, *_: Any, **__: Any) -> Callable[..., Any]:
        seen.extend(each.kwargs for each in graph.graph.find_nodes(op="call_function", target=attention))
        return graph.forward

    monkeypatch.setattr("evt.fx.backend.compile_fx", compile_fx)
    x = torch.randn(2, 3, SIZE, 8)
    close(compiled(module)(x), module(x))
    assert [each["is_causal"] for each in seen] == [True]
