"""Names that programs ask for and evt does not have: the limit behind each, and an alternative."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evt.diagnostics import closest
from evt.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason that something does not exist, continuing "there is no function `softmax`: ", and an alternative."""

    why: str
    instead: str


def unknown_type(name: str, types: Sequence[DType]) -> tuple[str, str]:
    """Return the message and the help for an unknown type. ``types`` are the candidates."""
    message, known = f"there is no type `{name}`", MISSING_TYPES.get(name.lower())
    meant = [each for dtype in types for each in (dtype.name, *dtype.aliases)]
    listed = f"types: {' '.join(map(str, types))}"
    if known is not None:
        fits = not types or not set(re.findall(r"write `(\w+)`", known.instead)).isdisjoint(meant)
        return f"{message}: {known.why}", known.instead if fits else listed
    guess = closest(name, meant)
    return message, f"did you mean `{guess}`?" if guess else listed


_BLOCK_SCALED = Missing(
    "operands with a scale for each block of k are not supported",
    "write `e4m3`, and scale rows and columns in the formula: `D = scale_a[m] * scale_b[n] * acc`",
)
_NARROW_FLOAT = Missing("floats of 4 and 6 bits are neither multiplied nor stored", "write `e4m3`")
_BLOCK_SCALE = Missing("scales of blocks are not stored as powers of two", "write `f32`")
_UNSIGNED = Missing("floats of 8 bits have a sign, and e4m3 holds every value of it", "write `e4m3`")
#: Types of elements, in lower case.
MISSING_TYPES: dict[str, Missing] = {
    **dict.fromkeys(("nvfp4", "nvf4", "mxfp4", "mxf4", "mxfp6", "mxf6", "mxfp8", "mxf8", "mxf8f6f4"), _BLOCK_SCALED),
    **dict.fromkeys(("e2m1", "e2m3", "e3m2", "fp4", "f4", "fp6", "f6", "float4", "nf4"), _NARROW_FLOAT),
    **dict.fromkeys(("e8m0", "ue8m0"), _BLOCK_SCALE),
    "ue4m3": _UNSIGNED,
    **dict.fromkeys(
        ("i16", "int16", "short", "u16", "uint16", "u32", "uint32"),
        Missing("integers are i64, i32, i8 and u8", "write `i32`"),
    ),
}

_WHOLE_ROW = "it needs a full-row reduction, which is complete only when the kernel ends"
_SOFTMAX = Missing(
    _WHOLE_ROW,
    "store `D = exp(acc); total = sum[n](D)`, and divide where D is read, as in `D = acc / total[m]` after the next "
    "product; or call torch.softmax on a stored `D = acc`",
)
_NORM = Missing(
    _WHOLE_ROW,
    "store `D = acc; mean = mean[n](acc); rstd = rsqrt(var[n](acc) + 1e-5)`, and normalise where D is read, as in "
    "`A = (A - mean[m]) * rstd[m]` before the next product",
)
_RMS = Missing(
    _WHOLE_ROW,
    "store `D = acc; rrms = rsqrt(mean[n](acc*acc) + 1e-6)`, and normalise where D is read, as in "
    "`A = A * rrms[m]` before the next product",
)
_CHOICE = Missing("a choice is `where`", "write `where(condition, a, b)`")
_NEGATION = Missing("a negation is `!`", "write `!x`, and parentheses around a comparison: `!(x > 0)`")
_CAST = Missing("a cast is called by the name of the type", "write `f16(x)`")
_TOP = Missing(
    "it orders the values of a row, which evt does not support",
    "`max[n](x)` is the largest value; store `D = acc` and call torch",
)
_SCAN = Missing("a kernel's value does not depend on earlier values of its row", "store `D = acc` and call torch")
_PRODUCT = Missing(
    "the product of A and B is `acc`, and a kernel has no product of a computed value",
    "the product of A and another matrix is `matmul(A, up)`; compute other products in separate programs",
)
_REDUCTION = Missing(
    "reductions are sum, mean, var, max and min, argmax and argmin",
    "of truth values, `max[n](x)` is whether any is true, and `min[n](x)` whether all are",
)
#: Functions, with the spellings of PyTorch and of papers.
MISSING_FUNCTIONS: dict[str, Missing] = {
    **dict.fromkeys(("softmax", "log_softmax", "logsoftmax", "softmin", "logsumexp", "gumbel_softmax"), _SOFTMAX),
    **dict.fromkeys(("layer_norm", "layernorm", "group_norm", "instance_norm"), _NORM),
    **dict.fromkeys(("rms_norm", "rmsnorm"), _RMS),
    **dict.fromkeys(("if", "ifelse", "if_else", "ite", "iif", "cond", "select", "choose", "switch"), _CHOICE),
    "not": _NEGATION,
    **dict.fromkeys(("cast", "convert", "astype", "to", "type"), _CAST),
    **dict.fromkeys(("normalize", "norm"), _NORM),
    **dict.fromkeys(
        ("std", "variance"), Missing("a variance needs the modes that it reduces", "write `sqrt(var[n](x))`")
    ),
    **dict.fromkeys(("topk", "top_k", "sort", "argsort", "kthvalue", "median", "quantile"), _TOP),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "roll", "shift"), _SCAN),
    **dict.fromkeys(("mm", "bmm", "dot", "gemm", "linear", "addmm", "baddbmm", "einsum", "outer"), _PRODUCT),
    **dict.fromkeys(
        ("batch_norm", "batchnorm"),
        Missing(
            "with statistics that are known it is arithmetic",
            "write `(acc - mean[n]) * rstd[n] * weight[n] + bias[n]`",
        ),
    ),
    **dict.fromkeys(("average", "avg"), Missing("a mean needs the modes that it reduces", "write `mean[n](x)`")),
    **dict.fromkeys(
        ("amax", "absmax"), Missing("a maximum needs the modes that it reduces", "write `max[m, n](abs(x))`")
    ),
    "amin": Missing("a minimum needs the modes that it reduces", "write `min[m, n](x)`"),
    **dict.fromkeys(("prod", "any", "all", "count_nonzero"), _REDUCTION),
    **dict.fromkeys(
        ("transpose", "t", "permute", "mT"),
        Missing(
            "a subscript describes how a tensor lies in memory", "write `out D[n, m]`, or read an input as `C[n, m]`"
        ),
    ),
    **dict.fromkeys(
        ("split_k", "splitk", "stream_k"),
        Missing(
            "k is not split among kernels",
            "make batches of the parts of k, A of [parts, m, k/parts] and B of [parts, k/parts, n], and add up the "
            "`D = acc` of each",
        ),
    ),
    **dict.fromkeys(
        ("concat", "cat", "concatenate", "stack", "reshape", "view", "flatten"),
        Missing("a formula is elementwise", "store each part as a separate output"),
    ),
}
#: Parameters of PyTorch's functions, by the function, or "" for all: the help.
MISSING_PARAMETERS: dict[tuple[str, str], str] = {
    ("gelu", "approximate"): "write `gelu_tanh(x)` for the approximation by tanh",
    ("", "inplace"): "remove it; a formula overwrites nothing",
    **dict.fromkeys(
        (("", word) for word in ("dim", "axis", "keepdim", "keepdims")),
        "a reduction has its modes in brackets: `max[n](x)` along a row",
    ),
}
#: Settings of other kernels, which evt does not have.
MISSING_SETTINGS: dict[str, Missing] = {
    **dict.fromkeys(("split_k", "splitk", "split_k_slices", "stream_k", "num_splits"), MISSING_FUNCTIONS["split_k"])
}
