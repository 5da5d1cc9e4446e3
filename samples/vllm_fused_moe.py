"""vLLM's fused_topk and fused_experts by evt: ``python samples/vllm_fused_moe.py``.

The functions have the signatures and the meaning of vllm/model_executor/layers/fused_moe: top-k routing by softmax,
gate and up projection with SiLU in one launch for all experts, down projection with the router's weights in another
one. An expert map names the experts of this rank. Nothing waits for the GPU, and a CUDA graph takes other routes at
each replay. On a CUDA GPU the kernels run; elsewhere the PyTorch reference does.
"""

from __future__ import annotations

from functools import cache

import torch

import evt

#: evt's names of the types.
NAMES = {torch.float16: "f16", torch.bfloat16: "bf16"}


@cache
def programs(dtype: str) -> tuple[evt.GroupedProgram, evt.GroupedProgram]:
    """Return the programs of both projections. The columns of the first one are pairs of gate and up."""
    header = f"gemm(A: {dtype}[m, k], B: {dtype}[n, k])\n"
    up = evt.grouped_gemm(f"{header}out D: {dtype}[m, n/2]\nD = silu(even(acc))*odd(acc)")
    down = evt.grouped_gemm(f"{header}in weight: f32[m]\nout D: {dtype}[m, n]\nD = weight*acc")
    return up, down


def prepare(w1: torch.Tensor) -> torch.Tensor:
    """Return weights ``[experts, 2n, k]``, whose first half is the gate, with gate and up rows in turn.

    A model calls it once.
    """
    experts, rows, depth = w1.shape
    return w1.view(experts, 2, rows // 2, depth).transpose(1, 2).reshape(experts, rows, depth)


def fused_topk(
    hidden_states: torch.Tensor, gating_output: torch.Tensor, topk: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the router's weights and the experts of each token, ``[tokens, topk]``."""
    if hidden_states.shape[0] != gating_output.shape[0]:
        raise ValueError("hidden_states and gating_output have a row for each token")
    weights, ids = torch.softmax(gating_output.float(), dim=-1).topk(topk, dim=-1)
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), ids.to(torch.int32)


def fused_experts(
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str = "silu",
    expert_map: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the weighted sum of each token's experts. ``w1`` is from :func:`prepare`, ``w2`` is ``[experts, k, n]``.

    ``expert_map`` has the number of each expert on this rank, or -1 for an expert of another rank.
    """
    check(hidden_states, w1, w2, topk_weights, topk_ids, activation)
    tokens, topk = topk_ids.shape
    experts, width = w1.shape[0], w2.shape[1]
    ids = topk_ids if expert_map is None else expert_map[topk_ids.long()]
    ids = torch.where(ids < 0, experts, ids).flatten()  # rows of other ranks come last, after the end of all groups
    order = ids.argsort(stable=True)
    ends = torch.searchsorted(ids[order], torch.arange(experts, device=ids.device, dtype=ids.dtype), right=True)
    offsets = ends.to(torch.int32)
    up, down = programs(NAMES[hidden_states.dtype])
    hidden = up(hidden_states[order // topk], w1, offsets=offsets)
    weighted = hidden_states.new_zeros((tokens * topk, width))
    down(hidden, w2, weight=topk_weights.float().flatten()[order], offsets=offsets, out=weighted)
    return weighted[order.argsort()].view(tokens, topk, width).sum(1)


def check(
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str,
) -> None:
    """Raise ValueError for arguments that vLLM's function refuses, and for other activations."""
    if hidden_states.shape[1] != w1.shape[2]:
        raise ValueError(f"hidden size mismatch {hidden_states.shape[1]} != {w1.shape[2]}")
    if topk_weights.shape != topk_ids.shape:
        raise ValueError("topk shape mismatch")
    if hidden_states.dtype not in NAMES:
        raise ValueError("hidden_states are float16 or bfloat16")
    if w1.shape[1] != 2 * w2.shape[2] or w1.shape[0] != w2.shape[0]:
        raise ValueError("w1 has two rows for each column of w2")
    if activation != "silu":
        raise ValueError(f"the activation is {activation}; this sample has silu")


def reference(hidden_states, w1, w2, topk_weights, topk_ids, expert_map=None):  # type: ignore[no-untyped-def]
    """Return the meaning in float64, token by token; ``w1`` has the gates first."""
    result = torch.zeros(hidden_states.shape[0], w2.shape[1], dtype=torch.float64, device=hidden_states.device)
    half = w1.shape[1] // 2
    for token, (weights, ids) in enumerate(zip(topk_weights.tolist(), topk_ids.tolist(), strict=True)):
        for weight, each in zip(weights, ids, strict=True):
            expert = each if expert_map is None else int(expert_map[each])
            if expert >= 0:
                found = w1[expert].double() @ hidden_states[token].double()
                gated = torch.nn.functional.silu(found[:half]) * found[half:]
                result[token] += weight * (w2[expert].double() @ gated)
    return result


def main() -> None:
    """Compare the experts of some tokens with the reference."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    experts, width, inner, topk = 8, 128, 192, 2
    w1 = (torch.randn(experts, 2 * inner, width, device=device) * width**-0.5).bfloat16()
    w2 = (torch.randn(experts, width, inner, device=device) * inner**-0.5).bfloat16()
    prepared = prepare(w1)
    for tokens in (1, 33):
        x = torch.randn(tokens, width, device=device).bfloat16()
        weights, ids = fused_topk(x, torch.randn(tokens, experts, device=device), topk, renormalize=True)
        got, want = fused_experts(x, prepared, w2, weights, ids), reference(x, w1, w2, weights, ids)
        print(f"{tokens} tokens: relative error {float((got - want).norm() / want.norm()):.1e}")


if __name__ == "__main__":
    main()
