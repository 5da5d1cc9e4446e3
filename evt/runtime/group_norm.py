"""Group norms and SiLU by one kernel: ``torch.ops.evt.group_norm(image, gain, shift, groups, epsilon, is_silu)``.

The kernel takes images of 16 bits whose channels are neighbours in memory. :func:`kernel_for` says which ones.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

import torch
from torch.nn import functional

from evt.compilation import KernelSource, build_and_use
from evt.compilation.jit import Nvrtc
from evt.compilation.own import find_way
from evt.diagnostics import Diagnostic
from evt.emission.group_norm import NAME, emit_group_norm
from evt.errors import ArgumentError, InternalError
from evt.plan.group_norm import SHARED_BYTES, VECTOR, GroupNorm, kernel_of
from evt.reference.dense import not_dense
from evt.runtime import driver
from evt.runtime.library import launch_failure

_TYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
_GENCODE, _CAPABILITY = "sm_90a", (9, 0)
_MODULE, _LAUNCH = 4 << 16, 6 << 16  # kinds of failures
#: The kernel counts the elements of an image by 32 bits.
_MOST_ELEMENTS = 2**31


class _Params(ctypes.Structure):
    """evt::group_norm::Params."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("image", "to", "gain", "shift")),
        *((name, ctypes.c_int64) for name in ("image_stride", "pixel_stride")),
        *((name, ctypes.c_int32) for name in ("pixels", "channels")),
        ("epsilon", ctypes.c_float),
    )


@lru_cache(maxsize=256)
def kernel_for(
    shape: tuple[int, ...], dtype: torch.dtype, gain: torch.dtype | None, groups: int, is_silu: bool
) -> GroupNorm | None:
    """Return the kernel for an image and vectors of a type, or None if a cluster cannot keep the image's groups."""
    images, channels, height, width = shape
    if dtype not in (torch.float16, torch.bfloat16) or gain not in (None, dtype, torch.float32):
        return None
    if not 0 < channels * height * width < _MOST_ELEMENTS or not 0 < images < 2**16:
        return None
    types = {"element": _TYPES[dtype], "gain": _TYPES[gain or dtype]}
    return kernel_of(images, channels, height * width, groups, **types, is_silu=is_silu)


def is_available(device: torch.device) -> bool:
    """Return whether a device has these kernels, and this process can compile them."""
    return torch.cuda.get_device_capability(device) == _CAPABILITY and isinstance(find_way(), Nvrtc)


def source_of(kernel: GroupNorm) -> KernelSource:
    """Return the source of a kernel."""
    return KernelSource(emit_group_norm(kernel), _GENCODE, NAME, "group norm", alone=True)


