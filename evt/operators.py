"""The custom operators of programs in PyTorch's graphs. Importing this module registers them with PyTorch.

A call imports this module under tracing. A process that only loads such a graph (torch.export.load) must import it.
"""

from evt.runtime.operator import allocate, run, write

__all__ = ["allocate", "run", "write"]
