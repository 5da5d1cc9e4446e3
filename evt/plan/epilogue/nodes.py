"""The visitors of a plan as text: what each node's type and arguments are, and the fields that fill them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from evt.ir import Const, Fold, Index, Input, Load, Output, Pick, Reduce, TypedDag
from evt.ir.dtype import B1, F32, F64, accumulator
from evt.ir.node import divisor
from evt.plan.configurations.config import Config
from evt.plan.epilogue.functor import SCALAR, Functor, identity, literal, make_functor, scalar_type, stock_functor
from evt.plan.epilogue.reductions import OPS, Reductions
from evt.plan.epilogue.visitors import Graph, Visitor
from evt.plan.plan import Field, FieldKind, Node
from evt.plan.problem import Problem
from evt.plan.signature import Layout
from evt.plan.target import Family


@dataclass
class NodePlanner:
    """Makes the nodes of a kernel; a family says how its own look."""

    problem: Problem
    route: str
    config: Config
    fused: bool
    family: ClassVar[Family]

    def __post_init__(self) -> None:
        self.dag = self.problem.dag
        self.signature = self.problem.signature
        self.fields: list[Field] = [Field(mode, "size", "", mode) for mode in ("m", "n", "k", "l")]
        self.functors: list[Functor] = []
        self.reductions = Reductions(self.problem.options.atomic)
        self.names = mangle(self.dag)
        self.transposed = False

    @property
    def rows(self) -> str:
        return "n" if self.transposed else "m"

    @property
    def columns(self) -> str:
        return "m" if self.transposed else "n"

    def add_field(self, name: str, kind: FieldKind, tensor: str, role: str) -> str:
        """Add a member of ``evt_arguments``, once; returns the C++ expression that reads it."""
        field = Field(name, kind, tensor, role)
        if field not in self.fields:
            self.fields.append(field)
        return f"arguments.{name}"

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
        op = self.dag[visitor.value]
        match visitor.kind:
            case "acc":
                return Node("acc", "accumulator")
            case "scalar":
                return self.scalar(self.dag.input[visitor.name])
            case "constant":
                return self.constant(visitor, index)
            case "row" | "column":
                value = self.dag.input[visitor.name]
                return self.flexible(visitor.kind, value) if value.flexible else self.vector(visitor.kind, value)
            case "source":
                return Node("source", "source", self.element(visitor.name))
            case "tile":
                return self.tile(self.dag.input[visitor.name])
            case "store":
                return self.tile(self.dag.output[visitor.name])
            case "compute":
                return self.compute(visitor, graph, f"compute_{index}")
            case "index":
                assert isinstance(op, Index)
                mode = 2 if op.mode == "l" else int(op.mode != self.rows)
                return self.own(f"index_{op.mode}", "Index", str(mode))
            case "random":
                return self.random(visitor.value, f"random_{index}")
            case "pick":
                assert isinstance(op, Pick)
                return self.own(f"pair_{index}", "Odd" if op.member else "Even", str(op.block))
            case "fold":
                assert isinstance(op, Fold)
                return self.own(f"block_{index}", "BlockReduce", OPS[op.kind], str(op.width))
            case "mask" | "half" | "store_mask" | "store_half" | "store_block":
                return self.columns_of(visitor)
            case "reduce":
                return self.reduce(visitor, index)

    def own(self, name: str, template: str, *parameters: str, arguments: tuple[tuple[str, str], ...] = ()) -> Node:
        """A node of ours, from codegen/include/evt."""
        raise NotImplementedError

    def element(self, name: str) -> str:
        value: Input | Output = self.dag.input.get(name) or self.dag.output[name]
        assert value.dtype is not None
        return "std::uint8_t" if value.dtype == B1 else value.dtype.cutlass

    def scalar_arguments(self, value: Input, element: str) -> tuple[str, str]:
        """The number and the device pointer of which one gives a scalar, or a flexible vector's single value."""
        name = self.names[value.name]
        number = self.add_field(f"value_of_{name}", "number", value.name, "value")
        pointer = self.add_field(name, "pointer", value.name, "pointer")
        return f"static_cast<{element}>({number})", f"static_cast<{element} const*>({pointer})"

    def scalar(self, value: Input) -> Node:
        element = self.element(value.name)
        number, pointer = self.scalar_arguments(value, element)
        types, values = ["cute::_0", "cute::_0"], ["cute::_0{}", "cute::_0{}"]
        stride_type, stride = self.with_batch(value.name, "l" in value.modes, types, values)
        arguments = (("scalars[0]", number), ("scalar_ptrs[0]", pointer), self.scalar_stride(stride))
        name = self.names[value.name]
        return Node("scalar", name, element, self.scalar_stride_type(stride_type), arguments=arguments)

    def constant(self, visitor: Visitor, index: int) -> Node:
        """An output's constant value, as a scalar broadcast whose value is in the text."""
        op = self.dag[visitor.value]
        assert isinstance(op, Const)
        stride = "cute::Stride<cute::_0, cute::_0, cute::_0>"
        dtype = F64 if accumulator(self.dag.operands[0].dtype) == F64 else F32
        value = ("scalars[0]", literal(op.value, dtype))
        return Node("scalar", f"constant_{index}", SCALAR[dtype], stride, arguments=(value,))

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
        return Node(kind, name, element, stride_type, output=self.computed(value), arguments=arguments)

    def flexible(self, kind: str, value: Input) -> Node:
        """A vector or a single value, as the call's stride of 1 or 0 decides."""
        raise NotImplementedError

    def computed(self, value: Input) -> str:
        assert value.dtype is not None
        return SCALAR[value.dtype.compute]

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

    def columns_of(self, visitor: Visitor) -> Node:
        """A tensor of packed bits, or of fewer columns than the accumulator: its columns are contiguous."""
        name, element = self.names[visitor.name], self.element(visitor.name)
        pointer = self.add_field(name, "pointer", visitor.name, "pointer")
        load = visitor.kind in ("mask", "half")
        pointer_type = f"{element} const*" if load else f"{element}*"
        stride_l = "0"
        if self.signature[visitor.name].batch == "strided":
            stride_l = self.add_field(f"stride_l_of_{name}", "size", visitor.name, "l")
        arguments = (
            ("ptr", f"static_cast<{pointer_type}>({pointer if load else f'const_cast<void*>({pointer})'})"),
            ("stride_m", self.add_field(f"stride_m_of_{name}", "size", visitor.name, "m")),
            ("stride_l", stride_l),
        )
        if visitor.kind in ("mask", "store_mask"):
            return self.own(name, "MaskLoad" if load else "MaskStore", arguments=arguments)
        mode = next(mode for mode in self.dag.types[visitor.value].modes if "/" in mode)
        if visitor.kind == "store_block":
            return self.own(name, "BlockStore", element, str(divisor(mode)), arguments=arguments)
        block = mode.partition("@")[2] or self.pair_distance(visitor.value)
        return self.own(name, "HalfLoad" if load else "HalfStore", element, block, arguments=arguments)

    def pair_distance(self, value: int) -> str:
        """How far apart the columns are with which a tensor of half as many columns meets."""
        stack, seen = [value], {value}
        while stack:
            node = stack.pop()
            for mode in self.dag.types[node].modes:
                if "@" in mode:
                    return mode.partition("@")[2]
            new = [user for user in self.dag.users[node] if user not in seen]
            seen.update(new)
            stack.extend(new)
        return "1"

    def random(self, value: int, name: str) -> Node:
        arguments: list[tuple[str, str]] = []
        for member, operand in zip(("seed", "offset"), self.dag.arguments(value), strict=True):
            op = self.dag[operand]
            if isinstance(op, Const):
                arguments.append((member, f"{int(op.value) & 0xFFFFFFFF}u"))
                continue
            assert isinstance(op, Load)
            number, pointer = self.scalar_arguments(self.dag.input[op.name], "int32_t")
            number = number.replace("int32_t", "uint32_t").replace("(", "(static_cast<std::int64_t>(", 1)
            arguments += [(member, f"{number})"), (f"{member}_ptr", pointer.replace("int32_t", "uint32_t"))]
        swapped = "true" if self.transposed else "false"
        return self.own(name, "Random", swapped, arguments=tuple(arguments))

    def reduce(self, visitor: Visitor, index: int) -> Node:
        """A reduction's node; what is done with its results before and after goes to ``reductions``."""
        value = self.dag.arguments(self.dag.stores[visitor.name])[0]
        op, output = self.dag[value], self.dag.output[visitor.name]
        assert isinstance(op, Reduce)
        assert output.dtype is not None
        kept = {"m", "n"} - set(op.modes)
        kind = "Scalar" if not kept else "Col" if kept == {self.rows} else "Row"
        name = self.names[visitor.name]
        pointer = self.add_field(name, "pointer", visitor.name, "pointer")
        stride = "0" if "l" in op.modes else self.add_field(f"stride_l_of_{name}", "size", visitor.name, "l")
        return self.reductions.add(
            self,
            kind,
            f"reduction_{index}",
            op,
            SCALAR[self.dag.types[value].dtype],
            output.dtype.cutlass,
            pointer,
            stride,
            f"arguments.{next(iter(kept))}" if kept else "1",
        )

    def compute(self, visitor: Visitor, graph: Graph, name: str) -> Node:
        values = [graph.visitors[operand].value for operand in visitor.operands]
        output = self.compute_output(visitor, graph)
        plain = output in ("float", "ElementD") and not self.saturates(visitor, graph)
        if values == [visitor.value]:
            if plain and self.dag.types[visitor.value].dtype.compute == F32:
                return Node("compute", name, functor="cutlass::epilogue::thread::Identity", output=output)
            functor = identity(f"Region{len(self.functors)}", scalar_type(self.dag, visitor.value))
            self.functors.append(functor)
            return Node("apply", name, functor=functor.name, output=output)
        stock = stock_functor(self.dag, visitor.value, values)
        if stock is not None and plain:
            return Node("compute", name, functor=stock, output=output)
        parameters: dict[int, str] = {}
        for position, operand in enumerate(visitor.operands):
            source = graph.visitors[operand]
            label = self.names.get(source.name) or ("acc" if source.kind == "acc" else f"x{position}")
            parameters[source.value] = label
        functor = make_functor(self.dag, f"Region{len(self.functors)}", visitor.value, parameters, self.problem.options)
        self.functors.append(functor)
        return Node("apply", name, functor=functor.name, output=output)

    def saturates(self, visitor: Visitor, graph: Graph) -> bool:
        """Whether a compute node's result becomes an integer, which stock nodes convert by wrapping."""
        return False

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        """The node kind, ``kind`` itself (``tile`` or ``store``) or a variant for layouts it cannot take."""
        raise NotImplementedError

    def scalar_stride_type(self, stride_type: str) -> str:
        raise NotImplementedError

    def scalar_stride(self, stride: str) -> tuple[str, str]:
        """(member, expression) of a scalar broadcast's stride."""
        raise NotImplementedError

    def compute_output(self, visitor: Visitor, graph: Graph) -> str:
        """The C++ element type that a compute node hands on."""
        raise NotImplementedError

    def part_count(self, node: str) -> str:
        """The C++ expression of how many parts a reduction's node writes per batch."""
        raise NotImplementedError


def mangle(dag: TypedDag) -> dict[str, str]:
    """C++ names for the user's: prefixed, so that keywords and macros cannot be met, and of bounded length.

    A shortened name is longer than every name that is kept, and ends in its position, so no two are equal.
    """
    names: dict[str, str] = {}
    known = (("in", [value.name for value in dag.inputs]), ("out", [value.name for value in dag.outputs]))
    for prefix, group in known:
        for index, name in enumerate(group):
            short = name if len(name) <= 40 else f"{name[:40]}_{index}"
            names[name] = f"{prefix}_{short}"
    return names
