"""Main loops of own products under stress: ``python -m tests.gpu.stress --seconds 150 --loops i4,i8``.

Operands are small whole numbers and factors are powers of two, so that every result is exact: all bits are compared
with float64. Launches follow each other on several streams without synchronisation, into buffers of NaN, while copies
on one more stream compete for memory. A wrong protocol of barriers shows as a few wrong sums in ten thousand launches.
Each wrong launch is a line. The table of launches comes last. The exit code is 1 if a launch was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

import evt
from evt.compilation import build
from evt.diagnostics import Source
from evt.ir.dtype import BY_NAME
from evt.ir.node import base, blocks_of
from evt.plan import Plan, survey
from evt.plan.sizes import UNKNOWN
from evt.plan.speed import refusal
from evt.request import packed_problem, typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.support.one_config import with_config

#: The largest sizes, and the most elements of B, whose float64 copies need 1 GiB each.
MOST_ROWS, MOST_COLUMNS, MOST_DEPTH, MOST_ELEMENTS = 200, 16384, 20_000, 2**27
#: The streams, the launches of a kernel with a size on all streams, the sizes of m with an operand B, and the elements
#: of each copy.
STREAMS, LAUNCHES, SIZES, COPIED = 3, 12, 6, 2**25
#: The elements of k that the tiles of all loops divide.
STEP = 128
#: The bounds of whole numbers by type. Tensor cores add the 128 products of a stage of 8-bit floats with 13 bits.
BOUNDS = {"i4": (-8, 7), "u4": (0, 15), "i8": (-128, 127), "u8": (0, 255), "e4m3": (-2, 2)}
#: The bounds of operands of 16 bits, and of zero points.
SMALL, ZEROS = (-2, 2), (-8, 8)


class Loop(NamedTuple):
    """A main loop: a program in all offered configurations, the types of A and B, the alignment of k, and whether that
    of n is 8.
    """

    text: str
    a: str = "bf16"
    b: str = "bf16"
    route: str = "gemm-own-3x"
    alignment: int = STEP
    aligned: bool = True

    def program(self) -> evt.Program:
        text = f"linear(A: {self.a}[m, k], B: {self.b}[n, k]); {self.text}"
        return evt.Program(Source(text), "linear", route=self.route)

    def columns(self, draw: random.Random, most: int) -> int:
        """Draw n up to a number."""
        return 8 * draw.randint(1, most // 8) - (0 if self.aligned else draw.randint(1, 7))

    def depth(self, draw: random.Random, least: int, most: int) -> int:
        """Draw k between two numbers of steps."""
        k = STEP * draw.randint(least, most)
        return k if self.alignment == STEP else k - self.alignment * draw.randrange(1, STEP // self.alignment, 2)


#: Loops by name. TMA stores D of 16 bits, which is rounded once. Threads store D of f32, which shows each wrong bit.
LOOPS = {
    "plain": Loop("out D: f32[m, n]; D = acc"),
    "updates": Loop(
        "in w: f32[m, n], r: f32[m, n], x: bf16[m, n]; out D: bf16[m, n], W: f32[m, n], R: f32[m, n]\n"
        "R = 2*r + acc; W = w - R; D = W + x"
    ),
    "residual": Loop("in x: bf16[m, n]; D = acc + x"),
    "unaligned": Loop("in x: bf16[m, n]; D = acc + x", aligned=False),
    "unaligned-updates": Loop(
        "in w: f32[m, n], r: f32[m, n], x: bf16[m, n]; out D: bf16[m, n], W: f32[m, n], R: f32[m, n]\n"
        "R = 2*r + acc; W = w - R; D = W + x",
        aligned=False,
    ),
    "residuals": Loop("in x: bf16[m, n], y: f32[m, n], z: bf16[m, n]; D = acc + x - y + z"),
    "gated": Loop("out D[m, n/2]; D = even(acc)*odd(acc)"),
    "e4m3": Loop("out D: bf16; D = acc", "e4m3", "e4m3"),
    "block-scales": Loop(
        "in sa: f32[m, k/128], sb: f32[n/128, k/128]; A = sa*A; B = sb*B; out D: f32[m, n]; D = acc", "e4m3", "e4m3"
    ),
    "gated-block-scales": Loop(
        "in sa: f32[m, k/128], sb: f32[n/128, k/128]; A = sa*A; B = sb*B\n"
        "out D: bf16[m, n/2]; D = even(acc) - 2*odd(acc)",
        "e4m3",
        "e4m3",
    ),
    "i4": Loop("in s: f32[n, k/128], z: i8[n, k/128]; B = s*(B - z); D = acc", b="i4"),
    "i4-f32": Loop("in s: f32[n, k/128]; B = s*B; out D: f32[m, n]; D = acc", b="i4"),
    "u4": Loop("out D: f32[m, n]; D = acc", "f16", "u4"),
    "i8": Loop("D = acc", b="i8"),
    "i8-f32": Loop("in s: f32[n]; B = s*B; out D: f32[m, n]; D = acc", b="i8"),
    "e4m3-weights": Loop("in s: f32[n, k/128]; B = s*B; out D: f32[m, n]; D = acc", b="e4m3"),
    "odd-rows": Loop("out D: f32[m, n]; D = acc", route="gemv-own-3x", alignment=1),
    "even-rows": Loop("out D: f32[m, n]; D = acc", route="gemv-own-3x", alignment=2),
    "odd-columns": Loop("out D: f32[m, n]; D = acc", route="gemv-rows-3x", alignment=1),
    "even-columns": Loop("out D: f32[m, n]; D = acc", route="gemv-rows-3x", alignment=2),
}


class Wrong(NamedTuple):
    """A launch with wrong results: its kernel, its size, and the elements that differ."""

    loop: str
    config: str
    size: tuple[int, int, int]
    seed: int
    rows: torch.Tensor
    columns: torch.Tensor
    found: torch.Tensor
    exact: torch.Tensor

    def __str__(self) -> str:
        first = [
            f"[{row}, {column}] = {found} for {exact}"
            for row, column, found, exact in zip(*(each[:4].tolist() for each in self[4:]), strict=True)
        ]
        return f"{self.loop} {self.config} {self.size} seed {self.seed}: {len(self.rows)} wrong, {'; '.join(first)}"


class Round(NamedTuple):
    """The launches of a loop's kernels with one operand B."""

    launches: int
    wrong: tuple[Wrong, ...]


