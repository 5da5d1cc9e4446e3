"""The CUDA driver by ctypes: the functions that load a cubin, encode descriptors of TMA, and launch kernels.

Functions return a CUresult, 0 for success, unless they say otherwise.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from evt.launch.recipe import C_TYPES, Launch, Patch
from evt.launch.shape import Map, PixelMap

#: The CUresult of a thread without a context.
INVALID_CONTEXT = 201
_MULTIPROCESSORS, _CAPABILITY = 16, (75, 76)  # CUdevice_attribute
_DYNAMIC_SHARED_BYTES = 8  # CUfunction_attribute
_CLUSTER, _PDL = 4, 6  # CUlaunchAttributeID
_INTERLEAVE_NONE, _FILL_ZEROS, _SWIZZLE_128 = 0, 0, 3
#: CUtensorMapL2promotion: the bytes that L2 fetches at once for a box.
_PROMOTION_128, _PROMOTION_256, _LINE = 2, 3, 128
#: The alignment of a descriptor in memory.
_ALIGNMENT = 128
_Reader: TypeAlias = Callable[[Sequence[Any]], Any]


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
    """The first arguments of ``Driver.launch``: addresses in the memory that ``kept`` holds."""

    config: int
    kernel: int
    params: int
    kept: tuple[object, ...]


class Driver:
    """The functions of libcuda. Raise OSError without a driver, and AttributeError for one before CUDA 12."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        cuda = ctypes.CDLL(library)
        self.encode_tiled = cuda.cuTensorMapEncodeTiled
        self.encode_im2col = cuda.cuTensorMapEncodeIm2col
        self.replace_address = cuda.cuTensorMapReplaceAddress
        self.replace_address.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.launch = cuda.cuLaunchKernelEx
        self.launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._cuda = cuda

    def devices(self) -> tuple[int, int]:
        """Return a CUresult and the number of devices that this process may use."""
        number = ctypes.c_int()
        return self._cuda.cuInit(0) or self._cuda.cuDeviceGetCount(ctypes.byref(number)), number.value

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

    def name(self, device: int) -> tuple[int, str]:
        """Return a CUresult and the name of a device's model."""
        text = ctypes.create_string_buffer(256)
        code: int = self._cuda.cuDeviceGetName(text, len(text), ctypes.c_int(device))
        return code, text.value.decode(errors="replace")

    def capability(self, device: int) -> tuple[int, tuple[int, int]]:
        """Return a CUresult and the compute capability of a device."""
        numbers = ctypes.c_int(), ctypes.c_int()
        pairs = zip(numbers, _CAPABILITY, strict=True)
        codes = [self._cuda.cuDeviceGetAttribute(ctypes.byref(to), each, ctypes.c_int(device)) for to, each in pairs]
        return max(codes), (numbers[0].value, numbers[1].value)

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


class Ready:
    """A launch of a kernel on a device, with descriptors that only need the addresses of a call.

    Raise RefusedError if the driver refuses a descriptor at the addresses of the first call.
    """

    def __init__(self, driver: Driver, kernel: int, launch: Launch, values: Sequence[Any], *, with_pdl: bool) -> None:
        self._kernel, self._launch, self._with_pdl = kernel, launch, with_pdl
        self._replace = driver.replace_address
        size = len(launch.params)
        _memory_of_params, at = _memory(size)
        ctypes.memmove(at, launch.params, size)
        for offset, index, given in launch.maps:
            if _encode(driver, given, at + offset, values[index] - given.before):
                raise RefusedError
        self._maps = [(offset, index, given.before) for offset, index, given in launch.maps]
        self._pack, self._chunks, self._values = _packer(ctypes.string_at(at, size), launch.patches)
        #: By the stream: the address of a configuration, and its memory.
        self._configs: dict[int, tuple[int, object]] = {}

    def prepare(self, values: Sequence[Any], stream: int) -> Prepared:
        """Return the launch of a call's addresses and numbers. Raise RefusedError for an address that TMA refuses."""
        size = len(self._launch.params)
        memory, at = _memory(size + 8)
        chunks = self._chunks.copy()
        for position, read in self._values:
            chunks[position] = read(values)
        # The driver reads the parameters through a pointer, which follows them.
        self._pack(memory, at - ctypes.addressof(memory), *chunks, at)
        for offset, index, before in self._maps:
            if self._replace(at + offset, values[index] - before):
                raise RefusedError
        config, kept = self._configs.get(stream) or self._config(stream)
        return Prepared(config, self._kernel, at + size, (memory, kept))

    def _config(self, stream: int) -> tuple[int, object]:
        """Return the configuration for a stream, and keep it."""
        launch = self._launch
        made = config_of(
            *(launch.grid, launch.threads, launch.shared_bytes, stream, launch.cluster), with_pdl=self._with_pdl
        )
        self._configs[stream] = made
        return made


