"""What both families' planners share: fields, strides, nodes and functors."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from evt.ir import Const, Input, Operand, Output, TypedDag
from evt.ir.dtype import F32, DType
from evt.plan.config import Config
from evt.plan.functor import Functor, literal, make_functor, stock_functor
from evt.plan.plan import ABI, Field, FieldKind, Node, OperandPlan, Plan, Tensor
from evt.plan.rules import Problem
from evt.plan.signature import Layout, Signature
from evt.plan.visitors import Graph, Visitor


@dataclass
class Planner:
    """What both families share."""

    problem: Problem
    config: Config
    fused: bool
    family: ClassVar[Literal["2x", "3x"]]

    def __post_init__(self) -> None:
        self.dag = self.problem.dag
        self.signature = self.problem.signature
        self.fields: list[Field] = [Field(mode, "size", "", mode) for mode in ("m", "n", "k", "l")]
        self.functors: list[Functor] = []
        self.names = mangle(self.dag)
        self.transposed = False

    @property
    def rows(self) -> str:
        return "n" if self.transposed else "m"

    @property
    def columns(self) -> str:
        return "m" if self.transposed else "n"

    def add_field(self, name: str, kind: FieldKind, tensor: str, role: str) -> str:
        """Add a member of ``evt_arguments``; returns the C++ expression that reads it."""
        self.fields.append(Field(name, kind, tensor, role))
        return f"arguments.{name}"

    def operands(self) -> tuple[OperandPlan, OperandPlan]:
        """A and B as the kernel sees them: exchanged in a transposed problem."""
        a, b = self.dag.operands
        plans = self.operand(a, self.signature.a, "m"), self.operand(b, self.signature.b, "n")
        return (transposed(plans[1]), transposed(plans[0])) if self.transposed else plans

    def operand(self, operand: Operand, layout: Layout, outer: str) -> OperandPlan:
        """A or B; ``outer`` is the mode that is not k."""
        pointer = self.add_field(operand.name, "pointer", operand.name, "pointer")
        leading_mode = outer if layout.contiguous == "k" else "k"
        leading = self.add_field(f"stride_{leading_mode}_of_{operand.name}", "size", operand.name, leading_mode)
        batch = "cute::_0{}"
        if layout.batch == "strided":
            batch = self.add_field(f"stride_l_of_{operand.name}", "size", operand.name, "l")
        static = layout.batch == "shared"
        batch_type = "cute::_0" if static else "int64_t"
        if layout.contiguous == "k":
            stride_type = f"cute::Stride<int64_t, cute::_1, {batch_type}>"
            stride = f"{{{leading}, cute::_1{{}}, {batch}}}"
        else:
            stride_type = f"cute::Stride<cute::_1, int64_t, {batch_type}>"
            stride = f"{{cute::_1{{}}, {leading}, {batch}}}"
        row_major = layout.contiguous == ("k" if operand.name == "A" else outer)
        tag = "cutlass::layout::RowMajor" if row_major else "cutlass::layout::ColumnMajor"
        return OperandPlan(
            operand_element(operand.dtype),
            stride_type if static and self.family == "3x" else tag,
            layout.alignment,
            pointer,
            stride,
            "0" if static else batch,
            leading,
        )

    def tensor_stride(self, name: str, layout: Layout) -> tuple[str, str]:
        """(type, value) of a tile tensor's (rows, columns, batch) stride."""
        types, values = [], []
        for mode in (self.rows, self.columns):
            if mode == layout.contiguous:
                types.append("cute::_1")
                values.append("cute::_1{}")
            else:
                types.append("int64_t")
                values.append(self.add_field(f"stride_{mode}_of_{self.names[name]}", "size", name, mode))
        return self.with_batch(name, layout.batch == "strided", types, values)

    def with_batch(self, name: str, strided: bool, types: list[str], values: list[str]) -> tuple[str, str]:
        if strided:
            types.append("int64_t")
            values.append(self.add_field(f"stride_l_of_{self.names[name]}", "size", name, "l"))
        else:
            types.append("cute::_0")
            values.append("cute::_0{}")
        return f"cute::Stride<{', '.join(types)}>", f"{{{', '.join(values)}}}"

    def nodes(self, graph: Graph) -> tuple[Node, ...]:
        nodes: list[Node] = []
        built: dict[tuple[str, str], Node] = {}
        for index, visitor in enumerate(graph.visitors):
            key = (visitor.kind, visitor.name)
            if visitor.kind in ("acc", "scalar", "source") and key in built:
                node = built[key]  # a tree may hold it several times; its arguments exist once
            else:
                node = built[key] = self.node(visitor, index, graph)
            nodes.append(replace(node, operands=visitor.operands))
        return tuple(nodes)

    def node(self, visitor: Visitor, index: int, graph: Graph) -> Node:
        match visitor.kind:
            case "acc":
                return Node("acc", "accumulator")
            case "scalar":
                return self.scalar(self.dag.input[visitor.name])
            case "constant":
                return self.constant(visitor, index)
            case "row" | "column":
                return self.vector(visitor.kind, self.dag.input[visitor.name])
            case "source":
                return Node("source", "source", self.element(visitor.name))
            case "tile":
                return self.tile(self.dag.input[visitor.name])
            case "store":
                return self.tile(self.dag.output[visitor.name])
            case "compute":
                return self.compute(visitor, graph, f"compute_{index}")

    def element(self, name: str) -> str:
        value: Input | Output = self.dag.input.get(name) or self.dag.output[name]
        assert value.dtype is not None
        return value.dtype.cutlass

    def scalar(self, value: Input) -> Node:
        name = self.names[value.name]
        number = self.add_field(f"value_of_{name}", "number", value.name, "value")
        pointer = self.add_field(name, "pointer", value.name, "pointer")
        types, values = ["cute::_0", "cute::_0"], ["cute::_0{}", "cute::_0{}"]
        stride_type, stride = self.with_batch(value.name, "l" in value.modes, types, values)
        arguments = (
            ("scalars[0]", f"static_cast<float>({number})"),
            ("scalar_ptrs[0]", f"static_cast<float const*>({pointer})"),
            self.scalar_stride(stride),
        )
        return Node("scalar", name, "float", self.scalar_stride_type(stride_type), arguments=arguments)

    def constant(self, visitor: Visitor, index: int) -> Node:
        """An output's constant value, as a scalar broadcast whose value is in the text."""
        op = self.dag[visitor.value]
        assert isinstance(op, Const)
        stride = "cute::Stride<cute::_0, cute::_0, cute::_0>"
        return Node("scalar", f"constant_{index}", "float", stride, arguments=(("scalars[0]", literal(op.value)),))

    def vector(self, kind: str, value: Input) -> Node:
        name, element = self.names[value.name], self.element(value.name)
        pointer = self.add_field(name, "pointer", value.name, "pointer")
        types = ["cute::_0", "cute::_1"] if kind == "row" else ["cute::_1", "cute::_0"]
        stride_type, stride = self.with_batch(value.name, "l" in value.modes, types, [f"{t}{{}}" for t in types])
        member = "row" if kind == "row" else "col"
        arguments = (
            (f"ptr_{member}", f"static_cast<{element} const*>({pointer})"),
            (f"d{member.capitalize()}", stride),
        )
        return Node(kind, name, element, stride_type, arguments=arguments)

    def tile(self, value: Input | Output) -> Node:
        """A full-tile load, or the store of an output."""
        name, element, layout = self.names[value.name], self.element(value.name), self.signature[value.name]
        pointer = self.add_field(name, "pointer", value.name, "pointer")
        stride_type, stride = self.tensor_stride(value.name, layout)
        kind = self.tile_kind("store" if isinstance(value, Output) else "tile", value.name, layout)
        arguments = (
            ("ptr_aux", f"static_cast<{element}*>(const_cast<void*>({pointer}))"),
            ("dAux", stride),
        )
        return Node(kind, name, element, stride_type, layout.alignment, arguments=arguments)

    def compute(self, visitor: Visitor, graph: Graph, name: str) -> Node:
        values = [graph.visitors[operand].value for operand in visitor.operands]
        output = self.compute_output(visitor, graph)
        if values == [visitor.value]:
            return Node("compute", name, functor="cutlass::epilogue::thread::Identity", output=output)
        stock = stock_functor(self.dag, visitor.value, values)
        if stock is not None:
            return Node("compute", name, functor=stock, output=output)
        parameters: dict[int, str] = {}
        for position, operand in enumerate(visitor.operands):
            source = graph.visitors[operand]
            label = self.names.get(source.name) or ("acc" if source.kind == "acc" else f"x{position}")
            parameters[source.value] = label
        functor = make_functor(self.dag, f"Region{len(self.functors)}", visitor.value, parameters)
        self.functors.append(functor)
        return Node("compute", name, functor=functor.name, output=output)

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        """The node kind, ``kind`` itself (``tile`` or ``store``) or a variant for layouts it cannot take."""
        raise NotImplementedError

    def scalar_stride_type(self, stride_type: str) -> str:
        raise NotImplementedError

    def scalar_stride(self, stride: str) -> tuple[str, str]:
        """(member, expression) of a scalar broadcast's stride."""
        raise NotImplementedError

    def compute_output(self, visitor: Visitor, graph: Graph) -> str:
        raise NotImplementedError

    def finish(
        self,
        operands: tuple[OperandPlan, OperandPlan],
        source: Tensor,
        destination: Tensor,
        graph: Graph,
        nodes: tuple[Node, ...],
        shared_memory: int,
        elements_per_access: int,
    ) -> Plan:
        dag = self.dag
        headers = ["entry.hpp", *self.headers(nodes)]
        if any("evt::fn::" in s.expression for functor in self.functors for s in functor.statements):
            headers.append("functions.hpp")
        order = ("pointer", "number", "size")  # what every call fills in comes first
        fields = tuple(sorted(self.fields, key=lambda each: order.index(each.kind)))
        return Plan(
            family=self.family,
            target=self.problem.target,
            config=self.config,
            program=comment(dag.source.text if dag.source else str(dag)),
            description=f"{dag.operation}, {describe(dag, self.signature)}",
            remark=", computed as the transposed problem" if self.transposed else "",
            rows=self.rows,
            columns=self.columns,
            headers=tuple(headers),
            a=operands[0],
            b=operands[1],
            source=source,
            destination=destination,
            functors=tuple(self.functors),
            nodes=nodes,
            tree=graph.tree,
            fields=fields,
            shared_memory=shared_memory,
            elements_per_access=elements_per_access,
            schema=json.dumps({"abi": ABI, "fields": [[each.name, each.kind] for each in fields]}),
        )

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        raise NotImplementedError


