"""Text to ids and back: tokenizers trained and run by the `tokenizers` library.

Here live `Tokenizer` (tokenizer.py) and what each kind is made of (pipelines.py). A leaf: it may import
`heedful.errors`, the standard library and, on first use, `tokenizers`; it knows nothing of models, tasks or tensors.
"""

from heedful.text.tokenizer import Kind, Tokenizer

__all__ = ["Kind", "Tokenizer"]
