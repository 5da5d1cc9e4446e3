"""Programs as custom operators of PyTorch, for graphs: ``torch.ops.evt.run``, ``launch``, ``write`` and ``allocate``.

All programs share these operators; a string argument holds the program, and another process can read it. ``run``
allocates the outputs, ``write`` writes them into buffers, ``allocate`` makes such buffers. ``launch`` is ``run``
without a kernel for autograd, which takes half of the time: for graphs that autograd does not see any more. Inductor's
Python code calls a :class:`evt.runtime.site.Site` instead (:mod:`evt.fx.lowering`). The fake implementations return
tensors without values, also for symbolic sizes. :func:`call_traced` calls a program while PyTorch traces or transforms
it. Any other call does not pass through this module.

The overloads ``one`` return the tensor of a program of one result, for Inductor's C++ code
(:mod:`evt.runtime.inductor`).

``names`` has the names of the tensors, floats and integers; without it the tensors are all inputs, in order.
Autocast changes nothing: a program computes in the types of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.imported import when_imported
from evt.request import Request, Traced, traced
from evt.request.given import as_keyword
from evt.runtime import inductor
from evt.runtime.arguments import outline
from evt.runtime.autograd import run_recorded
from evt.runtime.call import caller_of, named_values, run_values
from evt.runtime.fresh import returned
from evt.runtime.tensor_checks import gradient_fault, tangent_fault
from evt.runtime.vmap import refuse_batched, run_batched

_PROGRAM = "str program, str[]? names=None, Scalar[]? floats=None, SymInt[]? integers=None"
_Library: Any = torch.library.Library  # has no types
_LIBRARY = _Library("evt", "FRAGMENT")
for _schema in (
    f"run(Tensor a, Tensor b, Tensor[] tensors, {_PROGRAM}) -> Tensor[]",
    "launch(Tensor a, Tensor b, Tensor[] tensors, str program) -> Tensor[]",
    f"launch.one(Tensor a, Tensor b, Tensor[] tensors, {_PROGRAM}) -> Tensor",
    f"write(Tensor a, Tensor b, Tensor[] tensors, Tensor(a!)[] buffers, {_PROGRAM}) -> ()",
    f"allocate(Tensor a, Tensor b, Tensor[] tensors, str[] outputs, {_PROGRAM}) -> Tensor[]",
    f"allocate.one(Tensor a, Tensor b, Tensor[] tensors, str[] outputs, {_PROGRAM}) -> Tensor",
):
    _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

_Tensors = Sequence[torch.Tensor]
_Names = Sequence[str] | None
_Floats = Sequence[float] | None
_Integers = Sequence[int] | None


def write_program(request: Request) -> str:
    """Return a program as the operators take it."""
    return traced(request).text


def call_traced(program: Traced, a: Any, b: Any, out: Any, given: Mapping[str, Any], run: Any = None) -> Any:
    """Call a program through its operators, or ``run`` in the place of one. TorchDynamo traces this instead of a call.

    TorchDynamo of PyTorch 2.6 supports tuples of types in isinstance, and no unions.
    """
    buffers = {} if out is None else _read_out(program.outputs, out)
    tensors, floats, integers = [], [], []
    of_tensors, of_floats, of_integers = [], [], []
    for name, value in given.items():
        if name in program.outputs:
            if value is not None and out is not None:
                message = f"`out` and `{name}` both name output buffers"
                raise ArgumentError(Diagnostic("E0602", message, help="give one"))
            buffers[name] = value
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
            of_tensors.append(name)
        elif isinstance(value, (float, torch.SymFloat)):
            floats.append(value)
            of_floats.append(name)
        elif value is not None:
            unsigned = isinstance(value, int) and 2**63 <= value < 2**64  # a seed; the schema's integers have a sign
            integers.append(value - 2**64 if unsigned else value)
            of_integers.append(name)
    names = of_tensors + of_floats + of_integers
    buffers = {name: buffer for name, buffer in buffers.items() if buffer is not None}
    if not buffers:
        run = torch.ops.evt.run if run is None else run
        results = run(a, b, tensors, program.text, names, floats or None, integers or None)
    else:
        results = [buffers.get(name) for name in program.outputs]
        missing = [name for name in program.outputs if name not in buffers]
        if missing:
            fresh = torch.ops.evt.allocate(
                a, b, tensors, missing, program.text, names, floats or None, integers or None
            )
            results = [buffers[name] if name in buffers else fresh[missing.index(name)] for name in program.outputs]
        torch.ops.evt.write(a, b, tensors, results, program.text, names, floats or None, integers or None)
    return results[0] if program.result is None else program.result(*results)


def _read_out(outputs: tuple[str, ...], out: Any) -> dict[str, Any]:
    """Return the buffers of ``out=`` by name."""
    if isinstance(out, torch.Tensor) and len(outputs) == 1:
        return {outputs[0]: out}
    if isinstance(out, dict):
        return dict(out)
    if isinstance(out, (tuple, list)) and len(out) == len(outputs):
        return dict(zip(outputs, out))  # noqa: B905  # TorchDynamo of PyTorch 2.6 does not know strict=
    wanted = "a tensor" if len(outputs) == 1 else f"a tuple of {len(outputs)} tensors ({', '.join(outputs)})"
    raise ArgumentError(Diagnostic("E0608", f"`out` is not {wanted}"))


def _outputs(request: Request, names: Sequence[str]) -> None:
    """Raise ArgumentError (E0602) for a name that is not an output's, or that occurs twice."""
    for place, name in enumerate(names):
        if name not in request.outputs or name in names[:place]:
            message = (
                f"the call names `{name}` twice" if name in request.outputs else f"the program has no output `{name}`"
            )
            raise ArgumentError(Diagnostic("E0602", message, help=f"outputs: {', '.join(request.outputs)}"))


