"""Rows of text, labels and images: readers, splits, augmentation, batches and the built-in sets.

- readers: ``read`` and ``parts`` (readers.py, over text_files.py, tables.py, records.py, documents.py, images.py,
  conll.py, squad.py, conversations.py, hub_sets.py)
- rows: ``Row``, ``Rows`` (rows.py); images decoded on access: ``Picture`` (pictures.py); texts read on access:
  lazy_texts.py; columns of a table: columns.py; labels and numbers in cells: cells.py
- training: ``split`` (split.py), batches (batching.py), windows of tokens (token_stream.py), masking (masking.py),
  augmentation (augment.py)
- built-in sets: builtin/, a file each

A leaf: it imports ``heedful.errors``, ``heedful.util``, the standard library and, on first use, ``numpy``, ``PIL``,
``babel``, ``pyarrow``, ``zstandard`` and ``sklearn``. It knows nothing of tokenizers, models or tasks.
"""

from heedful.data.pictures import Picture
from heedful.data.readers import parts, read
from heedful.data.rows import Kind, Row, Rows, Span
from heedful.data.split import split

__all__ = ["Kind", "Picture", "Row", "Rows", "Span", "parts", "read", "split"]
