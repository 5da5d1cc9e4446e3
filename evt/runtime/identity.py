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

#: Size, stride, dtype, and index of the device.
Facts = tuple[torch.Size, tuple[int, ...], torch.dtype, int]


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


#: A call's form, its tensors, their addresses, the facts about each, and whether autograd follows one of them.
Identified = tuple[Form, tuple[torch.Tensor, ...], list[int], list[Facts], bool]


class Forms(dict[tuple[type, ...], Form]):
    """The forms of a program's calls, by the types of their values."""

    def identify(self, values: Sequence[Any], given: int) -> Identified | None:
        """Return the metadata of a call; ``given`` is the number of values that the call gives, the others are None.

        Return None if a value is neither a plain tensor nor a number, or a tensor has no memory, has no shape, or is a
        negative view.
        """
        kinds = tuple(map(type, values))
        form = self.get(kinds) or self.setdefault(kinds, Form(kinds))
        if form.given != given:
            return None
        tensors = form.tensors(values)
        addresses: list[int] = []
        facts: list[Facts] = []
        grad, followed = _is_grad_enabled(), False
        try:
            for each in tensors:  # one loop: comprehensions take 10 % longer
                if each.is_neg():
                    return None
                if grad and each.requires_grad:
                    followed = True
                addresses.append(each.data_ptr())
                facts.append((each.size(), each.stride(), each.dtype, each.get_device()))
        except RuntimeError:
            return None
        return form, tensors, addresses, facts, followed


def alignments(addresses: Sequence[int]) -> list[int]:
    """Return how far addresses are from multiples of 16 bytes; no kernel needs a larger alignment."""
    return [address & 15 for address in addresses]


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(positions) > 1:
        return itemgetter(*positions)
    first = positions[0] if positions else 0
    return itemgetter(slice(first, first + len(positions)))  # because a single index would not give a tuple
