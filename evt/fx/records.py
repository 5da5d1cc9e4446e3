"""The outcome of each product of a graph, and the records of compiled graphs: ``rows_of(outcomes) -> rows``."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._dynamo import external_utils
from torch.fx import GraphModule, Node

from evt.fx.aten import base_name, is_tensor, shape_of
from evt.fx.cost_model import Benefit
from evt.fx.options import Options
from evt.fx.product import Product, find_product
from evt.fx.regions import Outcome, left_out
from evt.fx.skip_reason import SkipReason

#: The file and the line of a frame in a stack trace of a node, the outermost first.
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')


@dataclass(frozen=True)
class ProductReport:
    """The outcome of a product: its formula and fused operators, or the reason why it is not fused.

    ``node`` is the product's name in the graph, ``formula`` the program as text, ``shapes`` the shapes of A and B.
    ``absorbed`` has the names of the fused operators, ``behind`` the reasons of readers that are not fused. ``benefit``
    compares the region with the unfused operators. ``graph`` is "forward" or "backward" if gradients are recorded.
    ``kernel`` is the route and the configuration on the target of a report. A region that is found but not used has its
    formula here beside the reason. ``proof`` tells how the region compared with eager PyTorch, with rule="lossless".
    """

    node: str
    operation: str
    shapes: str
    formula: str = ""
    absorbed: tuple[str, ...] = ()
    reason: str = ""
    behind: tuple[str, ...] = ()
    benefit: Benefit | None = None
    graph: str = ""
    kernel: str = ""
    proof: str = ""

    @property
    def fused(self) -> bool:
        return not self.reason

    @property
    def gain(self) -> str:
        """The estimated or measured gain of fusion, as text."""
        return str(self.benefit) if self.benefit is not None and self.fused else ""

    @property
    def said(self) -> str:
        """The gain, the kernel and the proof, or the reason why the product is not fused."""
        return self.reason or "; ".join(filter(None, (self.gain, self.kernel, self.proof)))


def rows_of(
    outcomes: Sequence[Outcome],
    benefits: Mapping[Node, Benefit] | None = None,
    graph: str = "",
    kernels: Mapping[Node, str] | None = None,
) -> tuple[ProductReport, ...]:
    """Return the outcomes of a graph's products as rows."""
    behind = left_out(outcomes)
    rows = (_row(each, behind[each.product], (benefits or {}).get(each.product), graph) for each in outcomes)
    names = ((kernels or {}).get(each.product, "") for each in outcomes)
    return tuple(replace(row, kernel=name) for row, name in zip(rows, names, strict=True))


def _row(outcome: Outcome, left: tuple[SkipReason, ...], benefit: Benefit | None, graph: str) -> ProductReport:
    node, fused = outcome.product, outcome.fused
    product = fused.region.product if fused is not None else find_product(node)
    operation, operands = base_name(node), [each for each in node.all_input_nodes if is_tensor(each)][:2]
    if isinstance(product, Product):
        operation, operands = product.operation, [product.a, product.b]
    shapes = " x ".join(str(list(shape_of(each))) for each in operands)
    behind = tuple(map(str, left))
    if fused is None:
        formula = str(outcome.possible.program) if outcome.possible is not None else ""
        return ProductReport(node.name, operation, shapes, formula, (), str(outcome.reason), behind, benefit, graph)
    absorbed = tuple(each.name for each in fused.nodes[1:])
    text = str(fused.program)
    return ProductReport(node.name, operation, shapes, text, absorbed, "", behind, benefit, graph, proof=outcome.proof)


@dataclass(frozen=True)
class Owner:
    """The tensors that a compiled graph reads, and the place of its first operator in the compiled function.

    A model finds its records by its parameters and buffers, a function by its lines. Dynamo compiles one graph for
    models with equal code: the graph reads the parameters of each.
    """

    tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    #: The file and the line.
    place: tuple[str, int] | None = None
    #: Whether parameters are among the tensors. A function's graph reads inputs only.
    is_model: bool = True

    @staticmethod
    def of(module: GraphModule, inputs: Sequence[Any]) -> Owner:
        """Return the owner of a graph of Dynamo: its attributes, and the tensors behind its inputs."""
        found = [*module.parameters(), *module.buffers(), *inputs]
        for node in module.graph.nodes:
            known = node.meta.get("grapharg") if node.op == "placeholder" else None
            found.append(known.example if known is not None else None)
        traces = (_FRAME.findall(node.stack_trace or "") for node in module.graph.nodes)
        frames = ((file, int(line)) for each in traces for file, line in each if file != external_utils.__file__)
        is_model = any(isinstance(each, torch.nn.Parameter) for each in found)
        tensors = [weakref.ref(each) for each in found if isinstance(each, torch.Tensor)]
        return Owner(tensors, next(frames, None), is_model)

    def follow(self, module: GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled graph of Dynamo that adds the parameters of each model that it is called for."""
        known = [node.meta.get("grapharg") for node in module.graph.find_nodes(op="placeholder")]
        places = [at for at, each in enumerate(known) if each and isinstance(each.example, torch.nn.Parameter)]
        if not places or not isinstance(compiled, FunctionType):
            return compiled
        first = places[0]
        seen: dict[int, weakref.ref[torch.Tensor]] = {}

        @wraps(compiled)
        def call(*arguments: Any) -> Any:
            found = seen.get(id(arguments[first]))
            if found is None or found() is not arguments[first]:
                seen[id(arguments[first])] = weakref.ref(arguments[first])
                self.tensors.extend(weakref.ref(arguments[place]) for place in places)
            return compiled(*arguments)

        return call

    def is_part_of(self, wanted: set[int]) -> bool:
        """Return whether the graph reads a tensor with one of these ids."""
        found = (each() for each in self.tensors)
        return any(each is not None and id(each) in wanted for each in found)

    def is_compiled_from(self, code: CodeType) -> bool:
        """Return whether the graph's operators are in a function with this code."""
        return self.place is not None and self.place in {(code.co_filename, line) for _, _, line in code.co_lines()}

    @property
    def is_gone(self) -> bool:
        """Whether the graph is of a model, and all of its tensors are deleted."""
        return self.is_model and bool(self.tensors) and all(each() is None for each in self.tensors)


def tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters and buffers of a model, and the gathered parameters that FSDP2 puts in their place."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        find: Any = getattr(module, "_get_fsdp_state", None)
        state = None if find is None else find()
        one = [] if hasattr(state, "_fsdp_param_groups") else [getattr(state, "_fsdp_param_group", None)]
        for group in getattr(state, "_fsdp_param_groups", one):
            gathered = (getattr(each, "_unsharded_param", None) for each in getattr(group, "fsdp_params", ()))
            yield from (each for each in gathered if each is not None)


@dataclass(frozen=True)
class Record:
    """The rows of one compiled graph, its owner, and the options of torch.compile.

    ``answers`` counts calls by how they ran, with rule="lossless".
    """

    rows: tuple[ProductReport, ...]
    owner: Owner = field(default_factory=Owner)
    options: Options | None = None
    answers: Mapping[str, int] = field(default_factory=dict)


#: The records of all graphs compiled in this process whose models still exist.
RECORDS: list[Record] = []


def keep(record: Record) -> None:
    """Add a record; drop the records of deleted models."""
    RECORDS[:] = [each for each in RECORDS if not each.owner.is_gone]
    RECORDS.append(record)
