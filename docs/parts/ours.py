"""The directive ``.. ours::``: a piece of our own code, read from the source when the page is built.

    .. ours:: heedful.layers.attention.weights_of
       :mark: softmax

shows the function without its docstring, the lines that hold ``softmax`` marked, and says where it stands. ``:only:``
instead of ``:mark:`` leaves the others out, with dots in their place. In the notebooks, ``notebooks`` makes a plain
block of code of it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import heedful

SRC = Path(heedful.__file__).resolve().parents[1]


class Piece(NamedTuple):
    """A piece of source: where it stands, and its lines without the docstring."""

    place: str
    text: str


def piece(path: str, only: str = "") -> Piece:
    """The source of a function, method or class by its dotted path; of its lines ``only`` those that hold this.

    >>> piece("heedful.layers.mask.padding_mask").text.splitlines()[-1].strip()
    'return real[:, None, None, :].bool()'
    """
    found = _object(path)
    lines, first = inspect.getsourcelines(found)
    text = textwrap.dedent("".join(lines))
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef), path
    kept = text.splitlines()
    if ast.get_docstring(node) is not None:
        said = node.body[0]
        del kept[said.lineno - 1 : said.end_lineno]
    if only:
        kept = _shortened(kept, only)
    file = Path(inspect.getsourcefile(found) or "").resolve()
    return Piece(
        f"{file.relative_to(SRC)}, line {first}: {path.removeprefix('heedful.')}", "\n".join(kept).strip("\n") + "\n"
    )


def _shortened(lines: list[str], only: str) -> list[str]:
    """The lines that hold ``only``, and dots in the place of each run of others; the first line stays."""
    shown: list[str] = []
    for i, line in enumerate(lines):
        if only in line or not i:
            shown.append(line)
        elif shown[-1].strip() != "...":
            shown.append(re.match(r" *", line)[0] + "...")  # type: ignore[index]  # it matches anything
    return shown


def _object(path: str) -> Any:
    """What a dotted path names: the longest beginning that is a module, and attributes of it."""
    names = path.split(".")
    for length in range(len(names), 0, -1):
        try:
            found: Any = import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            found = getattr(found, name)
        return inspect.unwrap(found)
    raise ModuleNotFoundError(path)


class Ours(SphinxDirective):
    """See the head of this file."""

    required_arguments = 1
    option_spec = dict.fromkeys(("mark", "only"), directives.unchanged_required)

    def run(self) -> list[nodes.Node]:
        """A caption and the code."""
        shown = piece(self.arguments[0], self.options.get("only", ""))
        # "pyi" is Python to Pygments; blocks of "python" are rewritten by sphinx-gallery, which drops their marks
        block = nodes.literal_block(shown.text, shown.text, language="pyi")
        for wanted in self.options.values():
            marked = [i for i, line in enumerate(shown.text.splitlines(), 1) if wanted in line]
            if not marked:
                raise self.error(f"no line of {self.arguments[0]} holds {wanted!r}")
            block["highlight_args"] = {"hl_lines": marked}
        caption = nodes.paragraph("", "", nodes.literal(shown.place, shown.place), classes=["place"])
        self.state.document.settings.record_dependencies.add(str(Path(inspect.getfile(_object(self.arguments[0])))))
        return [nodes.container("", caption, block, classes=["ours"])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Teach Sphinx the directive."""
    app.add_directive("ours", Ours)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
