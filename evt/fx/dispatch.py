"""Calls of a fused model, each by the plan for its kind of inputs: ``Dispatch(model, ...)(args, keywords)``."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree

from evt.errors import EvtError, InternalError, NoKernelWarning
from evt.fx import turns
from evt.fx.lossless import REFUSED
from evt.fx.plan import GraphPlan, Lossless, plan
from evt.fx.regions import Fusion
from evt.fx.results import ResultMemory
from evt.fx.watch import Watch
from evt.runtime.tensor_checks import PLAIN, transforming

#: The most kinds of inputs that get a plan. The model itself runs for further kinds.
MOST_PLANS = 32
#: The most changes of the model's attributes. After these the model itself always runs.
_MOST_CHANGES = 32
#: The most keys of plans. One plan may have several keys.
_MOST_KEYS = 1024
#: Whether PyTorch's TreeSpec has a hash, as from version 2.12 on.
_HASHED = _pytree.TreeSpec.__hash__ is not None and "dict_context" in _pytree.TreeSpec.__hash__.__code__.co_varnames
#: The types of inputs, besides tensors, that a graph may contain as constants.
_GIVEN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class TensorKind:
    """The sizes, strides, type and device of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(leaf: Any) -> Any:
        """Return the kind of a tensor; return other values unchanged."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return TensorKind(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)

    @staticmethod
    def example(leaf: Any) -> Any:
        """Return an uninitialised tensor of a kind; return other values unchanged."""
        if not isinstance(leaf, TensorKind):
            return leaf
        return torch.empty_strided(leaf.size, leaf.stride, dtype=leaf.dtype, device=leaf.device)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Dispatch:
    """A model, its settings, its example, and the plans that were made.

    ``example`` holds the arguments of a call, with a :class:`TensorKind` for each tensor. ``plans`` maps the key of a
    kind of inputs to its plan, or to the reason why it has none. ``answers`` counts calls: "fused", or the reason why
    the model itself ran. ``lossless``: the first call of each kind compares the regions with eager, on its own tensors,
    and every kind has its own plan.
    """

    model: torch.nn.Module
    example: Arguments
    settings: Mapping[str, Any]
    dynamic_shapes: Any = None
    lossless: bool = False
    plans: dict[object, GraphPlan | str] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    _general: GraphPlan | None = None
    _watch: Watch | None = None
    _changes: int = 0
    _refusal: str = ""
    _lock: Any = field(default_factory=threading.RLock)

    def __call__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run the plan for a call, or the model if there is no plan."""
        found = self._found(args, keywords)
        if not isinstance(found, str):
            known, watch, leaves = found
            try:
                if not known.checked:
                    known = self._checked(known, watch, leaves, args, keywords)
                result = known.run(watch, leaves)
            except InternalError:
                raise
            except EvtError as error:  # raised before the graph writes to any tensor
                found = f"a kernel does not run: {error.diagnostics[0].message}"
                if not _is_capturing():
                    self.plans = {key: found if each is known else each for key, each in self.plans.items()}
                    warnings.warn(f"the model runs unfused: {found}", NoKernelWarning, stacklevel=6)
            else:
                self.answers["fused"] += 1
                return result
        self.answers[found] += 1
        return self._run(args, keywords)

    def plan_of(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> GraphPlan:
        """Return the plan for a call in evaluation mode; make it if there is none. Raise ArgumentError (E1020)."""
        with turns.hold(self._lock), _evaluating(self.model):
            self._watched()
            try:
                key = _read(args, keywords)[1]
            except (TypeError, RuntimeError):
                key = None  # the inputs have no key, so later calls make their own plan
            known = self.plans.get(key)
            if not isinstance(known, GraphPlan) or key is None:
                known = self.plans[key] = self._planned(args, keywords)
            return known

    def trace(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run a call that PyTorch traces: the graph of its plan if there is one, else the model."""
        known, watch = None, self._watch
        alone = not self.model.training and not transforming() and forward_ad._current_level < 0
        if watch is not None and watch.keeps_attributes() and alone:
            leaves = _pytree.tree_leaves((args, keywords))
            with suppress(TypeError, RuntimeError):
                known = self.plans.get(_read(args, keywords)[1])
            if known is None and self._general is not None and self._general.takes(leaves):
                known = self._general
            if isinstance(known, GraphPlan):
                return known.trace(watch, leaves)
        return self.model(*args, **keywords)

    def example_plan(self) -> GraphPlan:
        """Return the plan of the example. Raise ArgumentError (E1020)."""
        with turns.hold(self._lock):
            return self.plan_of(*_pytree.tree_map(TensorKind.example, self.example))

    def _keeps_hooks(self, watch: Watch) -> bool:
        """Return whether the model has hooks while no thread captures it: a capture adds some."""
        with turns.run():
            return watch.hooked

    def _run(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run the model itself."""
        with turns.run():
            return self.model(*args, **keywords)

    def _found(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[GraphPlan, Watch, list[Any]] | str:
        """Return the plan for a call, the watch and the leaves of the inputs, or why the model itself runs."""
        if self.model.training:
            return "the model is in training mode"
        if transforming() or forward_ad._current_level >= 0 or torch._C._get_tracing_state() is not None:
            return "PyTorch transforms or traces the call"
        watch = self._watched()
        if self._refusal or watch.refusal:
            return self._refusal or watch.refusal
        if watch.hooked and self._keeps_hooks(watch):
            return "a module within has hooks"
        try:
            leaves, key = _read(args, keywords, PLAIN)
        except (TypeError, RuntimeError):
            return "an input is no plain tensor, number or string"
        if torch.is_grad_enabled() and (
            watch.recorded or any(getattr(each, "requires_grad", False) for each in leaves)
        ):
            return "gradients are recorded"
        known = self.plans.get(key)
        if (known is None or (isinstance(known, GraphPlan) and not known.checked)) and _is_capturing():
            return "a CUDA graph is captured before the first such call"
        known = known or self._new(key, leaves, args, keywords)
        if isinstance(known, str):
            return known
        if not known.fusion.regions and not known.joined:
            return "nothing of it is fused"
        watch = self._watch or watch
        if known.is_entangled(watch, leaves):
            return "the model writes to memory that several tensors or elements share"
        return known, watch, leaves

    def _watched(self) -> Watch:
        """Return the watch of the model; drop all plans if the model has changed."""
        watch = self._watch
        if watch is not None and watch.holds():
            return watch
        with turns.hold(self._lock), turns.run():  # a capture in another thread replaces tensors of the model
            watch = self._watch
            if watch is None or not watch.holds():
                self._changes += watch is not None
                if self._changes > _MOST_CHANGES:
                    self._refusal = "the attributes of the model keep changing"
                watch = self._watch = Watch(self.model)
                self.plans, self._general = {}, None
            return watch

    def _new(self, key: object, leaves: list[Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> GraphPlan | str:
        """Make and keep the plan for a new kind of inputs, or the reason why it has none."""
        with turns.hold(self._lock):
            if key in self.plans:
                return self.plans[key]
            if len(self.plans) >= _MOST_KEYS:
                self.plans = {}
            made: GraphPlan | str
            try:
                if self._general is not None and self._general.takes(leaves):
                    made = self._general
                elif len({id(each) for each in self.plans.values()}) >= MOST_PLANS:
                    made = f"it was called with more than {MOST_PLANS} kinds of inputs"
                else:
                    made = self._planned(args, keywords)
                    made.proven = True
            except EvtError as error:
                made = error.diagnostics[0].message
            self.plans[key] = made
            return made

    def _checked(
        self, known: GraphPlan, watch: Watch, leaves: list[Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> GraphPlan:
        """Return a plan whose results have the strides and aliases of the model's; call the model once to find them.

        PyTorch's fake tensors sometimes have other strides than its kernels, as for a batch norm of a transposed matrix
        on the CPU.
        """
        with turns.hold(self._lock), turns.run():
            now = self._found(args, keywords)
            if not isinstance(now, str) and now[0].checked and now[1] is watch:  # by another thread
                return now[0]
            results = known.results_of(watch, leaves, partial(self._run, args, keywords))
            known.checked = True
            if results == known.results and (known.proven or not self.lossless):
                return known
            made = self._planned(args, keywords, results, known.fusion)
            self.plans = {key: made if each is known else each for key, each in self.plans.items()}
            return made

    def _planned(
        self,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        results: tuple[ResultMemory | None, ...] | None = None,
        before: Fusion | None = None,
    ) -> GraphPlan:
        """Return a plan; restore the tensors that the capture replaced in the model.

        ``before`` are the fused regions of an earlier plan for these inputs.
        """
        lossless = None
        if self.lossless:
            outcomes = before.outcomes if before else ()
            refused = {each.product.name: each for each in outcomes if each.reason and each.reason.code in REFUSED}
            call = partial(self._run, args, keywords)
            lossless = Lossless(_pytree.tree_leaves((args, keywords)), refused, call)
        for _ in range(2):
            assert self._watch is not None
            inputs, named = _pytree.tree_map(_apart, (args, keywords))
            general = None if self._general is not None or self.plans or self.lossless else self.dynamic_shapes
            made = plan(self.model, self._watch, inputs, named, general, self.settings, results, lossless)
            if self._watch.keeps_attributes():
                self._general = made if general is not None else self._general
                return made
            self._watch = Watch(self.model)  # the first call may have set attributes of the model
            self.plans = {}
        self._refusal = "the attributes of the model change as it runs"
        return made


def _read(
    args: tuple[Any, ...], keywords: dict[str, Any], kinds: Container[type] | None = None
) -> tuple[list[Any], object]:
    """Return the leaves of a call's arguments, and the key of its kind.

    Raise TypeError for values that a graph cannot contain, and for tensors of types that are not in ``kinds``.
    """
    leaves: list[Any]
    structure: Any
    if keywords or not all(type(each) in PLAIN or (kinds is None and isinstance(each, torch.Tensor)) for each in args):
        leaves, structure = _pytree.tree_flatten((args, keywords))
        structure = structure if _HASHED else repr(structure)
    else:
        leaves, structure = list(args), len(args)
    return leaves, (structure, *_surroundings(), *[_given(each, kinds) for each in leaves])


def _given(leaf: Any, kinds: Container[type] | None) -> object:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided or (kinds is not None and type(leaf) not in kinds):
            raise TypeError
        return leaf.size(), leaf.stride(), leaf.dtype, leaf.device, leaf.is_neg(), leaf.is_conj()
    if not isinstance(leaf, _GIVEN):
        raise TypeError
    return type(leaf), repr(leaf)


def _is_capturing() -> bool:
    """Return whether a CUDA graph is being captured: no kernel can be loaded then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _surroundings() -> tuple[Any, ...]:
    """Return the settings of PyTorch that change the captured graph or its fusions."""
    casts: tuple[Any, ...] = ()
    if torch._C._is_any_autocast_enabled():
        casts = tuple((torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in ("cpu", "cuda"))
    products = torch._C._get_float32_matmul_precision(), torch._C._get_cudnn_allow_tf32()
    return casts, products, torch.get_default_dtype()


def _apart(leaf: Any) -> Any:
    """Return a new detached tensor object with the same memory; return other values unchanged.

    The capture needs a distinct object for each input.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return TensorKind.example(TensorKind.of(leaf)) if leaf.is_inference() else leaf.detach()


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put a model and its submodules into evaluation mode inside a ``with`` block."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
