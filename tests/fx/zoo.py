"""Models of torchvision, timm and transformers with random weights: the fused products and the number of kernels.

    python -m tests.fx.zoo resnet50 bert

prints products, regions, operators and distinct programs of each model, without a GPU.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from evt.fx.fuse import Fusion, fuse, fusion

from .transformers_models import Logits, language_model

#: Models of language, with fewer layers than usual: their layers are all alike.
_LANGUAGE: Mapping[str, dict[str, Any]] = {
    "bert": {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 3072},
    "gpt2": {"n_embd": 768, "n_layer": 4, "n_head": 12, "n_positions": 128},
    "llama": {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128,
    },
    "t5": {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 3, "num_heads": 8},
}
_TORCHVISION = ("resnet18", "resnet50", "mobilenet_v3_large", "convnext_tiny", "vit_b_16")
NAMES = (*_TORCHVISION, "efficientnet_b0", *_LANGUAGE)


def make(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return a model for inference, and the keyword arguments of a call. Raise ImportError where its package is not."""
    torch.manual_seed(0)
    if name in _LANGUAGE:
        model, inputs = language_model(name, dtype, **_LANGUAGE[name])
        return Logits(model).to(device).eval(), {key: value.to(device) for key, value in inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = "torchvision.models" if name in _TORCHVISION else "timm.models"
        made = getattr(importlib.import_module(package), name)()
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
        if isinstance(module, torch.nn.Linear) and not module.weight.any():
            module.reset_parameters()  # the last layer of vit_b_16: its results would be 0, without a relative error
    made = made.to(device=device, dtype=dtype, memory_format=torch.channels_last).eval()
    x = torch.randn(4, 3, 224, 224).to(device=device, dtype=dtype, memory_format=torch.channels_last)
    return made, {"x": x}


def counts(found: Fusion) -> dict[str, int]:
    """Return how many products, regions, operators beside the products, and distinct programs there are."""
    regions = found.regions
    return {
        "products": len(found.outcomes),
        "regions": len(regions),
        "operators": sum(len(each.nodes) - 1 for each in regions),
        "programs": len({each.program for each in regions}),
    }


def main(names: list[str], report: Callable[[str], None] = print) -> None:
    for name in names or NAMES:
        try:
            model, inputs = make(name, torch.float16)
        except ImportError as error:
            report(f"{name}: {error}")
            continue
        found = fusion(fuse(model, inputs))
        reasons = Counter(each.code for each in found.reasons)
        report(f"{name}: {counts(found)}, reasons {dict(sorted(reasons.items()))}")


if __name__ == "__main__":
    main(sys.argv[1:])
