// The tensors of an extension: of PyTorch's stable interface, which one build for several releases uses, or of ATen.
#ifndef EVT_TORCH_TENSOR_HPP
#define EVT_TORCH_TENSOR_HPP

#ifndef EVT_TORCH_DEVICE
#define EVT_TORCH_DEVICE CUDA  // tests name another
#endif

#ifdef EVT_TORCH_STABLE
#include "stable.hpp"
#else
#include "aten.hpp"
#endif

#endif  // EVT_TORCH_TENSOR_HPP
