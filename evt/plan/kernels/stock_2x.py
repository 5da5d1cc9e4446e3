"""Planning for the stock epilogues of CUTLASS 2.x: an output operator instead of visitors."""

from __future__ import annotations

from dataclasses import replace

from evt.plan.epilogue.functor import literal
from evt.plan.epilogue.visitors import Graph
from evt.plan.kernels.gemm_2x import Planner2x
from evt.plan.plan import Node, OutputPlan, Plan, Tensor
from evt.plan.signature import bytes_of
from evt.plan.stock.match import Factor
from evt.plan.stock.operators import Fused

#: How the kernel's arguments name the pitch of the rows of a tensor, where it is not by the tensor's name.
_PITCHES = {"Vector": "ldr", "Tensor": "ldt"}
_KERNEL = "cutlass::gemm::kernel::DefaultGemm"


class PlannerStock2x(Planner2x):
    """The 2.x planner with a kernel whose epilogue is CUTLASS's own; it reads C and a vector, and stores D."""

    template = "gemm_2x_stock"

    def plan(self) -> Plan:
        made = super().plan()
        element = self.element("D")
        destination = Tensor(element, "cutlass::layout::RowMajor", self.access())
        return replace(made, epilogue_element=element, destination=destination, output=self.output)

    def access(self) -> int:
        """Elements per access: the vector's too, which is read like a row."""
        width = super().access()
        for value in self.dag.inputs:
            if self.columns in value.modes and not value.is_tile:
                assert value.dtype is not None
                # Accesses of more than 16 bytes are several instructions, before sm100.
                widest = 16 // bytes_of(value.dtype) if self.problem.target.number < 100 else width
                while width > 1 and min(width, widest) > self.signature[value.name].alignment:
                    width //= 2
        return width

    def nodes(self, graph: Graph) -> tuple[Node, ...]:
        operator = self.matches[Fused]
        self.output = self.make_output(operator)
        arguments = [*self.scale("alpha", operator.alpha), *self.scale("beta", operator.beta)]
        arguments += [(member, literal(value)) for member, value in operator.members]
        return (
            Node(
                "stock",
                "OutputOp",
                functor=operator.template,
                parameters=operator.parameters,
                arguments=tuple(arguments),
            ),
        )

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return []

    def scale(self, member: str, factor: Factor) -> list[tuple[str, str]]:
        """A factor, by value or by device pointer."""
        if not factor.name:
            return [(member, literal(factor.value))]
        number, pointer = self.scalar_arguments(self.dag.input[factor.name], "float")
        return [(member, number), (f"{member}_ptr", pointer)]

    def make_output(self, operator: Fused) -> OutputPlan:
        """The kernel and the tensors of its epilogue."""
        simple = operator.reads_source_only
        names = {"D": "D"}
        names |= dict(zip(("C1", "C2"), operator.sources, strict=True)) if len(operator.sources) > 1 else {}
        names |= {} if "C1" in names else {"C": "".join(operator.sources)}
        names |= {} if simple else {"Vector": operator.vector, "Tensor": operator.stored}
        arguments = [each for role, name in names.items() for each in self.tensor(role, name)]
        header = "cutlass/gemm/kernel/default_gemm_" + ("universal.h" if simple else "with_broadcast.h")
        return OutputPlan(
            kernel=f"{_KERNEL}{'Universal' if simple else 'WithBroadcast'}",
            headers=(header, header_of(operator)),
            swizzle=self.config.threadblock_swizzle,
            arguments=tuple(arguments),
        )

    def tensor(self, role: str, name: str) -> list[tuple[str, str]]:
        """The kernel's arguments for a tensor, for a vector, whose rows are all the same, or for none.

        CUTLASS leaves what is not set as it finds it.
        """
        pointer, pitch, stride_l = "nullptr", "0", "0"
        if name:
            value = self.dag.input.get(name) or self.dag.output[name]
            short = self.names[name]
            pointer = self.typed_pointer(name)
            if value.is_tile:
                field = self.add_field(f"stride_{self.rows}_of_{short}", "size", name, self.rows)
                pitch = f"static_cast<int>({field})"
            if self.signature[name].batch == "strided" and (value.is_tile or "l" in value.modes):
                stride_l = self.add_field(f"stride_l_of_{short}", "size", name, "l")
        return [
            (f"ptr_{role}", pointer),
            (_PITCHES.get(role, f"ld{role.lower()}"), pitch),
            (f"batch_stride_{role}", stride_l),
        ]

    def typed_pointer(self, name: str) -> str:
        """A tensor's address, which CUTLASS wants without const."""
        pointer = self.add_field(self.names[name], "pointer", name, "pointer")
        return f"static_cast<{self.element(name)}*>(const_cast<void*>({pointer}))"


def header_of(operator: Fused) -> str:
    """The header of CUTLASS that has an output operator."""
    name = operator.template.rpartition("::")[2]
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return f"cutlass/epilogue/thread/{words[1:]}.h"