class Stress:
    """The kernels of a loop, and a generator of sizes and numbers."""

    def __init__(self, name: str, seed: int = 0, configs: str = "") -> None:
        self.name, self.loop, self.seed = name, LOOPS[name], seed
        program = self.loop.program()
        k = self.loop.depth(random.Random(name), 16, 16)
        n = 256 if self.loop.aligned else 255
        (found,) = survey(packed_problem(program.request, "sm90", shapes=((16, k), (n, k))), self.loop.route).asked
        names = [config.name for config in found.default_configs if configs in config.name]
        self.programs = {config: with_config(program, config) for config in names}
        self._inputs = typed_graph(program.request).inputs
        self._outputs = {
            output.name: getattr(torch, output.dtype.torch) for output in typed_graph(program.request).outputs
        }
        self._reference = program.reference
        a, b, inputs = self._operands(16, n, k, torch.Generator("cuda"))
        self.plans: dict[str, Plan] = {}
        for config, op in self.programs.items():
            bound = bind(op.request, a, b, inputs, {})
            (self.plans[config],) = plan_kernels(op.request, bound, device_target(0), False)
        self._streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        self._copies = torch.cuda.Stream()
        self._from, self._to = (torch.zeros(COPIED, device="cuda") for _ in range(2))

    def round(self) -> Round:
        """Draw an operand B and several numbers of rows, and launch all kernels for them."""
        draw = random.Random(f"{self.name} {self.seed}")
        k = self.loop.depth(draw, 1, draw.choice((8, MOST_DEPTH // STEP)))
        n = self.loop.columns(draw, min(MOST_COLUMNS, MOST_ELEMENTS // k))
        a, b, inputs = self._operands(MOST_ROWS, n, k, torch.Generator("cuda").manual_seed(self.seed))
        exact = self._exact(a, b, inputs)
        launches, wrong = 0, []
        for _ in range(SIZES):
            m = draw.randint(*draw.choice(((1, 16), (17, 64), (65, MOST_ROWS))))
            given = {each.name: inputs[each.name][: m if each.modes[0] == "m" else None] for each in self._inputs}
            for config, op in self.programs.items():
                if refusal(self.plans[config], {"m": m, "n": n, "k": k}, UNKNOWN):
                    continue
                right = {name: each[:m] for name, each in exact.items()}
                found = self._launch(op, a[:m], b, given, right, draw.randint(0, 8))
                launches += LAUNCHES
                for name, each in right.items():
                    for i in self._differing(found[name], each):
                        differs = found[name][i] != each
                        rows, columns = differs.nonzero(as_tuple=True)
                        here = (found[name][i][differs], each[differs])
                        wrong.append(Wrong(self.name, config, (m, n, k), self.seed, rows, columns, *here))
        self.seed += 1
        return Round(launches, tuple(wrong))

    def _exact(self, a: torch.Tensor, b: torch.Tensor, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return the results by output."""
        found: Any = self._reference(a, b, float64=True, **inputs)
        each = found if len(self._outputs) > 1 else (found,)
        return {name: value.to(dtype) for (name, dtype), value in zip(self._outputs.items(), each, strict=True)}

    def _operands(
        self, m: int, n: int, k: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        def whole(bounds: tuple[int, int], *shape: int) -> torch.Tensor:
            return torch.randint(bounds[0], bounds[1] + 1, shape, device="cuda", generator=generator)

        def operand(dtype: str, rows: int) -> torch.Tensor:
            made = whole(BOUNDS.get(dtype, SMALL), rows, k)
            if BY_NAME[dtype].bits == 4:
                return evt.prepare(evt.pack_int4(made, signed=dtype == "i4"))
            return made.to(getattr(torch, BY_NAME[dtype].torch))

        extents, inputs = {"m": m, "n": n, "k": k}, {}
        for value in self._inputs:
            shape = [blocks_of(mode, extents[base(mode)]) for mode in value.modes]
            is_float = value.dtype.is_float
            made = 0.5 * (1 << whole((0, 2), *shape)) if is_float else whole(ZEROS, *shape)
            inputs[value.name] = made.to(getattr(torch, value.dtype.torch))
        return operand(self.loop.a, m), operand(self.loop.b, n), inputs

    def _launch(
        self,
        op: evt.Program,
        a: torch.Tensor,
        b: torch.Tensor,
        inputs: dict[str, Any],
        exact: dict[str, torch.Tensor],
        copies: int,
    ) -> dict[str, torch.Tensor]:
        """Launch a kernel several times on each stream, beside copies; return the results."""
        found = {
            name: torch.full((LAUNCHES, *each.shape), float("nan"), device="cuda").to(each.dtype)
            for name, each in exact.items()
        }
        current = torch.cuda.current_stream()
        for stream in (*self._streams, self._copies):
            stream.wait_stream(current)
        with torch.cuda.stream(self._copies):
            for _ in range(copies):
                self._to.copy_(self._from)
        for number in range(LAUNCHES):
            with torch.cuda.stream(self._streams[number % STREAMS]):
                op(a, b, **{name: each[number] for name, each in found.items()}, **inputs)
        for stream in (*self._streams, self._copies):
            current.wait_stream(stream)
        return found

    @staticmethod
    def _differing(found: torch.Tensor, exact: torch.Tensor) -> list[int]:
        return (found != exact).flatten(1).any(1).nonzero()[:, 0].tolist()


def prepared(names: Sequence[str], seed: int = 0, configs: str = "") -> list[Stress]:
    """Return the stress of loops in the configurations whose names have a part. Their kernels are built at once."""
    found = [Stress(name, seed, configs) for name in names]
    build([source for each in found for source in kernel_sources(list(each.plans.values()))])
    return found


def rounds(found: Sequence[Stress], seconds: float) -> Iterator[tuple[Stress, Round]]:
    """Yield rounds of the loops in turns."""
    end = time.monotonic() + seconds
    while True:
        for each in found:
            yield each, each.round()
            if time.monotonic() > end:
                return


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.stress", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long kernels are launched")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other sizes and numbers")
    parser.add_argument("--loops", default=",".join(LOOPS), help="main loops, separated by commas")
    parser.add_argument("--configs", default="", help="a part of the names of the configurations")
    given = parser.parse_args(words)
    launches, wrong = dict.fromkeys(given.loops.split(","), 0), dict.fromkeys(given.loops.split(","), 0)
    for each, found in rounds(prepared(list(launches), given.seed, given.configs), given.seconds):
        launches[each.name] += found.launches
        wrong[each.name] += len(found.wrong)
        for line in found.wrong:
            print(line, flush=True)
    for name, count in launches.items():
        print(f"{name:<16}{count:>9} launches{wrong[name]:>7} wrong")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
