"""The gate of epilogues: outputs, registers and times of 60 programs, to compare two trees on one GPU.

``PYTHONPATH=TREE python tests/epilogue_gate.py run FILE`` builds and runs the programs with the ``evt`` of a tree, and
writes a JSON file. ``python tests/epilogue_gate.py compare BEFORE AFTER`` compares two files: outputs bit for bit,
registers, and times within ``--tolerance`` percent. Seeds, shapes and configurations are fixed. ``run --device cpu``
plans and builds without a GPU.

``run --way parts FILE`` and ``run --way whole FILE`` build 12 kernels of CUTLASS from a skeleton and a formula, and by
nvcc from whole files, and time all of them. A kernel that is not built in the wanted way is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import evt
from evt.compilation import build
from evt.plan import find_target
from evt.program import program_of
from evt.runtime.arguments import bind
from evt.runtime.kernels import plan_kernels
from evt.runtime.plans import kernel_sources

#: Programs that every family takes, by name.
TEXTS = {
    "plain": "D = relu(acc + bias) + C",
    "scalars": "in alpha: f32, beta: f16\nD = alpha*acc + beta*C",
    "nodes": """\
in s: f32[m], t: f16[n?], beta: f16, other: bf16[m, n]
out D, E: f32[m, n], sums: f32[n], most: f32, place: i32[m], norm: f32[m]
E = acc*s + t + beta*other
D = relu(E + C + iota(n) - iota(m)*size(k))
sums = sum[m](E)
most = max[m, n](abs(E))
place = argmax[n](E)
norm = sqrt(sum[n](E*E)/size(n))""",
    "rows": "out D, a: f32[m], b: i32[n]; D = acc; a = max[n](acc*acc); b = argmin[m](acc)",
    "columns": "out D, a: f32[n], b: f32[n]; D = acc + C; a = sum[m](D); b = min[m](acc)",
    "total": "out D, a: f32, b: f32; D = silu(acc); a = sum[m, n](D); b = max[m, n](acc)",
    "placed": """\
in rows: i32[m], columns: i32[n], x: f16[m, columns[n]], y: f32[rows[m]], t: f16[n], seed: i32
out D, E: bf16[rows[m], n], r: f32[n]
E = acc + x + y
r = sqrt(t*t)
D = dropout(E, 0.5, seed, 3)""",
    "bits": """\
in keep: b1[m, n], seed: i64
out D, above: b1[m, n]
above = acc > 0.25
D = where(keep, dropout(acc, 0.5, seed, 3), 0)""",
    "random": "in seed: i32\nout D, keep: b1[m, n]; keep = rand(seed, 5) > 0.5; D = where(keep, acc, 0)",
    "vectors": """\
in s: f32[m], t: f16[n], beta: f32
out D, q: f32[m], w: f16[n], one: f32
D = acc; q = s*2; w = t + 1; one = beta*3""",
    "matrices": "in other: bf16[m, n]\nout D, E: f32[m, n]; E = acc + other; D = E*C",
    "shared": "out D, E: f16[m, n]; z = acc + bias; E = sigmoid(z); D = E*z + C",
}
#: Programs with pairs or blocks of columns.
WIDE = {
    "turned": """\
in c: f32[m, n/2], s: f32[m, n/2], seed: i64
x = even(acc, 16)
y = odd(acc, 16)
D = interleave(x*c - y*s, x*s + y*c, 16)*(rand(seed, 3) >= 0.5)""",
    "pairs": "D = silu(even(acc))*odd(acc)",
    "blocks": """\
