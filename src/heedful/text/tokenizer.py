"""``Tokenizer``: trains, encodes, decodes, saves and loads, with the ``tokenizers`` library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from heedful.errors import HeedfulError, nearest
from heedful.text import languages, tokenizer_config
from heedful.text.post_processor import InputTemplate, read_input_template
from heedful.text.readable import readable
from heedful.text.tokenizer_json import read_tokenizer
from heedful.util.files import write

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Kind = Literal["bpe", "unigram", "wordpiece", "word", "character"]
Template = Literal["end", "both", "none"]

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0, 1, 2, 3 in every vocabulary trained here
MASK = "<mask>"  # id 4 of vocabularies with a mask
SENTINEL = "<extra_id_{}>"  # numbered from 0; the last ids of vocabularies with sentinels, the highest number first
MIN_SIZES = {"bpe": 256 + len(SPECIAL)}  # byte-level: every byte is a token
TARGET_NAME = "tokenizer.target"  # the target's tokenizer, if source and target have one each
BATCH_SIZE = 10_000  # texts encoded at a time: the library's encodings are far larger than their ids

# tokenizer_config.json, which `transformers` reads beside tokenizer.json. With split_special_tokens, "</s>" in a text
# is only text, not the end token.
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True)),
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": True,
}
PAIR_CONFIG = {  # added for the template "both", with start tokens and segments: BERT's names of the same tokens
    **dict(zip(("cls_token", "sep_token"), SPECIAL[1:3], strict=True)),
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}
MASK_CONFIG = {"mask_token": MASK, "split_special_tokens": False}  # added for a mask, which texts contain
SENTINEL_CONFIG = {"split_special_tokens": False}  # added for sentinels, which texts contain


class Tokenizer:
    """Converter of texts to token ids and back.

    Args:
        backend: the ``tokenizers.Tokenizer`` that does the work.
        config: the entries of ``tokenizer_config.json``.
        unset_entries: entries of that file without an effect, such as null values; ``save`` writes them too.

    >>> tokenizer = Tokenizer.train(["a small text", "a smaller text"], size=300)
    >>> tokenizer.decode(tokenizer.encode(["a text"]))
    ['a text']
    """

    def __init__(
        self, backend: Backend, config: dict[str, Any], unset_entries: Mapping[str, Any] | None = None
    ) -> None:
        self.backend = backend
        self.config = config
        self.unset_entries = dict(unset_entries or {})
        backend.no_padding()  # some published files pad and truncate to a fixed length
        backend.no_truncation()
        split = config.get("split_special_tokens")
        if not isinstance(split, bool | None):
            raise HeedfulError(f"split_special_tokens of tokenizer_config.json is {split!r}; give true or false")
        backend.encode_special_tokens = bool(split)

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
        """Trains a vocabulary of at most ``size`` tokens on ``texts``; ``<pad> <s> </s> <unk>`` are ids 0 to 3.

        - ``bpe``: byte-level byte-pair encoding (Sennrich et al. 2016; bytes as in Radford et al. 2019). Encodes every
          string without loss. Each digit is a token, so unseen numbers consist of known tokens.
        - ``unigram``: a unigram language model over pieces (Kudo 2018), after NFKC and with runs of spaces as one; each
          digit is a token. Two trainings on the same texts may differ a little: the library's order of sums varies.
        - ``wordpiece``: BERT's pipeline (Devlin et al. 2019): splits words and punctuation, takes the longest piece.
        - ``word``: each word and each punctuation mark is a token, the most frequent ``size`` of them.
        - ``character``: each Unicode character is a token.

        All but ``bpe`` write ``<unk>`` for characters that ``texts`` lack, ``word`` for words. A small text gives fewer
        tokens.

        ``template`` is what ``transformers`` adds around a text (``encode`` adds nothing): ``end``, ``text </s>``, for
        translation; ``both``, ``<s> text </s>`` and for a pair ``<s> text </s> pair </s>`` in two segments, for
        encoders; ``none``, the bare text, for language models.

        With ``mask``, id 4 is ``<mask>``, which stands for a missing token. It and the other special tokens can then be
        written in a text. The spaces before it are part of it (except in ``character``), as they are of a word. A
        ``bpe`` text then gets no space before it, since the text after each mask would get one too.

        >>> tokenizer = Tokenizer.train(["a small text", "a smaller text"], size=300, mask=True)
        >>> tokenizer.pieces(tokenizer.encode(["a <mask> text"])[0])[:2]
        ['a', '<mask>']

        ``sentinels`` is the number of T5's sentinels (Raffel et al. 2020), which get the last ids, ``<extra_id_0>`` the
        very last. Each stands for a missing span and is read like a mask.

        >>> tokenizer = Tokenizer.train(["a small text"], size=300, sentinels=2)
        >>> tokenizer.pieces(tokenizer.encode(["a <extra_id_0> text"])[0])[:2]
        ['a', '<extra_id_0>']

        Raises ``HeedfulError`` for an unknown ``kind`` or ``template``, for blank ``texts``, and for a ``size`` smaller
        than the alphabet.
        """
        from heedful.text import tokenizer_training

        for name, word, known in (("kind", kind, get_args(Kind)), ("template", template, get_args(Template))):
            if word not in known:
                raise HeedfulError(f"unknown tokenizer {name} {word!r}; {nearest(str(word), known)}")
        min_size = MIN_SIZES.get(kind, len(SPECIAL) + 1) + mask + sentinels
        if size < min_size:
            raise HeedfulError(f"a {kind} vocabulary of {size} tokens is too small; choose {min_size} or more")
        texts = [text for text in texts if text.strip()]
        if not texts:
            raise HeedfulError("there is no text to train a tokenizer on; give at least one line that is not blank")
        _configure_parallelism()
        sentinel_names = [SENTINEL.format(number) for number in reversed(range(sentinels))]
        backend = tokenizer_training.train_tokenizer(
            texts, size, kind, lowercase, template, SPECIAL, MASK if mask else None, sentinel_names
        )
        config = CONFIG | (PAIR_CONFIG if template == "both" else {})
        config |= (MASK_CONFIG if mask else {}) | (SENTINEL_CONFIG if sentinels else {})
        return cls(backend, config)

    @classmethod
    def load(cls, folder: str | Path, name: str = "tokenizer") -> Tokenizer:
        """Loads the tokenizer in ``folder/name.json``, or rebuilds it from older published files there.

        These are the ``vocab.json`` and ``merges.txt`` of GPT-2, RoBERTa, BART and DeBERTa v1, the ``vocab.txt`` of
        BERT, DistilBERT, ELECTRA and MPNet, the ``spiece.model`` of T5, Pegasus, XLNet and ALBERT, ``tokenizer.model``
        of Llama, ``sentencepiece.bpe.model`` of XLM-RoBERTa, CamemBERT, mBART and M2M-100, ``spm.model`` of DeBERTa v2
        and v3 (tokenizer_types.py), and Marian's ``source.spm`` and ``vocab.json``, with the name ``tokenizer.target``
        its ``target.spm``. SentencePiece files need ``pip install 'heedful[sentencepiece]'``.

        Special tokens come from ``tokenizer_config.json`` and ``special_tokens_map.json``. If these name no token for a
        role, such as padding, it is the usual one of the tokenizer's type, if the vocabulary has it. The type is given
        by ``tokenizer_class`` in these files, else by ``model_type`` in ``config.json``.

        Raises ``HeedfulError`` if files are missing, broken or do not fit each other.
        """
        _configure_parallelism()
        folder = Path(folder)
        path, config = folder / f"{name}.json", tokenizer_config.read_tokenizer_config(folder)
        if not path.is_file():
            files = (
                tokenizer_config.find_files(folder, config, name == TARGET_NAME)
                if name in ("tokenizer", TARGET_NAME)
                else None
            )
            if files is None:
                raise HeedfulError(f"no {path.name} in {folder}; give a model folder that holds one")
            from heedful.text import legacy_files

            return cls(
                *legacy_files.load_legacy_tokenizer(folder, config, files, name == TARGET_NAME), config.unset_entries
            )
        backend = read_tokenizer(path)
        entries = config.with_special_tokens(
            config.tokenizer_type, lambda token: backend.token_to_id(token) is not None
        )
        entries = tokenizer_config.plain_config(entries)
        languages.apply_settings(backend, entries)
        return cls(backend, entries, config.unset_entries)

    @staticmethod
    def has_files(folder: str | Path, name: str = "tokenizer") -> bool:
        """Returns True if a folder has the files of a tokenizer with this name, such as "tokenizer.target"."""
        folder = Path(folder)
        if (folder / f"{name}.json").is_file():
            return True
        return name in ("tokenizer", TARGET_NAME) and bool(
            tokenizer_config.find_files(folder, tokenizer_config.read_tokenizer_config(folder), name == TARGET_NAME)
        )

    def save(self, folder: str | Path, name: str = "tokenizer") -> None:
        """Writes ``folder/name.json`` and, beside ``tokenizer.json``, a ``tokenizer_config.json`` that names its class.

        ``transformers.AutoTokenizer.from_pretrained(folder)`` can load the folder; that tokenizer also adds the special
        tokens of the template when it is called.
        """
        folder = Path(folder)
        write(folder / f"{name}.json", self.backend.to_str(pretty=True))
        if name == "tokenizer":
            config = self.unset_entries | self.config
            write(folder / "tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including added and special tokens."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def lowercase(self) -> bool:
        """True if the tokenizer lowercases its input, so that a model writes no capitals.

        >>> Tokenizer.train(["A text"], size=300, lowercase=True).lowercase
        True
        """
        normalizer = self.backend.normalizer
        return normalizer is not None and "A" not in normalizer.normalize_str("A")

    @property
    def pad(self) -> int | None:
        """Id of the padding token, or None."""
        return self._special("pad_token")

    @property
    def start(self) -> int | None:
        """Id of the token that begins a text (BERT's ``[CLS]``), or None."""
        return self._special("bos_token", "cls_token")

    @property
    def end(self) -> int | None:
        """Id of the token that ends a text (BERT's ``[SEP]``), or None."""
        return self._special("eos_token", "sep_token")

    @property
    def class_token(self) -> int | None:
        """Id of the token that classifiers read (BERT's ``[CLS]``), or None."""
        return self._special("cls_token")

    @property
    def unknown(self) -> int | None:
        """Id of the unknown token; None if there is none, or if it is the end token (GPT-2)."""
        unknown = self._special("unk_token")
        return None if unknown == self.end else unknown

    @property
    def mask(self) -> int | None:
        """Id of the mask token (BERT's ``[MASK]``), or None."""
        return self._special("mask_token")

    @property
    def added(self) -> list[str]:
        """Added tokens that are not special, in the order of their ids. They are matched before segmentation."""
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

    def template(self, pair: bool = False) -> InputTemplate:
        """Returns the template of special ids around a text or a pair. ``encode`` adds none of them.

        Examples are Llama's ``<s>`` before a text, T5's ``</s>`` after it, BERT's ``[CLS] A [SEP] B [SEP]``.

        >>> tokenizer = Tokenizer.train(["a text", "its pair"], size=300, template="both")
        >>> tokenizer.template(pair=True).join([7, 8], [9])
        ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])
        """
        return read_input_template(self.backend.post_processor, pair)

    @cached_property
    def languages(self) -> dict[str, int]:
        """Codes and ids of the languages between which the model translates; {} if the template names none."""
        ids = languages.language_ids(self.backend)
        template = self.template() if ids else None
        named = template is not None and {*template.before, *template.after} & {*ids.values()}
        return ids if named else {}

    def template_in(self, language: str | None) -> InputTemplate:
        """Returns the template of a text in this language, one of ``languages``; without language tokens for None."""
        template = self.template()
        if language is None:
            return languages.without_language(template, self.languages)
        return languages.in_language(template, self.languages, language)

    @property
    def source_language(self) -> str | None:
        """Code of the language that the template names, or None."""
        template = self.template()
        added = {*template.before, *template.after}
        return next((code for code, number in self.languages.items() if number in added), None)

    def set_languages(self, source: str | None, target: str | None) -> None:
        """Makes these languages, of ``languages``, the defaults of the folder that ``save`` writes.

        ``transformers`` reads them too, under the names ``src_lang`` and ``tgt_lang``.
        """
        if source is not None:
            token = self.backend.id_to_token(self.languages[source])
            template, end = self.template(), self.backend.id_to_token(special) if (special := self.end) else None
            if end is not None:
                after = bool({*template.after} & {*self.languages.values()})
                languages.set_template(self.backend, str(token), end, after)
        given = {"src_lang": source, "tgt_lang": target}
        self.config |= {key: code for key, code in given.items() if code is not None}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without start, end or padding; raises ``HeedfulError`` for a text alone."""
        _check_list(texts)
        with _readable_encoding_errors(texts):
            return [
                encoding.ids
                for first in range(0, len(texts), BATCH_SIZE)
                for encoding in self.backend.encode_batch_fast(
                    list(texts[first : first + BATCH_SIZE]), add_special_tokens=False
                )
            ]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of each text, and the characters (start, end) of each id.

        The space before a word is included if it is part of the word's token. A token that is part of a character has
        the offsets of the whole character. Raises ``HeedfulError`` for a text alone.
        """
        _check_list(texts)
        with _readable_encoding_errors(texts):
            return [
                (encoding.ids, encoding.offsets)
                for first in range(0, len(texts), BATCH_SIZE)
                for encoding in self.backend.encode_batch(
                    list(texts[first : first + BATCH_SIZE]), add_special_tokens=False
                )
            ]

    def encode_words(self, rows: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """Encodes rows of words; returns for each row its ids, and for each id the index of its word.

        Words are encoded as inside a text. A word without tokens has no ids. The ids are those of ``transformers`` with
        ``is_split_into_words=True`` and, for byte-level tokenizers, ``add_prefix_space=True``.

        >>> tokenizer = Tokenizer.train(["a small text"] * 2, size=300, kind="wordpiece")
        >>> tokenizer.encode_words([["a", "small-text"]])[0][1]
        [0, 1, 1, 1]
        """
        with _readable_encoding_errors(word for row in rows for word in row):
            return [
                (encoding.ids, [word for word in encoding.word_ids if word is not None])  # no special tokens
                for first in range(0, len(rows), BATCH_SIZE)
                for encoding in self._spaced.encode_batch(
                    [list(row) for row in rows[first : first + BATCH_SIZE]],
                    is_pretokenized=True,
                    add_special_tokens=False,
                )
            ]

    @cached_property
    def _spaced(self) -> Backend:
        """Backend with a space before each word, if tokens of words in a text include their space."""
        state = json.loads(self.backend.to_str())
        pre_tokenizer, normalizer = state["pre_tokenizer"] or {}, state["normalizer"]
        steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
        byte_levels = [step for step in steps if step.get("type") == "ByteLevel"]
        has_prefix = any(step["add_prefix_space"] for step in byte_levels) or "Prepend" in json.dumps(normalizer)
        if not byte_levels or has_prefix:
            return self.backend
        if pre_tokenizer is byte_levels[0]:
            pre_tokenizer["add_prefix_space"] = True
        else:  # with several steps, each part of a word would get a space
            prepend = {"type": "Prepend", "prepend": " "}
            state["normalizer"] = {"type": "Sequence", "normalizers": [*([normalizer] if normalizer else []), prepend]}
        spaced = type(self.backend).from_str(json.dumps(state))
        spaced.encode_special_tokens = self.backend.encode_special_tokens
        return spaced

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each list of ids.

        Special tokens are left out, and so are ids beyond the vocabulary (the spare rows of a padded embedding). Raises
        ``HeedfulError`` for a negative id, such as -100, which marks an ignored label.
        """
        rows = [[int(token) for token in row] for row in ids]
        for row in rows:
            if row and min(row) < 0:
                raise HeedfulError(f"{min(row)} is not a token id; remove the ignored labels before decoding")
        return self.backend.decode_batch(rows, skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns each token as readable text, one for each id.

        The space that begins a word is a leading space, special tokens have their names, and a byte of an incomplete
        character is written ``<0xE8>``.
        """
        tokens = [(int(number), self.backend.id_to_token(int(number)) or "") for number in ids]
        return [token if number in self.special else readable(token, self._decoders) for number, token in tokens]

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids without text, those of padding, start, end, unknown, mask, and the added tokens marked as special."""
        roles = (self.pad, self.start, self.end, self.unknown, self.mask)
        return frozenset([*(number for number in roles if number is not None), *self._special_added()])

    @property
    def marks_continuations(self) -> bool:
        """True if tokens inside a word are marked (BERT's ``##``), instead of spaces before words."""
        return "WordPiece" in self._decoders

    @cached_property
    def byte_tokens(self) -> frozenset[int]:
        """Ids of byte-fallback tokens (Llama); empty without byte fallback.

        A run of such tokens is decoded as a whole: to characters if its bytes are UTF-8, else each byte to U+FFFD.
        Special tokens are included: decoding leaves them out, so they do not end a run.
        """
        if "ByteFallback" not in self._decoders:
            return frozenset()
        bytes_ = (self.backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset([*(number for number in bytes_ if number is not None), *self._special_added()])

    def _special_added(self) -> list[int]:
        return [number for number, token in self.backend.get_added_tokens_decoder().items() if token.special]

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
    """Lets the library use all cores in this process and one in forked children, where its threads are dead.

    Without a choice the library prints a warning at every fork. A user's TOKENIZERS_PARALLELISM is not changed.
    """
    if "TOKENIZERS_PARALLELISM" not in os.environ:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


def _check_list(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise HeedfulError(f"got the text {texts[:40]!r} alone; give a list of texts: [text]")


@contextmanager
def _readable_encoding_errors(texts: Iterable[str]) -> Iterator[None]:
    """Raises ``HeedfulError`` with a readable message where the library fails to encode a text."""
    try:
        yield
    except TypeError:
        for text in texts:
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise HeedfulError(f"{text[:40]!r} holds half of a surrogate pair; use whole characters") from None
        raise
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":  # the library raises these two
            raise
        reason = tokenizer_config.first_line(error)
        raise HeedfulError(
            f"tokenizer.json does not fit the text ({reason}); use the model's own tokenizer.json"
        ) from None
