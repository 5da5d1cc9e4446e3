"""Computations in PyTorch, recorded once and repeated: ``record(compute, given) -> (results, Repeated | None)``.

A walk over a graph works out types and shapes, which the metadata of its tensors decides; that takes longer than the
calls of PyTorch that it makes. So the calls of one walk are recorded, and repeated on tensors of the same sizes,
strides, types and device. A computation that reads the elements of a tensor into Python, or writes into a tensor, is
not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

_Results = Sequence[torch.Tensor | None]
#: Metadata-only functions, besides properties.
_METADATA = {"dim", "size", "stride", "numel", "element_size", "is_floating_point", "is_neg", "broadcast_shapes"}


@dataclass(frozen=True)
class _Step:
    """A call: the places of its arguments and of its result, and the places whose values are not read again."""

    function: Callable[..., Any]
    reads: tuple[int, ...]
    writes: int
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Repeated:
    """Recorded calls. ``values`` has a place for each tensor that is given, each constant and each result."""

    steps: tuple[_Step, ...]
    values: tuple[Any, ...]
    results: tuple[int | None, ...]

    def __call__(self, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        values = [*given, *self.values[len(given) :]]
        for step in self.steps:
            values[step.writes] = step.function(*[values[place] for place in step.reads])
            for place in step.ends:
                values[place] = None
        return tuple([None if place is None else values[place] for place in self.results])


def record(
    compute: Callable[[Sequence[torch.Tensor]], _Results], given: Sequence[torch.Tensor]
) -> tuple[_Results, Repeated | None]:
    """Return the result of a computation on tensors, and its calls, or None if the calls cannot be repeated."""
    recorder = _Recorder(given)
    with recorder:
        results = compute(given)
    return results, recorder.finish(results)


class _Recorder(TorchFunctionMode):
    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.values: list[Any] = [None] * len(given)
        self.steps: list[_Step] = []
        #: The places of tensors, for as long as these live.
        self.places: Any = WeakIdKeyDictionary()
        self.repeats = True
        for place, tensor in enumerate(given):
            self.places[tensor] = place

    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        keywords: Mapping[str, Any] = kwargs or {}
        given = [each for each in (*args, *keywords.values()) if isinstance(each, torch.Tensor)]
        versions = [each._version for each in given]
        result = function(*args, **keywords)
        if self.repeats:
            written = versions != [each._version for each in given]
            self.repeats = not written and self.note(function, args, keywords, result)
        return result

    def note(self, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> bool:
        """Record a call, and return whether it can be repeated."""
        members = list(result) if isinstance(result, tuple | list) else [result]
        if not any(isinstance(each, torch.Tensor) for each in members):
            name = getattr(function, "__name__", "")
            return name in _METADATA or (name == "__get__" and result is not None)
        if not all(each is None or isinstance(each, torch.Tensor) for each in members):
            return False
        same = next((each for each in args if _is_same(result, each)), None)
        if same is not None:
            self.places[result] = self.place(same)
            return True
        made = self.step(_call(function, len(args), tuple(keywords)), (*args, *keywords.values()))
        if isinstance(result, torch.Tensor):
            self.places[result] = made
        else:
            for place, each in enumerate(members):
                if each is not None:
                    self.places[each] = self.step(itemgetter(place), (), made)
        return True

    def step(self, function: Callable[..., Any], arguments: Sequence[Any], *reads: int) -> int:
        """Add a step; return the place of its result."""
        reads = (*reads, *map(self.place, arguments))
        made = self.keep(None)
        self.steps.append(_Step(function, reads, made))
        return made

    def keep(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def place(self, value: Any) -> int:
        """Return the place of an argument that was given or computed, or a new place of a constant."""
        if isinstance(value, torch.Tensor) and value in self.places:
            found: int = self.places[value]
            return found
        if isinstance(value, tuple | list) and any(isinstance(each, torch.Tensor) for each in value):
            return self.step(_listed, value)
        return self.keep(value)

    def finish(self, results: _Results) -> Repeated | None:
        if not self.repeats or any(each is not None and each not in self.places for each in results):
            return None
        places = [None if each is None else self.places[each] for each in results]
        computed, live = {step.writes for step in self.steps}, {*places}
        steps: list[_Step] = []
        for step in reversed(self.steps):
            if step.writes in live:
                steps.append(replace(step, ends=tuple(sorted(computed & {*step.reads} - live))))
                live.update(step.reads)
        return Repeated(tuple(reversed(steps)), tuple(self.values), tuple(places))


def _is_same(result: Any, given: Any) -> bool:
    """Return whether the result of a conversion or of a view is the given tensor."""
    if not (isinstance(result, torch.Tensor) and isinstance(given, torch.Tensor)):
        return False
    first, second = (
        (
            each.untyped_storage().data_ptr(),
            each.storage_offset(),
            each.size(),
            each.stride(),
            each.dtype,
            each.is_neg(),
        )
        for each in (result, given)
    )
    return first == second


def _listed(*members: Any) -> list[Any]:
    return [*members]


def _call(function: Callable[..., Any], count: int, names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that passes its last positional arguments by these names."""
    if not names:
        return function
    return lambda *given: function(*given[:count], **dict(zip(names, given[count:], strict=True)))
