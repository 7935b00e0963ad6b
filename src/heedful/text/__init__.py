"""Tokenizers, trained and run by the `tokenizers` library.

- tokenizer.py: ``Tokenizer``; tokenizer_training.py: the components of each kind that is trained here
- tokenizer_config.py, tokenizer_types.py, legacy_files.py, sentencepiece.py, post_processor.py: tokenizers of published
  folders
- chat_template.py: chat templates
- mask_filling.py: masks and sentinels in texts; word_boundaries.py: words in tokens and texts
- bulk_encoding.py: long documents; bpe_dropout.py: BPE-dropout; readable.py: tokens for display

A leaf: it imports ``heedful.errors``, ``heedful.util``, the standard library and, on first use, ``tokenizers`` and
``sentencepiece``. It has no models, tasks or tensors.
"""

from heedful.text.post_processor import InputTemplate
from heedful.text.tokenizer import Kind, Tokenizer

__all__ = ["InputTemplate", "Kind", "Tokenizer"]
