"""The result of ``heedful.inspect``: a page, a figure, and their data."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

from heedful.util.files import write
from heedful.views.inspect.request import check_format
from heedful.views.page import page, with_lead
from heedful.views.text import escaped

HIGH = 640  # pixels of a page in a notebook
MAX_ROWS = 500  # rows of a table
STYLE = """
img { max-width: max(100%, 40rem); height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--edge); }
th { font-weight: 500; }
th:first-child, td.words { text-align: left; }
td.words { min-width: 18rem; }
summary { cursor: pointer; }
"""


@dataclass(frozen=True, kw_only=True)
class InspectionResult:
    """Result of ``heedful.inspect``: ``save`` it, show it in a notebook, or read its ``data``.

    Attributes:
        title: the heading.
        view: name of the view.
        data: the numbers and texts, in dictionaries, lists and numpy arrays.
        page: returns the HTML page.
        picture: returns the SVG figure.
        prediction: what ``heedful predict`` gives for the input, with ``top_k=5`` where it has that option; None for
            models that generate.
        lead: HTML of the page between its heading and the view: what the model predicts.
    """

    title: str
    view: str
    data: dict[str, Any]
    page: Callable[[], str]
    picture: Callable[[], str]
    prediction: Any = None
    lead: str = ""

    @classmethod
    def drawn(
        cls,
        title: str,
        view: str,
        data: dict[str, Any],
        *,
        caption: str,
        draw: Callable[..., str],
        table: Sequence[Sequence[str | float]],
    ) -> Self:
        """Returns a result whose page is its figure, with the numbers in a ``table`` below it.

        The first row and column of ``table`` are names. ``draw`` is called with a ``title`` and the ``note`` of
        ``data``. On the page, which has its own heading, the figure's title is the ``caption`` alone.
        """
        draw = partial(draw, note=data["note"])
        return cls(
            title=title,
            view=view,
            data=data,
            page=lambda: _figure_page(title, draw(title=caption), f"{caption}. {data['note']}", table),
            picture=lambda: draw(title=f"{title} · {caption}"),
        )

    def html(self) -> str:
        """Returns a self-contained HTML page."""
        return with_lead(self.page(), self.lead)

    def svg(self) -> str:
        """Returns an SVG figure for a paper or a README."""
        return self.picture()

    def save(self, path: str | PathLike[str]) -> Path:
        """Writes the page (.html) or the figure (.svg, .png or .pdf), and returns the path.

        Replaces an existing file atomically. Raises ``HeedfulError`` for another suffix, and for .png and .pdf without
        ``pip install 'heedful[figures]'``.
        """
        suffix = check_format(fspath(path))
        if suffix == ".html":
            return write(path, self.html())
        from heedful.views import figure_files

        return figure_files.write_figure(self.svg(), path)

    def _repr_html_(self) -> str:
        """Returns the page in a frame, for notebooks."""
        return (
            f'<iframe srcdoc="{html.escape(self.html(), quote=True)}" title="{html.escape(self.title, quote=True)}"'
            f' style="width:100%;height:{HIGH}px;border:0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"InspectionResult({self.title!r}, view={self.view!r})"


def _figure_page(title: str, picture: str, description: str, table: Sequence[Sequence[str | float]]) -> str:
    """Returns a page with a figure as an image, so that its styles do not reach the page, and its table."""
    head = [_cell(name) for name in table[0]]
    rows = [[_cell(first), *map(_data, others)] for first, *others in table[1 : MAX_ROWS + 1]]
    left_out = f"These are the first {MAX_ROWS} of {len(table) - 1:,} rows." if len(table) > MAX_ROWS + 1 else ""
    names = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    sides = (f'<tr><th scope="row">{first}</th>' + "".join(others) + "</tr>" for first, *others in rows)
    lines = "\n".join(sides)
    source = base64.b64encode(picture.encode()).decode("ascii")
    body = f"""<p class="scroll"><img alt="{escaped(description)}" src="data:image/svg+xml;base64,{source}"></p>
<details><summary>the numbers</summary>
<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>
{lines}
</tbody></table></div>
<p class="quiet">{left_out}</p></details>"""
    return page(title, body, STYLE, images=True)


def _data(value: str | float) -> str:
    return f'<td class="words">{escaped(value)}</td>' if isinstance(value, str) else f"<td>{_cell(value)}</td>"


def _cell(value: str | float) -> str:
    return escaped(value) if isinstance(value, str) else f"{value:.4g}"
