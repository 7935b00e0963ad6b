"""``python -m heedful`` is the command ``heedful``."""

from __future__ import annotations

from heedful.cli import command

command()
