"""The tests of the data sets that examples make of Python's source."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
