"""The table of diagnostic codes. ``evt explain CODE`` shows the page of a code from ``evt/diagnostics/pages``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Code:
    """A diagnostic code and its meaning in one phrase; E for an error, W for a warning."""

    id: str
    title: str


_TABLE = (
    # syntax
    Code("E0101", "the text is not a program"),
    Code("E0102", "a character that the language does not use"),
    Code("E0103", "an empty program"),
    Code("E0104", "an unbalanced bracket"),
    Code("E0105", "a file that cannot be read"),
    Code("E0107", "a number that cannot be represented"),
    Code("E0108", "a reserved word used as a name"),
    Code("E0109", "an invalid workload"),
    # names and calls
    Code("E0201", "an unknown function"),
    Code("E0202", "an unknown name"),
    Code("E0203", "wrong number of arguments"),
    Code("E0204", "unknown or repeated keyword argument"),
    Code("E0205", "an exponent that is not a constant"),
    Code("E0206", "a function without a derivative"),
    Code("E0207", "numbers that a function does not take"),
    # types and shapes
    Code("E0301", "an unknown index mode or a subscript that repeats one"),
    Code("E0302", "two different subscripts for one name"),
    Code("E0303", "an unknown type"),
    Code("E0304", "a value with modes that its output does not have"),
    Code("E0305", "a type that contradicts the header"),
    Code("E0306", "an invalid default"),
    Code("E0307", "columns of different widths in one value"),
    Code("E0308", "a type that is not allowed in its place"),
    # the program as a graph
    Code("E0401", "a name assigned twice"),
    Code("E0402", "a definition that depends on itself, or expands too far"),
    Code("E0403", "no output"),
    Code("E0404", "a declared input that nothing reads"),
    Code("E0405", "a program that does not use the accumulator"),
    Code("E0406", "assignment to a name that cannot be assigned"),
    Code("E0407", "a name declared twice"),
    Code("E0408", "a declared output that is never assigned"),
    Code("E0409", "an assigned name that nothing reads"),
    Code("E0410", "a reduction that the kernel reads"),
    Code("E0411", "an operand formula that is not elementwise"),
    Code("E0412", "a graph that is not a program"),
    Code("E0413", "a program with too many operations"),
    # targets
    Code("E0501", "an unknown target or operation"),
    Code("E0502", "the target cannot do this"),
    Code("E0503", "no route is left"),
    # calls
    Code("E0601", "a missing argument"),
    Code("E0602", "an unknown argument"),
    Code("E0603", "an argument of the wrong dtype"),
    Code("E0604", "an argument of the wrong shape"),
    Code("E0605", "an argument on the wrong device"),
    Code("E0606", "an argument with strides that no kernel supports"),
    Code("E0607", "an argument of the wrong kind"),
    Code("E0608", "an output buffer that does not fit"),
    Code("E0609", "an output buffer that overlaps an input"),
    Code("E0610", "an argument that requires grad"),
    Code("E0611", "a call that PyTorch traces or transforms"),
    Code("E0612", "an argument that reaches beyond its storage"),
    Code("E0613", "a stored program that this version cannot read"),
    Code("E0614", "a gradient that cannot be computed"),
    Code("E0615", "a program without PyTorch's operators"),
    # functions that users register
    Code("E0651", "a function name that is already taken"),
    Code("E0652", "a function signature that cannot be read"),
    Code("E0653", "C++ that cannot be used for a function"),
    Code("E0654", "a PyTorch definition that cannot be called"),
    Code("E0655", "a derivative that cannot be used"),
    Code("E0656", "a function registered again with another definition"),
    Code("E0657", "a stored program whose functions are not registered"),
    # layouts
    Code("E0671", "a text that is not a layout"),
    Code("E0672", "an invalid shape, stride or other layout argument"),
    Code("E0673", "a coordinate that does not fit the layout"),
    Code("E0674", "a layout operation without a result"),
    Code("E0675", "a layout computation that exceeds its limit"),
    # building
    Code("E0701", "no CUDA compiler"),
    Code("E0702", "no CUTLASS headers"),
    Code("E0703", "nvcc rejected generated code"),
    Code("E0704", "the cache directory cannot be used"),
    Code("E0705", "a library or directory that other users could modify"),
    Code("E0706", "the CUDA compiler is too old for the target"),
    Code("E0707", "headers that changed during a build"),
    Code("E0708", "too many open files"),
    Code("E0709", "a kernel that may not be compiled here"),
    Code("E0710", "a file that is not a sound pack of kernels"),
    Code("E0711", "a C++ compiler whose libraries crash beside PyTorch"),
    # running
    Code("E0801", "no usable GPU"),
    Code("E0802", "a kernel built for another GPU"),
    Code("E0803", "the kernel could not be launched"),
    Code("E0804", "the kernel refused the problem"),
    Code("E0805", "a driver without a needed entry point"),
    # evt itself
    Code("E0901", "not supported yet"),
    Code("E0902", "a bug in evt"),
    # models: reasons for not fusing an operator
    Code("E1001", "an operator without a function in evt"),
    Code("E1002", "a type that kernels do not compute in"),
    Code("E1003", "a view of the product that a kernel cannot follow"),
    Code("E1004", "a result with another shape than the product"),
    Code("E1005", "two views of the product in one operator"),
    Code("E1006", "a tensor that varies over part of the rows or columns"),
    Code("E1007", "a number that is only known at run time"),
    Code("E1008", "a reduction over part of the rows or columns"),
    Code("E1009", "a reduction that is read together with its elements"),
    Code("E1010", "a product that evt does not compute"),
    Code("E1011", "a float32 product where TF32 is not allowed"),
    Code("E1012", "an operator that needs the result of a second kernel"),
    Code("E1013", "an operator that is fused elsewhere with less memory traffic"),
    Code("E1014", "a product without an epilogue"),
    Code("E1015", "a region that is not a valid program"),
    Code("E1016", "a product on a device without kernels"),
    Code("E1017", "a region that is slower than the operators it replaces"),
    Code("E1018", "a region that no kernel supports"),
    Code("E1019", "a region whose kernel cannot be built"),
    Code("E1020", "a module that torch.export cannot capture"),
    Code("E1021", "a gradient that evt leaves to PyTorch"),
    Code("E1022", "a kernel whose speed has not been measured"),
    Code("E1023", "a region whose bits differ from eager's"),
    Code("E1024", "a norm that stays a kernel of Inductor's"),
    # warnings
    Code("W0401", "an input that is a matrix and reads like a scalar"),
)

CODES: dict[str, Code] = {code.id: code for code in _TABLE}


def page(code: str) -> str:
    """Return the page of a code, as Markdown. Raise KeyError for an unknown code."""
    return (Path(__file__).parent / "pages" / f"{CODES[code].id}.md").read_text(encoding="utf-8")
