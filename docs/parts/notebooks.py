"""Replaces our directives in the notebooks: ``ours`` by a block of code, ``lead`` by nothing."""

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
    """Returns the text of a page without our directives, so that sphinx-gallery can turn it into Markdown."""

    def block(match: re.Match[str]) -> str:
        source = piece(match[1], match[2] or "")
        return f"``{source.location}``\n\n.. code-block:: python\n\n{textwrap.indent(source.text, '    ')}\n"

    return LEAD.sub("", OURS.sub(block, text + "\n"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Wraps sphinx-gallery's conversion to Markdown, which has no option for this."""
    original = sphinx_gallery.notebook.rst2md
    if original.__module__ == sphinx_gallery.notebook.__name__:

        def rst2md(text: str, *rest: Any, **more: Any) -> str:
            return original(plain(text), *rest, **more)

        sphinx_gallery.notebook.rst2md = rst2md
    return {"parallel_read_safe": True, "parallel_write_safe": True}
