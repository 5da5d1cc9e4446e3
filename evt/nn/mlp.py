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
    """``down_proj(activation(gate_proj(x)) * up_proj(x))``, with the parameter names of Llama's block.

    It takes three kernels: the epilogue of the second product multiplies by the gate. With ``fused=True`` it takes two,
    and reads x once: one weight, ``gate_up_pairs``, has the rows of both in turn, and the epilogue of its product
    multiplies the columns of each pair. ``load_state_dict`` takes the state dict of either form:

        layer = evt.nn.GatedMLP(4096, 11008, fused=True, dtype=torch.bfloat16)
        layer.load_state_dict(block.state_dict())  # with gate_proj.weight and up_proj.weight

    :meth:`unfused` is the way back. ``activation`` and the other arguments are as in :class:`MLP`.
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
        *,
        fused: bool = False,
        **settings: Unpack[Keywords],
    ) -> None:
        super().__init__()
        acc = "acc + bias" if bias else "acc"
        common: Any = {"bias": bias, "device": device, "dtype": dtype, **settings}
        out_features = in_features if out_features is None else out_features
        self.fused = fused
        self._made_with = {"activation": activation, "bias": bias, **settings}
        if fused:
            pairs = f"z = {acc}; {activation}(even(z)) * odd(z)"
            self.gate_up_pairs = Linear(in_features, 2 * hidden_features, epilogue=pairs, **common)
            self.register_load_state_dict_pre_hook(_read_checkpoint)  # type: ignore[no-untyped-call]
        else:
            self.gate_proj = Linear(in_features, hidden_features, epilogue=f"{activation}({acc})", **common)
            self.up_proj = Linear(in_features, hidden_features, epilogue=f"gate * ({acc})", **common)
        self.down_proj = Linear(hidden_features, out_features, **common)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        hidden = self.gate_up_pairs(x) if self.fused else self.up_proj(x, gate=self.gate_proj(x))
        found: torch.Tensor = self.down_proj(hidden)
        return found

    def unfused(self) -> GatedMLP:
        """Return a copy with a weight for the gate and one for the input, as checkpoints have them."""
        down = self.down_proj
        like: Any = {"device": down.weight.device, "dtype": down.weight.dtype, **self._made_with}
        made = GatedMLP(self._in_features, down.in_features, down.out_features, **like)
        state = self.state_dict()
        for name in [name for name in state if name.startswith(_PAIRS)]:
            gate, up = state.pop(name).unflatten(0, (-1, 2)).unbind(1)
            end = name.removeprefix(_PAIRS)
            state |= {f"gate_proj{end}": gate, f"up_proj{end}": up}
        made.load_state_dict(state)
        return made.train(self.training)

    @property
    def _in_features(self) -> int:
        return (self.gate_up_pairs if self.fused else self.gate_proj).in_features


_PAIRS = "gate_up_pairs"


def _read_checkpoint(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Replace the two tensors of a checkpoint by the pairs of their rows, for the weight and the bias."""
    for end in (".weight", ".bias"):
        names = [f"{prefix}{name}{end}" for name in ("gate_proj", "up_proj")]
        if all(name in state for name in names) and f"{prefix}{_PAIRS}{end}" not in state:
            gate, up = (state.pop(name) for name in names)
            if gate.shape == up.shape:
                state[f"{prefix}{_PAIRS}{end}"] = torch.stack([gate, up], 1).flatten(0, 1)
            else:
                state |= dict(zip(names, (gate, up), strict=True))