out D: f16[m, n/2], top: f32[m, n/32], bits: b1[m, n], total: f32, low: f32[m]
top = max[n%32](abs(acc))
D = silu(even(acc))*odd(acc)
bits = acc > top*0.5
total = sum[m, n](D)
low = sum[n](even(acc, 8)*0.5)""",
    "halves": "in x: f16[m, n/2]\nout D, H: bf16[m, n/2]; H = even(acc, 8) + x; D = interleave(H, odd(acc, 8), 8)",
}
#: The shapes of A and B by the kind of kernel, for the comparison of outputs; and larger ones, for times.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "halo": ((2, 64, 19, 23), (80, 64, 3, 3)),
    "depthwise": ((2, 96, 19, 23), (96, 1, 3, 3)),
    "conv": ((2, 64, 19, 23), (80, 64, 3, 3)),
    "gemm": ((200, 128), (128, 192)),
}
LARGE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "halo": ((32, 64, 56, 56), (80, 64, 3, 3)),
    "depthwise": ((32, 96, 56, 56), (96, 1, 3, 3)),
    "conv": ((32, 64, 56, 56), (80, 64, 3, 3)),
    "gemm": ((8192, 512), (512, 1536)),
}
#: Kernels whose time is measured.
TIMED = (
    *("halo-plain", "halo-nodes", "halo-placed", "halo-bits", "product-nodes", "product-columns"),
    *("depthwise-plain", "depthwise-nodes", "sm90-nodes", "sm90-blocks", "2x-nodes", "2x-blocks"),
)


@dataclass(frozen=True)
class Case:
    """A program, its kind of kernel, and the types of its operands."""

    name: str
    text: str
    kind: str
    dtype: str = "f16"

    @property
    def shape_name(self) -> str:
        return self.kind if self.is_convolution else "gemm"

    @property
    def is_convolution(self) -> bool:
        return self.kind in ("halo", "depthwise", "conv")

    def program(self) -> Any:
        """Return the program with one configuration: the first that its route has."""
        if self.is_convolution:
            groups = 96 if self.kind == "depthwise" else 1
            route = "conv-evt-3x" if self.kind == "conv" else "own"
            op: Any = evt.conv2d(self.text, padding=1, groups=groups, route=route)
            configs = op.explain("sm90", self.dtype, self.dtype, shapes=SHAPES[self.shape_name]).configurations
        else:
            route = {"sm90": "evt-3x", "2x": "evt-2x", "product": "own"}[self.kind]
            op = evt.gemm(self.text, route=route)
            configs = op.explain("sm90", self.dtype, self.dtype).configurations
        request = request_of(op)
        return program_of(request.forced(request.settings.route, configs[0]))


def request_of(op: Any) -> Any:
    """Return the immutable value of a program; it had another name before 2026-11-26."""
    return getattr(op, "request", None) or op.spec


def cases() -> Iterator[Case]:
    for kind in ("halo", "product", "depthwise"):
        for name, text in TEXTS.items():
            yield Case(f"{kind}-{name}", text, kind)
    for name in ("plain", "nodes", "bits", "placed"):
        yield Case(f"halo-{name}-bf16", TEXTS[name], "halo", "bf16")
    for kind, texts in (("sm90", TEXTS), ("2x", TEXTS)):
        wanted = ("nodes", "rows", "columns", "placed", "bits", "vectors")
        for name in wanted:
            yield Case(f"{kind}-{name}", texts[name], kind)
        for name, text in WIDE.items():
            yield Case(f"{kind}-{name}", text, kind)


def cases_of_ways() -> Iterator[Case]:
    """Yield the kernels that are built both ways."""
    for kind in ("sm90", "2x", "conv"):
        for name in ("plain", "scalars", "nodes", "bits"):
            yield Case(f"{kind}-{name}", TEXTS[name], kind)


def tensors(case: Case, device: str, large: bool = False) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return A, B and the inputs that the text names, from a fixed seed; made on the CPU."""
    generator = torch.Generator().manual_seed(int(hashlib.sha256(case.name.encode()).hexdigest()[:8], 16))
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
    a_shape, b_shape = (LARGE if large else SHAPES)[case.shape_name]

    def random(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    matrix: tuple[int, ...]
    if case.is_convolution:
        images, _, high, wide = a_shape
        n, m = b_shape[0], images * high * wide
        matrix = (images, n, high, wide)
    else:
        m, n = a_shape[0], b_shape[1]
        matrix = (m, n)

    def last(tensor: torch.Tensor) -> torch.Tensor:
        return evt.channels_last(tensor) if tensor.ndim == 4 else tensor

    by_columns = (matrix[0], *matrix[2:], n) if case.is_convolution else matrix

    def bits() -> torch.Tensor:
        return evt.pack_bits(torch.rand(by_columns, generator=generator) < 0.6)

    made: dict[str, Callable[[], Any]] = {
        "bias": lambda: random(n),
        "C": lambda: last(random(*matrix)),
        "alpha": lambda: 1.25,
        "beta": lambda: 0.75,
        "s": lambda: random(*((m, n // 2) if "s: f32[m, n/2]" in case.text else (m,)), dtype=torch.float32),
        "c": lambda: random(m, n // 2, dtype=torch.float32),
        "t": lambda: random(n, dtype=torch.float16 if "t: f16" in case.text else dtype),
        "other": lambda: last(random(*matrix, dtype=torch.bfloat16)),
        "rows": lambda: torch.randperm(m, generator=generator).to(torch.int32),
        "columns": lambda: torch.randperm(n, generator=generator).to(torch.int32),
        "x": lambda: random(*(by_columns if "columns[n]" in case.text else (m, n // 2)), dtype=torch.float16),
        "y": lambda: random(m, dtype=torch.float32),
        "keep": bits,
        "seed": lambda: 2**40 + 5 if "i64" in case.text else 3,
        "E": lambda: torch.zeros((m, n), dtype=torch.bfloat16),
    }
    a = last(random(*a_shape))
    b = last(random(*b_shape) * math.prod(b_shape[1:]) ** -0.5)
    wanted = [each.name for each in inputs_of(case)]
    wanted += ["E"] * ("E: bf16[rows[m], n]" in case.text)
    inputs = {name: made[name]() for name in wanted}
    place = {name: each.to(device) if isinstance(each, torch.Tensor) else each for name, each in inputs.items()}
    return a.to(device), b.to(device), place


def inputs_of(case: Case) -> tuple[Any, ...]:
    """Return the inputs of a program; their module had another name before 2026-11-26."""
    name = "evt.request" if importlib.util.find_spec("evt.request") else "evt.spec"
    typed_graph = importlib.import_module(name).typed_graph
    found: tuple[Any, ...] = typed_graph(request_of(case.program()), case.dtype, case.dtype).inputs
    return found


def digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def compiled(case: Case, device: str, way: str = "") -> dict[str, Any]:
    """Build a case's kernel; return its configuration, registers, spills and the digest of its text."""
    op = case.program()
    a, b, inputs = tensors(case, "cpu")
    held = {"E": inputs.pop("E")} if "E" in inputs else {}
    request = request_of(op)
    plans = plan_kernels(request, bind(request, a, b, inputs, held), find_target("sm90"))
    sources = kernel_sources(plans)
    said: list[str] = []
    (library,) = build(sources[:1], on_event=lambda event: said.append(event.text) if event.kind == "end" else None)
    text = "\n".join(said)
    registers = max(map(int, re.findall(r"Used (\d+) registers", text)), default=0)
    if way:
        steps = [step["name"] for step in json.loads((library.parent / "build.json").read_text())["passes"]]
        assert ("formula" in steps) == (way == "parts"), f"it is built by {', '.join(steps)}"
        registers = registers_of(library.read_bytes())
    return {
        "config": plans[0].config.name,
        "registers": registers,
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", text))),
        "text": hashlib.sha256(sources[0].text.encode()).hexdigest()[:16],
    }


def registers_of(library: bytes) -> int:
    """Return the largest number of registers of a kernel in a library with a cubin."""
    from evt.launch.cubin import registers

    cubins = (found.start() for found in re.finditer(rb"\x7fELF\x02.{11}\x02\x00\xbe\x00", library, re.DOTALL))
    return max(max(registers(library[start:])) for start in cubins)


def call_of(case: Case, large: bool = False) -> Callable[[], Any]:
    """Return a call of a case's kernel."""
    op = case.program()
    a, b, inputs = tensors(case, "cuda", large)
    return lambda: op(a, b, **inputs)


def launched(case: Case, timed: bool) -> dict[str, Any]:
    """Run a case; return the digests of its outputs, and its time if it is measured."""
    try:
        found = call_of(case)()
        named: Mapping[str, Any] = found._asdict() if hasattr(found, "_asdict") else {"D": found}
        made: dict[str, Any] = {"outputs": {name: digest(each) for name, each in named.items()}}
        return {**made, **({"time": time_of(call_of(case, large=True))} if timed else {})}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def time_of(call: Callable[[], Any]) -> float:
    """Return the microseconds of a call: the least of seven graphs of 50 calls."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            call()
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / 50)
    return min(times)


def run(file: Path, device: str, jobs: int, only: str, way: str) -> int:
    os.environ.setdefault("EVT_CACHE_DIR", tempfile.mkdtemp(prefix="epilogue-gate-"))
    os.environ |= {"EVT_BUILD_WAY": way} if way else {"NVCC_APPEND_FLAGS": "-Xptxas -v"}
    wanted = [case for case in (cases_of_ways() if way else cases()) if re.search(only, case.name)]
    found: dict[str, Any] = {}

    def attempt(case: Case) -> dict[str, Any]:
        try:
            return compiled(case, device, way)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:500]}

    # CUTLASS's kernels take longest to compile: they start first.
    ordered = sorted(wanted, key=lambda case: case.kind not in ("sm90", "2x"))
    with ThreadPoolExecutor(jobs) as pool:
        for case, made in zip(ordered, pool.map(attempt, ordered), strict=True):
            found[case.name] = made
            print(case.name, made, flush=True)
    if device == "cuda":
        for case in wanted:
            found[case.name] |= launched(case, bool(way) or case.name in TIMED)
    card = torch.cuda.get_device_name() if device == "cuda" else ""
    file.write_text(json.dumps({"evt": str(Path(evt.__file__).parent), "card": card, "programs": found}, indent=1))
    failed = [name for name, each in found.items() if "error" in each]
    print(f"{len(found)} programs, {len(failed)} failed: {', '.join(failed)}")
    return bool(failed)


def misses(before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    """Yield the differences of a program that the gate does not allow."""
    yield from (found["error"] for found in (before, after) if "error" in found)
    was, is_now = before.get("outputs") or {}, after.get("outputs") or {}
    yield from (f"output {name} differs" for name in was.keys() | is_now.keys() if was.get(name) != is_now.get(name))
    for key, allowed in (("registers", tolerance), ("time", tolerance), ("spilled", 0)):
        if after.get(key, 0) > before.get(key, 0) * (1 + allowed / 100):
            yield f"{key} {before.get(key, 0):g} -> {after[key]:g}"


def compare(before: Path, after: Path, tolerance: float) -> int:
    """Print the differences of two files; return 1 if outputs differ, or a kernel is slower or has more registers."""
    old, new = (json.loads(path.read_text())["programs"] for path in (before, after))
    missed: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        missed += [f"{name}: {each}" for each in misses(old.get(name, {}), new.get(name, {}), tolerance)]
    print("| kernel | configuration | registers | spilled bytes | us | same text |")
    print("|---|---|---|---|---|---|")
    for name in (each for each in old if "time" in old[each] or each in TIMED):
        a, b = old.get(name, {}), new.get(name, {})
        pair = [f"{a.get(key, 0):g} -> {b.get(key, 0):g}" for key in ("registers", "spilled", "time")]
        print(f"| {name} | {b.get('config')} | {' | '.join(pair)} | {a.get('text') == b.get('text')} |")
    print(f"{len(old)} programs before, {len(new)} after; {len(missed)} misses")
    print(*missed, sep="\n")
    return bool(missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="build and run the programs with the evt on PYTHONPATH")
    runs.add_argument("file", type=Path)
    runs.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    runs.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    runs.add_argument("--only", default="", help="a regular expression for the names of programs")
    runs.add_argument("--way", choices=("parts", "whole"), default="", help="build 12 kernels this way")
    compares = commands.add_parser("compare", help="compare two files")
    compares.add_argument("before", type=Path)
    compares.add_argument("after", type=Path)
    compares.add_argument("--tolerance", type=float, default=1.0, help="percent")
    given = parser.parse_args()
    if given.command == "run":
        if not any(re.search(given.only, case.name) for case in (cases_of_ways() if given.way else cases())):
            parser.error(f"no program is called so: {given.only}")
        return run(given.file, given.device, given.jobs, given.only, given.way)
    return compare(given.before, given.after, given.tolerance)


if __name__ == "__main__":
    sys.exit(main())
