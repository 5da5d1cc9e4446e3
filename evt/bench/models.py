"""Whole models by name, with random weights and inputs: ``MODELS["resnet50"]``.

Torchvision, timm and transformers define the models, apart from a U-Net and two decoders. Models of transformers are
made from configurations with few layers; no model downloads anything. :data:`LATER` names the models that the manual
lists apart.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from evt.bench.unet import UNet
from evt.bench.vae import Decoder

#: The positional arguments and keyword arguments of a call, made from a device, a type and a batch size.
_Inputs = Callable[[torch.device, torch.dtype, int], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Model:
    """A model: its package, its constructor in f32, its inputs, its usual batch size and its usual type."""

    package: str
    make: Callable[[], torch.nn.Module]
    inputs: _Inputs
    batch: int
    dtype: str = "float16"


def memory_format(shape: tuple[int, ...]) -> torch.memory_format:
    """Return the memory format of a tensor of images or videos; other tensors are contiguous."""
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape), torch.contiguous_format)


def _pixels(*shape: int, name: str = "") -> _Inputs:
    """Return inputs of normal numbers, each of a shape; ``name`` is the keyword, if the model needs one."""

    def make(device: torch.device, dtype: torch.dtype, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = torch.randn(count, *shape, device=device, generator=_generator(device))
        x = x.to(dtype).contiguous(memory_format=memory_format(x.shape))
        return ((), {name: x}) if name else ((x,), {})

    return make


def _tokens(length: int, **names: int) -> _Inputs:
    """Return inputs of token numbers, by keyword, each below a limit."""

    def make(device: torch.device, dtype: torch.dtype, count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        drawn = {
            name: torch.randint(0, most, (count, length), device=device, generator=_generator(device))
            for name, most in names.items()
        }
        return (), drawn

    return make


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def _torchvision(
    name: str, batch: int = 32, *, module: str = "models", shape: tuple[int, ...] = (3, 224, 224), **options: Any
) -> Model:
    def make() -> torch.nn.Module:
        made: torch.nn.Module = getattr(importlib.import_module(f"torchvision.{module}"), name)(**options)
        return made

    return Model("torchvision", make, _pixels(*shape), batch)


def _timm(name: str, batch: int = 32, *, side: int = 224, dtype: str = "float16") -> Model:
    def make() -> torch.nn.Module:
        made: torch.nn.Module = importlib.import_module("timm").create_model(name)
        return made

    return Model("timm", make, _pixels(3, side, side), batch, dtype)


def _transformers(
    model: str, config: str, inputs: _Inputs, batch: int, sizes: Mapping[str, int] | None = None, *, part: str = ""
) -> Model:
    """Return a model of transformers made from a configuration; ``part`` names the module of it that is called."""

    def make() -> torch.nn.Module:
        package: Any = importlib.import_module("transformers")
        made: torch.nn.Module = getattr(package, model)(getattr(package, config)(use_cache=False, **(sizes or {})))
        return made.get_submodule(part)

    return Model("transformers", make, inputs, batch, "bfloat16")


_VOCABULARY = 32000
_TOKENS = _tokens(1024, input_ids=_VOCABULARY)
_IMAGES = _pixels(3, 224, 224, name="pixel_values")
#: The sizes of language models with grouped queries, and of encoders.
_DECODER = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": _VOCABULARY,
}
_ENCODER = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 3072}
_WHISPER = {
    "d_model": 768,
    "encoder_layers": 4,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_layers": 1,
    "decoder_attention_heads": 12,
}
_OPT = {
    "hidden_size": 2048,
    "ffn_dim": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "vocab_size": _VOCABULARY,
    "word_embed_proj_dim": 2048,
}

#: Models to which the cost model was fitted.
_KNOWN: Mapping[str, Model] = {
    **{name: _torchvision(name) for name in ("resnet18", "resnet50", "mobilenet_v3_large", "convnext_tiny")},
    "vit_b_16": _torchvision("vit_b_16"),
    "efficientnet_b0": _timm("efficientnet_b0"),
    "unet": Model("torch", UNet, _pixels(3, 256, 256), 16),
    "bert": _transformers("BertModel", "BertConfig", _tokens(512, input_ids=30522), 16),
    "gpt2": _transformers("GPT2LMHeadModel", "GPT2Config", _tokens(512, input_ids=50257), 8),
    "llama": _transformers(
        *("LlamaForCausalLM", "LlamaConfig", _tokens(512, input_ids=_VOCABULARY), 4),
        {**_DECODER, "num_hidden_layers": 8},
    ),
    "t5": _transformers(
        *("T5ForConditionalGeneration", "T5Config", _tokens(256, input_ids=32128, decoder_input_ids=32128), 8)
    ),
}

#: Models to which nothing was fitted.
LATER: Mapping[str, Model] = {
    "resnext50": _torchvision("resnext50_32x4d", 64),
    "densenet121": _torchvision("densenet121", 64),
    "vgg16_bn": _torchvision("vgg16_bn"),
    "mobilenet_v2": _torchvision("mobilenet_v2", 64),
    "deeplabv3": _torchvision(
        *("deeplabv3_resnet50", 8), module="models.segmentation", shape=(3, 512, 512), weights_backbone=None
    ),
    "vae_decoder": Model("torch", Decoder, _pixels(4, 64, 64), 1),
    "video_decoder": Model(
        *("torch", lambda: Decoder(16, (384, 384, 192, 96), volume=True), _pixels(16, 5, 32, 32), 1, "bfloat16")
    ),
    "r3d_18": _torchvision("r3d_18", 8, module="models.video", shape=(3, 16, 112, 112)),
    "regnety_032": _timm("regnety_032", 64),
    "cspdarknet53": _timm("cspdarknet53", side=256),
    "convnextv2_tiny": _timm("convnextv2_tiny"),
    "swin_tiny": _timm("swin_tiny_patch4_window7_224", 64, dtype="bfloat16"),
    "mixer_b16": _timm("mixer_b16_224", dtype="bfloat16"),
    "deit_small": _timm("deit_small_patch16_224", 64, dtype="bfloat16"),
    "siglip": _transformers("SiglipVisionModel", "SiglipVisionConfig", _IMAGES, 32, _ENCODER),
    "dinov2": _transformers("Dinov2Model", "Dinov2Config", _IMAGES, 32, {"num_hidden_layers": 4}),
    "whisper": _transformers(
        *("WhisperModel", "WhisperConfig", _pixels(80, 3000, name="input_features"), 8, _WHISPER), part="encoder"
    ),
    "roberta": _transformers(
        *("RobertaModel", "RobertaConfig", _tokens(512, input_ids=50265), 16),
        {**_ENCODER, "vocab_size": 50265, "max_position_embeddings": 514},
    ),
    "distilbert": _transformers("DistilBertModel", "DistilBertConfig", _tokens(512, input_ids=30522), 16),
    "bart": _transformers(
        *("BartModel", "BartConfig", _tokens(1024, input_ids=50265), 4),
        {"encoder_layers": 4, "decoder_layers": 1},
        part="encoder",
    ),
    "opt": _transformers("OPTForCausalLM", "OPTConfig", _TOKENS, 4, _OPT),
    "qwen2": _transformers("Qwen2ForCausalLM", "Qwen2Config", _TOKENS, 4, _DECODER),
    "gemma2": _transformers("Gemma2ForCausalLM", "Gemma2Config", _TOKENS, 4, {**_DECODER, "head_dim": 128}),
    "mistral": _transformers("MistralForCausalLM", "MistralConfig", _TOKENS, 4, _DECODER),
    "phi3": _transformers("Phi3ForCausalLM", "Phi3Config", _TOKENS, 4, {**_DECODER, "pad_token_id": 0}),
}
MODELS: Mapping[str, Model] = {**_KNOWN, **LATER}
