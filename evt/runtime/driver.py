"""The CUDA driver by ctypes: the functions that load a cubin, encode descriptors of TMA, and launch kernels.

Functions return a CUresult, 0 for success, unless they say otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from evt.launch.shape import TensorMap

#: CUresult.
NOT_FOUND, INVALID_CONTEXT = 500, 201
_MULTIPROCESSORS = 16  # CUdevice_attribute
_DYNAMIC_SHARED_BYTES = 8  # CUfunction_attribute
_CLUSTER, _PDL = 4, 6  # CUlaunchAttributeID
_INTERLEAVE_NONE, _PROMOTION_256, _FILL_ZEROS = 0, 3, 0
#: The alignment of a descriptor in memory.
_ALIGNMENT = 128


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a cluster's dimensions, or a flag."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """The first arguments of ``Driver.launch``, as addresses of memory that ``kept`` has."""

    config: Any
    kernel: int
    params: Any
    kept: tuple[object, ...]


class Driver:
    """The functions of libcuda. Raise OSError without a driver, and AttributeError for one before CUDA 12."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        cuda = ctypes.CDLL(library)
        self.encode_tiled = cuda.cuTensorMapEncodeTiled
        self.launch = cuda.cuLaunchKernelEx
        self.launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._cuda = cuda

    def device(self) -> tuple[int, int]:
        """Return a CUresult and the device of the thread's context."""
        device = ctypes.c_int()
        return self._cuda.cuCtxGetDevice(ctypes.byref(device)), device.value

    def use(self, device: int) -> int:
        """Make the primary context of a device the thread's context."""
        context = ctypes.c_void_p()
        self._cuda.cuInit(0)
        code: int = self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ctypes.c_int(device))
        return code or int(self._cuda.cuCtxSetCurrent(context))

    def multiprocessors(self, device: int) -> tuple[int, int]:
        """Return a CUresult and the number of SMs of a device."""
        number = ctypes.c_int()
        code = self._cuda.cuDeviceGetAttribute(ctypes.byref(number), _MULTIPROCESSORS, ctypes.c_int(device))
        return code, number.value

    def load(self, cubin: bytes) -> tuple[int, int]:
        """Return a CUresult and the library of a cubin."""
        library = ctypes.c_void_p()
        code = self._cuda.cuLibraryLoadData(ctypes.byref(library), cubin, None, None, 0, None, None, 0)
        return code, library.value or 0

    def kernel(self, library: int, name: str) -> tuple[int, int]:
        """Return a CUresult and a kernel of a library."""
        kernel = ctypes.c_void_p()
        code = self._cuda.cuLibraryGetKernel(ctypes.byref(kernel), ctypes.c_void_p(library), name.encode())
        return code, kernel.value or 0

    def parameter_bytes(self, kernel: int) -> int | None:
        """Return the bytes of a kernel's only parameter; None if the driver does not tell."""
        try:
            get = self._cuda.cuKernelGetParamInfo
        except AttributeError:  # before CUDA 12.4
            return None
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        code = get(ctypes.c_void_p(kernel), ctypes.c_size_t(0), ctypes.byref(offset), ctypes.byref(size))
        return None if code else size.value

    def allow_shared_memory(self, kernel: int, size: int, device: int) -> int:
        """Raise a kernel's limit of shared memory on a device."""
        number = ctypes.c_int(size)
        code: int = self._cuda.cuKernelSetAttribute(
            _DYNAMIC_SHARED_BYTES, number, ctypes.c_void_p(kernel), ctypes.c_int(device)
        )
        return code


@cache
def find_driver() -> Driver:
    """Return the driver of this machine. Raise OSError or AttributeError as :class:`Driver` does."""
    return Driver()


def buffer(size: int) -> tuple[Any, int]:
    """Return zeroed memory and an address in it for bytes that a descriptor may begin."""
    made = ctypes.create_string_buffer(size + _ALIGNMENT)
    return made, -(-ctypes.addressof(made) // _ALIGNMENT) * _ALIGNMENT


def encoder(driver: Driver, given: TensorMap) -> Callable[[int, int], int]:
    """Return a function of the address of a descriptor and of its tensor, which encodes the descriptor."""
    rank = len(given.extents)
    extents, strides = (ctypes.c_uint64 * rank)(*given.extents), (ctypes.c_uint64 * (rank - 1))(*given.strides)
    box, steps = (ctypes.c_uint32 * rank)(*given.box), (ctypes.c_uint32 * rank)(*given.steps)
    encode, pointer = driver.encode_tiled, ctypes.c_void_p

    def run(at: int, address: int) -> int:
        code: int = encode(
            *(pointer(at), given.type, rank, pointer(address), extents, strides, box, steps),
            *(_INTERLEAVE_NONE, given.swizzle, _PROMOTION_256, _FILL_ZEROS),
        )
        return code

    return run


def prepared(
    kernel: int,
    memory: tuple[Any, int],
    *,
    grid: tuple[int, int],
    threads: int,
    shared_bytes: int,
    cluster: int,
    with_pdl: bool,
    stream: int,
) -> Prepared:
    """Return a launch of a kernel with parameters in memory.

    A kernel with programmatic dependent launch (PDL) may begin before the previous one ends.
    """
    attributes = (_Attribute * 2)()
    count = 0
    if cluster > 1:
        attributes[count].id = _CLUSTER
        attributes[count].value[:3] = (cluster, 1, 1)
        count += 1
    if with_pdl:
        attributes[count].id = _PDL
        attributes[count].value[0] = 1
        count += 1
    config = Config((*grid, 1), (threads, 1, 1), shared_bytes, stream or None, attributes, count)
    params = (ctypes.c_void_p * 1)(memory[1])
    return Prepared(ctypes.addressof(config), kernel, ctypes.addressof(params), (config, attributes, params, memory))
