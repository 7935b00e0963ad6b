"""Our directives in the notebooks, which know none: a block of code stands for ``ours``, nothing for ``lead``."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import sphinx_gallery.notebook
from sphinx.application import Sphinx

from parts.ours import piece

OURS = re.compile(r"^\.\. ours:: *(\S+)\n(?: +:mark:.*\n)?(?: +:only: *(.*)\n)?", re.M)
LEAD = re.compile(r"^\.\. lead::\n\n?", re.M)


def plain(text: str) -> str:
    """The text of a page in words that sphinx-gallery can turn into Markdown."""

    def block(match: re.Match[str]) -> str:
        shown = piece(match[1], match[2] or "")
        return f"``{shown.place}``\n\n.. code-block:: python\n\n{textwrap.indent(shown.text, '    ')}\n"

    return LEAD.sub("", OURS.sub(block, text + "\n"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Have a say in the notebooks; sphinx-gallery offers no other way."""
    theirs = sphinx_gallery.notebook.rst2md
    if theirs.__module__ == sphinx_gallery.notebook.__name__:

        def rst2md(text: str, *rest: Any, **more: Any) -> str:
            return theirs(plain(text), *rest, **more)

        sphinx_gallery.notebook.rst2md = rst2md
    return {"parallel_read_safe": True, "parallel_write_safe": True}
