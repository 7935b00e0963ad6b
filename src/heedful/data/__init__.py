"""Rows of text: reading people's files, holding some back, and the sets that come with the package.

Here live `read` (readers.py, over files.py and tables.py), `split` (split.py), the built-in sets (builtin.py, dates.py)
and the plan of batches (batching.py). A leaf: it may import `heedful.errors`, the standard library, and, when they are
needed, `numpy`, `babel`, `pyarrow` and `zstandard`; it knows nothing of tokenizers, models or tasks.
"""

from heedful.data.readers import read
from heedful.data.rows import Row, Rows
from heedful.data.split import split

__all__ = ["Row", "Rows", "read", "split"]
