"""Planning: ``plan(dag, signature, target) -> Plan``. The one stage that knows the target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from evt.diagnostics import Diagnostic
from evt.errors import TargetError
from evt.ir import Input, Operand, Output, TypedDag
from evt.ir.dtype import F32, DType
from evt.plan.config import DEFAULTS_3X, Config, config_2x, configs_3x
from evt.plan.functor import Functor, make_functor, stock_functor
from evt.plan.plan import Field, FieldKind, Node, OperandPlan, Plan, Tensor
from evt.plan.rules import ROUTES, Problem, Route
from evt.plan.signature import Layout, Signature, natural_layout
from evt.plan.target import Target
from evt.plan.visitors import Graph, Visitor, build_visitors

#: Version of ``evt_arguments`` and ``evt_run``; a library of another version is rebuilt, never called.
ABI = 1
#: Fewest main-loop stages that a kernel with auxiliary tensors in shared memory keeps.
_MIN_STAGES = 3
#: Shared memory that pipelines' barriers and the tile scheduler take, generously.
_BARRIERS = 2048


def natural_signature(dag: TypedDag) -> Signature:
    """The signature of packed, aligned tensors in the order of their subscripts, as ``evt emit`` assumes."""
    a, b = (natural_layout(operand.dtype, operand.modes) for operand in dag.operands)
    tensors = []
    for value in (*dag.inputs, *dag.outputs):
        if set(value.modes) & {"m", "n"}:
            assert value.dtype is not None
            shared = isinstance(value, Input) and "l" not in value.modes and not value.batchable
            tensors.append((value.name, natural_layout(value.dtype, value.modes, "shared" if shared else "strided")))
    return Signature(a, b, tuple(tensors))


def choose_route(problem: Problem, forced: str | None = None) -> Route:
    """The first route whose rules all hold. Raises TargetError (E0502, E0503) with the rules that failed."""
    if forced is not None:
        route = next((route for route in ROUTES if route.name == forced), None)
        if route is None:
            names = ", ".join(route.name for route in ROUTES)
            raise TargetError(Diagnostic("E0501", f"there is no route `{forced}`", help=f"routes: {names}"))
        if failures := route.failures(problem):
            raise TargetError(
                Diagnostic("E0502", f"the route {route.name} cannot compile this program", notes=failures)
            )
        return route
    for route in ROUTES:
        if not route.failures(problem):
            return route
    notes = tuple(f"{route.name}: {reason}" for route in ROUTES for reason in route.failures(problem))
    raise TargetError(Diagnostic("E0503", f"no route compiles this program for {problem.target.name}", notes=notes))


def configs(problem: Problem, route: Route) -> tuple[Config, ...]:
    """The configurations that a kernel of this problem may have, the general one first."""
    dtype = problem.dag.operands[0].dtype
    if route.family == "3x":
        return configs_3x(dtype)
    alignment = min(problem.signature.a.alignment, problem.signature.b.alignment)
    return (config_2x(dtype, alignment),)


def default_configs(problem: Problem, route: Route) -> tuple[Config, ...]:
    """Those of :func:`configs` that are built for every kernel, to choose from by the problem's size."""
    return configs(problem, route)[:DEFAULTS_3X]


def find_config(problem: Problem, route: Route, name: str) -> Config:
    """The configuration of a name. Raises TargetError (E0501) for an unknown one."""
    known = {config.name: config for config in configs(problem, route)}
    if name not in known:
        raise TargetError(
            Diagnostic(
                "E0501",
                f"the route {route.name} has no configuration `{name}`",
                help=f"configurations: {', '.join(known)}",
            )
        )
    return known[name]


def plan(
    dag: TypedDag,
    signature: Signature,
    target: Target,
    *,
    route: str | None = None,
    config: Config | str | None = None,
    fused: bool = True,
) -> Plan:
    """Decide everything about one kernel. Raises TargetError (E0501-E0503) when no route or configuration fits.

    ``fused`` False lowers each operation to its own visitor node instead of one functor per region.
    """
    problem = Problem(dag, signature, target)
    chosen = choose_route(problem, route)
    if isinstance(config, str):
        config = find_config(problem, chosen, config)
    elif config is None:
        config = configs(problem, chosen)[0]
    planner = _Planner3x if chosen.family == "3x" else _Planner2x
    return planner(problem, config, fused).plan()


