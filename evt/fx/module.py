"""A module that replaces a model and runs its fused graphs: ``stand_in(dispatch) -> FusedModule``.

The module shares the model's dictionaries of parameters, buffers and submodules, and inherits from the model's class.
It has separate hooks, and forwards all other attributes to the model.
"""

from __future__ import annotations

from copy import deepcopy
from functools import wraps
from typing import Any

import torch
from torch.fx import Proxy, _symbolic_trace
from torch.utils._pytree import tree_leaves

from evt.fx.dispatch import Arguments, Dispatch
from evt.runtime.tensor_checks import is_traced, mode_depth

#: The attributes that a fused module shares with its model.
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class FusedModule(torch.nn.Module):
    """A model whose calls run fused graphs; see :func:`evt.fuse`."""

    __call__ = torch.nn.Module.__call__

    def forward(self, *args: Any, **keywords: Any) -> Any:
        dispatch = self._evt
        if torch.compiler.is_dynamo_compiling():
            return dispatch.model(*args, **keywords)
        if mode_depth() and is_traced(()):
            return dispatch.trace(args, keywords)
        # symbolic_trace knows the submodules, but not the model; the flag is set for all threads
        if _symbolic_trace._is_fx_tracing_flag and any(isinstance(x, Proxy) for x in tree_leaves((args, keywords))):
            return dispatch.model.forward(*args, **keywords)
        return dispatch(args, keywords)

    # The model has all attributes except parameters, buffers, submodules and hooks.

    def __getattr__(self, name: str) -> Any:
        if "_evt" not in vars(self):
            raise AttributeError(name)
        return getattr(vars(self)["_evt"].model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) or hasattr(torch.nn.Module, name):
            object.__setattr__(self, name, value)
        else:
            setattr(self._evt.model, name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            object.__delattr__(self, name)
        else:
            delattr(self._evt.model, name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(type(self)), *dir(self._evt.model)})

    def __repr__(self) -> str:
        return f"Fused({self._evt.model!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        dispatch = self._evt
        hooks = {name: value for name, value in vars(self).items() if name not in _SHARED and name != "_evt"}
        kept = (dispatch.model, dispatch.example, dict(dispatch.settings), dispatch.dynamic_shapes, dispatch.lossless)
        return restored, (*kept, hooks)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedModule:
        memo[id(self)] = made = restored(*deepcopy(self.__reduce_ex__(4)[1], memo))
        return made

    def __copy__(self) -> FusedModule:
        return restored(*self.__reduce_ex__(4)[1])

    @property
    def training(self) -> bool:
        mode: bool = self._evt.model.training
        return mode

    @training.setter
    def training(self, mode: bool) -> None:
        self._evt.model.training = mode

    def train(self, mode: bool = True) -> FusedModule:
        model = self._evt.model
        if "train" in vars(model):  # an exported graph refuses to change its mode
            torch.nn.Module.train(model, mode)
        else:
            model.train(mode)
        return self

    def apply(self, fn: Any) -> FusedModule:
        self._evt.model.apply(fn)
        return self

    def _apply(self, *args: Any, **keywords: Any) -> FusedModule:
        self._evt.model._apply(*args, **keywords)
        return self

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        return self._evt.model.state_dict(*args, **keywords)

    def load_state_dict(self, *args: Any, **keywords: Any) -> Any:
        return self._evt.model.load_state_dict(*args, **keywords)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._evt.model._load_from_state_dict(*args)

    def _replicate_for_data_parallel(self) -> torch.nn.Module:
        replica: torch.nn.Module = self._evt.model._replicate_for_data_parallel()
        return replica


def stand_in(dispatch: Dispatch) -> FusedModule:
    """Return the module that replaces a model. Its class inherits from the model's class.

    Its forward has the signature of the model's forward.
    """
    kind: Any = type(dispatch.model)
    forward = wraps(kind.forward)(lambda self, *args, **keywords: FusedModule.forward(self, *args, **keywords))
    try:
        made: Any = object.__new__(type(kind.__name__, (FusedModule, kind), {"forward": forward}))
    except TypeError:  # the class does not allow subclasses
        made = object.__new__(FusedModule)
    own = vars(torch.nn.Module())
    del own["training"]
    vars(made).update({**own, **{name: vars(dispatch.model)[name] for name in _SHARED}, "_evt": dispatch})
    fused: FusedModule = made
    return fused


def restored(
    model: torch.nn.Module,
    example: Arguments,
    settings: dict[str, Any],
    dynamic_shapes: Any,
    lossless: bool,
    hooks: dict[str, Any],
) -> FusedModule:
    """Return a copied or unpickled module without plans."""
    made = stand_in(Dispatch(model, example, settings, dynamic_shapes, lossless))
    vars(made).update(hooks)
    return made


def dispatch_of(module: object) -> Dispatch | None:
    """Return the dispatch of a fused module, or None for another object."""
    return vars(module)["_evt"] if isinstance(module, FusedModule) else None
