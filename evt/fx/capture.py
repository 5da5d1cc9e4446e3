"""A module as a graph of ATen's operators without side effects: ``capture(module, inputs) -> Captured``."""

from __future__ import annotations

import inspect
import logging
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter, is_, ne
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.autograd import forward_ad
from torch.export import ExportedProgram, _trace
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.fx import turns
from evt.fx.aliases import aliasing, decompositions, name_aliases, refuse_changed_shapes, refuse_shared_writes, writes
from evt.fx.aten import base_name, is_tensor, name_of
from evt.fx.casts import cast_operands
from evt.fx.expand import expand
from evt.fx.fold import Folding, is_small
from evt.fx.index_map import all_same
from evt.fx.op_semantics import LITERAL, known_operators
from evt.fx.results import ResultMemory, memory_of, results_in
from evt.fx.strides import correct_strides
from evt.runtime.tensor_checks import PLAIN

#: The operator that copies a tensor which the model's code makes.
_COPY = "lift_fresh_copy"
#: The largest number of elements of a list that a graph reads from a tensor.
_LONGEST = 256
#: A seed that no code uses.
_SEED = 0x6576_7420_7365_6564
_MUTATIONS = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")


@dataclass(frozen=True)
class Captured:
    """A module's functional graph for one kind of inputs.

    The inputs of the graph are the module's tensors (``names`` are their qualified names), then the leaves of the
    call's arguments. Its outputs are the new values of the inputs in ``written``, then the leaves of the module's
    result. ``results`` describes the memory of the result's leaves in eager mode, ``structure`` their tree. ``whole``
    is the graph before batch norms are decomposed, for a comparison with eager, and ``copies`` maps nodes to its nodes.
    """

    module: GraphModule
    names: tuple[str, ...]
    written: tuple[Node, ...]
    results: tuple[ResultMemory | None, ...]
    structure: Any
    whole: GraphModule
    copies: Mapping[Node, Node]

    @property
    def inputs(self) -> list[Node]:
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]


def capture(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    eager: bool = False,
) -> Captured:
    """Return a module's graph for inputs of this kind. Raise ArgumentError (E1020) if torch.export cannot capture it.

    PyTorch decomposes elementwise operators that are not functions of evt; all other operators stay whole. With
    ``eager`` these operators stay whole too, since a decomposition rounds otherwise.
    """
    exported = export(module, inputs, keywords, dynamic_shapes)
    with _captured(module):
        name_aliases(exported)
        correct_strides(exported.graph)
        results = results_in(exported)
        outside = _forget_values(exported)
        exported = _decomposed(exported, eager)
        correct_strides(exported.graph)
        kinds = {each.kind for each in exported.graph_signature.input_specs}
        if unknown := kinds - {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT}:
            raise NotImplementedError(f"the graph has inputs of the kind {min(each.name for each in unknown)}")
    made = GraphModule(exported.graph_module, exported.graph)
    inputs_by_name = {node.name: node for node in made.graph.nodes if node.op == "placeholder"}
    names = {}
    for spec in exported.graph_signature.input_specs:
        node = inputs_by_name[spec.arg.name]
        if spec.kind == InputKind.CONSTANT_TENSOR and _attribute(module, spec.target) is None:
            kept = node.name.replace(LITERAL, "tensor") if node.name in outside else node.name
            _keep(made, node, kept, exported.constants[str(spec.target)])
        elif spec.kind != InputKind.USER_INPUT:
            names[spec.target] = node
    targets = {**names, **inputs_by_name}
    specs = exported.graph_signature.output_specs
    written = tuple(targets[spec.target] for spec in specs if spec.kind.name in _MUTATIONS)
    _drop_copies(made.graph)
    whole, copies = Graph(), dict[Node, Node]()
    whole.output(whole.graph_copy(made.graph, copies))
    expand(made.graph, eager)
    made.recompile()
    return Captured(
        made, tuple(map(str, names)), written, results, exported.call_spec.out_spec, GraphModule(made, whole), copies
    )


def _forget_values(exported: ExportedProgram) -> set[str]:
    """Forget the values of tensors that exist outside of the model's code; return the names of their inputs.

    They may change between calls, and PyTorch would put numbers read from them into the graph. A tensor that the code
    makes is copied by ``lift_fresh_copy`` first.
    """
    inputs = {node.name: node for node in exported.graph.find_nodes(op="placeholder")}
    found = set()
    for spec in exported.graph_signature.input_specs:
        node = inputs[spec.arg.name]
        if spec.kind == InputKind.CONSTANT_TENSOR and not all(base_name(user) == _COPY for user in node.users):
            node.meta["val"].constant = None
            found.add(node.name)
    return found