@dataclass
class _Planner:
    """What both families share."""

    problem: Problem
    config: Config
    fused: bool
    family: ClassVar[Literal["2x", "3x"]]

    def __post_init__(self) -> None:
        self.dag = self.problem.dag
        self.signature = self.problem.signature
        self.fields: list[Field] = [self.field(mode, "size", "", mode) for mode in ("m", "n", "k", "l")]
        self.functors: list[Functor] = []
        self.names = _mangle(self.dag)
        self.transposed = False

    @property
    def rows(self) -> str:
        return "n" if self.transposed else "m"

    @property
    def columns(self) -> str:
        return "m" if self.transposed else "n"

    def field(self, name: str, kind: FieldKind, tensor: str, role: str) -> Field:
        return Field(name, kind, tensor, role)

    def add_field(self, name: str, kind: FieldKind, tensor: str, role: str) -> str:
        """Add a member of ``evt_arguments``; returns the C++ expression that reads it."""
        self.fields.append(Field(name, kind, tensor, role))
        return f"arguments.{name}"

    def operands(self) -> tuple[OperandPlan, OperandPlan]:
        """A and B as the kernel sees them: exchanged in a transposed problem."""
        a, b = self.dag.operands
        plans = self.operand(a, self.signature.a, "m"), self.operand(b, self.signature.b, "n")
        return (_transposed(plans[1]), _transposed(plans[0])) if self.transposed else plans

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
            _operand_element(operand.dtype),
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
            program=_comment(dag.source.text if dag.source else str(dag)),
            description=f"{dag.operation}, {_describe(dag, self.signature)}",
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


class _Planner3x(_Planner):
    family: ClassVar[Literal["2x", "3x"]] = "3x"

    def plan(self) -> Plan:
        # WGMMA takes 32-bit operands K-major only. CUTLASS transposes one of them on the way, and for a K-major A
        # with an N-major B it does so by swapping A and B under an epilogue that is not told: computed as
        # D' = B' A' the pair needs no swap.
        signature = self.signature
        wide = self.problem.operand_bytes == 4
        self.transposed = wide and (signature.a.contiguous, signature.b.contiguous) == ("k", "n")
        a, b = self.operands()
        source_name = self.choose_source()
        graph = build_visitors(
            self.dag, source=source_name, implicit_store="D", rows=self.rows, fused=self.fused
        )
        source = Tensor("void", "cutlass::layout::RowMajor", 8)
        if source_name is not None:
            source = self.collective_tensor(source_name, "C", "const*")
        destination = self.collective_tensor("D", "D", "*")
        self.budget = self.auxiliary_budget(source_name, graph)
        nodes = self.nodes(graph)
        self.add_field("swizzle", "size", "", "swizzle")
        self.add_field("raster", "size", "", "raster")
        used = self.problem.target.shared_memory - self.budget
        return self.finish((a, b), source, destination, graph, nodes, used, 0)

    def choose_source(self) -> str | None:
        """The tile input that the collective loads as C: the cheapest path, as it shares shared memory with D.

        Best is one with D's width and major order; then D's width; then the first. It must be fit for TMA and
        have its own data in every batch.
        """
        destination = self.dag.output["D"]
        layout = self.signature["D"]
        candidates = [
            value
            for value in self.dag.inputs
            if value.is_tile
            and self.signature[value.name].batch == "strided"
            and self.is_tma(value.name, self.signature[value.name])
        ]
        assert destination.dtype is not None
        bits = destination.dtype.bits

        def cost(value: Input) -> tuple[bool, bool, int]:
            assert value.dtype is not None
            same_order = self.signature[value.name].contiguous == layout.contiguous
            return value.dtype.bits != bits, not same_order, self.dag.inputs.index(value)

        return min(candidates, key=cost).name if candidates else None

    def is_tma(self, name: str, layout: Layout) -> bool:
        return layout.contiguous is not None and layout.alignment * self.problem.tensor_bytes(name) >= 16

    def collective_tensor(self, name: str, role: str, pointer_type: str) -> Tensor:
        """The tensor that the collective itself loads as C or stores as D."""
        layout, element = self.signature[name], self.element(name)
        pointer = self.add_field(self.names[name], "pointer", name, "pointer")
        _, stride = self.tensor_stride(name, layout)
        row_major = layout.contiguous == self.columns
        tag = "cutlass::layout::RowMajor" if row_major else "cutlass::layout::ColumnMajor"
        arguments = (
            (f"ptr_{role}", f"static_cast<{element} {pointer_type}>(const_cast<void*>({pointer}))"),
            (f"d{role}", stride),
        )
        return Tensor(element, tag, layout.alignment, arguments)

    # Shared memory: auxiliary tiles go through TMA while the main loop keeps its stages, then directly.

    def subtile_bytes(self, name: str) -> int:
        m, n = self.config.epilogue_tile
        return m * n * self.problem.tensor_bytes(name)

    def mainloop_stage(self) -> int:
        m, n, k = self.config.tile
        return (m + n) * k * self.problem.operand_bytes

    def auxiliary_budget(self, source: str | None, graph: Graph) -> int:
        """Bytes that are left for auxiliary tiles."""
        config = self.config
        used = _BARRIERS + self.mainloop_stage() * _MIN_STAGES
        stored = config.stages_d * self.subtile_bytes("D")
        loaded = config.stages_c * self.subtile_bytes(source) if source else 0
        shares = config.reuse_c and source and self.problem.tensor_bytes(source) == self.problem.tensor_bytes("D")
        used += max(stored, loaded) if shares else stored + loaded
        for visitor in graph.visitors:
            if visitor.kind == "row":
                used += config.tile[1] * self.problem.tensor_bytes(visitor.name) + 128
        return self.problem.target.shared_memory - used

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        stages = self.config.stages_c if kind == "tile" else self.config.stages_d
        needed = stages * self.subtile_bytes(name)
        if not self.is_tma(name, layout) or needed > self.budget:
            return f"{kind}_direct"
        self.budget -= needed
        return kind

    def scalar_stride_type(self, stride_type: str) -> str:
        return stride_type

    def scalar_stride(self, stride: str) -> tuple[str, str]:
        return "dScalar[0]", stride

    def compute_output(self, visitor: Visitor, graph: Graph) -> str:
        return "ElementD" if visitor is graph.visitors[-1] else "float"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["restage.hpp"]


