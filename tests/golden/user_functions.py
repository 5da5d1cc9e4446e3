"""The functions of the case ``gemm_3x_functions``."""

import torch

import evt

evt.function("wobble(x)", cxx="x + 1", torch=lambda x: x + 1, derivative="1")
evt.function("softplus_of(x)", cxx="log1pf(expf(x))", torch=torch.nn.functional.softplus)