def _buffers(request: Request, buffers: _Tensors) -> dict[str, torch.Tensor]:
    """Return the buffers by the names of their outputs. Raise ArgumentError (E0608) for a wrong number of buffers."""
    if len(buffers) != len(request.outputs):
        message = f"the number of buffers is {len(buffers)}, and of outputs {len(request.outputs)}"
        help = f"pass a buffer for each, in order: {', '.join(request.outputs)}"
        raise ArgumentError(Diagnostic("E0608", message, help=help))
    return dict(zip(request.outputs, buffers, strict=True))


# With values


def launch(a: torch.Tensor, b: torch.Tensor, tensors: _Tensors, program: str) -> list[torch.Tensor]:
    """Run a program on its inputs in order."""
    caller = caller_of(program)
    return caller.run(a, b, named_values(caller.request, tensors))


def _write(
    a: torch.Tensor,
    b: torch.Tensor,
    tensors: _Tensors,
    buffers: _Tensors,
    program: str,
    names: _Names = None,
    floats: _Floats = None,
    integers: _Integers = None,
) -> None:
    caller = caller_of(program)
    given = named_values(caller.request, tensors, names, floats, integers)
    caller.run(a, b, given, _buffers(caller.request, buffers))


def _allocate(
    a: torch.Tensor,
    b: torch.Tensor,
    tensors: _Tensors,
    outputs: Sequence[str],
    program: str,
    names: _Names = None,
    floats: _Floats = None,
    integers: _Integers = None,
) -> list[torch.Tensor]:
    request = caller_of(program).request
    plain: Any = (
        [each if isinstance(each, int | float) else 0 for each in numbers or ()] for numbers in (floats, integers)
    )
    inputs = named_values(request, tensors, names, *plain)
    _outputs(request, outputs)
    bound = outline(request, a, b, inputs)
    for name in outputs:
        if bound.dag.output[name].is_indexed:
            message = f"`{name}` is stored by an index, and the call gives no buffer that has the rows"
            raise ArgumentError(Diagnostic("E0608", message, help=f"pass {as_keyword(name)}"))
    return [returned(bound, bound.dag.output[name]) for name in outputs]


