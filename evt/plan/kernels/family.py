"""What both families' planners share: fields, strides, nodes and functors."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

from evt.functions import TABLE
from evt.ir import Apply, Input, Operand, Output, Reduce, TypedDag
from evt.ir.dtype import F32, F64, DType, accumulator
from evt.ir.node import divisor
from evt.plan.epilogue.nodes import NodePlanner
from evt.plan.epilogue.registers import estimate_registers
from evt.plan.epilogue.visitors import Graph, is_collective, is_reduced
from evt.plan.plan import ABI, Node, OperandPlan, Plan, Tensor
from evt.plan.signature import Layout, Signature, bytes_of
from evt.plan.verdict import Matches


@dataclass
class Planner(NodePlanner):
    """What both families share besides the nodes: operands, and the plan as a whole."""

    matches: Matches  #: of the route's rules
    template: ClassVar[str]  #: of codegen/templates

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
            stride_type if static and self.family != "2x" else tag,
            1 if operand.dtype == F64 else layout.alignment,  # CUTLASS has f64 operands of alignment 1 only
            pointer,
            stride,
            "0" if static else batch,
            leading,
        )

    def finish(
        self,
        operands: tuple[OperandPlan, OperandPlan],
        source: Tensor,
        destination: Tensor,
        graph: Graph,
        nodes: tuple[Node, ...],
        epilogue_element: str,
        shared_memory: int,
        elements_per_access: int,
    ) -> Plan:
        dag = self.dag
        headers = ["entry.hpp", *self.headers(nodes)]
        program = self.problem.dag  # of which ``dag`` may be the epilogue alone
        rows = (TABLE[op.function] for op in map(program.__getitem__, range(len(program))) if isinstance(op, Apply))
        functions = tuple(dict.fromkeys(row.source for row in rows if row.source))
        statements = [s.expression for functor in self.functors for s in functor.statements]
        headers += ["functions.hpp"] * (bool(functions) or any("evt::fn::" in statement for statement in statements))
        headers += ["product.hpp"] * any("evt::product(" in statement for statement in statements)
        headers += ["functions_fast.hpp"] * any("evt::fn::fast::" in statement for statement in statements)
        order = ("pointer", "number", "size")  # what every call fills in comes first
        fields = tuple(sorted(self.fields, key=lambda each: order.index(each.kind)))
        return Plan(
            route=self.route,
            family=self.family,
            template=self.template,
            arch_tag=self.arch_tag(),
            math_operator=self.math_operator(),
            target=self.problem.target,
            config=self.config,
            program=comment(dag.source.text if dag.source else str(dag)),
            description=f"{dag.operation}, {describe(dag, self.signature)}",
            remark=", computed as the transposed problem" if self.transposed else "",
            rows=self.rows,
            columns=self.columns,
            headers=tuple(headers),
            functions=functions,
            accumulator=accumulator(dag.operands[0].dtype).cutlass,
            epilogue_element=epilogue_element,
            wrapper="evt::fusion::WithElement" if self.family != "2x" and destination.element == "void" else "",
            epilogue_wrapper=self.epilogue_wrapper(destination),
            a=operands[0],
            b=operands[1],
            source=source,
            destination=destination,
            functors=tuple(self.functors),
            nodes=nodes,
            parts=tuple(self.reductions.parts),
            before=self.reductions.before,
            after=self.reductions.after,
            tree=graph.tree,
            fields=fields,
            shared_memory=shared_memory,
            registers=estimate_registers(dag, graph, self.config) if self.family in ("2x", "3x") else 0,
            elements_per_access=elements_per_access,
            checked_columns=self.checked_columns(elements_per_access),
            operand_bits=dag.operands[0].dtype.bits,
            read_bytes=sum(map(tile_bytes, dag.inputs)),
            written_bytes=sum(map(tile_bytes, dag.outputs)),
            schema=json.dumps({"abi": ABI, "fields": [[each.name, each.kind] for each in fields]}),
        )

    def plan(self) -> Plan:
        """Decide everything about the kernel, also where its shared memory is more than :meth:`block_memory`."""
        raise NotImplementedError

    def block_memory(self) -> int:
        """The shared memory that a thread block may have, in bytes."""
        return self.problem.target.shared_memory

    def reduction_memory(self, graph: Graph, warps: int) -> int:
        """The bytes in which the warps' parts of reductions meet, where there is a result for each column."""
        used = 0
        for visitor in graph.visitors:
            if visitor.kind == "reduce":
                reduce = self.dag[self.dag.arguments(self.dag.stores[visitor.name])[0]]
                assert isinstance(reduce, Reduce)
                if {"m", "n"} - set(reduce.modes) == {self.columns}:
                    used += warps * self.config.tile[1] * bytes_of(self.dag.types[visitor.value].dtype.compute)
        return used

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        raise NotImplementedError

    def checked_columns(self, access: int) -> str:
        """The extent whose alignment CUTLASS checks."""
        columns = f"static_cast<int>(arguments.{self.columns})"
        if is_collective(self.dag.output["D"]) and not is_reduced(self.dag, "D"):
            return columns
        return f"({columns} + {access - 1}) / {access} * {access}"  # no tile has to be whole

    def arch_tag(self) -> str:
        """CUTLASS's name of the architecture whose instructions are used."""
        raise NotImplementedError

    def epilogue_wrapper(self, destination: Tensor) -> str:
        """The class template around the collective epilogue, if any."""
        return ""

    def math_operator(self) -> str:
        """The 2.x name of what the instructions do."""
        return ""


