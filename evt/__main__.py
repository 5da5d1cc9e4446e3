"""``python -m evt``: the command line."""

from evt.cli import main

main(prog_name="evt")