# Without values


def _run_fake(
    a: torch.Tensor,
    b: torch.Tensor,
    tensors: _Tensors,
    program: str,
    names: _Names = None,
    floats: _Floats = None,
    integers: _Integers = None,
) -> list[torch.Tensor]:
    return _allocate(
        a, b, tensors, caller_of(program).request.outputs, program, names, floats or None, integers or None
    )


def _write_fake(*given: Any) -> None:
    a, b, tensors, buffers, program, *rest = given
    request = caller_of(program).request
    fresh = [each.name for each in request.dag.outputs if not each.is_indexed]
    wanted = dict(zip(fresh, _allocate(a, b, tensors, fresh, program, *rest), strict=True))
    for name, buffer in _buffers(request, buffers).items():
        if name not in wanted:
            continue
        if buffer.dtype != wanted[name].dtype:
            message = f"the buffer `{name}` is {buffer.dtype}; expected {wanted[name].dtype}"
            raise ArgumentError(Diagnostic("E0603", message))
        elements = buffer.numel(), wanted[name].numel()
        if all(isinstance(each, int) for each in elements) and elements[0] != elements[1]:
            shapes = [str(list(each.shape)) for each in (buffer, wanted[name])]
            message = f"the buffer `{name}` has shape {shapes[0]}; expected {shapes[1]}"
            raise ArgumentError(Diagnostic("E0608", message))


# Gradients, and vmap


def _below_autograd(operator: Any, recorded: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return an operator's kernel for the autograd key: ``recorded`` if autograd follows a tensor, else the operator.

    Without ``recorded``, refuse tensors that autograd follows. Refuse tangents always.
    """

    def kernel(*given: Any) -> Any:
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            named = zip("AB", given[:2], strict=True)
            others = (each for value in given[2:] if isinstance(value, list | tuple) for each in value)
            followed = (*named, *(("an input", each) for each in others if isinstance(each, torch.Tensor)))
            fault = gradient_fault if recorded is None else tangent_fault
            if found := next(filter(None, (fault(name, each) for name, each in followed)), None):
                raise ArgumentError(found)
            if recorded is not None and torch.is_grad_enabled() and any(each.requires_grad for _, each in followed):
                return recorded(*given)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*given)

    return kernel


def _first(function: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., torch.Tensor]:
    """Return the kernel of an overload ``one``, which returns the one tensor."""
    return lambda *given: function(*given)[0]


for _name, _values, _fake in (
    ("run", run_values, _run_fake),
    ("launch", launch, _run_fake),
    ("write", _write, _write_fake),
    ("allocate", _allocate, _allocate),
):
    _LIBRARY.impl(_name, _values, "CompositeExplicitAutograd")
    if _name != "launch":
        _kernel = _below_autograd(getattr(torch.ops.evt, _name).default, run_recorded if _name == "run" else None)
        _LIBRARY.impl(_name, _kernel, "Autograd")
    torch.library.register_fake(f"evt::{_name}", _fake, lib=_LIBRARY)
_LIBRARY.impl("launch", torch.library.fallthrough_kernel, "Autograd")
for _name, _values, _fake in (("launch.one", run_values, _run_fake), ("allocate.one", _allocate, _allocate)):
    _LIBRARY.impl(_name, _first(_values), "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"evt::{_name}", _first(_fake), lib=_LIBRARY)
torch.library.register_vmap("evt::run", run_batched, lib=_LIBRARY)
for _name in ("write", "allocate"):
    torch.library.register_vmap(f"evt::{_name}", refuse_batched, lib=_LIBRARY)
run, write, allocate = torch.ops.evt.run, torch.ops.evt.write, torch.ops.evt.allocate
when_imported("torch._inductor.lowering", inductor.register)