def config_of(
    grid: tuple[int, int], threads: int, shared_bytes: int, stream: int, cluster: int, *, with_pdl: bool
) -> tuple[int, object]:
    """Return the address of a launch's configuration, and its memory.

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
    made = Config((*grid, 1), (threads, 1, 1), shared_bytes, stream or None, attributes, count)
    return ctypes.addressof(made), (made, attributes)


class RefusedError(Exception):
    """An address or a stride that TMA refuses."""


def _memory(size: int) -> tuple[Any, int]:
    """Return memory, and an address in it with the alignment of a descriptor."""
    made = ctypes.create_string_buffer(size + _ALIGNMENT)
    return made, -(-ctypes.addressof(made) // _ALIGNMENT) * _ALIGNMENT


def _encode(driver: Driver, given: Map, at: int, address: int) -> int:
    rank = len(given.extents)
    # A box of rows that begin within lines would fetch much beyond its own lines.
    promotion = _PROMOTION_128 if given.strides[0] % _LINE else _PROMOTION_256
    extents, strides = (ctypes.c_uint64 * rank)(*given.extents), (ctypes.c_uint64 * (rank - 1))(*given.strides)
    tensor = ctypes.c_void_p(at), given.type, rank, ctypes.c_void_p(address), extents, strides
    if isinstance(given, PixelMap):
        first, last = (ctypes.c_int * 2)(*given.first), (ctypes.c_int * 2)(*given.last)
        box = first, last, ctypes.c_uint32(given.channels), ctypes.c_uint32(given.pixels)
        steps = (ctypes.c_uint32 * rank)(1, *given.steps, 1)
        return int(driver.encode_im2col(*tensor, *box, steps, _INTERLEAVE_NONE, _SWIZZLE_128, promotion, _FILL_ZEROS))
    box_, steps = (ctypes.c_uint32 * rank)(*given.box), (ctypes.c_uint32 * rank)(*given.steps)
    return int(driver.encode_tiled(*tensor, box_, steps, _INTERLEAVE_NONE, given.swizzle, promotion, _FILL_ZEROS))


def _packer(
    params: bytes, patches: Sequence[Patch]
) -> tuple[Callable[..., None], list[Any], list[tuple[int, _Reader]]]:
    """Return a function that writes parameters and a pointer to them, its arguments, and the readers of a call.

    The arguments alternate between constant bytes and values of a call. A reader is the position of a value among the
    arguments, and the function that computes it from a call.
    """
    form, chunks, values, end = "=", list[Any](), list[tuple[int, _Reader]](), 0
    for patch in sorted(patches, key=lambda each: each.at):
        form += f"{patch.at - end}s{_FORMS.get(patch.type, patch.type)}"
        values.append((len(chunks) + 1, _reader(patch)))
        chunks += [params[end : patch.at], 0]
        end = patch.at + struct.calcsize(f"={_FORMS.get(patch.type, patch.type)}")
    return struct.Struct(f"{form}{len(params) - end}sQ").pack_into, [*chunks, params[end:]], values


#: Pointers are integers to the module ``struct``.
_FORMS = {"P": "Q"}


def _reader(patch: Patch) -> _Reader:
    """Return the function that computes a member from a call's arguments, converted as by a C++ cast."""
    index = patch.index
    if patch.pairs:
        return lambda values: any(values[one] == values[other] for one, other in patch.pairs)
    if patch.is_aligned:
        return lambda values: values[index] % 16 == 0
    if patch.type == "P":
        return lambda values: values[index] + patch.addend
    kind = C_TYPES[patch.type]
    if patch.type in "fd?":
        return lambda values: kind(values[index]).value
    return lambda values: kind(int(values[index])).value
