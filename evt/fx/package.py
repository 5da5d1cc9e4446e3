"""A fused model for C++: ``package(module, example_inputs, folder)``, an AOTInductor package and its operators.

AOTInductor compiles a graph to C++ that calls operators by name. The regions become operators of a PyTorch extension,
as ``evt export`` writes it. Each operator contains the kernel for the example's sizes.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as altered
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch._inductor import lowering
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, EvtError, NoKernelWarning
from evt.export import Named, torch_extension
from evt.export.building import build_extension
from evt.export.folder import staged, write_files
from evt.export.kernels import kernels_of
from evt.export.schema import schemas_of
from evt.fx.aten import shape_of
from evt.fx.build import RegionProgram
from evt.fx.capture import export, frozen
from evt.fx.choose import RegionPass
from evt.fx.example import example
from evt.fx.kernels import PROCESSORS, reason_of
from evt.fx.module import dispatch_of
from evt.fx.options import Options, read_options
from evt.fx.records import ProductReport, rows_of
from evt.fx.report import Report
from evt.fx.rewrite import listed, rewrite
from evt.fx.skip_reason import SkipReason
from evt.fx.standard_library import check_standard_library
from evt.plan import Target, find_target
from evt.plan.cards import Card
from evt.plan.speed import fastest
from evt.request.given import check_kind
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_card, device_target, is_atomic, measured_best, plan_kernels
from evt.runtime.operator import write_program
from evt.version import __version__

_MODEL, _LIBRARY, _SOURCES = "model.pt2", "operators.so", "sources"
#: The target for a model on a device without kernels.
_ASSUMED = "sm90"
_UNKNOWN = "its columns or its contraction are a symbol, and a kernel in a package is made for those it knows"


@dataclass(frozen=True)
class Package:
    """The files of :func:`package`: the model, and the library to load before it, or None if nothing is fused.

    ``report`` has the outcomes of the model's products.
    """

    model: Path
    library: Path | None
    report: Report


def package(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    folder: str | PathLike[str],
    *,
    dynamic_shapes: Any = None,
    options: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Package:
    """Compile a model with AOTInductor, its products fused: for C++, or for Python without evt.

    ``folder`` gets ``model.pt2``, ``operators.so`` and the sources of the operators, or nothing after an error.
    A program loads the operators and then the model: ``torch.ops.load_library`` and
    ``torch._inductor.aoti_load_package``, or ``dlopen`` and ``torch::inductor::AOTIModelPackageLoader``.

    ``example_inputs`` are the arguments of a call, or its keyword arguments as a mapping; ``dynamic_shapes`` is that of
    torch.export.export. Rows and batches may vary. Products with dynamic columns or contractions are not fused.
    ``options`` are the options of ``torch.compile(backend="evt")``. ``replace`` allows an existing folder.

    Call it on a machine with nvcc and the GPU of the package. Raise ArgumentError for arguments of other kinds (E0607),
    and if torch.export cannot capture the module (E1020); BuildError if the operators cannot be built, or if libraries
    of the C++ compiler crash beside PyTorch (E0711); OSError if the folder cannot be written. Warn with NoKernelWarning
    if the model has products and none of them is fused.
    """
    check_kind("module", module, torch.nn.Module, "a torch.nn.Module")
    check_kind("example_inputs", example_inputs, tuple | list | Mapping, "a tuple of them, as in `(x,)`, or a mapping")
    check_kind("folder", folder, str | PathLike, "a path")
    if "\0" in fspath(folder):
        raise ArgumentError(Diagnostic("E0607", "`folder` has a NUL character, and no path has one"))
    read = read_options(None, options)
    keywords = example_inputs if isinstance(example_inputs, Mapping) else {}
    inputs = () if isinstance(example_inputs, Mapping) else example_inputs
    fused = dispatch_of(module)
    module = module if fused is None else fused.model  # the package fuses the model again
    path = Path(folder)
    with staged(path, replace=replace) as made, torch.no_grad():
        check_standard_library()
        constant = frozen(module, inputs, keywords, dynamic_shapes)  # values of parameters alone are computed now
        exported = export(constant, inputs, keywords, dynamic_shapes)
        packaging = _Packaging(read, made)
        _compile(exported, made / _MODEL, {**read.patches, "post_grad_custom_pre_pass": packaging})
    report = Report(tuple(packaging.rows))
    if report.rows and not report.fused:
        reasons = "\n".join(f"  {row.node}: {row.reason}" for row in report.rows)
        warnings.warn(f"no product of the model is fused:\n{reasons}", NoKernelWarning, stacklevel=2)
    return Package(path / _MODEL, path / _LIBRARY if report.fused else None, report)


def _compile(exported: ExportedProgram, path: Path, options: dict[str, Any]) -> None:
    """Compile by AOTInductor; raise an error of evt in place of AOTInductor's wrapper."""
    try:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)
    except Exception as error:
        if isinstance(inner := getattr(error, "inner_exception", None), EvtError):
            raise inner from error
        raise


