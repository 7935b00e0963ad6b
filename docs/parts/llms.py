"""Writes ``llms.txt`` at the root of the site: what the project is, and a line a page, for programs that read text.

It is the documentation's first page (``docs/index.md``) with the address of each page (llmstxt.org has the format).
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx


def llms_text(index: str, address: str) -> str:
    """Returns the first page without its figure and tables of contents, its links to pages as addresses."""
    text = re.sub(r"^```\{toctree\}\n.*?^```\n", "", index, flags=re.MULTILINE | re.DOTALL)
    title, figure, about, pages = re.split(r"\n{2,}", text.strip(), maxsplit=3)
    if not figure.startswith("![") or not pages.startswith("- "):
        raise ValueError("docs/index.md is no longer a title, a figure, a paragraph and a list of pages")
    about = about.partition(" The library drew this figure")[0].replace("\n", " ")
    linked = re.sub(r"\]\(([\w/]+)(?:\.md)?(#[\w-]+)?\)", rf"]({address}\1.html\2)", pages)
    return f"{title}\n\n> {about}\n\n## Pages\n\n{linked}\n"


def write(app: Sphinx, error: Exception | None) -> None:
    """Writes the file after a build of HTML."""
    if error is None and app.builder.name == "html":
        index = (Path(app.srcdir) / "index.md").read_text(encoding="utf-8")
        text = llms_text(index, app.config.html_baseurl)
        (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf-8", newline="\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
