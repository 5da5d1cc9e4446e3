"""The base of the modules: ``EpilogueModule``, an epilogue next to the parameters of a torch.nn module."""

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
    """A torch.nn module, ``base``, that calls a program of one ``operation`` on its input, weight and bias."""

    base: ClassVar[type[torch.nn.Module]]
    operation: ClassVar[str]
    weight: Any
    bias: Any
    _epilogue: Epilogue

    @property
    def epilogue(self) -> str:
        """The epilogue as it was given; the epilogue of torch's module by default."""
        return self._epilogue.text

    @property
    def program(self) -> Program:
        """The program that forward calls; it has ``explain`` and ``tune``."""
        return self._epilogue.program

    @classmethod
    def from_torch(cls, module: torch.nn.Module, *, epilogue: str | None = None, **settings: Unpack[Keywords]) -> Self:
        """Return a module that shares the parameters of torch's, and has its hooks, buffers and mode.

        Raise ArgumentError (E0607) for a module of another class, whose own forward would be lost, and the errors of
        the constructor.
        """
        if type(module) not in (cls.base, cls):
            wanted = f"torch.nn.{cls.base.__name__}"
            message = f"from_torch takes a {wanted}, not {type(module).__name__}, whose forward may differ"
            help_text = f"convert the {wanted} before you parametrize, wrap or subclass it"
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
        """Return the program's keywords besides its settings."""
        return {}

    def _call(self, x: torch.Tensor, inputs: dict[str, Any]) -> Any:
        if "bias" in inputs:
            message = "`bias` is the module's parameter, not an argument of forward"
            raise ArgumentError(Diagnostic("E0602", message, help="leave it out"))
        bias = self.bias
        if bias is not None:
            inputs = {**inputs, "bias": bias}
        _, program, following = self._epilogue
        x, weight, given = autocast(x, self.weight, inputs, following)
        return program(x, weight, **given)

    def extra_repr(self) -> str:
        """Return torch's text, the epilogue, and the settings that differ from their defaults."""
        usual, own = Settings(), self.program.request.settings
        settings = {each.name: getattr(own, each.name) for each in fields(own)}
        shown = [f"{name}={value!r}" for name, value in settings.items() if value != getattr(usual, name)]
        return ", ".join([super().extra_repr(), f"epilogue={self.epilogue!r}", *shown])
