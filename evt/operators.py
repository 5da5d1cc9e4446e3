"""The custom operators that stand for programs in PyTorch's graphs: importing this makes them known to PyTorch.

A call imports them where PyTorch traces it. A process that only loads such a graph (torch.export.load) has to.
"""

from evt.runtime.operator import allocate, run, write

__all__ = ["allocate", "run", "write"]
