"""``evt export``: export of programs as a PyTorch extension or a CMake project."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evt.cli.invocation import (
    TARGET_HELP,
    Invocation,
    is_file,
    operation_option,
    takes_geometry,
    takes_operands,
    takes_settings,
)
from evt.cli.output import json_option, print_json, print_text
from evt.cli.sections import Command, files, targets

if TYPE_CHECKING:
    from evt.export import Layouts, Named

_GEOMETRY = ("stride", "padding", "dilation", "groups", "output_padding", "kernel_size")


@click.command(
    "export",
    cls=Command,
    epilog="Example: evt export --torch my_ops 'scaled: D = scale*acc + bias' samples/conv_relu_add.evt --arch sm90",
)
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...", shell_complete=files)
@operation_option
@takes_operands
@click.option(
    "--arch",
    "archs",
    metavar="NAME[,NAME]",
    multiple=True,
    required=True,
    shell_complete=targets,
    help=f"Targets: {TARGET_HELP}.",
)
@takes_settings
@takes_geometry
@click.option(
    "--torch", "extension", type=click.Path(), metavar="DIR", help="Write a PyTorch extension to this folder."
)
@click.option("--cmake", "project", type=click.Path(), metavar="DIR", help="Write a CMake project to this folder.")
@click.option("--name", help="Name of the extension, torch.ops.NAME, or of the library. [default: DIR's]")
@click.option("--force", is_flag=True, help="Replace DIR and its content.")
@click.option(
    "--layout",
    "layouts",
    metavar="TENSOR=MODE[,MODE]",
    multiple=True,
    help="The modes of TENSOR that may be contiguous: B=n,k makes a kernel for each. [default: the last]",
)
@click.option(
    "--shared", metavar="TENSOR", multiple=True, help="Also make kernels for a TENSOR that all batches share."
)
@click.option(
    "--align",
    "alignments",
    type=click.Choice(["8", "4", "2", "1"]),
    multiple=True,
    help="Also make kernels for tensors whose rows have this smaller alignment, in bytes.",
)
@json_option
def command(
    programs: tuple[str, ...],
    op: str | None,
    a: str | None,
    b: str | None,
    archs: tuple[str, ...],
    settings: Mapping[str, Any],
    extension: str | None,
    project: str | None,
    name: str | None,
    force: bool,
    layouts: tuple[str, ...],
    shared: tuple[str, ...],
    alignments: tuple[str, ...],
    json: bool,
) -> None:
    """Write kernels as a package that builds without evt.

    --torch writes a PyTorch extension: `pip install` builds it, and `import` registers torch.ops.NAME.PROGRAM. --cmake
    writes a library for C and C++. Name a formula with `NAME: FORMULA`. A file has its own name, or `NAME: FILE`. --op
    and the types apply to programs without a header; the geometry applies to all convolutions.

    Each kernel is compiled for tensors in the order of their subscripts, packed and aligned to 16 bytes. --layout,
    --shared and --align ask for other layouts; each layout is one more kernel.
    """
    if (extension is None) == (project is None):
        raise click.UsageError("Give --torch DIR or --cmake DIR.")
    folder = extension or project or ""
    package = os.path.basename(os.path.realpath(folder)) if name is None else name
    _check_folder(folder, force)
    from evt.cli.examples import example_of
    from evt.export import cmake_project, torch_extension, write_folder
    from evt.export.names import check_package
    from evt.plan import find_target

    check_package("torch" if extension is not None else "cmake", package)
    named = _named(programs, package, op, a, b, settings)
    words = [word.strip() for arch in archs for word in arch.split(",")]
    targets = list({target.name: target for target in map(find_target, words)}.values())
    asked = _layouts(named, layouts, shared, alignments)
    write = torch_extension if extension is not None else cmake_project
    files = write(package, [replace(each, layouts=asked) for each in named], targets, example_of)
    try:
        write_folder(Path(folder), files, replace=force)
    except OSError as error:
        raise _unwritable(folder, error.strerror or str(error)) from error
    kernels = sum(path.endswith(".cu") for path in files)
    prefix = f"torch.ops.{package}." if extension is not None else ""
    made = f"{', '.join(f'{prefix}{each.name}' for each in named)}; {kernels} kernel{'s' * (kernels > 1)}"
    # pip reads a path without a separator as a package, and a path with a leading hyphen as an option.
    path = shlex.quote(folder if os.path.dirname(folder) else os.path.join(".", folder))
    how = f"pip install --no-build-isolation {path}" if extension is not None else f"cmake -S {path} -B build"
    names = [each.name for each in targets]
    if json:
        facts = {"programs": [each.name for each in named], "kernels": kernels, "targets": names, "build": how}
        print_json({"ok": True, "folder": folder, "files": sorted(files), **facts})
    else:
        print_text(f"{folder}: {made} for {', '.join(names)}; {how}")


def _check_folder(folder: str, force: bool) -> None:
    """Raise click.UsageError for a folder that cannot be written, before the work begins."""
    from evt.export.folder import is_kept

    path = os.path.realpath(folder) if folder and "\0" not in folder else ""
    if not path:
        raise _unwritable(folder, "it is not a directory's name")
    if os.path.exists(path) and not os.path.isdir(path):
        raise _unwritable(folder, "it is a file")
    if os.path.isdir(path) and os.listdir(path) and not force:
        raise _unwritable(folder, "it is not empty; --force replaces it and its content")
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise _unwritable(folder, f"there is no directory {parent}")
    if os.path.isdir(path) and os.listdir(path) and is_kept(Path(path)):
        raise _unwritable(folder, "it is the working directory or home, which is never replaced")
    if not os.access(parent, os.W_OK):
        raise _unwritable(folder, f"the directory {parent} is not writable")


def _unwritable(folder: str, why: str) -> click.UsageError:
    return click.UsageError(f"cannot write {folder!r}: {why}.")


def _named(
    programs: Sequence[str], package: str, op: str | None, a: str | None, b: str | None, settings: Mapping[str, Any]
) -> list[Named]:
    """Return the programs with their names."""
    from evt.diagnostics import Diagnostic
    from evt.errors import TargetError
    from evt.export import Named

    named = []
    geometry_used = False
    for text in programs:
        name, text = _split(text)
        if name is None and len(programs) > 1:
            raise click.UsageError(
                "Several formulas need names, as in 'conv_relu_add: D = relu(acc + bias) + residual'."
            )
        request, takes_geometry = _program(text, op, settings)
        geometry_used |= takes_geometry
        if request.grouped:
            message = f"`{name or package}` is a grouped program, which takes lists of tensors"
            raise TargetError(Diagnostic("E0502", message, help="`evt emit` prints its kernel and its C header"))
        declared = bool(request.dag.operands)
        named.append(Named(name or package, request, None if declared else a, None if declared else b))
    given = [each for each in _GEOMETRY if each in settings]
    if given and not geometry_used:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is for convolutions, and no program is one.")
    return named


def _split(text: str) -> tuple[str | None, str]:
    """Return the name of a program, if it has one, and its text or file."""
    found = re.match(r"\s*([^\s:=()\[\],;/]+)\s*:\s*(?=\S)", text)
    if found and not os.path.exists(text):
        return found[1], text[found.end() :]
    if is_file(text):
        return Path(text).stem, text
    return None, text


def _program(text: str, op: str | None, settings: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the program of a text, and whether it has a geometry: a convolution has the geometry of the options."""
    from evt.errors import ArgumentError
    from evt.ir.convolution import CONVOLUTIONS
    from evt.program import Program

    plain = {name: value for name, value in settings.items() if name not in _GEOMETRY}
    source = Invocation(text, op, None, None).source
    if op == "grouped_gemm":
        from evt.grouped import GroupedProgram

        return GroupedProgram(source, **plain).request, False
    try:
        request = Program(source, op or "gemm", **plain).request
    except ArgumentError:
        if op not in CONVOLUTIONS and "kernel_size" not in settings:
            raise
        return Program(source, op or "gemm", **settings).request, True  # a wgrad, which needs its kernel size
    if request.convolution is None:
        return request, False
    return Program(source, op or "gemm", **settings).request, True


def _layouts(
    programs: Sequence[Named], layouts: Sequence[str], shared: Sequence[str], alignments: Sequence[str]
) -> Layouts:
    """Read the options of layouts."""
    from evt.diagnostics import closest
    from evt.export import Layouts

    contiguous: dict[str, tuple[str, ...]] = {}
    for text in layouts:
        tensor, equals, modes = text.partition("=")
        wanted = tuple(mode.strip() for mode in modes.split(","))
        if not equals or not set(wanted) <= {"m", "n", "k"}:
            raise click.BadParameter(f"{text!r} is not a layout; write for example B=n,k.", param_hint="'--layout'")
        contiguous[tensor.strip()] = wanted
    known = {name for program in programs for name in program.values}
    for option, names in (("'--layout'", contiguous), ("'--shared'", shared)):
        for name in names:
            if name not in known:
                guess = closest(name, sorted(known))
                hint = f" Did you mean `{guess}`?" if guess else f" Tensors: {', '.join(sorted(known))}."
                raise click.BadParameter(f"no program has a tensor `{name}`.{hint}", param_hint=option)
    return Layouts(contiguous, tuple(shared), tuple(sorted({16, *map(int, alignments)}, reverse=True)))
