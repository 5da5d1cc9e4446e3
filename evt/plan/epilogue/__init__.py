"""The epilogue program: its steps, and their registers, shared memory and results."""