class _Packaging(RegionPass):
    """A pass that replaces regions by operators of a library, which it builds in a folder and loads."""

    def __init__(self, options: Options, folder: Path) -> None:
        super().__init__(options)
        self.folder = folder
        self.rows: list[ProductReport] = []
        self.known: dict[Node, tuple[Named, Target]] = {}

    def __deepcopy__(self, memo: object) -> _Packaging:
        return self  # PyTorch copies its options; the rows are read from this object

    def __call__(self, graph: Graph) -> None:
        choice = self.choose(graph)
        taken = choice.regions
        if taken and (self.folder / _LIBRARY).exists():
            message = "the model has graphs inside its graph, as torch.cond has, which are packaged without evt"
            raise ArgumentError(Diagnostic("E1020", message, help='torch.compile(model, backend="evt") fuses them'))
        self.rows += rows_of(choice.outcomes, choice.benefits)
        if taken:
            rewrite(graph, taken, self.operators([each.region.product.node for each in taken]))

    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Plan the kernels of regions; return by product why a region has no kernel."""
        found = {node: _named(node, fused) for node, fused in regions.items()}
        self.known |= {node: each for node, each in found.items() if not isinstance(each, SkipReason)}
        return {node: each for node, each in found.items() if isinstance(each, SkipReason)}

    def operators(self, products: Sequence[Node]) -> _Exported:
        """Build and load the library of the regions around these products; return its operators."""
        programs = {self.known[node][0].name: self.known[node][0] for node in products}
        (target,) = {self.known[node][1] for node in products}
        space = f"evt_{_digest(sorted(programs), target.name, __version__, torch.__version__)}"
        sources = self.folder / _SOURCES
        write_files(sources, torch_extension(space, list(programs.values()), [target], digested=True))
        built = build_extension(sources)
        library = self.folder / _LIBRARY
        built.rename(library)
        shutil.rmtree(sources / "build", ignore_errors=True)
        torch.ops.load_library(library)  # type: ignore[no-untyped-call, unused-ignore]
        made = {node: _overload(space, self.known[node][0]) for node in products}
        for operator in dict.fromkeys(made.values()):
            # An implicit fallback would format the operands for its log: text exponential in the residual sums.
            lowering.make_fallback(operator, warn=False)  # type: ignore[no-untyped-call, unused-ignore]
        return _Exported(made)


@dataclass(frozen=True)
class _Exported:
    """A writer of calls of exported operators, by product."""

    operators: Mapping[Node, OpOverload]
    copies: bool = field(default=True, init=False)
    strided: bool = field(default=False, init=False)

    def __call__(
        self, graph: Graph, fused: RegionProgram, operands: Sequence[Node], arguments: Sequence[Node]
    ) -> tuple[Node, list[Node]]:
        names = (each.name for each in fused.arguments)
        inputs: dict[str, Any] = dict(zip(names, arguments, strict=True))
        call = graph.call_function(self.operators[fused.region.product.node], tuple(operands), inputs)
        return call, [call] if len(fused.results) == 1 else listed(graph, call, len(fused.results))


def _named(node: Node, fused: RegionProgram) -> tuple[Named, Target] | SkipReason:
    """Return a region's program with the layouts and the kernel of its call, and the target; or a reason."""
    try:
        return _planned(fused)
    except EvtError as error:
        return SkipReason(node, "E1018", reason_of(error))


def _planned(fused: RegionProgram) -> tuple[Named, Target]:
    product, request = fused.region.product, fused.program.request
    if request.ragged:
        raise ArgumentError(Diagnostic("E0607", "packages contain no products of groups of rows"))
    fixed = shape_of(product.b) if request.convolution is not None else shape_of(product.b)[-2:]
    if not all(isinstance(size, int) for size in fixed):
        raise ArgumentError(Diagnostic("E0604", _UNKNOWN))
    with unset_fake_temporarily():
        left, right, inputs = example(fused)
        bound = bind(request, left, right, inputs, {}, memory=False)
    target, asked, atomic = find_target(_ASSUMED), request, is_atomic(request)
    card: Card | int = PROCESSORS
    if product.node.meta["val"].device.type == "cuda":
        target, asked = device_target(bound.index), measured_best(request, bound, atomic)
        card = device_card(bound.index, target.name)
    plans = plan_kernels(asked, bound, target, atomic)
    best = plans[fastest(plans, bound.sizes, card)]
    request = request.forced(best.route, best.config.name)
    types = [str(operand.dtype) for operand in bound.dag.operands]
    plain = altered(request, dag=altered(request.dag, origins=()))
    name = f"p_{_digest(write_program(plain), types, bound.signature)}"
    a, b = (None, None) if plain.dag.operands else types
    made = Named(name, plain, a, b, bound.signature, bound.plan_sizes)
    schemas_of(made)
    kernels_of(made, [target], name)
    return made, target


def _overload(space: str, program: Named) -> OpOverload:
    """Return the operator of a program that takes tensors for all inputs."""
    overload = schemas_of(program)[0].overload or "default"
    found: OpOverload = getattr(getattr(getattr(torch.ops, space), program.name), overload)
    return found


def _digest(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:12]
