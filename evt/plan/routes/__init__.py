"""The routes to a kernel, in order of preference."""
