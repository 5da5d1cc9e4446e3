"""The metadata that identifies a call: ``Forms().identify(values, given) -> Identified | None``.

Two calls with equal metadata take the same path up to the launch; only the addresses of their tensors and their numbers
differ. Calls of a program and the groups of a grouped call are identified in this one way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from evt.runtime.tensor_checks import NUMBERS, PLAIN

_is_grad_enabled = torch.is_grad_enabled

#: Size, stride, dtype, index of the device, whether the tensor is a negative view, and whether autograd follows it.
Facts = tuple[torch.Size, tuple[int, ...], torch.dtype, int, bool, bool]
_NEGATIVE, _FOLLOWED = 4, 5


class Form:
    """Which values of a call are tensors and which are numbers, by their types."""

    __slots__ = ("given", "numbers", "tensors")

    def __init__(self, kinds: Sequence[type]) -> None:
        tensors = [position for position, kind in enumerate(kinds) if kind in PLAIN]
        numbers = [position for position, kind in enumerate(kinds) if kind in NUMBERS]
        self.tensors = _picker(tensors)
        self.numbers = _picker(numbers)
        #: The number of values of a known type; the others are None, or unusual.
        self.given = len(tensors) + len(numbers)


#: A call's form, its tensors, their addresses, and the facts about each.
Identified = tuple[Form, tuple[torch.Tensor, ...], list[int], list[Facts]]


class Forms(dict[tuple[type, ...], Form]):
    """The forms of a program's calls, by the types of their values."""

    def identify(self, values: Sequence[Any], given: int) -> Identified | None:
        """Return the metadata of a call; ``given`` is the number of values that the call gives, the others are None.

        Return None if a value is neither a plain tensor nor a number, or a tensor has no memory or no shape.
        """
        kinds = tuple(map(type, values))
        form = self.get(kinds) or self.setdefault(kinds, Form(kinds))
        if form.given != given:
            return None
        tensors = form.tensors(values)
        try:
            addresses = [tensor.data_ptr() for tensor in tensors]
            grad = _is_grad_enabled()
            facts = [
                (t.size(), t.stride(), t.dtype, t.get_device(), t.is_neg(), grad and t.requires_grad) for t in tensors
            ]
        except RuntimeError:
            return None
        return form, tensors, addresses, facts


def alignments(addresses: Sequence[int]) -> list[int]:
    """Return how far addresses are from multiples of 16 bytes; no kernel needs a larger alignment."""
    return [address & 15 for address in addresses]


def is_unusual(facts: Sequence[Facts]) -> bool:
    """Return whether a tensor is a negative view, or autograd follows it: a launch would lose either."""
    return True in [each[_NEGATIVE] or each[_FOLLOWED] for each in facts]


def is_followed(facts: Sequence[Facts]) -> bool:
    """Return whether autograd follows a tensor, and none is a negative view."""
    return True in [each[_FOLLOWED] for each in facts] and True not in [each[_NEGATIVE] for each in facts]


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(positions) > 1:
        return itemgetter(*positions)
    first = positions[0] if positions else 0
    return itemgetter(slice(first, first + len(positions)))  # because a single index would not give a tuple
