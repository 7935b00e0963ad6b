"""``python -m heedful`` is the command ``heedful``."""

from __future__ import annotations

import sys

from heedful.cli import main

sys.exit(main())
