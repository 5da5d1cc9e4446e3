"""Geometry of the own kernels of sm90: tiles, shared memory, pipeline stages and schedules, decided on the host.

These modules are the only statement of the decisions. The planner calls their functions, and
:mod:`evt.emission.translate` writes the same functions as C++ into the launcher of each kernel. They keep to the subset
of Python that it reads.
"""
