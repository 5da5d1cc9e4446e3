"""Running programs on tensors: checking a call's arguments, loading libraries, launching kernels."""