def transposed(operand: OperandPlan) -> OperandPlan:
    swap = {"cutlass::layout::RowMajor": "cutlass::layout::ColumnMajor"}
    swap |= {value: key for key, value in swap.items()}
    return replace(operand, layout=swap.get(operand.layout, operand.layout))


def operand_element(dtype: DType) -> str:
    """f32 operands are multiplied as tf32 by the tensor cores, from float memory."""
    return F32.cutlass if dtype.bits == 32 else dtype.cutlass


def mangle(dag: TypedDag) -> dict[str, str]:
    """C++ names for the user's: prefixed, so that keywords and macros cannot be met, and of bounded length."""
    names: dict[str, str] = {}
    known = (("in", [value.name for value in dag.inputs]), ("out", [value.name for value in dag.outputs]))
    for prefix, group in known:
        for index, name in enumerate(group):
            short = name if len(name) <= 40 else f"{name[:32]}_{index}"
            names[name] = f"{prefix}_{short}"
    return names


def comment(text: str) -> tuple[str, ...]:
    """The user's text as comment lines: ASCII, bounded, and unable to end or continue a comment."""
    lines = text.strip().splitlines()[:40]
    safe = ["".join(c if " " <= c <= "~" and c != "\\" else "?" for c in line)[:200] for line in lines]
    return tuple(safe) + (("...",) if len(text.strip().splitlines()) > 40 else ())


def describe(dag: TypedDag, signature: Signature) -> str:
    parts = [
        f"{o.name}: {o.dtype} {layout.contiguous}-contiguous"
        for o, layout in zip(dag.operands, (signature.a, signature.b), strict=True)
    ]
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    parts += [f"{value.name}: {value.dtype}[{', '.join(value.modes)}]" for value in values]
    text = ", ".join(parts)
    return text if len(text) <= 400 else f"{text[:160]}..."
