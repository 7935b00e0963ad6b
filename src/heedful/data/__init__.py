"""Rows of text, labels and images: readers, splits, augmentation, batches and the built-in sets.

- readers: ``read`` and ``splits`` (read_source.py) choose the reader of a source: tables.py, documents.py, conll.py,
  squad.py, conversations.py, preferences.py, image_reader.py (over image_folder.py and image_arrays.py),
  hub_datasets.py, builtin/
- files below the readers: text_files.py (compressed or not), file_formats.py, records.py (JSON, Parquet),
  cell_values.py (labels and numbers), column_inference.py
- rows: ``Row``, ``Rows`` (rows.py), ``LazyImage`` (lazy_image.py over image_metadata.py, decoded on access),
  texts_on_disk.py (read on access)
- training: ``split`` (split.py), batching.py, token_stream.py (windows of tokens), masking.py, image_transforms.py
- prediction and evaluation: prediction_inputs.py

A leaf: it imports ``heedful.errors``, ``heedful.util``, the standard library and, on first use,
``numpy``, ``PIL``, ``babel``, ``pyarrow``, ``zstandard`` and ``sklearn``. It has no
tokenizers, models or tasks.
"""

from typing import TYPE_CHECKING, Any

from heedful.data.lazy_image import LazyImage
from heedful.data.rows import Kind, Row, Rows, Span
from heedful.data.split import split

if TYPE_CHECKING:
    from heedful.data.read_source import read, splits

__all__ = ["Kind", "LazyImage", "Row", "Rows", "Span", "read", "split", "splits"]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in ("read", "splits"):  # imported on first use, with all readers
            from heedful.data import read_source

            return getattr(read_source, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
