"""PyTorch models, fused by themselves: ``fuse(module, example_inputs)``."""
