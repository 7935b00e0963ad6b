"""Text to ids and back: tokenizers trained and run by the `tokenizers` library.

Here live `Tokenizer` (tokenizer.py), what each trained kind is made of (pipelines.py), and what published folders hold:
what they tell (facts.py), each family's files and names (families.py), its tokenizer rebuilt from older files
(published.py, with vocabulary.py and sentencepiece.py), what it puts around a text (around.py). A leaf: it may import
`heedful.errors`, `heedful.util`, the standard library and, on first use, `tokenizers` and `sentencepiece`; it knows
nothing of models, tasks or tensors.
"""

from heedful.text.post_processor import Around
from heedful.text.tokenizer import Kind, Tokenizer

__all__ = ["Around", "Kind", "Tokenizer"]
