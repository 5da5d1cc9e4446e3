"""Calls of a program from Inductor's code: ``Site(program, views)[sizes](A, B, *buffers, *inputs)``.

A site is a place in compiled code that calls a program. PyTorch has guarded or allocated the types, sizes and strides
of its tensors. Only addresses change, and with dynamic shapes the sizes, which are the site's subscript. So a site
checks and packs everything else once. A call takes the addresses, compares their alignments, and launches.
:class:`evt.runtime.call.Caller` runs a call that is not a single launch of a kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import torch

from evt.request import Request
from evt.runtime.call import Caller, caller_of
from evt.runtime.operator import write_program

#: A call of a site, once its sizes are known.
Launch = Callable[..., None]
#: Size, stride and offset of a tensor within the given tensor; None for the given tensor itself.
View = tuple[Sequence[int], Sequence[int], int] | None

#: The number of combinations of sizes that a site keeps before all are dropped.
_MAX_SIZES = 4096
#: The sites of each program.
SITES: defaultdict[str, list[Site]] = defaultdict(list)


class Site(dict[tuple[int, ...], Launch]):
    """A place in compiled code that calls a program, as a mapping from the sizes that vary to a launch.

    ``views`` takes these sizes, and returns for each tensor of a call the part of the given tensor.
    """

    def __init__(self, program: str, views: Callable[..., Sequence[View]] | None = None) -> None:
        super().__init__()
        self.program = program
        self._views = views
        self._known: dict[tuple[tuple[int, ...], bytes], Launch] = {}
        SITES[program].append(self)

    def __missing__(self, sizes: tuple[int, ...]) -> Launch:
        return partial(self._find, sizes)

    def forget(self) -> None:
        """Prepare every launch again."""
        self._known.clear()
        self.clear()

    def _find(self, sizes: tuple[int, ...], *given: torch.Tensor) -> None:
        """Launch, and keep the launch for the next call, if the launch was unknown or had other alignments."""
        views = (None,) * len(given) if self._views is None else self._views(*sizes)
        key = sizes, bytes(each.data_ptr() & 15 for each in given)
        launch = self._known.get(key)
        if launch is None:
            if len(self._known) >= _MAX_SIZES:
                self.forget()
            launch = self._known[key] = self._prepare(sizes, views, given)
        self[sizes] = launch
        launch(*given)

    def _prepare(self, sizes: tuple[int, ...], views: Sequence[View], given: Sequence[torch.Tensor]) -> Launch:
        caller = caller_of(self.program)
        names = ("A", "B", *caller.request.outputs, *caller.inputs)
        tensors = [each if view is None else _part(each, *view) for each, view in zip(given, views, strict=True)]
        known = caller.prepare(dict(zip(names, tensors, strict=True)), alone=not sizes)
        if known is None or known.steps or known.copied:
            return partial(_call, caller, views)
        addresses = [each.data_ptr() for each in given]
        offsets = [each.data_ptr() - address for each, address in zip(tensors, addresses, strict=True)]
        return known.launcher(addresses, offsets, partial(self._find, sizes))


def forget(request: Request) -> None:
    """Let graphs prepare their calls of a program again: another kernel may be the best one now."""
    program = write_program(request)
    caller_of(program).forget()
    for site in SITES[program]:
        site.forget()


def _part(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def _call(caller: Caller, views: Sequence[View], *given: torch.Tensor) -> None:
    """Run a program into buffers."""
    a, b, *others = (each if view is None else _part(each, *view) for each, view in zip(given, views, strict=True))
    outputs = caller.request.outputs
    inputs, buffers = others[len(outputs) :], others[: len(outputs)]
    caller.run(a, b, dict(zip(caller.inputs, inputs, strict=True)), dict(zip(outputs, buffers, strict=True)))
