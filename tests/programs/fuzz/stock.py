"""Programs that CUTLASS's own epilogues compute: ``stock_program(number, operation, pair) -> Program``."""

from __future__ import annotations

from ..draw import Draw
from ..tree import Acc, Assign, Call, Expression, Input, Output, Program, Read

_ACTIVATIONS = ("relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish")


def stock_program(number: int, operation: str, pair: tuple[str, str]) -> Program:
    """Return ``D = f(alpha*acc + beta*C + bias)``, without some of its parts, perhaps with a residual after f."""
    draw = Draw(number)
    inputs: dict[str, Input] = {}

    def read(name: str, *modes: str) -> Expression:
        given = draw.pick(("number", "element")) if not modes else "tensor"
        inputs[name] = Input(name, modes, None, declared=False, given=given)
        return Read(name)

    def meet(function: str, x: Expression, y: Expression) -> Expression:
        return Call(function, (x, y), {"add": "+", "mul": "*"}[function])

    value: Expression = meet("mul", read("alpha"), Acc()) if draw.chance(2) else Acc()
    if draw.chance(2):
        source = read("C", "m", "n")
        value = meet("add", value, meet("mul", read("beta"), source) if draw.chance(2) else source)
    if draw.chance(2):
        value = meet("add", value, read("bias", "n"))
    if draw.chance(1.5):
        value = Call(draw.pick(_ACTIVATIONS), (value,))
    if draw.chance(4):
        value = meet(draw.pick(("add", "mul")), value, read("residual", "m", "n"))
    eight = pair[0] in ("e4m3", "e5m2", "i8", "u8")
    types = ("f16", "bf16", "f32", None, *(("i8", "i32") if pair[0] in ("i8", "u8") else ()))
    output = Output("D", ("m", "n"), draw.pick(types), draw.chance(2))
    header = ((), ()) if "tf32" in pair or draw.chance(4) else None
    flips = (False, False) if operation.startswith("conv") else (draw.chance(4), draw.chance(4))
    if eight and not operation.startswith("conv"):
        flips = False, operation != "linear"
    return Program(
        operation=operation,
        a=pair[0],
        b=pair[1],
        header=header,
        inputs=tuple(inputs.values()),
        outputs=(output,),
        declares_outputs=output.type is not None or draw.chance(2),
        assigns=(Assign("D", value),),
        data=draw.pick(("plain", "normal", "edge")),
        transposed=flips,
        seed=number,
    )
