"""The epilogue: which visitors a program has, and what each is."""
