"""The language: from text to a syntax tree."""

from evt.language.formatter import format_text
from evt.language.load import read_program
from evt.language.parse import parse, with_primary
from evt.language.tree import Tree, format_tree

__all__ = ["Tree", "format_text", "format_tree", "parse", "read_program", "with_primary"]