class _Planner2x(_Planner):
    family: ClassVar[Literal["2x", "3x"]] = "2x"

    def plan(self) -> Plan:
        # Visitors store along rows only, so a column-major D is computed as the transposed problem D' = B' A'.
        self.transposed = self.signature["D"].contiguous == "m"
        operands = self.operands()
        graph = build_visitors(self.dag, source=None, implicit_store=None, rows=self.rows, fused=self.fused)
        nodes = self.nodes(graph)
        nothing = Tensor("void", "cutlass::layout::RowMajor", 1)
        destination = Tensor(self.element("D"), "cutlass::layout::RowMajor", self.access())
        m, n, k = self.config.tile
        shared = self.config.stages * (m + n) * k * self.problem.operand_bytes
        return self.finish(operands, nothing, destination, graph, nodes, shared, self.access())

    def access(self) -> int:
        """Elements per access of the epilogue: what every row-contiguous tensor's alignment allows."""
        width = 16 // self.problem.tensor_bytes("D")
        for name, layout in self.signature.tensors:
            if layout.contiguous == self.columns:
                size = self.problem.tensor_bytes(name)
                while width > 1 and min(16, width * size) > layout.alignment * size:
                    width //= 2
                if name == "D":
                    width = min(width, layout.alignment)
        return width

    def tile_kind(self, kind: str, name: str, layout: Layout) -> str:
        return kind if layout.contiguous == self.columns else f"{kind}_strided"

    def scalar_stride_type(self, stride_type: str) -> str:
        return stride_type.replace("int64_t", "int")  # VisitorScalarBroadcast knows only this

    def scalar_stride(self, stride: str) -> tuple[str, str]:
        return "dScalar", stride.replace("arguments.", "(int)arguments.")

    def compute_output(self, visitor: Visitor, graph: Graph) -> str:
        return "float"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["visitor_strided.hpp"] if any(node.kind.endswith("_strided") for node in nodes) else []


def _transposed(operand: OperandPlan) -> OperandPlan:
    swap = {"cutlass::layout::RowMajor": "cutlass::layout::ColumnMajor"}
    swap |= {value: key for key, value in swap.items()}
    return replace(operand, layout=swap.get(operand.layout, operand.layout))


def _operand_element(dtype: DType) -> str:
    """f32 operands are multiplied as tf32 by the tensor cores, from float memory."""
    return F32.cutlass if dtype.bits == 32 else dtype.cutlass


def _mangle(dag: TypedDag) -> dict[str, str]:
    """C++ names for the user's: prefixed, so that keywords and macros cannot be met, and of bounded length."""
    names: dict[str, str] = {}
    for prefix, values in (("in", dag.inputs), ("out", dag.outputs)):
        for index, value in enumerate(values):
            short = value.name if len(value.name) <= 40 else f"{value.name[:32]}_{index}"
            names[value.name] = f"{prefix}_{short}"
    return names


def _comment(text: str) -> tuple[str, ...]:
    """The user's text as comment lines: ASCII, bounded, and unable to end or continue a comment."""
    lines = text.strip().splitlines()[:40]
    safe = ["".join(c if " " <= c <= "~" and c != "\\" else "?" for c in line)[:200] for line in lines]
    return tuple(safe) + (("...",) if len(text.strip().splitlines()) > 40 else ())


def _describe(dag: TypedDag, signature: Signature) -> str:
    parts = [
        f"{o.name}: {o.dtype} {layout.contiguous}-contiguous"
        for o, layout in zip(dag.operands, (signature.a, signature.b), strict=True)
    ]
    values: Sequence[Input | Output] = (*dag.inputs, *dag.outputs)
    parts += [f"{value.name}: {value.dtype}[{', '.join(value.modes)}]" for value in values]
    return ", ".join(parts)
