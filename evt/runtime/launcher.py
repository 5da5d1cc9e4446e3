"""A kernel without a compiled launcher: ``Launcher(plan, cubin, name).run(arguments, size, stream)``.

It takes the arguments of a compiled launcher and returns its results. See :mod:`evt.launch` for the parameters.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evt.diagnostics import Diagnostic
from evt.errors import InternalError
from evt.launch.recipe import C_TYPES, Kernel, Launch, Patch, Recipe, recipe_of, workspace_of
from evt.plan import Plan
from evt.runtime import driver
from evt.runtime.driver import INVALID_CONTEXT, Driver, Prepared

#: Kinds of failures, as evt::Failure has them.
_ARGUMENTS, _REFUSED, _DEVICE, _MODULE, _DRIVER, _LAUNCH = 1, 2, 3, 4, 5, 6
#: Calls and sizes that are kept before all are dropped.
_MOST_CALLS, _MOST_SIZES = 256, 256
#: The formats of arguments in the module ``struct``, by the kinds of fields.
FORMATS = {"size": "q", "pointer": "Q", "number": "d", "integer": "q"}


def _failure(kind: int, detail: int = 0) -> int:
    return kind << 16 | detail & 0xFFFF


class _FailedError(Exception):
    """A result that is not 0."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass(frozen=True, slots=True)
class _Cooked:
    """A launch of a recipe on a device: the kernel, and the functions that encode its descriptors."""

    launch: Launch
    kernel: int
    maps: tuple[tuple[int, int, Callable[[int, int], int]], ...]


