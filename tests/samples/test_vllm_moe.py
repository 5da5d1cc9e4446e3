"""samples/vllm_fused_moe.py has the documented behaviour of vLLM's functions."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import evt
from evt.reference.compare import relative_error
from tests.support.records import SAMPLES

EXPERTS, WIDTH, INNER = 5, 32, 24


@pytest.fixture(scope="module")
def vllm() -> Any:
    spec = importlib.util.spec_from_file_location("vllm_fused_moe", SAMPLES / "vllm_fused_moe.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    w1 = torch.randn(EXPERTS, 2 * INNER, WIDTH, generator=generator) * WIDTH**-0.5
    w2 = torch.randn(EXPERTS, WIDTH, INNER, generator=generator) * INNER**-0.5
    return w1.bfloat16(), w2.bfloat16()


@pytest.mark.parametrize("tokens", [1, 19])
@pytest.mark.parametrize("mapped", [False, True])
def test_experts(vllm: Any, tokens: int, mapped: bool) -> None:
    w1, w2 = weights()
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, WIDTH, generator=generator).bfloat16()
    chances, ids = vllm.fused_topk(x, torch.randn(tokens, EXPERTS, generator=generator), 2, renormalize=not mapped)
    here = torch.tensor([1, -1, 0, -1, 2], dtype=torch.int32) if mapped else None
    if mapped:
        w1, w2 = w1[:3], w2[:3]
    got = vllm.fused_experts(x, vllm.prepare(w1), w2, chances, ids, expert_map=here)
    assert got.dtype == x.dtype
    assert relative_error(got.double(), vllm.reference(x, w1, w2, chances, ids, here)) < 1e-2


def test_routing(vllm: Any) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]])
    chances, ids = vllm.fused_topk(torch.zeros(2, WIDTH), logits, 2, renormalize=True)
    assert ids.tolist() == [[1, 2], [0, 1]]
    assert ids.dtype == torch.int32
    torch.testing.assert_close(chances.sum(1), torch.ones(2))
    plain, _ = vllm.fused_topk(torch.zeros(2, WIDTH), logits, 2, renormalize=False)
    torch.testing.assert_close(plain, torch.softmax(logits, -1).topk(2).values)


def test_what_vllm_refuses_is_refused(vllm: Any) -> None:
    w1, w2 = weights()
    x, chances, ids = torch.zeros(3, WIDTH).bfloat16(), torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.int32)
    for arguments in (
        (x[:, :-8], w1, w2, chances, ids),
        (x, w1, w2, chances[:, :1], ids),
        (x.double(), w1, w2, chances, ids),
        (x, w1[:, :-2], w2, chances, ids),
        (x, w1, w2, chances, ids, "relu2"),
    ):
        with pytest.raises(ValueError, match=r"\w+"):
            vllm.fused_experts(*arguments)


def test_the_programs_have_kernels(vllm: Any) -> None:
    for op in vllm.programs("bf16"):
        forced = evt.grouped_gemm(op.request.source.text, route="gemm-own-ragged")
        assert evt.supports(forced, "sm90").route == "gemm-own-ragged"
