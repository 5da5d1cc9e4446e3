"""What a captured graph takes for given besides its inputs: ``Watch(model).holds() -> bool``.

A call compares attributes, hooks and tensors with those of the capture, by a few comparisons of whole lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch.nn.modules import module as globals_of

from evt.runtime.tensor_checks import PLAIN

_data_ptr, _size, _stride = torch.Tensor.data_ptr, torch.Tensor.size, torch.Tensor.stride
_dtype = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_requires_grad = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]

#: The attributes of every module, which hold what is watched apart.
_OWN = frozenset(vars(torch.nn.Module()))
#: How deep lists and mappings within one another are compared by their contents.
_DEEPEST = 8


class Watch:
    """The attributes, hooks and tensors of a module and of those within it.

    ``names`` are the qualified names of its tensors, with their places in ``tensors``. ``epoch`` counts how often a
    tensor was replaced by another with the same shape, strides, type and device. ``refusal`` is why no graph serves.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        modules = list(model.modules())
        self._attributes = [each for module in modules for each in (vars(module), module._modules)]
        self._known = [_remembered(each) for each in self._attributes]
        self._hooks: list[Any] = [globals_of._global_forward_hooks, globals_of._global_forward_pre_hooks]
        self._hooks += [each for module in modules for each in (module._forward_hooks, module._forward_pre_hooks)]
        self._tables = [each for module in modules for each in (module._parameters, module._buffers)]
        self._lengths = [*map(len, self._tables)]
        self._places: list[tuple[dict[str, Any], str]] = []
        self.names: dict[str, int] = {}
        for prefix, module in model.named_modules(remove_duplicate=False):
            for table in (vars(module), module._parameters, module._buffers):
                for name, value in table.items():
                    if isinstance(value, torch.Tensor) or (value is None and table is not vars(module)):
                        self.names[f"{prefix}.{name}" if prefix else name] = len(self._places)
                        self._places.append((table, name))
        self.epoch = 0
        self.tensors = self.current()
        self._given = [each for each in self.tensors if each is not None]
        self.refusal = ""
        if any(module.training for module in modules):
            self.refusal = "a module is in training mode"
        elif any(type(each) not in PLAIN for each in self._given):
            self.refusal = "a parameter or buffer is of a subclass of torch.Tensor"
        self._facts = [] if self.refusal else _facts(self._given)
        self._form = [] if self.refusal else _form(self.tensors)

    @property
    def hooked(self) -> bool:
        """Whether a module within has hooks, which only the module itself calls."""
        return any(self._hooks)

    @property
    def recorded(self) -> bool:
        """Whether autograd follows a tensor of the module."""
        return any(map(_requires_grad, self._given))

    def current(self) -> list[Any]:
        """Return the tensors in the places of ``names`` now."""
        return [table.get(name) for table, name in self._places]

    def put_back(self) -> None:
        """Put the tensors back into their places, where the model has put others."""
        for (table, name), tensor in zip(self._places, self.tensors, strict=True):
            if table.get(name) is not tensor:
                table[name] = tensor

    def holds(self) -> bool:
        """Return whether graphs that were captured still serve, if tensors are other ones with new values perhaps."""
        if not self.keeps_attributes():
            return False
        now = self.current()
        if all(map(is_, now, self.tensors)) and (self.refusal or _facts(self._given) == self._facts):
            return True
        if self.refusal or any(type(each) not in PLAIN for each in now if each is not None) or _form(now) != self._form:
            return False
        self._given = [each for each in now if each is not None]
        self.tensors, self._facts = now, _facts(self._given)
        self.epoch += 1
        return True

    def keeps_attributes(self) -> bool:
        """Return whether the modules have the attributes and submodules that they had."""
        try:
            return self._attributes == self._known and [*map(len, self._tables)] == self._lengths
        except Exception:  # of values that do not compare, as tensors do not
            return False


def _remembered(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value if name in _OWN else _copied(value) for name, value in attributes.items()}


def _copied(value: Any, depth: int = 0) -> Any:
    """Return a copy of lists, sets and mappings, and of those within, so that a change of one in place is seen."""
    if depth == _DEEPEST:
        return value
    if type(value) in (list, tuple, set):
        return type(value)(_copied(each, depth + 1) for each in value)
    if type(value) is dict:
        return {key: _copied(each, depth + 1) for key, each in value.items()}
    return value


def _facts(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [*map(_data_ptr, tensors), *map(_size, tensors), *map(_stride, tensors), *map(_dtype, tensors)]


def _form(tensors: Sequence[Any]) -> list[Any]:
    """Return what a graph takes for given of tensors: all but their values, and which of them are one."""
    first: dict[int, int] = {}
    return [
        each if each is None else
        (each.size(), each.stride(), each.dtype, each.device, each.is_inference(), first.setdefault(id(each), place))
        for place, each in enumerate(tensors)
    ]  # fmt: skip
