"""One tokenizer class over the `tokenizers` library: train, encode, decode, show, save, load."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from heedful.errors import HeedfulError, nearest
from heedful.files import write

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Kind = Literal["bpe", "unigram", "wordpiece", "character"]
Template = Literal["end", "both", "none"]

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0, 1, 2, 3 in every vocabulary trained here
SMALLEST = {"bpe": 256 + len(SPECIAL)}  # byte-level: every byte is a token
BATCH = 10_000  # texts encoded at a time: the library's encodings are far larger than their ids

# What `transformers` reads beside tokenizer.json. Text is only text: "</s>" written by a person is not the end token.
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True)),
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": True,
}
PAIRS = {  # besides, where a text has a start, and a pair two segments: BERT's names of the same tokens
    **dict(zip(("cls_token", "sep_token"), SPECIAL[1:3], strict=True)),
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}


class Tokenizer:
    """Text to token ids and back.

    >>> tokenizer = Tokenizer.train(["a small text", "a smaller text"], size=300)
    >>> tokenizer.decode(tokenizer.encode(["a text"]))
    ['a text']

    `backend` is the library's own object; `config` holds what stands in ``tokenizer_config.json``.
    """

    def __init__(self, backend: Backend, config: dict[str, Any]) -> None:
        self.backend = backend
        self.config = config
        backend.no_padding()  # some published files pad and cut to a fixed length by themselves
        backend.no_truncation()
        backend.encode_special_tokens = config.get("split_special_tokens", False)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        size: int,
        kind: Kind = "bpe",
        lowercase: bool = False,
        template: Template = "end",
    ) -> Tokenizer:
        """A vocabulary of at most `size` tokens learned from `texts`, ``<pad> <s> </s> <unk>`` being ids 0 to 3.

        - ``bpe``: byte-level byte-pair encoding (Sennrich et al. 2016; bytes as in Radford et al. 2019). Any string is
          encoded without loss; a digit is always a token of its own, so that unseen numbers are made of seen parts.
        - ``unigram``: a unigram language model over pieces (Kudo 2018) after NFKC, runs of spaces as one; digits apart.
        - ``wordpiece``: BERT's pipeline (Devlin et al. 2019): words and punctuation apart, longest piece first.
        - ``character``: every Unicode character a token.

        All but ``bpe`` write ``<unk>`` for characters that `texts` lack. Too small a text gives fewer tokens.

        ``template`` is what `transformers` puts around a text when it opens the saved folder (`encode` here adds
        nothing): ``end``, ``text </s>``, for translation; ``both``, ``<s> text </s>``, a pair as
        ``<s> text </s> pair </s>`` in two segments, for encoders; ``none``, the bare text, for language models.

        Raises `HeedfulError` for an unknown `kind` or `template`, for no text, and for a `size` too small to hold the
        alphabet.
        """
        from heedful.text import pipelines

        for name, word, known in (("kind", kind, get_args(Kind)), ("template", template, get_args(Template))):
            if word not in known:
                raise HeedfulError(f"unknown tokenizer {name} {word!r}; {nearest(str(word), known)}")
        if size < SMALLEST.get(kind, len(SPECIAL) + 1):
            raise HeedfulError(
                f"a {kind} vocabulary of {size} is too small; ask for {SMALLEST.get(kind, len(SPECIAL) + 1)} or more"
            )
        texts = [text for text in texts if text.strip()]
        if not texts:
            raise HeedfulError("no text to train a tokenizer on; give it at least one line that is not blank")
        _share_cores()
        backend = pipelines.train(texts, size, kind, lowercase, template, SPECIAL)
        return cls(backend, CONFIG | (PAIRS if template == "both" else {}))

    @classmethod
    def load(cls, folder: str | Path, name: str = "tokenizer") -> Tokenizer:
        """The tokenizer in ``folder/name.json``, with the special names of a ``tokenizer_config.json`` beside it.

        Raises `HeedfulError` when the file is missing or cannot be understood.
        """
        from tokenizers import Tokenizer as Backend

        _share_cores()
        path, beside = Path(folder) / f"{name}.json", Path(folder) / "tokenizer_config.json"
        if not path.is_file():
            raise HeedfulError(f"no {path.name} in {folder}; give a model folder that holds one")
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises the bare class
            raise HeedfulError(f"{path} is no tokenizer ({_line(error)}); save or download it again") from error
        try:
            config = json.loads(beside.read_bytes()) if beside.is_file() else {}
        except ValueError as error:
            raise HeedfulError(f"{beside} is broken JSON ({_line(error)}); save or download it again") from error
        return cls(backend, config)

    def save(self, folder: str | Path, name: str = "tokenizer") -> None:
        """Write ``folder/name.json`` and, beside ``tokenizer.json``, a ``tokenizer_config.json`` naming its class.

        ``transformers.AutoTokenizer.from_pretrained(folder)`` opens it; a call there also adds what the template
        says.
        """
        folder = Path(folder)
        write(folder / f"{name}.json", self.backend.to_str(pretty=True))
        if name == "tokenizer":
            write(folder / "tokenizer_config.json", json.dumps(self.config, indent=2, ensure_ascii=False))

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added and special ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def pad(self) -> int | None:
        """The id of padding, or None where the vocabulary has none."""
        return self._special("pad_token")

    @property
    def start(self) -> int | None:
        """The id that begins a text (BERT's ``[CLS]``), or None."""
        return self._special("bos_token", "cls_token")

    @property
    def end(self) -> int | None:
        """The id that ends a text (BERT's ``[SEP]``), or None."""
        return self._special("eos_token", "sep_token")

    @property
    def unknown(self) -> int | None:
        """The id of what the vocabulary cannot spell, or None."""
        return self._special("unk_token")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text: no start, end or padding is added."""
        assert not isinstance(texts, str), "encode takes a list of texts"
        return [
            encoding.ids
            for first in range(0, len(texts), BATCH)
            for encoding in self.backend.encode_batch_fast(list(texts[first : first + BATCH]), add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids. Special tokens are left out, and so are ids beyond the vocabulary (the spare
        rows of a padded embedding). Raises `HeedfulError` for a negative id: -100 marks a label that is not a token.
        """
        rows = [[int(one) for one in row] for row in ids]
        for row in rows:
            if row and min(row) < 0:
                raise HeedfulError(f"{min(row)} is no token id; take the ignored labels out before decoding")
        return self.backend.decode_batch(rows, skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The tokens as people read them, one string an id: the space that begins a word is a leading space, special
        tokens stand by name, and a byte that is only a part of a character is written ``<0xE8>``.
        """
        specials = {token.content for token in self.backend.get_added_tokens_decoder().values() if token.special}
        tokens = [self.backend.id_to_token(int(one)) or "" for one in ids]
        return [token if token in specials else self._readable(token) for token in tokens]

    def _readable(self, token: str) -> str:
        if "ByteLevel" in self._decoders:
            raw = bytes(_BYTE[character] for character in token if character in _BYTE)
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return "".join(chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in raw)
        if "WordPiece" in self._decoders:
            return token[2:] if token.startswith("##") else " " + token
        return token.replace("▁", " ") if "Metaspace" in self._decoders or "Replace" in self._decoders else token

    @cached_property
    def _decoders(self) -> set[str]:
        decoder = json.loads(self.backend.to_str())["decoder"] or {}
        return {part["type"] for part in decoder.get("decoders", [decoder]) if part}

    def _special(self, *roles: str) -> int | None:
        for role in roles:
            name = self.config.get(role)
            name = name.get("content") if isinstance(name, dict) else name
            if name is not None:
                return self.backend.token_to_id(name)
        return None


def _byte_names() -> dict[str, int]:
    """Byte-level vocabularies write each byte as one visible character: printable Latin-1 as itself, the others as the
    characters from U+0100 on, in order (Radford et al. 2019).
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE = _byte_names()


def _share_cores() -> None:
    """Let the library use all cores here and one in forked children, whose copy of its threads is dead; unset, it would
    print a warning at every fork. A choice of the person's own (TOKENIZERS_PARALLELISM) stands.
    """
    if "TOKENIZERS_PARALLELISM" not in os.environ:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
