"""HTML pages: the frame with its content policy, data as JSON, numbers as base64, names of token pieces."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from heedful.views.text import SCRIPT_FAMILIES, escaped, visible


def page(
    title: str,
    body: str,
    style: str = "",
    script: str = "",
    *,
    images: bool = False,
    fetches: bool = False,
    nonce: str = "",
) -> str:
    """Returns a whole HTML page with the heading ``title``; ``body`` is HTML, and ``style`` is CSS after ``page.css``.

    ``images`` allows images that are embedded in the page (``data:`` addresses). ``fetches`` allows the page's script
    to send requests, to the page's own server only. With a ``nonce`` the page allows what has it, instead of its own
    style and script by their digests, and frames of pages that it makes itself (``blob:`` addresses): these inherit
    its policy, so their digests would have to be known.
    """
    style = asset("page.css").replace("@SCRIPTS@", SCRIPT_FAMILIES) + style
    allowed = (lambda text: f"'nonce-{nonce}'") if nonce else _digest
    policy = f"default-src 'none'; style-src {allowed(style)}" + (f"; script-src {allowed(script)}" if script else "")
    policy += "; img-src data:" if images else ""
    policy += "; frame-src blob:" if nonce else ""
    policy += "; connect-src 'self'" if fetches else ""
    mark = f' nonce="{escaped(nonce)}"' if nonce else ""
    script_element = f"\n<script{mark}>{script}</script>" if script else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style{mark}>{style}</style>
</head>
<body>
<main>
<h1>{escaped(title)}</h1>
{body}
</main>{script_element}
</body>
</html>
"""


def with_lead(html: str, lead: str) -> str:
    """Returns a page with the HTML ``lead`` below its heading."""
    return html.replace("</h1>\n", f"</h1>\n{lead}\n", 1) if lead else html


def frame(tools: str = "") -> str:
    """Returns the section of a page in which ``frame.js`` shows pages of attention, with ``tools`` beside its heading.

    What runs in the frame cannot reach the page around it.
    """
    return f"""<section class="look" aria-label="attention" hidden>
<div class="tools"><h2></h2>{tools}<button type="button" class="close">close</button></div>
<iframe sandbox="allow-scripts" title="attention"></iframe>
</section>"""


@cache
def asset(name: str) -> str:
    """Returns the text of a style sheet or script of the package's pages, such as "page.css"."""
    return files("heedful.views").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Returns the Content-Security-Policy source of an inline style or script; the policy allows no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


LONGEST = 40  # characters of a piece; a longer one is cut and ends in "…"
MAX_PAGE_BYTES = 4_500_000  # bytes of data in a page of under 5 MB


def data(facts: Any) -> str:
    """Returns the HTML element with a page's data as JSON. ``<`` is escaped, so that no text can close the element."""
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{text}</script>'


def base64_numbers(array: Any, kind: str) -> str:
    """Returns the numbers of an array in its order, as the little-endian type ``kind`` in base64.

    >>> base64_numbers([1, 258], "<u2")
    'AQACAQ=='
    """
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode("ascii")


def scaled(rows: Any, bits: int = 8) -> dict[str, Any]:
    """Returns weights (..., N) as codes of ``bits``, 8 or 4, and the largest weight of each row, in base64.

    With m the largest weight of its row, a weight w is ``round(255 w / m)`` in 8 bits and ``round(15 √(w / m))`` in 4.
    Two codes of 4 bits share a byte, the first in its low half.
    """
    largest = rows.max(axis=-1, keepdims=True)
    shares = rows / np.where(largest > 0, largest, 1)
    codes = (np.rint(shares * 255) if bits == 8 else np.rint(np.sqrt(shares) * 15)).astype(np.uint8).ravel()
    if bits == 4:
        codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
        codes = codes[::2] | codes[1::2] << 4
    return {"bits": bits, "largest": base64_numbers(largest, "<f4"), "codes": base64_numbers(codes, "u1")}


def size(text: str) -> int:
    """Returns the number of bytes of ``text`` in UTF-8."""
    return len(text.encode())


def piece(text: str) -> str:
    """Returns a token piece for display in a list: a leading space is ``␣``, a line end ``↵``; a long piece is cut.

    >>> piece(" Paris"), piece("\\n")
    ('␣Paris', '↵')
    """
    shown = visible(text).replace("␊", "↵")
    if text[:1] == " " and text.strip(" "):
        shown = "␣" + shown
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
