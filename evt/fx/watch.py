"""Detect changes of a model that invalidate its captured graphs: ``Watch(model).holds() -> bool``.

Each call compares attributes, hooks and tensors with the capture, by a few comparisons of whole lists.
"""

from __future__ import annotations

import copyreg
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from math import inf
from operator import is_
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn.modules import module as globals_of

from evt.runtime.tensor_checks import PLAIN

with suppress(ImportError):  # PyTorch runs without NumPy
    import numpy

_data_ptr, _size, _stride = torch.Tensor.data_ptr, torch.Tensor.size, torch.Tensor.stride
_dtype = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_requires_grad = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]

#: The attributes of every module. The watch compares their contents separately.
_OWN = frozenset(vars(torch.nn.Module()))
#: The depth to which nested lists, mappings and objects are compared by content.
_DEEPEST = 8
#: The most elements of a list or mapping within an object that is compared by content.
_LONGEST = 1000
#: Containers whose elements are compared, and memory.
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_MEMORY = (bytearray, array)
#: Values without attributes of interest.
_DATA = (
    *_MEMORY,
    *(bool, int, float, complex, str, bytes, type(None), Enum, type, torch.Tensor),
    *(range, slice, PurePath, ModuleType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, FunctionType, BuiltinFunctionType, MethodType),
)


class Watch:
    """The attributes, hooks and tensors of a module and its submodules.

    ``names`` maps the qualified names of tensors to their places in ``tensors``. ``epoch`` counts replacements of a
    tensor by another one of the same shape, strides, type and device. ``refusal`` is the reason why the model cannot
    use captured graphs, or "".
    """

    def __init__(self, model: torch.nn.Module) -> None:
        modules = list(model.modules())
        own: list[dict[str, Any]] = [each for module in modules for each in (vars(module), module._modules)]
        self._known = [_remembered(each) for each in own]
        objects = _attributes_of_objects(map(vars, modules))
        self._attributes: list[Mapping[str, Any]] = [*own, *objects]
        self._known += [_copied(dict(each), longest=_LONGEST) for each in objects]
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
        elif not all(map(_is_plain, self._given)):
            self.refusal = "a parameter or buffer is sparse, or of a subclass of torch.Tensor"
        self._facts = [] if self.refusal else _facts(self._given)
        self._form = [] if self.refusal else _form(self.tensors)

    @property
    def hooked(self) -> bool:
        """Whether a submodule has hooks: only the model itself calls them."""
        return any(self._hooks)

    @property
    def recorded(self) -> bool:
        """Whether a tensor of the module requires gradients."""
        return any(map(_requires_grad, self._given))

    def current(self) -> list[Any]:
        """Return the current tensors, in the order of ``names``."""
        return [table.get(name) for table, name in self._places]

    def put_back(self) -> None:
        """Restore the tensors that the model has replaced."""
        for (table, name), tensor in zip(self._places, self.tensors, strict=True):
            if table.get(name) is not tensor:
                table[name] = tensor

    def holds(self) -> bool:
        """Return whether captured graphs are still valid; tensors may have new values."""
        if not self.keeps_attributes():
            return False
        now = self.current()
        if all(map(is_, now, self.tensors)) and (self.refusal or _facts(self._given) == self._facts):
            return True
        given = [each for each in now if each is not None]
        if self.refusal or not all(map(_is_plain, given)) or _form(now) != self._form:
            return False
        self._given = given
        self.tensors, self._facts = now, _facts(given)
        self.epoch += 1
        return True

    def keeps_attributes(self) -> bool:
        """Return whether the modules have the attributes and submodules of the capture."""
        try:
            return self._attributes == self._known and [*map(len, self._tables)] == self._lengths
        except Exception:  # values such as tensors cannot be compared
            return False


def _remembered(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value if name in _OWN else _copied(value) for name, value in attributes.items()}


def _copied(value: Any, depth: int = 0, longest: float = inf) -> Any:
    """Return a deep copy of containers and memory that is equal to them, to detect changes in place."""
    if isinstance(value, _MEMORY):
        return value[:]
    if _is_array(value):
        return _Array(value)
    if depth == _DEEPEST or (isinstance(value, _CONTAINERS) and len(value) > longest):
        return value
    if isinstance(value, dict):
        return {key: _copied(each, depth + 1, longest) for key, each in value.items()}
    kind = next((each for each in _CONTAINERS if isinstance(value, each)), None)
    return value if kind is None else kind(_copied(each, depth + 1, longest) for each in value)


def _is_array(value: Any) -> bool:
    return "numpy" in globals() and isinstance(value, numpy.ndarray)


class _Array:
    """A copy of an array of NumPy's that is equal to an array of the same type, sizes and elements."""

    __array_ufunc__ = None  # so that an array asks this class for the comparison
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        self._copy = value.copy()

    def __eq__(self, other: object) -> bool:
        if not _is_array(other) or other.dtype != self._copy.dtype:  # type: ignore[attr-defined]
            return False
        return bool(numpy.array_equal(other, self._copy, equal_nan=self._copy.dtype.kind in "fc"))  # type: ignore[arg-type]


class _Slots(Mapping[str, Any]):
    """The attributes of an object in its slots."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: object) -> None:
        self._value = value

    def __getitem__(self, name: str) -> Any:
        return getattr(self._value, name)

    def __iter__(self) -> Iterator[str]:
        slots: Any = copyreg
        return (name for name in slots._slotnames(type(self._value)) if hasattr(self._value, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _attributes_of_objects(attributes: Iterable[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the attributes of objects within attributes of modules that are nothing but data: configurations."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for each in attributes:
        for name, value in each.items():
            if name not in _OWN:
                _is_data(value, found)
    return [attributes for of_object in found.values() for attributes in of_object]


def _is_data(value: Any, found: dict[int, list[Mapping[str, Any]]], depth: int = 0) -> bool:
    """Return whether a value is data throughout; ``found`` collects the attributes of the objects that are."""
    if isinstance(value, _DATA) or _is_array(value):
        return True
    if depth == _DEEPEST or isinstance(value, torch.nn.Module):
        return False
    if isinstance(value, _CONTAINERS):
        inner = [_is_data(each, found, depth + 1) for each in (value.values() if isinstance(value, dict) else value)]
        return all(inner)
    if id(value) in found:
        return True
    attributes = [each for each in (getattr(value, "__dict__", None), _Slots(value)) if isinstance(each, Mapping)]
    if not any(map(len, attributes)):
        return False
    found[id(value)] = attributes  # before its values, which may contain it
    inner = [_is_data(dict(each), found, depth + 1) for each in attributes]
    if not all(inner):
        del found[id(value)]
    return id(value) in found


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.layout is torch.strided


def _facts(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [*map(_data_ptr, tensors), *map(_size, tensors), *map(_stride, tensors), *map(_dtype, tensors)]


def _form(tensors: Sequence[Any]) -> list[Any]:
    """Return the properties of tensors on which a graph depends, and which of them are the same object."""
    first: dict[int, int] = {}
    return [
        each if each is None else
        (each.size(), each.stride(), each.dtype, each.device, each.is_inference(), first.setdefault(id(each), place))
        for place, each in enumerate(tensors)
    ]  # fmt: skip
