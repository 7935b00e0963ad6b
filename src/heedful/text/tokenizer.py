"""`Tokenizer`: train, encode, decode, show, save and load, over the `tokenizers` library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from heedful.errors import HeedfulError, nearest
from heedful.text import tokenizer_config
from heedful.text.post_processor import InputTemplate, read_input_template
from heedful.text.readable import readable
from heedful.util.files import write

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Kind = Literal["bpe", "unigram", "wordpiece", "character"]
Template = Literal["end", "both", "none"]

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0, 1, 2, 3 in every vocabulary trained here
MASK = "<mask>"  # id 4, where it is asked for
SENTINEL = "<extra_id_{}>"  # numbered from 0; where they are asked for, the last ids, the highest first
MIN_SIZES = {"bpe": 256 + len(SPECIAL)}  # byte-level: every byte is a token
TARGET_NAME = "tokenizer.target"  # the name of the target's where source and target have one each
BATCH_SIZE = 10_000  # texts encoded at a time: the library's encodings are far larger than their ids

# What `transformers` reads beside tokenizer.json. Text is only text: "</s>" written by a person is not the end token.
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True)),
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": True,
}
PAIR_CONFIG = {  # besides, where a text has a start, and a pair two segments: BERT's names of the same tokens
    **dict(zip(("cls_token", "sep_token"), SPECIAL[1:3], strict=True)),
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}
MASK_CONFIG = {"mask_token": MASK, "split_special_tokens": False}  # besides, where a text may hold the mask
SENTINEL_CONFIG = {"split_special_tokens": False}  # or sentinels


class Tokenizer:
    """Tokenizer: text to token ids and back.

    >>> tokenizer = Tokenizer.train(["a small text", "a smaller text"], size=300)
    >>> tokenizer.decode(tokenizer.encode(["a text"]))
    ['a text']

    `backend` is the library's own object; `config` holds the entries of ``tokenizer_config.json``, `silent` those that
    set nothing; `save` writes both.
    """

    def __init__(self, backend: Backend, config: dict[str, Any], silent: Mapping[str, Any] | None = None) -> None:
        self.backend = backend
        self.config = config
        self.silent = dict(silent or {})
        backend.no_padding()  # some published files pad and cut to a fixed length by themselves
        backend.no_truncation()
        whole = config.get("split_special_tokens")
        if not isinstance(whole, bool | None):
            raise HeedfulError(f"split_special_tokens of tokenizer_config.json is {whole!r}; give true or false")
        backend.encode_special_tokens = bool(whole)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        size: int,
        kind: Kind = "bpe",
        lowercase: bool = False,
        template: Template = "end",
        mask: bool = False,
        sentinels: int = 0,
    ) -> Tokenizer:
        """Trains a vocabulary of at most `size` tokens on `texts`; ``<pad> <s> </s> <unk>`` are ids 0 to 3.

        - ``bpe``: byte-level byte-pair encoding (Sennrich et al. 2016; bytes as in Radford et al. 2019). Any string is
          encoded without loss; a digit is always a token of its own, so that unseen numbers are made of seen parts.
        - ``unigram``: a unigram language model over pieces (Kudo 2018) after NFKC, runs of spaces as one; digits apart.
          Of this kind alone two trainings on the same texts may differ a little: the library adds up in an order that
          changes.
        - ``wordpiece``: BERT's pipeline (Devlin et al. 2019): words and punctuation apart, longest piece first.
        - ``character``: every Unicode character a token.

        All but ``bpe`` write ``<unk>`` for characters that `texts` lack. Too small a text gives fewer tokens.

        ``template`` is what `transformers` puts around a text when it opens the saved folder (`encode` here adds
        nothing): ``end``, ``text </s>``, for translation; ``both``, ``<s> text </s>``, a pair as
        ``<s> text </s> pair </s>`` in two segments, for encoders; ``none``, the bare text, for language models.

        With ``mask`` id 4 is ``<mask>``, which stands for what is to be filled in: it, and so the names of the other
        special tokens too, may be written in a text. The spaces before it belong to it (but in ``character``), as they
        do to the word that is missing. No space is then put before a ``bpe`` text: it would also come after each mask.

        >>> tokenizer = Tokenizer.train(["a small text", "a smaller text"], size=300, mask=True)
        >>> tokenizer.pieces(tokenizer.encode(["a <mask> text"])[0])[:2]
        ['a', '<mask>']

        With ``sentinels`` the last so many ids are T5's (Raffel et al. 2020), ``<extra_id_0>`` the very last: each
        stands for a span of text that is to be filled in, and is read as a mask is.

        >>> tokenizer = Tokenizer.train(["a small text"], size=300, sentinels=2)
        >>> tokenizer.pieces(tokenizer.encode(["a <extra_id_0> text"])[0])[:2]
        ['a', '<extra_id_0>']

        Raises `HeedfulError` for an unknown `kind` or `template`, for no text, and for a `size` too small to hold the
        alphabet.
        """
        from heedful.text import tokenizer_training

        for name, word, known in (("kind", kind, get_args(Kind)), ("template", template, get_args(Template))):
            if word not in known:
                raise HeedfulError(f"unknown tokenizer {name} {word!r}; {nearest(str(word), known)}")
        least = MIN_SIZES.get(kind, len(SPECIAL) + 1) + mask + sentinels
        if size < least:
            raise HeedfulError(f"a {kind} vocabulary of {size} is too small; ask for {least} or more")
        texts = [text for text in texts if text.strip()]
        if not texts:
            raise HeedfulError("no text to train a tokenizer on; give it at least one line that is not blank")
        _configure_parallelism()
        holes = [SENTINEL.format(number) for number in reversed(range(sentinels))]
        backend = tokenizer_training.train(
            texts, size, kind, lowercase, template, SPECIAL, MASK if mask else None, holes
        )
        told = (
            (PAIR_CONFIG if template == "both" else {})
            | (MASK_CONFIG if mask else {})
            | (SENTINEL_CONFIG if holes else {})
        )
        return cls(backend, CONFIG | told)

    @classmethod
    def load(cls, folder: str | Path, name: str = "tokenizer") -> Tokenizer:
        """Loads the tokenizer in ``folder/name.json``, or rebuilds it from older published files there.

        Those are the ``vocab.json`` and ``merges.txt`` of GPT-2, RoBERTa and BART, the ``vocab.txt`` of BERT and
        DistilBERT, the ``spiece.model`` of T5, ``tokenizer.model`` of Llama, ``sentencepiece.bpe.model`` of XLM-RoBERTa
        (tokenizer_types.py), and Marian's ``source.spm`` and ``vocab.json``; under the name ``tokenizer.target``, its
        ``target.spm``. Files of SentencePiece need ``pip install 'heedful[sentencepiece]'``.

        Special names come from ``tokenizer_config.json`` and ``special_tokens_map.json``; where these are silent, the
        family's own, as far as the vocabulary has them. The family is the ``tokenizer_class`` told there, else the
        ``model_type`` of ``config.json``.

        Raises `HeedfulError` when the files are missing, cannot be understood, or do not fit each other.
        """
        from tokenizers import Tokenizer as Backend

        _configure_parallelism()
        folder = Path(folder)
        path, told = folder / f"{name}.json", tokenizer_config.read(folder)
        if not path.is_file():
            files = (
                tokenizer_config.find_files(folder, told, name == TARGET_NAME)
                if name in ("tokenizer", TARGET_NAME)
                else None
            )
            if files is None:
                raise HeedfulError(f"no {path.name} in {folder}; give a model folder that holds one")
            from heedful.text import legacy_files

            return cls(*legacy_files.load(folder, told, files, name == TARGET_NAME), told.silent)
        try:
            backend = Backend.from_file(str(path))
        except BaseException as error:
            raise HeedfulError(
                f"{path} is no tokenizer ({tokenizer_config.library_message(error)}); save or download it again"
            ) from error
        config = told.named(told.family, lambda special: backend.token_to_id(special) is not None)
        return cls(backend, tokenizer_config.plain_config(config), told.silent)

    @staticmethod
    def lies_in(folder: str | Path, name: str = "tokenizer") -> bool:
        """Returns True if `load` finds files for this name, such as ``lies_in(folder, "tokenizer.target")``."""
        folder = Path(folder)
        if (folder / f"{name}.json").is_file():
            return True
        return name in ("tokenizer", TARGET_NAME) and bool(
            tokenizer_config.find_files(folder, tokenizer_config.read(folder), name == TARGET_NAME)
        )

    def save(self, folder: str | Path, name: str = "tokenizer") -> None:
        """Writes ``folder/name.json`` and, beside ``tokenizer.json``, a ``tokenizer_config.json`` naming its class.

        ``transformers.AutoTokenizer.from_pretrained(folder)`` opens it; a call there also adds what the template
        says.
        """
        folder = Path(folder)
        write(folder / f"{name}.json", self.backend.to_str(pretty=True))
        if name == "tokenizer":
            config = self.silent | self.config
            write(folder / "tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False))

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added and special ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def lowercase(self) -> bool:
        """True if it lowercases its input, so that a model writes no capitals.

        >>> Tokenizer.train(["A text"], size=300, lowercase=True).lowercase
        True
        """
        normalizer = self.backend.normalizer
        return normalizer is not None and "A" not in normalizer.normalize_str("A")

    @property
    def pad(self) -> int | None:
        """The padding id, or None."""
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
        """The unknown-token id, or None; also None if the end token is named for it (GPT-2)."""
        unknown = self._special("unk_token")
        return None if unknown == self.end else unknown

    @property
    def mask(self) -> int | None:
        """The id that hides a token (BERT's ``[MASK]``), or None."""
        return self._special("mask_token")

    @property
    def added(self) -> list[str]:
        """The added tokens that are not special, in the order of their ids. They are matched before segmentation."""
        tokens = sorted(self.backend.get_added_tokens_decoder().items())
        return [token.content for _, token in tokens if not token.special]

    def add(self, tokens: Sequence[str]) -> None:
        """Adds tokens that are matched anywhere in a text, with the spaces after them. New ones get the next ids.

        >>> tokenizer = Tokenizer.train(["a small text"], size=300)
        >>> tokenizer.add(["<2fr>"])
        >>> tokenizer.encode(["<2fr> a text"])[0][1:] == tokenizer.encode(["a text"])[0]
        True
        """
        from tokenizers import AddedToken

        self.backend.add_tokens([AddedToken(token, rstrip=True, normalized=False, special=False) for token in tokens])

    def around(self, pair: bool = False) -> InputTemplate:
        """Returns the special ids around a text or a pair: Llama's ``<s>`` before, T5's ``</s>`` after, BERT's
        ``[CLS] A [SEP] B [SEP]`` in two segments. `encode` adds none of them.

        >>> tokenizer = Tokenizer.train(["a text", "its pair"], size=300, template="both")
        >>> tokenizer.around(pair=True).join([7, 8], [9])
        ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])
        """
        return read_input_template(self.backend.post_processor, pair)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without start, end or padding."""
        assert not isinstance(texts, str), "encode takes a list of texts"
        with _readable_encoding_errors(texts):
            return [
                encoding.ids
                for first in range(0, len(texts), BATCH_SIZE)
                for encoding in self.backend.encode_batch_fast(
                    list(texts[first : first + BATCH_SIZE]), add_special_tokens=False
                )
            ]

    def offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of each text, and the characters (start, end) of each id.

        Where the tokenizer counts the space before a word to it, so do these; a token of a part of a character stands
        for the whole of it.
        """
        assert not isinstance(texts, str), "offsets takes a list of texts"
        with _readable_encoding_errors(texts):
            return [
                (encoding.ids, encoding.offsets)
                for first in range(0, len(texts), BATCH_SIZE)
                for encoding in self.backend.encode_batch(
                    list(texts[first : first + BATCH_SIZE]), add_special_tokens=False
                )
            ]

    def words(self, rows: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """Returns the ids of each row of words, encoded as inside a text, and of each id its word's number (from 0). A
        word without any token has no id.

        These are the ids that `transformers` gives for ``is_split_into_words=True``; there a byte-level tokenizer must
        be opened with ``add_prefix_space=True`` for it, which is done here.

        >>> tokenizer = Tokenizer.train(["a small text"] * 2, size=300, kind="wordpiece")
        >>> tokenizer.words([["a", "small-text"]])[0][1]
        [0, 1, 1, 1]
        """
        with _readable_encoding_errors(word for row in rows for word in row):
            return [
                (encoding.ids, [word for word in encoding.word_ids if word is not None])  # nothing is put around them
                for first in range(0, len(rows), BATCH_SIZE)
                for encoding in self._spaced.encode_batch(
                    [list(row) for row in rows[first : first + BATCH_SIZE]],
                    is_pretokenized=True,
                    add_special_tokens=False,
                )
            ]

    @cached_property
    def _spaced(self) -> Backend:
        """The backend, but with a space before each word where the words of a text have it in their tokens."""
        state = json.loads(self.backend.to_str())
        before, normal = state["pre_tokenizer"] or {}, state["normalizer"]
        levels = [part for part in before.get("pretokenizers", [before]) if part.get("type") == "ByteLevel"]
        if not levels or any(part["add_prefix_space"] for part in levels) or "Prepend" in json.dumps(normal):
            return self.backend
        if before is levels[0]:
            before["add_prefix_space"] = True
        else:  # of several steps each part of a word would get a space
            prepend = {"type": "Prepend", "prepend": " "}
            state["normalizer"] = {"type": "Sequence", "normalizers": [*([normal] if normal else []), prepend]}
        spaced = type(self.backend).from_str(json.dumps(state))
        spaced.encode_special_tokens = self.backend.encode_special_tokens
        return spaced

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
        tokens = [(int(one), self.backend.id_to_token(int(one)) or "") for one in ids]
        return [token if one in self.special else readable(token, self._decoders) for one, token in tokens]

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids that stand for no text: padding, start, end, unknown, mask, and what else the files call special."""
        roles = (self.pad, self.start, self.end, self.unknown, self.mask)
        told = (number for number, token in self.backend.get_added_tokens_decoder().items() if token.special)
        return frozenset([*(number for number in roles if number is not None), *told])

    @property
    def by_words(self) -> bool:
        """True if the tokens say which of them go on with a word, rather than where spaces stand (BERT's ``##``)."""
        return "WordPiece" in self._decoders

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


def _configure_parallelism() -> None:
    """Let the library use all cores here and one in forked children, whose copy of its threads is dead; unset, it would
    print a warning at every fork. A choice of the person's own (TOKENIZERS_PARALLELISM) stands.
    """
    if "TOKENIZERS_PARALLELISM" not in os.environ:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


@contextmanager
def _readable_encoding_errors(texts: Iterable[str]) -> Iterator[None]:
    """Halves of characters, which the library takes for no text, are an error that a person can read."""
    try:
        yield
    except TypeError:
        for text in texts:
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise HeedfulError(f"{text[:40]!r} holds half of a surrogate pair; give whole characters") from None
        raise
    except Exception as error:
        if type(error) is not Exception:  # the library has no type of its own
            raise
        raise HeedfulError(f"tokenizer.json does not fit the text ({error}); take the model's own") from None
