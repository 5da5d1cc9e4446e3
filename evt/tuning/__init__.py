"""Timing of a problem's kernels on a GPU.

In the order of the data: :mod:`device` (the GPU, for planning), :mod:`candidates` and :mod:`space` (the kernels to
build), :mod:`gpu` (the GPU, for timing), :mod:`clock` (a round of timing), :mod:`race` (rounds, stopped early),
:mod:`tune` (a call), :mod:`grouped` (a grouped call), :mod:`table` (the result). :mod:`evt.measured` keeps the results,
so that calls take the fastest kernel.
"""
