"""Random programs on a GPU, over every route: ``python -m tests.fuzz_gpu --count 400 --seed 0 --minutes 30``.

Each kernel is launched with several sizes, strides and data, twice on poisoned buffers between canaries; its outputs
are compared with an evaluator in doubles. A failure is printed with a problem that reproduces it, made small; tables
come last. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .programs.fuzz.judge import judge
from .programs.fuzz.kinds import ROUTES, TYPES
from .programs.fuzz.reproduce import describe, read
from .programs.fuzz.run import FatalError, Options, Run
from .programs.fuzz.table import features_of

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def parsed(words: list[str]) -> argparse.Namespace:
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_gpu", description=lines[0], epilog=" ".join(lines[2:]))
    parser.add_argument("--count", type=int, default=100, help="how many kernels")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other programs")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the run may take")
    parser.add_argument("--launches", type=int, default=4, help="how many problems each kernel gets")
    parser.add_argument("--routes", default=",".join(ROUTES), help="routes to take")
    parser.add_argument("--types", default=",".join(TYPES), help="types of A and B")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many processes")
    parser.add_argument("--arch", help="the target; that of the GPU by default, sm90 without one")
    devices = {"cuda": "a GPU", "cpu": "the reference in place of kernels", "none": "builds, and no launches"}
    words_of = "; ".join(f"{name}: {what}" for name, what in devices.items())
    parser.add_argument("--device", choices=devices, default="cuda", help=words_of)
    parser.add_argument("--shrink", type=int, default=3, help="how many failures of a kind are made small")
    parser.add_argument("--save", type=Path, help="a folder for the failures, a file each")
    parser.add_argument("--list", action="store_true", help="print the programs and their kernels, and run nothing")
    parser.add_argument("--reproduce", metavar="FILE", help="run one problem: a file, its text, or - for stdin")
    parser.add_argument("--margin", type=int, help="bytes of canaries around tensors, of --reproduce")
    parser.add_argument("--sanitize", choices=TOOLS, help="run each kernel under a tool of compute-sanitizer")
    given = parser.parse_args(words)
    for name, known in (("routes", ROUTES), ("types", TYPES)):
        values = tuple(filter(None, getattr(given, name).split(",")))
        if unknown := [each for each in values if each not in known]:
            parser.error(f"--{name}: there is no {', '.join(unknown)}; known: {', '.join(known)}")
        setattr(given, name, values)
    return given


def main(words: list[str]) -> int:
    given = parsed(words)
    device = "cpu" if given.list else given.device
    options = Options(
        count=given.count,
        seed=given.seed,
        minutes=given.minutes,
        routes=given.routes,
        types=given.types,
        launches=1 if given.sanitize else given.launches,
        jobs=1 if given.reproduce else given.jobs,
        target=given.arch or target_of(device),
        device=device,
        shrink=given.shrink,
        save=given.save,
    )
    run = Run(options)
    try:
        if given.list:
            code = listed(run)
        elif given.reproduce:
            code = reproduced(run, given.reproduce, given.margin)
        else:
            code = sanitized(run, given.sanitize) if given.sanitize else run.all()
    finally:
        idle = run.close()
    if not idle:  # nvcc ends with this process, which would wait for it
        sys.stdout.flush()
        os._exit(code)
    return code


def target_of(device: str) -> str:
    """Return the name of the GPU's target."""
    if device != "cuda":
        return "sm90"
    from evt.runtime.kernels import device_target

    return device_target(0).name


def listed(run: Run) -> int:
    """Print the cases that would be built and launched."""
    for case in run.cases():
        config = dict(case.program.settings)["config"]
        print(f"== {case.index}: {case.route}, {case.types}, {config}, {len(case.problems)} problems")
        print(case.program.text)
        for problem in case.problems:
            print(str(problem).splitlines()[-1])
        print(f"# {', '.join(sorted(features_of(case)))}\n", flush=True)
        run.table.add(case, kernels=1, launches=len(case.problems))
    print(run.table)
    return 0


def reproduced(run: Run, text: str, margin: int | None) -> int:
    """Run one problem, or build its kernel, given as the fuzzer printed it; return the exit code."""
    if text == "-":
        text = sys.stdin.read()
    elif "Program(" not in text:
        text = Path(text).read_text()
    problem, layouts = read(text)
    print(f"{problem}\nlayouts {layouts}", flush=True)
    try:
        launch = run.attempt(problem, layouts, None, **({} if margin is None else {"margin": margin}))
    except FatalError as error:
        print(f"crash: {error}", flush=True)
        return 1
    faults = [*launch.faults, *(judge(problem, launch.outputs).faults if launch.outputs else ())]
    for fault in faults:
        print(f"{fault.kind}: {fault.detail}", flush=True)
    print("fails" if faults else "builds" if run.options.device == "none" else "right", flush=True)
    return 1 if faults else 0


def sanitized(run: Run, tool: str) -> int:
    """Run the smallest problem of each kernel under a tool of compute-sanitizer, each in a separate process."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        print("compute-sanitizer is not installed")
        return 2
    cases = list(run.cases())
    errors = list(run.builders.map(run.build, [case.source for case in cases]))
    bad = 0
    for case, error in zip(cases, errors, strict=True):
        if run.left <= 0:
            print("the time is over")
            break
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(describe(case.program, case.layouts))
            file.flush()
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
            if tool != "initcheck":  # it knows the writes of the kernels that it observes, so it observes PyTorch's too
                command += ["--kernel-name", "kernel_substring=evt"]
            # Every tensor is a separate allocation, without canaries, so that the tool sees an access outside it.
            program = [sys.executable, "-m", "tests.fuzz_gpu", "--reproduce", file.name, "--margin", "0"]
            program += ["--device", run.options.device, "--arch", run.options.target]
            environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
            done = subprocess.run([*command, *program], capture_output=True, text=True, env=environment)
        verdict = error or ("clean" if done.returncode == 0 else f"exit code {done.returncode}")
        print(f"{case.index:4} {case.route:20} {case.types:10} {tool} {verdict}", flush=True)
        if done.returncode or error:
            bad += 1
            print(f"{describe(case.program, case.layouts)}\n{done.stdout[-4000:]}\n{done.stderr[-1000:]}", flush=True)
    print(f"{tool}: {len(cases)} kernels, {bad} with errors")
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
