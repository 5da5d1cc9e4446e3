"""What the modules have in common: ``EpilogueModule``, an epilogue beside the parameters of a module of PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.nn.autocast import autocast
from evt.nn.epilogue import Epilogue, epilogue_of
from evt.program import Program
from evt.settings import Keywords, Settings

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class EpilogueModule(torch.nn.Module):
    """A module of PyTorch's, ``base``, that calls a program of one ``operation`` on its input, weight and bias."""

    base: ClassVar[type[torch.nn.Module]]
    operation: ClassVar[str]
    weight: Any
    bias: Any
    _epilogue: Epilogue

    @property
    def epilogue(self) -> str:
        """The epilogue as it was given; that of torch's module if none was."""
        return self._epilogue.text

    @property
    def program(self) -> Program:
        """The program that forward calls; its ``explain`` and ``tune`` say more."""
        return self._epilogue.program

    @classmethod
    def from_torch(cls, module: torch.nn.Module, *, epilogue: str | None = None, **settings: Unpack[Keywords]) -> Self:
        """Return a module that shares the parameters of torch's, and has its hooks, buffers and mode.

        Raise ArgumentError (E0607) for a module of another class, whose own forward would be lost, and what the
        constructor raises.
        """
        if type(module) not in (cls.base, cls):
            wanted = f"torch.nn.{cls.base.__name__}"
            message = f"from_torch takes a {wanted}, not {type(module).__name__}, whose forward may be another"
            help_text = f"convert the {wanted} before it is parametrized, wrapped or derived from"
            raise ArgumentError(Diagnostic("E0607", message, help=help_text))
        made = cls.__new__(cls)
        state = vars(module).items()
        held = {name: copy.copy(value) if isinstance(value, dict | set) else value for name, value in state}
        made.__setstate__(held)  # type: ignore[no-untyped-call]
        made._set_epilogue(epilogue, settings)
        return made

    def _set_epilogue(self, text: str | None, settings: Mapping[str, Any]) -> None:
        keywords = {**settings, **self._geometry()}
        self._epilogue = epilogue_of(self.operation, text, self.weight, self.bias, keywords)

    def _geometry(self) -> dict[str, Any]:
        """Return the program's keywords beside its settings."""
        return {}

    def _call(self, x: torch.Tensor, inputs: dict[str, Any]) -> Any:
        if "bias" in inputs:
            message = "`bias` is the module's parameter, and no argument of forward"
            raise ArgumentError(Diagnostic("E0602", message, help="leave it out"))
        bias = self.bias
        if bias is not None:
            inputs = {**inputs, "bias": bias}
        _, program, following = self._epilogue
        x, weight, given = autocast(x, self.weight, inputs, following)
        return program(x, weight, **given)

    def extra_repr(self) -> str:
        """Return torch's text, the epilogue, and the settings that are not the usual ones."""
        usual, own = Settings(), self.program.request.settings
        settings = {each.name: getattr(own, each.name) for each in fields(own)}
        shown = [f"{name}={value!r}" for name, value in settings.items() if value != getattr(usual, name)]
        return ", ".join([super().extra_repr(), f"epilogue={self.epilogue!r}", *shown])
