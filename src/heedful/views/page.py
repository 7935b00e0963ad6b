"""What our HTML pages have in common: their looks, and that nothing but their own style and script acts on them."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from heedful.views.fonts import SCRIPT_FAMILIES
from heedful.views.text import escaped


def page(
    title: str, body: str, style: str = "", script: str = "", *, images: bool = False, fetches: bool = False
) -> str:
    """A whole page under a heading, ``title``; ``body`` is HTML, ``style`` goes after ``page.css``.

    ``images`` lets images be shown that lie in the page itself (``data:`` addresses); ``fetches`` lets its script ask
    the server that it came from, and no other.
    """
    style = asset("page.css").replace("@SCRIPTS@", SCRIPT_FAMILIES) + style
    policy = f"default-src 'none'; style-src {_digest(style)}" + (f"; script-src {_digest(script)}" if script else "")
    policy += "; img-src data:" if images else ""
    policy += "; connect-src 'self'" if fetches else ""
    run = f"\n<script>{script}</script>" if script else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{escaped(title)}</h1>
{body}
</main>{run}
</body>
</html>
"""


@cache
def asset(name: str) -> str:
    """A file that lies beside this one."""
    return files("heedful.views").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a Content-Security-Policy calls an inline style or script: nothing else may run on the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