def _drop_copies(graph: Graph) -> None:
    """Drop copies of values that no operator writes to, as dropout makes them: in eager mode it returns its input."""
    kept = {memory_of(node) for node in graph.nodes if node.op != "call_function" and is_tensor(node)}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        source = node.args[0]
        alike = all_same(source.meta["val"].stride(), node.meta["val"].stride())
        if alike and memory_of(source) not in kept:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _attribute(module: torch.nn.Module, name: str | None) -> Any:
    """Return the attribute of a module under a qualified name, or None."""
    try:
        return attrgetter(str(name))(module)
    except AttributeError:
        return None


def _keep(module: GraphModule, node: Node, name: str, value: torch.Tensor) -> None:
    """Replace an input of the graph by a buffer of its module: a tensor that the model's code creates."""
    module.register_buffer(name, value)
    with module.graph.inserting_after(list(module.graph.find_nodes(op="placeholder"))[-1]):
        made = module.graph.get_attr(name)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)


def frozen(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> GraphModule:
    """Return a module with the same results whose buffers hold the values of parameters alone. Raise as capture does.

    The module shares the memory of the parameters, and takes the same arguments.
    """
    exported = export(module, inputs, keywords, dynamic_shapes)
    with _captured(module):
        name_aliases(exported)
        exported = _decomposed(exported)
        guarded = "check_guards" in inspect.signature(type(exported).module).parameters
        made: Any = exported.module(check_guards=False) if guarded else exported.module()
    for name, parameter in list(made.named_parameters(remove_duplicate=False)):  # detached from autograd
        owner, _, last = name.rpartition(".")
        setattr(made.get_submodule(owner), last, torch.nn.Parameter(parameter.detach(), requires_grad=False))
    expand(made.graph)
    written = {node.args[0] for node in made.graph.nodes if writes(node)}
    constants = [
        node
        for node in made.graph.nodes
        if node.op == "get_attr" and isinstance(_attribute(made, node.target), torch.Tensor) and node not in written
    ]
    folding = Folding.of(constants)
    folding.take(made.graph, is_small)
    values = [_attribute(made, node.target) for node in constants]
    with torch.no_grad():
        for node, value in zip(folding.inputs, folding.finish(made)(*values), strict=True):
            _keep(made, node, node.name, value.detach().clone())
    made.graph.eliminate_dead_code()
    made.delete_all_unused_submodules()
    made.recompile()
    assert isinstance(made, GraphModule)
    return made


def export(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """Return the program of torch.export. Raise ArgumentError (E1020) for any of its exceptions."""
    for again in (True, False):  # another thread may have drawn
        with _captured(module), turns.capture(), _watched_generators() as drawn:
            with _watched_arguments(module), _without_prints(), _TracedReads():
                exported = torch.export.export(
                    module, tuple(inputs), dict(keywords or {}), dynamic_shapes=dynamic_shapes, strict=False
                )
            for each in exported.graph_module.modules():
                refuse_shared_writes(each)
                refuse_changed_shapes(each)
            if not drawn():
                break
            if not again:
                raise ValueError("it draws random numbers from a generator of Python or NumPy, and no graph can")
    return exported


@contextmanager
def _watched_arguments(module: torch.nn.Module) -> Iterator[None]:
    """Raise ValueError if a call of the module changes a list or mapping among its arguments: a graph would not.

    A graph writes to tensors, and returns tensors. Other elements of the arguments are lost.
    """
    given: list[Any] = []

    def before(_: Any, args: Any, keywords: Any) -> None:
        given[:] = _pytree.tree_flatten((args, keywords))

    def after(_: Any, args: Any, keywords: Any, __: Any) -> None:
        leaves, structure = _pytree.tree_flatten((args, keywords))
        if structure != given[1] or not all(map(is_, leaves, given[0])):
            raise ValueError("it changes a list or mapping among its arguments, and no graph can")

    hooks = (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _watched_generators() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the generators of Python or NumPy were used since.

    Raise ValueError if a call seeds PyTorch's generator: a graph would not.
    """
    before, kept = _states(), torch.get_rng_state()
    torch.default_generator.manual_seed(_SEED)
    try:
        yield lambda: any(map(ne, before, _states()))
        if torch.default_generator.initial_seed() != _SEED:
            raise ValueError("it seeds PyTorch's generator, and no graph can")
    finally:
        torch.set_rng_state(kept)


def _states() -> tuple[str, ...]:
    """Return the states of the global generators, as text."""
    numpy = sys.modules.get("numpy")
    legacy = () if numpy is None else (repr(numpy.random.get_state(legacy=False)["state"]),)
    return repr(random.getstate()), *legacy


class _TracedReads(TorchFunctionMode):
    """Let PyTorch trace the numbers that code reads from tensors which exist outside of the code.

    PyTorch would read them now. An operator makes a traced tensor of such a tensor. ``tolist`` reads elements without
    any mode, so it becomes reads of single elements. Raise NotImplementedError for more than :data:`_LONGEST` of them.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _READS:
            args = _pytree.tree_map(_traced, args)
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        own, original = threading.get_ident(), torch.Tensor.tolist
        self._patched = vars(torch.Tensor).get("tolist")  # PyTorch's own is of the base class

        def listed(tensor: torch.Tensor) -> Any:
            return [listed(each) for each in tensor] if tensor.dim() else tensor.item()

        def tolist(tensor: torch.Tensor) -> Any:
            if threading.get_ident() != own:
                return original(tensor)
            if tensor.numel() > _LONGEST:
                raise NotImplementedError(f"it makes a list of {tensor.numel()} elements of a tensor")
            return listed(tensor)

        mode: Any = super()
        tensors: Any = torch.Tensor
        tensors.tolist = tolist
        return mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        mode: Any = super()
        tensors: Any = torch.Tensor
        del tensors.tolist
        if self._patched is not None:
            tensors.tolist = self._patched
        mode.__exit__(*error)


#: Conversions. PyTorch does not trace a conversion of a tensor without dimensions that exists outside of the code.
_CONVERSIONS = "to type type_as cpu cuda float double half bfloat16 bool byte char short int long cfloat cdouble chalf"
#: The functions that read the elements of tensors, or convert tensors.
_READS = {
    *(torch.Tensor.item, torch.Tensor.is_nonzero, torch.is_nonzero, torch.Tensor.__repr__, torch.Tensor.__format__),
    *(getattr(torch.Tensor, f"__{kind}__") for kind in ("bool", "int", "float", "complex", "index", "contains")),
    *(torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose),
    *(getattr(torch.Tensor, each) for each in _CONVERSIONS.split()),
}


def _traced(value: Any) -> Any:
    """Return a traced tensor for a tensor that is not."""
    return torch.ops.aten.alias.default(value) if type(value) in PLAIN else value


@contextmanager
def _without_prints() -> Iterator[None]:
    """Keep torch.export from printing the unfinished graph of a failed capture. No other thread exports meanwhile."""
    vars(_trace)["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        del vars(_trace)["print"]


def _decomposed(exported: ExportedProgram, eager: bool = False) -> ExportedProgram:
    with torch.no_grad(), warnings.catch_warnings(), turns.capture():
        warnings.simplefilter("ignore", FutureWarning)  # raised inside torch.export
        cast_operands(exported.graph_module)
        table = {**_decompositions(eager), **aliasing(exported)}
        made: ExportedProgram = exported.run_decompositions(table)
        return made


@contextmanager
def _captured(module: torch.nn.Module) -> Iterator[None]:
    """Raise ArgumentError (E1020) for any exception of torch.export or of the module itself.

    PyTorch logs the exception, with its traceback or a missing symbol; the diagnostic replaces these records. A
    transform of torch.func that fails in a graph, and its level of forward derivatives, stay on PyTorch's stacks. Every
    later operator would meet them there.
    """
    for logger, passes in _QUIET:
        logger.addFilter(passes)
    depth = _functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    except Exception as error:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        with suppress(RuntimeError):  # PyTorch's for a level that was not entered
            torch._C._exit_dual_level(level=forward_ad._current_level + 1)
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        message = f"torch.export cannot capture the {type(module).__name__}: {said}"
        hint = 'call the module with these inputs; if that works, use torch.compile(module, backend="evt")'
        raise ArgumentError(Diagnostic("E1020", message, help=hint)) from error
    finally:
        for logger, passes in _QUIET:
            logger.removeFilter(passes)


def _is_no_exception(record: logging.LogRecord) -> bool:
    return record.exc_info is None


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


_functorch = torch._C._functorch
#: Loggers of PyTorch, and the records that they keep during a capture.
_QUIET = (
    (logging.getLogger("torch._subclasses.fake_tensor"), _is_no_exception),
    (logging.getLogger("torch.fx.experimental.symbolic_shapes"), _is_no_warning),
)
#: Products that PyTorch decomposes into other products.
_COMPOSED = ("einsum", "tensordot", "inner", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


@cache
def _decompositions(eager: bool) -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions of products, and unless ``eager`` of elementwise operators unknown to evt."""
    known = known_operators()
    found = {
        each: rule for each, rule in decompositions().items() if (name_of(each) or "").partition(".")[0] in _COMPOSED
    }
    for operator, rule in () if eager else decomposition_table.items():
        if not isinstance(operator, torch._ops.OpOverload) or operator._overloadname.endswith("out"):
            continue
        name = name_of(operator) or ""
        if torch.Tag.pointwise in operator.tags and not {name, name.partition(".")[0]} & known:
            found[operator] = rule
    return found
