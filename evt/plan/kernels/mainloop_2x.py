"""Planning for work on the operands: the 2.x kernels, with formulas in the main loop of what it has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evt.ir import Const, Element, Input, Load
from evt.ir.operand import epilogue_of, formula_of
from evt.plan.epilogue.functor import SCALAR, Functor, Statement, literal, make_functor, scalar_type
from evt.plan.kernels.convolution_2x import PlannerConv2x
from evt.plan.kernels.gemm_2x import Planner2x
from evt.plan.plan import Mainloop, Node, Plan, Work

#: In the place of the work on an operand that is multiplied as it is.
_NONE = "evt::mainloop::None"


class Worked(Planner2x):
    """A planner of the epilogue alone, that gives the operands' formulas to the main loop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.program = self.dag
        self.dag = epilogue_of(self.program)
        self.signature = self.signature.only({*self.dag.input, *self.dag.output})

    def plan(self) -> Plan:
        self.work = tuple(self.work_on(name) for name in self.program.feeds)
        made = super().plan()
        places = {
            ("B" if work.operand == "A" else "A") if self.transposed else work.operand: work for work in self.work
        }
        work = tuple(replace(places[place], operand=place) for place in sorted(places))
        parameters = (*(f"WorkOn{place}" if place in places else _NONE for place in ("A", "B")), *self.options())
        return replace(made, mainloop=Mainloop(work, parameters))

    def options(self) -> tuple[str, ...]:
        """The last template arguments of the main loop."""
        return ()

    def work_on(self, name: str) -> Work:
        """The functor of an operand's element and inputs, and the fields that give these."""
        value = self.program.arguments(self.program.feeds[name])[0]
        nodes = formula_of(self.program, name)
        loads = {node: op.name for node in nodes if isinstance(op := self.program[node], Load)}
        elements = [node for node in nodes if isinstance(self.program[node], Element)]
        functor = self.formula(value, {**dict.fromkeys(elements, "x"), **{n: self.names[i] for n, i in loads.items()}})
        if not elements:  # the optimiser has found that it does not matter
            dtype = next(operand.dtype for operand in self.program.operands if operand.name == name)
            functor = replace(functor, parameters=((SCALAR[dtype.compute], "x"), *functor.parameters))
        self.functors.append(functor)
        inputs = tuple(self.work_input(self.program.input[each]) for each in loads.values())
        return Work(name, functor.name, inputs)

    def formula(self, value: int, parameters: Mapping[int, str]) -> Functor:
        """A formula as a functor, also where it is nothing but a parameter or a number."""
        name, op = f"Region{len(self.functors)}", self.program[value]
        if value not in parameters and not isinstance(op, Const):
            return make_functor(self.program, name, value, parameters, self.problem.options)
        scalar = scalar_type(self.program, value)
        dtype = self.program.types[value].dtype.compute
        expression = literal(op.value, dtype) if isinstance(op, Const) else parameters[value]
        typed = tuple((scalar_type(self.program, node), label) for node, label in parameters.items())
        return Functor(name, typed, (Statement(scalar, "t0", expression),))

    def work_input(self, value: Input) -> tuple[str, str]:
        """An input of a formula: its C++ type and what makes it."""
        name, element = self.names[value.name], self.element_of(value)
        if value.is_scalar:
            number, pointer = self.scalar_arguments(value, element)
            return f"evt::mainloop::Single<{element}>", f"{number}, {pointer}"
        pointer = self.add_field(name, "pointer", value.name, "pointer")
        along = "AlongK" if "k" in value.modes else "AlongOuter"
        return f"evt::mainloop::{along}<{element}>", f"static_cast<{element} const*>({pointer})"

    def element_of(self, value: Input) -> str:
        assert value.dtype is not None
        return value.dtype.cutlass

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return [*super().headers(nodes), "mainloop_2x.hpp"]


class PlannerMainloop2x(Worked):
    """The 2.x planner with work on the operands of a product of matrices."""

    template = "gemm_2x_mainloop"


class PlannerConvMainloop2x(Worked, PlannerConv2x):
    """The same on the activation of a convolution."""

    template = "conv_2x_mainloop"
    padded = 0  # the work finds its channels in the tensor itself

    def iterators(self) -> str:
        # Those whose tiles lie within one tap: the work finds its channels and its padding by that.
        return "kAnalytic" if self.shape.large_filter else "kOptimized"

    def options(self) -> tuple[str, ...]:
        return ("true" if self.shape.padded else "false",)
