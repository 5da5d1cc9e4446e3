"""Why a program is compiled the way it is: ``explain(problem) -> Explanation``."""

from __future__ import annotations

from dataclasses import dataclass

from evt.ir import Input, Output
from evt.ir.node import divisor
from evt.plan import ROUTES, Plan, Problem, choose_route, default_configs, plan
from evt.plan.plan import Node
from evt.plan.reductions import OPS
from evt.plan.registers import register_limit


@dataclass(frozen=True, slots=True)
class RouteExplanation:
    """One route: its summary, its rules as (statement, reason of failure or empty), whether it is the one taken."""

    name: str
    summary: str
    rules: tuple[tuple[str, str], ...]
    chosen: bool


@dataclass(frozen=True)
class Explanation:
    """What ``evt explain`` prints. Bytes are those of the epilogue's tiles, for each element of the product."""

    target: str
    routes: tuple[RouteExplanation, ...]
    plan: Plan
    configurations: tuple[str, ...]
    visitors: tuple[str, ...]
    read_bytes: float
    written_bytes: float

    def to_json(self) -> dict[str, object]:
        return {
            "target": self.target,
            "routes": [
                {
                    "name": route.name,
                    "summary": route.summary,
                    "chosen": route.chosen,
                    "rules": [{"rule": rule, "holds": not reason, "reason": reason} for rule, reason in route.rules],
                }
                for route in self.routes
            ],
            "configurations": list(self.configurations),
            "visitors": list(self.visitors),
            "tree": self.plan.tree,
            "shared_memory_bytes": self.plan.shared_memory,
            "registers": self.plan.registers,
            "kernels": [
                {
                    "name": jobs.kernel,
                    "when": "before" if jobs in self.plan.before else "after",
                    "summary": jobs.summary,
                    "jobs": [{"name": job.name, "type": job.type} for job in jobs.jobs],
                }
                for jobs in self.plan.jobs
            ],
            "workspace": [
                {"node": part.node, "element": part.element, "parts": part.count, "extent": part.kept}
                for part in self.plan.parts
            ],
            "epilogue_bytes_per_element": {"read": self.read_bytes, "written": self.written_bytes},
        }

    def __str__(self) -> str:
        lines = [f"target {self.target}"]
        for route in self.routes:
            lines.append(f"{'->' if route.chosen else '  '} {route.name}: {route.summary}")
            lines += [
                f"      {'no ' if reason else 'yes'} {rule}{f': {reason}' if reason else ''}"
                for rule, reason in route.rules
            ]
        kind = "a tree" if self.plan.tree else "a topological visitor (a value is shared)"
        lines.append(f"visitors, as {kind}:")
        lines += [f"   {visitor}" for visitor in self.visitors]
        for when, kernels in (("before", self.plan.before), ("after", self.plan.after)):
            for jobs in kernels:
                summary = jobs.summary[:1].lower() + jobs.summary[1:].rstrip(".")
                lines.append(f"{when} the kernel, {jobs.kernel}: {summary}")
                lines += [f"   {job.name}: {job.type}" for job in jobs.jobs]
        if self.plan.parts:
            lines.append("workspace, for each batch:")
            kept = [part.kept.removeprefix("arguments.") for part in self.plan.parts]
            lines += [
                f"   {part.node}: {part.element}[parts][{mode}]"
                for part, mode in zip(self.plan.parts, kept, strict=True)
            ]
        lines.append(f"configurations: {', '.join(self.configurations)}")
        lines.append(f"shared memory: at least {self.plan.shared_memory / 1024:.0f} KiB a thread block")
        if self.plan.registers:
            limit = register_limit(self.plan.config)
            fits = "" if self.plan.registers <= limit else ": values will be spilled to memory"
            lines.append(f"registers: about {self.plan.registers} of {limit} a thread, estimated{fits}")
        lines.append(
            f"epilogue traffic: {self.read_bytes:g} bytes read and {self.written_bytes:g} written per element of acc"
        )
        return "\n".join(lines)


_KINDS = {
    "acc": "accumulator fetch",
    "source": "source C, through the collective's own load",
    "scalar": "scalar broadcast",
    "row": "row broadcast",
    "column": "column broadcast",
    "tile": "auxiliary load",
    "tile_direct": "auxiliary load, directly from global memory",
    "tile_strided": "auxiliary load, element by element",
    "compute": "compute",
    "store": "auxiliary store",
    "store_direct": "auxiliary store, directly to global memory",
    "store_strided": "auxiliary store, element by element",
    "apply": "compute",
}
#: Our own visitors, by their class templates.
_OWN = {
    "VectorOrScalarRow": "row or scalar broadcast",
    "VectorOrScalarCol": "column or scalar broadcast",
    "Index": "coordinates",
    "Random": "random numbers",
    "Even": "first columns of pairs",
    "Odd": "second columns of pairs",
    "BlockReduce": "reduction of blocks of columns",
    "MaskLoad": "load of packed bits",
    "MaskStore": "store of packed bits",
    "HalfLoad": "load of half as many columns",
    "HalfStore": "store of half as many columns",
    "BlockStore": "store of one value a block",
    "RowReduction": "row reduction",
    "ColReduction": "column reduction",
    "ScalarReduction": "scalar reduction",
}
#: Of reductions.
_DETAILS = {**{op: name for name, op in OPS.items()}, "evt::Partial": "in parts", "evt::Atomic": "by atomics"}


def explain(problem: Problem, forced: str | None = None) -> Explanation:
    """Explain the choice of route. Raises TargetError (E0502, E0503) when there is none."""
    chosen = choose_route(problem, forced)
    made = plan(problem.dag, problem.signature, problem.target, route=chosen.name, options=problem.options)
    routes = tuple(
        RouteExplanation(
            route.name,
            route.summary,
            tuple((rule.statement, rule.failure(problem) or "") for rule in route.rules),
            route is chosen,
        )
        for route in ROUTES
    )
    visitors = tuple(f"{name}: {_describe(node)}" for name, node in {node.name: node for node in made.nodes}.items())
    return Explanation(
        problem.target.name,
        routes,
        made,
        tuple(config.name for config in default_configs(problem, chosen)),
        visitors,
        sum(_tile_bytes(value) for value in problem.dag.inputs),
        sum(_tile_bytes(value) for value in problem.dag.outputs),
    )


def _describe(node: Node) -> str:
    """What a visitor does."""
    if node.kind != "own":
        return f"{_KINDS[node.kind]}{f' of {node.functor}' if node.functor else ''}"
    template = node.functor.rpartition("::")[2]
    details = (_DETAILS[word] for word in node.parameters if word in _DETAILS)
    return ", ".join((_OWN.get(template, template), *details))


def _tile_bytes(value: Input | Output) -> float:
    assert value.dtype is not None
    width = max(map(divisor, value.modes), default=1)
    return value.dtype.bits / 8 / width if value.is_tile else 0
