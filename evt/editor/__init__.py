"""Services of an editor: diagnostics, hovers, completions, definitions, and the classes of words.

Every function takes a :class:`Document` and an offset into its text. :mod:`evt.editor.server` offers them by the
Language Server Protocol.
"""

from evt.editor.completion import Completion, complete
from evt.editor.document import Definition, Document
from evt.editor.hover import hover

__all__ = ["Completion", "Definition", "Document", "complete", "hover"]
