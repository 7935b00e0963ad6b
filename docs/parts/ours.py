"""The directive ``.. ours::``: a function or class of the package, read from the source when the page is built.

    .. ours:: heedful.layers.attention_kernels.weights_of
       :mark: softmax

shows the function without its docstring, marks the lines that contain ``softmax``, and names file and line. ``:only:``
instead of ``:mark:`` replaces the other lines by dots. In the notebooks it is a plain block of code (``notebooks``).
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
    """A piece of source: its location, and its lines without the docstring."""

    location: str
    text: str


def piece(path: str, only: str = "") -> Piece:
    """Returns the source of a function, method or class by its dotted path; with ``only``, the lines that contain it.

    >>> piece("heedful.layers.mask.padding_mask").text.splitlines()[-1].strip()
    'return real[:, None, None, :].bool()'
    """
    value = _object(path)
    lines, first = inspect.getsourcelines(value)
    text = textwrap.dedent("".join(lines))
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef), path
    shown = text.splitlines()
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        del shown[docstring.lineno - 1 : docstring.end_lineno]
    if only:
        shown = _shortened(shown, only)
    file = Path(inspect.getsourcefile(value) or "").resolve()
    return Piece(
        f"{file.relative_to(SRC)}, line {first}: {path.removeprefix('heedful.')}", "\n".join(shown).strip("\n") + "\n"
    )


def _shortened(lines: list[str], only: str) -> list[str]:
    """Returns the first line and those that contain ``only``, with dots for each run of others."""
    shown: list[str] = []
    for i, line in enumerate(lines):
        if only in line or not i:
            shown.append(line)
        elif shown[-1].strip() != "...":
            shown.append(re.match(r" *", line)[0] + "...")  # type: ignore[index]  # it matches anything
    return shown


def _object(path: str) -> Any:
    """Returns the object of a dotted path: attributes of the longest prefix that is a module."""
    names = path.split(".")
    for length in range(len(names), 0, -1):
        try:
            value: Any = import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            value = getattr(value, name)
        return inspect.unwrap(value)
    raise ModuleNotFoundError(path)


class Ours(SphinxDirective):
    """The directive; see the module's docstring."""

    required_arguments = 1
    option_spec = dict.fromkeys(("mark", "only"), directives.unchanged_required)

    def run(self) -> list[nodes.Node]:
        """Returns a caption and the code."""
        source = piece(self.arguments[0], self.options.get("only", ""))
        # "pyi" is Python to Pygments; blocks of "python" are rewritten by sphinx-gallery, which drops their marks
        block = nodes.literal_block(source.text, source.text, language="pyi")
        for wanted in self.options.values():
            marked = [i for i, line in enumerate(source.text.splitlines(), 1) if wanted in line]
            if not marked:
                raise self.error(f"no line of {self.arguments[0]} contains {wanted!r}")
            block["highlight_args"] = {"hl_lines": marked}
        caption = nodes.paragraph("", "", nodes.literal(source.location, source.location), classes=["place"])
        self.state.document.settings.record_dependencies.add(str(Path(inspect.getfile(_object(self.arguments[0])))))
        return [nodes.container("", caption, block, classes=["ours"])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("ours", Ours)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
