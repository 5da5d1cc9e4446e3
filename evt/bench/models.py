"""Whole models by name, with random weights and inputs: ``MODELS["resnet50"]``.

They are those of torchvision, timm and transformers, as far as these are installed, and a U-Net.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from evt.bench.unet import UNet

#: A call's inputs, in order and by keyword: of a device, a type, and a batch size.
_Inputs = Callable[[torch.device, torch.dtype, int], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Model:
    """A model: the package that has it, how it is made in f32, its inputs, and the usual batch size."""

    package: str
    make: Callable[[], torch.nn.Module]
    inputs: _Inputs
    batch: int


def _images(side: int = 224) -> _Inputs:
    def make(device: torch.device, dtype: torch.dtype, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = torch.randn(count, 3, side, side, device=device, generator=_generator(device))
        return (x.to(dtype).contiguous(memory_format=torch.channels_last),), {}

    return make


def _tokens(length: int, **names: int) -> _Inputs:
    def make(device: torch.device, dtype: torch.dtype, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        drawn = {
            name: torch.randint(0, most, (count, length), device=device, generator=_generator(device))
            for name, most in names.items()
        }
        return (), drawn

    return make


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def _vision(name: str) -> Callable[[], torch.nn.Module]:
    return lambda: getattr(importlib.import_module("torchvision.models"), name)()


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    return lambda: importlib.import_module("timm").create_model(name)


def _language(model: str, config: str, **sizes: Any) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        package: Any = importlib.import_module("transformers")
        made: torch.nn.Module = getattr(package, model)(getattr(package, config)(use_cache=False, **sizes))
        return made

    return make


_LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
MODELS: Mapping[str, Model] = {
    **{
        name: Model("torchvision", _vision(name), _images(), 32)
        for name in ("resnet18", "resnet50", "mobilenet_v3_large", "convnext_tiny", "vit_b_16")
    },
    "efficientnet_b0": Model("timm", _timm("efficientnet_b0"), _images(), 32),
    "unet": Model("torch", UNet, _images(256), 16),
    "bert": Model("transformers", _language("BertModel", "BertConfig"), _tokens(512, input_ids=30522), 16),
    "gpt2": Model("transformers", _language("GPT2LMHeadModel", "GPT2Config"), _tokens(512, input_ids=50257), 8),
    "llama": Model(
        "transformers", _language("LlamaForCausalLM", "LlamaConfig", **_LLAMA), _tokens(512, input_ids=32000), 4
    ),
    "t5": Model(
        "transformers",
        _language("T5ForConditionalGeneration", "T5Config"),
        _tokens(256, input_ids=32128, decoder_input_ids=32128),
        8,
    ),
}
