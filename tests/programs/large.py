"""Programs of any size, one of each shape that a generator of programs may write: ``SHAPES[name](count)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _chain(first: str, step: Callable[[str, int], str], count: int) -> str:
    """Return statements that each read the one before."""
    lines, last = [f"v0 = {first}"], "v0"
    for index in range(1, count):
        lines.append(f"v{index} = {step(last, index)}")
        last = f"v{index}"
    return "\n".join([*lines, f"D = {last}"])


def _nested(start: str, end: str, inner: str, count: int) -> str:
    return f"D = {start * count}{inner}{end * count}"


def _inputs(count: int) -> str:
    names = [f"x{index}" for index in range(count)]
    return f"in {', '.join(f'{name}: f32[n]' for name in names)}\nD = acc + {' + '.join(names)}"


def _outputs(count: int) -> str:
    return "\n".join(f"D{index} = acc * {index}.5" for index in range(count))


def _doubling(count: int) -> str:
    """Return functions that each call the one before twice: inlined, the last has 2**count calls."""
    lines = ["def g0(x) = relu(x) + 0.5"]
    lines += [f"def g{index}(x) = g{index - 1}(x) * g{index - 1}(x + {index})" for index in range(1, count)]
    return "\n".join([*lines, f"D = g{count - 1}(acc)"])


def _calls(count: int) -> str:
    """Return statements with a function for each."""
    lines = [f"def g{index}(x) = x * {index}.5 + relu(x)" for index in range(count)]
    return "\n".join([*lines, _chain("acc", lambda last, index: f"g{index}({last})", count), "E = g0(acc)"])


#: Programs of about ``count`` operations.
SHAPES: Mapping[str, Callable[[int], str]] = {
    "sum": lambda count: "D = acc + " + " + ".join(f"{index}.25*bias" for index in range(count)),
    "sum of one": lambda count: "D = acc" + " + bias" * count,
    "sum of calls": lambda count: "D = acc" + "".join(f" + sigmoid(bias*{index}.5)" for index in range(count)),
    "product": lambda count: "D = acc" + "".join(f" * (bias + {index}.5)" for index in range(count)),
    "product of one": lambda count: "D = acc" + " * bias" * count,
    "quotient": lambda count: "D = acc" + " / bias" * count,
    "sum to the right": lambda count: "D = " + "bias + (" * count + "acc" + ")" * count,
    "calls": lambda count: _nested("relu(", ")", "acc", count),
    "activations": lambda count: _nested("gelu(", ")", "acc", count),
    "sigmoids": lambda count: _nested("sigmoid(", ")", "acc", count),
    "two arguments": lambda count: _nested("max(bias, ", ")", "acc", count),
    "parentheses": lambda count: _nested("(", ")", "acc", count),
    "choices": lambda count: _nested("where(bias > 0, ", ", acc)", "relu(acc)", count),
    "conditions": lambda count: "D = where(" + "!(" * count + "acc > 0" + ")" * count + ", acc, 0)",
    "any": lambda count: "D = where(acc > 0" + "".join(f" || acc < -{index}.5" for index in range(count)) + ", acc, 0)",
    "minus": lambda count: f"D = {'-' * count}acc",
    "minus of sums": lambda count: _nested("-(bias + ", ")", "acc", count),
    "powers": lambda count: "D = " + "(" * count + "acc" + " ** 2)" * count,
    "powers to the right": lambda count: "D = acc ** 2" + " ** 1" * count,
    "casts": lambda count: _nested("bf16(f16(", "))", "acc", count // 2),
    "statements": lambda count: _chain("acc", lambda last, _: f"relu({last} + bias)", count // 2),
    "squares": lambda count: _chain("acc", lambda last, _: f"{last} * {last}", count),
    "fan-out": lambda count: (
        "z = acc + bias\n"
        + "\n".join(f"v{index} = z * {index}.5" for index in range(count // 2))
        + "\nD = "
        + " + ".join(f"v{index}" for index in range(count // 2))
    ),
    "inputs": _inputs,
    "outputs": _outputs,
    "defines": _calls,
    "doubling": _doubling,
    "derivatives": lambda count: "D = acc" + "".join(f" + gelu'(acc*{index}.5)" for index in range(count // 8)),
    "derivative of a chain": lambda count: f"def f(x) = {'tanh(' * count}x{')' * count}\nD = f'(acc)",
    "reductions": lambda count: "D = acc\n" + "\n".join(f"t{index} = sum[n](acc*{index}.5)" for index in range(count)),
    "indices": lambda count: f"D = {'where(iota(n) > ' * count}iota(m){', acc, bias)' * count}",
    "integers": lambda count: "D = where(iota(n)" + "".join(f" + {index}" for index in range(count)) + " > 7, acc, 0)",
    "subscripts": lambda count: f"D = acc + C[{'a[' * count}m{']' * count}, n]",
    "comment": lambda count: f"# {'long ' * count}\nD = acc  # {'!' * count}",
    "comments": lambda count: "# one\n" * count + "D = acc",
    "name": lambda count: f"D = acc + {'x' * count}[n]",
    "number": lambda count: f"D = acc + 0.{'1' * count}",
    "primes": lambda count: f"D = gelu{chr(39) * count}(acc)",
    "mistakes": lambda count: "\n".join(f"v{index} = acd + nowhere(" for index in range(count)),
    "unknown names": lambda count: "D = acc + " + " + ".join(f"bais{index}(acc)" for index in range(count)),
    "one assigned often": lambda count: "D = acc\n" * count,
    "operand": lambda count: f"A = {'relu(' * count}A{')' * count}\nD = acc",
}
