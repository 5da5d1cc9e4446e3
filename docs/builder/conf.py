"""The configuration of Sphinx."""

from __future__ import annotations

from typing import Any

from pygments.lexer import RegexLexer, bygroups, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Text

from evt.functions import FUNCTIONS
from evt.ir.dtype import BY_NAME
from evt.version import __version__

project = "evt"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"evt {__version__}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
html_show_sphinx = False
html_show_copyright = False
copybutton_prompt_text = "$ "
# GitHub's anchors, so that links work in the repository and in the site.
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
nitpicky = False


class EvtLexer(RegexLexer):  # type: ignore[misc]
    """The tokens of a program."""

    name = "evt"
    aliases = ("evt",)
    url = ""
    tokens = {  # noqa: RUF012  # the interface of Pygments
        "root": [
            (r"#.*", Comment),
            (r"^(\s*)(in|out|def)\b", bygroups(Text, Keyword)),
            (words(tuple(BY_NAME), prefix=r"\b", suffix=r"\b"), Keyword.Type),
            (words(tuple(FUNCTIONS), suffix=r"(?='*\()"), Name.Function),
            (r"\d+\.?\d*([eE][+-]?\d+)?", Number),
            (r"\w+", Name),
            (r"[-+*/<>=!&|%?']+", Operator),
            (r"[][(),:;]", Punctuation),
            (r"\s+", Text),
            (r".", Text),
        ]
    }


def setup(app: Any) -> None:
    """Add the language of programs."""
    app.add_lexer("evt", EvtLexer)
