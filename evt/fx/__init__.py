"""PyTorch models, fused by themselves: ``fuse(module, inputs)`` and ``torch.compile(model, backend="evt")``."""
