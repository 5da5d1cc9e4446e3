"""Kernels: the decisions about each kind of kernel."""
