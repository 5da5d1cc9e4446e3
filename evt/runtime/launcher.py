"""A kernel without a compiled launcher: ``Launcher(plan, cubin, name).run(arguments, size, stream)``.

It takes the arguments of a compiled launcher and returns its results. See :mod:`evt.launch` for the parameters.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

from evt.diagnostics import Diagnostic
from evt.errors import InternalError
from evt.launch.layout import Layout
from evt.launch.recipe import Kernel, Launch, recipe_of, workspace_of
from evt.plan import Plan
from evt.runtime import driver
from evt.runtime.driver import INVALID_CONTEXT, Driver, Prepared, Ready

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


class Launcher:
    """The launches of a cubin's kernels. Several threads may call it.

    Raise ValueError for a cubin of another plan. The driver is loaded at the first launch.
    """

    def __init__(self, plan: Plan, cubin: bytes, name: str, *, find: Callable[[], Driver] = driver.find_driver) -> None:
        self._kernel = Kernel.of(plan, cubin, name)
        self._plan, self._cubin, self._name, self._find = plan, cubin, name, find
        self._form = struct.Struct("=" + "".join(FORMATS[field.kind] for field in plan.fields))
        self._sizes = [(index, field.name) for index, field in enumerate(plan.fields) if field.kind == "size"]
        self._leading = 8 * (len(plan.fields) - len(self._sizes))  # sizes are the last fields
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._launch: Callable[..., int] = _no_launch
        self._kernels: dict[str, int] = {}
        self._multiprocessors: dict[int, int] = {}
        #: The limit of shared memory that a kernel has on a device.
        self._allowed: dict[tuple[int, int], int] = {}
        #: By device and sizes, and by the arguments and the stream.
        self._known: dict[tuple[int, bytes], tuple[Ready, ...]] = {}
        self._calls: dict[tuple[bytes, int], tuple[Prepared, ...]] = {}

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of the kernels' parameters, in the order of their launches."""
        return self._kernel.layouts

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
        try:
            found = tuple([each.prepare(values, stream) for each in self._ready(arguments, values)])
        except driver.RefusedError:
            raise _FailedError(_failure(_ARGUMENTS)) from None
        if len(self._calls) >= _MOST_CALLS:
            self._calls.clear()
        self._calls[arguments, stream] = found
        return found

    def _ready(self, arguments: bytes, values: tuple[Any, ...]) -> tuple[Ready, ...]:
        """Return the launches for the sizes of a call on the current device. Raise RefusedError, _FailedError."""
        cuda = self._driver or self._loaded()
        code, device = cuda.device()
        if code and not self._enter():
            code, device = cuda.device()
        if code:
            raise _FailedError(_failure(_DEVICE, code))
        key = device, arguments[self._leading :]
        found = self._known.get(key)
        if found is None:
            sizes = {name: values[index] for index, name in self._sizes}
            recipe = recipe_of(self._kernel, sizes, self._count(cuda, device))
            if recipe is None:
                raise _FailedError(_failure(_REFUSED))
            found = tuple(self._made_ready(cuda, each, device, values) for each in recipe.launches)
            if len(self._known) >= _MOST_SIZES:
                self._known.clear()
            self._known[key] = found
        return found

    def _made_ready(self, cuda: Driver, launch: Launch, device: int, values: tuple[Any, ...]) -> Ready:
        kernel = self._kernels[launch.kernel]
        with self._lock:  # launches of other sizes may need more, and are kept
            if launch.shared_bytes > self._allowed.get((kernel, device), 0):
                if code := cuda.allow_shared_memory(kernel, launch.shared_bytes, device):
                    raise _FailedError(_failure(_MODULE, code))
                self._allowed[kernel, device] = launch.shared_bytes
        return Ready(cuda, kernel, launch, values, with_pdl=self._plan.with_pdl)

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
        """Give the thread the CUDA context of PyTorch's current device, if it has none."""
        import torch

        cuda = cuda or self._driver
        assert cuda is not None
        code, _ = cuda.device()
        return cuda.use(torch.cuda.current_device()) if code else 0


def _no_launch(*_: object) -> int:
    raise InternalError(Diagnostic("E0902", "a kernel was launched before it was loaded"))
