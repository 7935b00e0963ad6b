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
from heedful.text import facts
from heedful.text.around import Around, around
from heedful.text.readable import readable

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Kind = Literal["bpe", "unigram", "wordpiece", "character"]
Template = Literal["end", "both", "none"]

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0, 1, 2, 3 in every vocabulary trained here
SMALLEST = {"bpe": 256 + len(SPECIAL)}  # byte-level: every byte is a token
TARGET = "tokenizer.target"  # the name of the target's where source and target have one each
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
        """The tokenizer in ``folder/name.json``, or else the one that older published files there make.

        Those are the ``vocab.json`` and ``merges.txt`` of GPT-2, RoBERTa and BART, the ``vocab.txt`` of BERT and
        DistilBERT, the ``spiece.model`` of T5, ``tokenizer.model`` of Llama, ``sentencepiece.bpe.model`` of XLM-RoBERTa
        (families.py), and Marian's ``source.spm`` and ``vocab.json``; under the name ``tokenizer.target``, its
        ``target.spm``. Files of SentencePiece need ``pip install 'heedful[sentencepiece]'``.

        Special names come from ``tokenizer_config.json`` and ``special_tokens_map.json``; where these are silent, the
        family's own, as far as the vocabulary has them. The family is the ``tokenizer_class`` told there, else the
        ``model_type`` of ``config.json``.

        Raises `HeedfulError` when the files are missing, cannot be understood, or do not fit each other.
        """
        from tokenizers import Tokenizer as Backend

        _share_cores()
        folder = Path(folder)
        path, told = folder / f"{name}.json", facts.read(folder)
        if not path.is_file():
            files = facts.find(folder, told, name == TARGET) if name in ("tokenizer", TARGET) else None
            if files is None:
                raise HeedfulError(f"no {path.name} in {folder}; give a model folder that holds one")
            from heedful.text import published

            return cls(*published.load(folder, told, files, name == TARGET))
        try:
            backend = Backend.from_file(str(path))
        except BaseException as error:
            raise HeedfulError(f"{path} is no tokenizer ({facts.said(error)}); save or download it again") from error
        config = told.named(told.family, lambda special: backend.token_to_id(special) is not None)
        return cls(backend, facts.plain(config))

    @staticmethod
    def lies_in(folder: str | Path, name: str = "tokenizer") -> bool:
        """Whether `load` finds files for this name: ``lies_in(folder, "tokenizer.target")`` where the target has a
        tokenizer of its own.
        """
        folder = Path(folder)
        if (folder / f"{name}.json").is_file():
            return True
        return name in ("tokenizer", TARGET) and bool(facts.find(folder, facts.read(folder), name == TARGET))

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
        """The id of what the vocabulary cannot spell, or None: also where the end's name is given for it (GPT-2)."""
        found = self._special("unk_token")
        return None if found == self.end else found

    @property
    def mask(self) -> int | None:
        """The id that hides a token (BERT's ``[MASK]``), or None."""
        return self._special("mask_token")

    def around(self, pair: bool = False) -> Around:
        """The ids that stand around a text, or a pair of texts, in what the published model was given: Llama's ``<s>``
        before, T5's ``</s>`` after, BERT's ``[CLS] A [SEP] B [SEP]`` in two segments. `encode` adds none of them.

        >>> tokenizer = Tokenizer.train(["a text", "its pair"], size=300, template="both")
        >>> tokenizer.around(pair=True).join([7, 8], [9])
        ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])
        """
        return around(self.backend.post_processor, pair)

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
        return [token if token in specials else readable(token, self._decoders) for token in tokens]

    @cached_property
    def joined(self) -> frozenset[int]:
        """The tokens of byte fallback (Llama), no ids where there is none. Their bytes, up to the next other token, are
        decoded as one: to characters where they are UTF-8 as a whole, else each to U+FFFD. Special tokens are among
        these ids, since they are left out when decoding and end no such run.
        """
        if "ByteFallback" not in self._decoders:
            return frozenset()
        found = (self.backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        special = (number for number, token in self.backend.get_added_tokens_decoder().items() if token.special)
        return frozenset([*(number for number in found if number is not None), *special])

    @cached_property
    def _decoders(self) -> set[str]:
        decoder = json.loads(self.backend.decoder.__getstate__()) if self.backend.decoder else {}
        return {part["type"] for part in decoder.get("decoders", [decoder]) if part}

    def _special(self, *roles: str) -> int | None:
        for role in roles:
            name = self.config.get(role)
            name = name.get("content") if isinstance(name, dict) else name
            if name is not None:
                return self.backend.token_to_id(name)
        return None


def _share_cores() -> None:
    """Let the library use all cores here and one in forked children, whose copy of its threads is dead; unset, it would
    print a warning at every fork. A choice of the person's own (TOKENIZERS_PARALLELISM) stands.
    """
    if "TOKENIZERS_PARALLELISM" not in os.environ:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))