class Launcher:
    """The launches of a cubin's kernels. Several threads may call it.

    Raise ValueError for a cubin that is not of the plan. The driver is found at the first launch.
    """

    def __init__(self, plan: Plan, cubin: bytes, name: str, *, find: Callable[[], Driver] = driver.find_driver) -> None:
        self._kernel = Kernel.of(plan, cubin, name)
        self._plan, self._cubin, self._name, self._find = plan, cubin, name, find
        self._form = struct.Struct("=" + "".join(FORMATS[field.kind] for field in plan.fields))
        self._sizes = [(index, field.name) for index, field in enumerate(plan.fields) if field.kind == "size"]
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._launch: Callable[..., int] = _no_launch
        self._kernels: dict[str, int] = {}
        self._multiprocessors: dict[int, int] = {}
        #: By device and sizes, and by the arguments and the stream.
        self._recipes: dict[object, tuple[_Cooked, ...]] = {}
        self._calls: dict[tuple[bytes, int], tuple[Prepared, ...]] = {}

    def run(self, arguments: bytes, size: int, stream: int) -> int:
        """Launch on a stream of the current device. Return 0, or a failure as a compiled launcher does."""
        call = self._calls.get((arguments, stream))
        if call is None:
            try:
                call = self._prepare(arguments, size, stream)
            except _FailedError as failed:
                return failed.code
        launch = self._launch
        for each in call:
            code = launch(each.config, each.kernel, each.params, None)
            if code == INVALID_CONTEXT and not self._enter():  # the thread's first launch
                code = launch(each.config, each.kernel, each.params, None)
            if code:
                self._calls.clear()
                return _failure(_LAUNCH, code)
        return 0

    def workspace(self, arguments: bytes) -> int:
        """Return the bytes of the workspace of a call."""
        values = self._form.unpack(arguments)
        return workspace_of(self._plan, {name: values[index] for index, name in self._sizes})

    def _prepare(self, arguments: bytes, size: int, stream: int) -> tuple[Prepared, ...]:
        """Return the launches of a call, and keep them. Raise _FailedError."""
        if size != self._form.size or len(arguments) != size:
            raise _FailedError(_failure(_ARGUMENTS))
        values = self._form.unpack(arguments)
        found = tuple(self._prepared(each, values, stream) for each in self._cooked(values))
        if len(self._calls) >= _MOST_CALLS:
            self._calls.clear()
        self._calls[arguments, stream] = found
        return found

    def _prepared(self, cooked: _Cooked, values: tuple[Any, ...], stream: int) -> Prepared:
        launch = cooked.launch
        memory = driver.buffer(len(launch.params))
        at = memory[1]
        ctypes.memmove(at, launch.params, len(launch.params))
        for patch in launch.patches:
            C_TYPES[patch.type].from_address(at + patch.at).value = _value(patch, values)
        for offset, index, encode in cooked.maps:
            if encode(at + offset, values[index]):
                raise _FailedError(_failure(_ARGUMENTS))
        return driver.prepared(
            cooked.kernel,
            memory,
            grid=launch.grid,
            threads=launch.threads,
            shared_bytes=launch.shared_bytes,
            cluster=launch.cluster,
            with_pdl=self._plan.with_pdl,
            stream=stream,
        )

    def _cooked(self, values: tuple[Any, ...]) -> tuple[_Cooked, ...]:
        """Return the launches for the sizes of a call on the current device."""
        cuda = self._loaded()
        code, device = cuda.device()
        if code and not self._enter():
            code, device = cuda.device()
        if code:
            raise _FailedError(_failure(_DEVICE, code))
        sizes = {name: values[index] for index, name in self._sizes}
        key = (device, *sizes.values())
        found = self._recipes.get(key)
        if found is None:
            recipe = recipe_of(self._kernel, sizes, self._count(cuda, device))
            if recipe is None:
                raise _FailedError(_failure(_REFUSED))
            found = self._cook(cuda, recipe, device)
            if len(self._recipes) >= _MOST_SIZES:
                self._recipes.clear()
            self._recipes[key] = found
        return found

    def _cook(self, cuda: Driver, recipe: Recipe, device: int) -> tuple[_Cooked, ...]:
        found = []
        for each in recipe.launches:
            kernel = self._kernels[each.kernel]
            if each.shared_bytes and (code := cuda.allow_shared_memory(kernel, each.shared_bytes, device)):
                raise _FailedError(_failure(_MODULE, code))
            maps = tuple((offset, index, driver.encoder(cuda, given)) for offset, index, given in each.maps)
            found.append(_Cooked(each, kernel, maps))
        return tuple(found)

    def _count(self, cuda: Driver, device: int) -> int:
        if device not in self._multiprocessors:
            code, number = cuda.multiprocessors(device)
            if code:
                raise _FailedError(_failure(_DEVICE, code))
            self._multiprocessors[device] = number
        return self._multiprocessors[device]

    def _loaded(self) -> Driver:
        """Return the driver, which has loaded the cubin."""
        with self._lock:
            if self._driver is not None:
                return self._driver
            try:
                cuda = self._find()
            except (OSError, AttributeError):
                raise _FailedError(_failure(_DRIVER)) from None
            self._enter(cuda)
            code, library = cuda.load(self._cubin)
            if code:
                raise _FailedError(_failure(_MODULE, code))
            for each, layout in zip(self._kernel.structs, self._kernel.layouts, strict=True):
                code, kernel = cuda.kernel(library, f"{self._name}_{each.kernel}")
                if code:
                    raise _FailedError(_failure(_MODULE, code))
                size = cuda.parameter_bytes(kernel)
                if size not in (None, layout.size):
                    message = f"a kernel takes {size} bytes of parameters; its layout has {layout.size}"
                    raise InternalError(Diagnostic("E0902", message, help="run `evt cache clear`"))
                self._kernels[each.kernel] = kernel
            self._driver, self._launch = cuda, cuda.launch
            return cuda

    def _enter(self, cuda: Driver | None = None) -> int:
        """Make sure that the thread has a context: the current device's of PyTorch."""
        import torch

        cuda = cuda or self._driver
        assert cuda is not None
        code, _ = cuda.device()
        return cuda.use(torch.cuda.current_device()) if code else 0


def _no_launch(*_: object) -> int:
    raise InternalError(Diagnostic("E0902", "a kernel was launched before it was loaded"))


def _value(patch: Patch, values: tuple[Any, ...]) -> Any:
    """Return the value that a patch writes."""
    value = values[patch.index]
    if patch.is_aligned:
        return value % 16 == 0
    if patch.type == "?":
        return bool(value)
    return value if patch.type in "fd" else int(value) + patch.addend
