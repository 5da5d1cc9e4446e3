"""Tiny language models of transformers, with random weights: nothing is downloaded."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch

#: By name of the model: the class, its configuration's class, and the sizes below the defaults.
_SIZES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": (
        *("BertModel", "BertConfig"),
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "llama": (
        *("LlamaForCausalLM", "LlamaConfig"),
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
        },
    ),
    "t5": (
        *("T5ForConditionalGeneration", "T5Config"),
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    ),
}
NAMES = tuple(_SIZES)


def language_model(
    name: str, dtype: torch.dtype = torch.float32, **sizes: Any
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return a model for inference, and the keyword arguments of a call. Raise ImportError without transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = importlib.import_module("transformers")
        model, config, small = _SIZES[name]
        sizes = {**small, "vocab_size": 128, **sizes}
        made = getattr(transformers, model)(getattr(transformers, config)(use_cache=False, **sizes))
    tokens = torch.arange(48).reshape(2, 24) % 100
    inputs = {"input_ids": tokens}
    if name == "t5":
        inputs["decoder_input_ids"] = tokens[:, :16]
    return made.to(dtype).eval(), inputs


class Logits(torch.nn.Module):
    """A model that returns the first of its results as a tensor."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(**inputs, return_dict=False)[0]
        return found
