"""Rows of text, labels and images: reading what people have, holding some back, and the sets of the package itself.

Here live `read` and `parts` (readers.py, over files.py, tables.py, documents.py, images.py, hub_sets.py), what is read
when it is asked for (`Picture`, pictures.py; texts, pieces.py and shelves.py), `split` (split.py), the built-in sets
(builtin.py, over a file for each), what is drawn anew in each epoch (augment.py) and the plan of batches (batching.py).
A leaf: it may import `heedful.errors`, `heedful.util`, the standard library, and, when they are needed, `numpy`, `PIL`,
`babel`, `pyarrow`, `zstandard` and `sklearn`; it knows nothing of tokenizers, models or tasks.
"""

from heedful.data.pictures import Picture
from heedful.data.readers import parts, read
from heedful.data.rows import Kind, Row, Rows, Span
from heedful.data.split import split

__all__ = ["Kind", "Picture", "Row", "Rows", "Span", "parts", "read", "split"]
