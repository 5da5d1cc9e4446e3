"""``evt doctor``: the state of this machine's tools, and the commands that install missing ones."""

from __future__ import annotations

import dataclasses
import sys

import click

from evt.cli.output import json_option, print_json, print_text, use_color
from evt.cli.sections import Command


@click.command("doctor", cls=Command, epilog="Example: evt doctor --json")
@json_option
@click.pass_context
def command(ctx: click.Context, json: bool) -> None:
    """Check everything that building and running a kernel needs.

    The exit code is 0 if kernels can be built here. A missing part that only running a kernel needs is `absent`; any
    other missing part is MISSING.
    """
    from evt.compilation import diagnose
    from evt.plan.gpus import GPUS

    checks = diagnose()
    can_build = all(check.ok for check in checks if check.required)
    if json:
        found = [dataclasses.asdict(check) for check in checks]
        print_json({"ok": can_build, "checks": found, "targets": {name: list(gpus) for name, gpus in GPUS.items()}})
        ctx.exit(0 if can_build else 1)
    width = max(len(check.name) for check in checks)
    color = use_color(sys.stdout)
    for check in checks:
        missing = ("MISSING", "red") if check.required else ("absent", "yellow")
        word, style = ("ok", "green") if check.ok else missing
        mark = click.style(f"{word:<7}", style) if color else f"{word:<7}"
        print_text(f"  {check.name:<{width}}  {check.found}", mark=mark)
        if check.remedy:
            print_text(f"{'':7}  {'':{width}}  -> {check.remedy}")
    print_text("\nTargets, for --arch, by name or GPU model:")
    for name, gpus in GPUS.items():
        print_text(f"  {name:<6} {', '.join(gpus)}")
    print_text("")
    can_run = all(check.ok for check in checks) and any(check.name.startswith("GPU") for check in checks)
    if not can_build:
        print_text("Kernels cannot be built here; evt emits C++, and computes with the reference on the CPU.")
    elif not can_run:
        print_text("Kernels can be built here, but not run; evt computes with the reference on the CPU.")
    else:
        print_text("Kernels can be built and run here.")
    ctx.exit(0 if can_build else 1)
