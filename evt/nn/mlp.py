"""``evt.nn.MLP`` and ``GatedMLP``: the feed-forward blocks of transformers, an activation between linear maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from evt.nn.linear import Linear
from evt.settings import Keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MLP(torch.nn.Module):
    """``fc2(activation(fc1(x)))`` in two kernels, with the parameter names of timm's and transformers' blocks.

    ``activation`` is a function of the language, or a registered one: ``"gelu"``, ``"gelu_tanh"``, ``"relu"``. The
    other arguments are as in :class:`evt.nn.Linear`.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        activation: str = "gelu",
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **settings: Unpack[Keywords],
    ) -> None:
        super().__init__()
        acc = "acc + bias" if bias else "acc"
        common: Any = {"bias": bias, "device": device, "dtype": dtype, **settings}
        self.fc1 = Linear(in_features, hidden_features, epilogue=f"{activation}({acc})", **common)
        self.fc2 = Linear(hidden_features, in_features if out_features is None else out_features, **common)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        found: torch.Tensor = self.fc2(self.fc1(x))
        return found


class GatedMLP(torch.nn.Module):
    """``down_proj(activation(gate_proj(x)) * up_proj(x))`` in three kernels, with the parameter names of Llama's block.

    The epilogue of the second product multiplies by the gate. ``activation`` and the other arguments are as in
    :class:`MLP`. A single kernel for both products needs one weight with alternating rows:

        layer = evt.nn.Linear(in_features, 2 * hidden_features, bias=False, epilogue="silu(even(acc)) * odd(acc)")
        layer.weight.data = torch.stack([gate_proj.weight, up_proj.weight], 1).flatten(0, 1)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        activation: str = "silu",
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **settings: Unpack[Keywords],
    ) -> None:
        super().__init__()
        acc = "acc + bias" if bias else "acc"
        common: Any = {"bias": bias, "device": device, "dtype": dtype, **settings}
        self.gate_proj = Linear(in_features, hidden_features, epilogue=f"{activation}({acc})", **common)
        self.up_proj = Linear(in_features, hidden_features, epilogue=f"gate * ({acc})", **common)
        self.down_proj = Linear(hidden_features, in_features if out_features is None else out_features, **common)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        found: torch.Tensor = self.down_proj(self.up_proj(x, gate=self.gate_proj(x)))
        return found
