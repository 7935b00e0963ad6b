"""Writes figures on pages of sphinx-gallery to SVG files: a figure is the value of a block's last line.

A page whose first text contains ``.. lead::`` opens with its first figure, which is then not shown again below its
code.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from heedful.views.svg import SvgFigure


def scrape(block: Any, variables: dict[str, Any], conf: dict[str, Any]) -> str:
    """Returns the figure that the block ends with as reStructuredText, or an empty string."""
    picture = variables["example_globals"].get("___")
    if not isinstance(picture, SvgFigure) or picture is variables.get("picture"):
        return ""
    variables["picture"] = picture  # the name of the last value stays when the next block has none
    path = Path(next(variables["image_path_iterator"])).with_suffix(".svg")
    path.write_text(picture, encoding="utf-8")
    first = path.stem.endswith("_001")
    if first and ".. lead::" in Path(variables["src_file"]).read_text(encoding="utf-8"):
        return ""
    where = path.relative_to(conf["src_dir"]).as_posix()
    return f"\n.. image:: /{where}\n   :alt: {_alternative_text(picture)}\n   :class: picture\n"


def _alternative_text(picture: str) -> str:
    """Returns the alternative text of a figure: its title and description, as one line."""
    return html.unescape(". ".join(re.findall(r"<(?:title|desc)>(.*?)</(?:title|desc)>\n", picture)[:2]))


class Lead(SphinxDirective):
    """The page's first figure."""

    def run(self) -> list[nodes.Node]:
        """Returns an image node."""
        folder, _, name = self.env.docname.rpartition("/")
        where = f"/{folder}/images/sphx_glr_{name}_001.svg"
        text = Path(self.env.srcdir, where[1:]).read_text(encoding="utf-8")
        image = nodes.image(uri=where, alt=_alternative_text(text), classes=["picture"])
        self.set_source_info(image)
        return [image]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive; the gallery's configuration names ``scrape``."""
    app.add_directive("lead", Lead)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