def exceeded_memory(planner: Planner, made: Plan) -> str:
    """Why a plan's tiles do not fit in the shared memory of a thread block, or nothing."""
    most = planner.block_memory()
    if made.shared_memory <= most:
        return ""
    return (
        f"{made.config.name} needs {made.shared_memory // 1024} KiB of shared memory for this program, and a thread "
        f"block of {made.target.name} has {most // 1024}"
    )


#: Where our nodes are: the part of the name of a header in codegen/include/evt that follows the family's.
_HEADERS = {
    **dict.fromkeys(("RowReduction", "ColReduction", "ScalarReduction"), "_reduce"),
    **dict.fromkeys(("MaskLoad", "MaskStore"), "_mask"),
    **dict.fromkeys(("VectorOrScalarRow", "VectorOrScalarCol"), "_vector"),
    **dict.fromkeys(("Even", "Odd", "HalfLoad", "HalfStore"), "_pair"),
    **dict.fromkeys(("BlockReduce", "BlockStore"), "_block"),
}


def own_headers(family: str, nodes: tuple[Node, ...]) -> list[str]:
    """The headers of our nodes that a kernel has."""
    templates = [node.functor.rpartition("::")[2] for node in nodes if node.kind == "own"]
    found = [f"visitors_{family}.hpp", *(f"visitors_{family}{_HEADERS.get(each, '')}.hpp" for each in templates)]
    found += ["finish.hpp"] * any(template.endswith("Reduction") for template in templates)
    found += ["visitor_strided.hpp"] * any(node.kind.endswith("_strided") for node in nodes)
    return list(dict.fromkeys(found))


def tile_bytes(value: Input | Output) -> float:
    """The bytes of a tile's tensor for each element of the product; 0 for what is smaller than a matrix."""
    assert value.dtype is not None
    return value.dtype.bits / 8 / max(map(divisor, value.modes), default=1) if value.is_tile else 0


def transposed(operand: OperandPlan) -> OperandPlan:
    swap = {"cutlass::layout::RowMajor": "cutlass::layout::ColumnMajor"}
    swap |= {value: key for key, value in swap.items()}
    return replace(operand, layout=swap.get(operand.layout, operand.layout))


def operand_element(dtype: DType) -> str:
    """f32 operands are multiplied as tf32 by the tensor cores, from float memory."""
    return F32.cutlass if dtype.bits == 32 else dtype.cutlass


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