def group_norm(
    image: torch.Tensor,
    gain: torch.Tensor | None,
    shift: torch.Tensor | None,
    groups: int,
    epsilon: float,
    is_silu: bool,
) -> torch.Tensor:
    """Return the norm of an image in channels_last, and its SiLU. Sums are in f32. Raise ArgumentError."""
    _check(image, gain, shift, groups)
    given = [each.dtype for each in (gain, shift) if each is not None]
    kernel = kernel_for(image.shape, image.dtype, given[0] if given else None, groups, is_silu)
    if not image.is_cuda or kernel is None or len(set(given)) > 1:
        return _by_pytorch(image, gain, shift, groups, epsilon, is_silu)
    if not _is_read(image):
        image = image.clone(memory_format=torch.channels_last)
    vectors = [each if each is None else each.contiguous() for each in (gain, shift)]
    made = torch.empty_like(image, memory_format=torch.channels_last)
    device, pixels = image.get_device(), image.shape[2] * image.shape[3]
    function = _loaded(kernel, device)
    addresses = (None if each is None else each.data_ptr() for each in (image, made, *vectors))
    params = _Params(*addresses, image.stride(0), image.stride(3), pixels, image.shape[1], epsilon)
    pointer = ctypes.c_void_p(ctypes.addressof(params))
    config, _memory = driver.config_of(
        (image.shape[1] // kernel.slice * kernel.ctas, image.shape[0]),
        kernel.threads,
        kernel.shared_bytes(pixels),
        torch.cuda.current_stream(device).cuda_stream,
        kernel.ctas,
        with_pdl=False,  # several CTAs of an SM would crowd the SMs on which the previous kernel ends first
    )
    with torch.cuda.device(device):
        code = driver.find_driver().launch(config, function, ctypes.addressof(pointer), None)
    if code:
        raise launch_failure(_LAUNCH | code)
    return made


def _check(image: torch.Tensor, gain: torch.Tensor | None, shift: torch.Tensor | None, groups: int) -> None:
    """Raise ArgumentError if arguments do not fit each other: the kernel reads the memory that an image describes."""
    fault = None
    if image.dim() != 4:
        message = f"`image` has {image.dim()} dimensions; expected [images, channels, height, width]"
        fault = Diagnostic("E0604", message, help="reshape it to four dimensions")
    elif groups < 1 or image.shape[1] % groups:
        message = f"{groups} groups do not divide the {image.shape[1]} channels of `image`"
        fault = Diagnostic("E0604", message, help="`groups` is a positive divisor of the number of channels")
    for name, each in (("image", image), ("gain", gain), ("shift", shift)):
        if each is not None and fault is None:
            fault = not_dense(name, each) or _fault(name, each, image)
    if fault is not None:
        raise ArgumentError(fault)


def _fault(name: str, tensor: torch.Tensor, image: torch.Tensor) -> Diagnostic | None:
    """Return why a tensor does not fit an image, or None."""
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        return Diagnostic("E0603", f"`{name}` is {tensor.dtype}; expected floats of at least 16 bits")
    if tensor is not image and tensor.shape != image.shape[1:2]:
        expected = f"[{image.shape[1]}], a number for each channel of `image`"
        return Diagnostic("E0604", f"`{name}` has the shape {list(tensor.shape)}; expected {expected}")
    if tensor.device != image.device:
        return Diagnostic("E0605", f"`{name}` is on {tensor.device}, `image` is on {image.device}")
    return None


def _by_pytorch(
    image: torch.Tensor,
    gain: torch.Tensor | None,
    shift: torch.Tensor | None,
    groups: int,
    epsilon: float,
    is_silu: bool,
) -> torch.Tensor:
    """Return the norm by PyTorch's operators, with the kernel's one rounding."""
    wide = torch.promote_types(image.dtype, torch.float32)
    wide_gain, wide_shift = (each if each is None else each.to(wide) for each in (gain, shift))
    exact = functional.group_norm(image.to(wide), groups, wide_gain, wide_shift, epsilon)
    made = functional.silu(exact) if is_silu else exact
    return made.to(image.dtype).contiguous(memory_format=torch.channels_last)


def _is_read(image: torch.Tensor) -> bool:
    """Return whether the kernel reads an image as it lies in memory: in vectors of 16 bytes."""
    images, channels, rows, columns = image.stride()
    if channels != 1 or rows != columns * image.shape[3] or images % VECTOR or columns % VECTOR:
        return False
    return image.data_ptr() % 16 == 0 and image.shape[2] * image.shape[3] * columns < _MOST_ELEMENTS


@cache
def _loaded(kernel: GroupNorm, device: int) -> int:
    """Return the function of a kernel, for images of any size on a device. Raise BuildError, LaunchError."""
    function = _function(kernel)
    if code := driver.find_driver().allow_shared_memory(function, SHARED_BYTES, device):
        raise launch_failure(_MODULE | code)
    return function


@cache
def _function(kernel: GroupNorm) -> int:
    """Build and load a kernel. Raise BuildError, LaunchError."""
    (cubin,) = build_and_use([source_of(kernel)], lambda _, path: path.read_bytes())
    cuda = driver.find_driver()
    code, library = cuda.load(cubin)
    if not code:
        code, function = cuda.kernel(library, NAME)
    if code:
        raise launch_failure(_MODULE | code)
    size = cuda.parameter_bytes(function)
    if size not in (None, ctypes.sizeof(_Params)):
        message = f"the kernel of group norms takes {size} bytes of parameters, not {ctypes.sizeof(_Params)}"
        raise InternalError(Diagnostic("E0902", message, help="run `evt cache clear`"))
    return function


def _like(
    image: torch.Tensor, gain: torch.Tensor | None, shift: torch.Tensor | None, groups: int, *_: Any
) -> torch.Tensor:
    _check(image, gain, shift, groups)
    return torch.empty_like(image, memory_format=torch.channels_last)


_Library: Any = torch.library.Library  # has no types
_LIBRARY = _Library("evt", "FRAGMENT")
_LIBRARY.define(
    "group_norm(Tensor image, Tensor? gain, Tensor? shift, int groups, float epsilon, bool is_silu) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("group_norm", group_norm, "CompositeExplicitAutograd")
torch.library.register_fake("evt::group_norm", _like, lib=_LIBRARY)

__all__ = ["group_norm", "is_available", "kernel_for", "source_of"]
