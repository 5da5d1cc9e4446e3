"""Programs as packages of other build systems: ``torch_extension(name, programs)`` and ``cmake_project(...)``.

In the order of the data: :mod:`names` (valid names in generated files), :mod:`number` (numbers as C++), :mod:`kernels`
(the kernels of a program, and their requirements on its tensors), :mod:`schema` (a program as an operator of PyTorch),
:mod:`tables` (a program as tables of C++), :mod:`example` (a call with its results, for the tests), :mod:`extension`
and :mod:`cmake` (the files), :mod:`folder` (writing them), :mod:`building` (building an extension in its folder).
"""

from evt.export.cmake import cmake_project
from evt.export.example import Example
from evt.export.extension import torch_extension
from evt.export.folder import write_folder
from evt.export.kernels import Layouts, Named

__all__ = ["Example", "Layouts", "Named", "cmake_project", "torch_extension", "write_folder"]
