"""Components of each trained kind of tokenizer: normaliser, pre-tokenizer, model, trainer, decoder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from heedful.errors import HeedfulError

# Templates of a text and of a pair; ":1" is the second segment (BERT's sentence B).
TEMPLATES = {
    "end": ("$A {end}", "$A {end} $B {end}"),  # Marian's
    "both": ("{start} $A {end}", "{start} $A {end} $B:1 {end}:1"),  # BERT's
    "none": ("$A", "$A $B:1"),
}
MAX_ALPHABET = 1000  # letters of a WordPiece vocabulary, the default of the library's trainer
CHARACTER = r"[\s\S]"  # pattern of a token of the kind "character"
PART_LENGTH = 1 << 18  # minimum number of characters of a part of a long text
# Places where a text may be split. Every word tokenizer also splits between a letter and a line's end. One that gives a
# word the same tokens alone as within a text also splits before a word.
PART_END = re.compile(r"[^\W\d_](?=\n)")
WORD_PART_END = re.compile(r"[^\W\d_](?=\n| [^\W\d_])")


def train_tokenizer(
    texts: Sequence[str],
    size: int,
    kind: str,
    lowercase: bool,
    template: str,
    special: tuple[str, str, str, str],
    mask: str | None = None,
    sentinels: Sequence[str] = (),
) -> Tokenizer:
    """Trains a `tokenizers.Tokenizer` with a vocabulary of at most ``size`` tokens.

    Args:
        texts: the training texts.
        size: maximum number of tokens.
        kind: "bpe", "unigram", "wordpiece", "word" or "character".
        lowercase: True if the tokenizer lowercases its input.
        template: name of the template of special tokens around a text.
        special: padding, start, end and unknown token, with ids 0 to 3.
        mask: mask token, with id 4; None for no mask.
        sentinels: T5's sentinels, which get the last ids.

    Raises:
        HeedfulError: no vocabulary of this size can be trained on the texts.
    """
    _, start, end, unknown = special
    # The space before a mask is part of it, as it is of the word that is missing; a character has none.
    masks, sentinel_tokens = (
        [AddedToken(name, lstrip=kind != "character", normalized=False) for name in names]
        for names in ([mask] if mask else [], sentinels)
    )
    special_tokens: list[str | AddedToken] = [*special, *masks]
    has_gaps = bool(masks or sentinel_tokens)
    # A text that another text may precede (a prompt, or the text after a mask) gets no space before it.
    is_bare = template == "none" or has_gaps
    tokenizer = _untrained(kind, lowercase, unknown, is_bare, has_gaps)
    trainer = _trainer(kind, tokenizer, texts, size - len(sentinel_tokens), special_tokens, unknown)
    # The library needs about 75 times the bytes that it learns from at a time. With a space before each text, parts
    # would give other words than whole texts.
    part_length = None if kind == "bpe" and not is_bare else PART_LENGTH
    try:
        parts = (text[first:last] for text in texts for first, last in part_bounds(text, part_length, WORD_PART_END))
        tokenizer.train_from_iterator(parts, trainer)
    except Exception as error:  # the library raises the bare class
        reason = str(error).partition("\n")[0]
        raise HeedfulError(
            f"cannot train a {kind} vocabulary of {size} tokens on this text ({reason}); choose another size"
        ) from error
    if kind == "wordpiece":
        tokenizer = _with_special_tokens(tokenizer, unknown, special_tokens)
    tokenizer.add_special_tokens(sentinel_tokens)
    # For `transformers`, which adds special tokens by this template; here the task adds them.
    single, pair = (form.format(start=start, end=end) for form in TEMPLATES[template])
    template_tokens = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=template_tokens)
    return tokenizer


def _untrained(kind: str, lowercase: bool, unknown: str, is_bare: bool, has_gaps: bool) -> Tokenizer:
    """Returns an untrained tokenizer of a kind, with its normaliser, pre-tokenizer, empty model and decoder."""
    lower = [normalizers.Lowercase()] if lowercase else []
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        # A space is prepended when encoding and stripped when decoding. So a word is the same token everywhere in a
        # text, and decoding gives the exact text back.
        tokenizer.normalizer = normalizers.Sequence(lower if is_bare else [*lower, normalizers.Prepend(" ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r" ?\p{N}"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        strip = [] if is_bare else [decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *strip])
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        # With gaps, the text after a mask keeps its space and gets no other.
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=not has_gaps)]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(prepend_scheme="first" if has_gaps else "always"),
                pre_tokenizers.Digits(individual_digits=True),
                # The model's pieces include the special names. Split from its brackets, "</s>" in a text is only text.
                pre_tokenizers.Split(Regex("[<>]"), "isolated"),
            ]
        )
        tokenizer.decoder = decoders.Metaspace()
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
    elif kind == "word":
        tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()  # a space before each token, but not before punctuation
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
        tokenizer.normalizer = normalizers.Sequence(lower)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(CHARACTER), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _trainer(
    kind: str,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    size: int,
    special_tokens: list[str | AddedToken],
    unknown: str,
) -> Any:
    common: dict[str, Any] = {"vocab_size": size, "special_tokens": special_tokens, "show_progress": False}
    if kind == "bpe":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return trainers.BpeTrainer(initial_alphabet=alphabet, min_frequency=2, **common)
    if kind == "unigram":
        return trainers.UnigramTrainer(unk_token=unknown, **common)
    if kind == "wordpiece":
        letters, continuations = _alphabet(tokenizer, texts)
        common |= {
            "special_tokens": [*special_tokens, *continuations],
            "initial_alphabet": letters,
            "limit_alphabet": max(1, len(letters)),
        }
        return trainers.WordPieceTrainer(min_frequency=2, **common)
    return trainers.WordLevelTrainer(**common)


def _with_special_tokens(trained: Tokenizer, unknown: str, special_tokens: list[str | AddedToken]) -> Tokenizer:
    """Returns a trained WordPiece tokenizer with only these special tokens.

    The trainer marks the alphabet as special, too.
    """
    tokenizer = Tokenizer(models.WordPiece(trained.get_vocab(), unk_token=unknown))
    tokenizer.normalizer, tokenizer.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
    tokenizer.decoder = trained.decoder
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def _alphabet(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the most frequent letters, and the letters that continue a word, written ``##x`` as in WordPiece.

    Both are given to the trainer as fixed tokens. By itself the library numbers continuations in an order that differs
    from run to run, so the same texts would give different vocabularies.
    """
    words = Counter(word for text in texts for word in tokenizer.normalizer.normalize_str(text).split())
    counts, continuing = Counter[str](), set[str]()
    for word, count in words.items():
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word):
            continuing.update(piece[1:])
            for letter in piece:
                counts[letter] += count
    letters = sorted(counts, key=lambda letter: (-counts[letter], letter))[:MAX_ALPHABET]
    return letters, [f"##{letter}" for letter in sorted(continuing.intersection(letters))]


def part_bounds(text: str, length: int | None, part_end: re.Pattern[str] = PART_END) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each part of a text that is split where the pattern ``part_end`` matches.

    All parts but the last have at least ``length`` characters; with None the text is one part.

    >>> list(part_bounds("one\\ntwo", 2))
    [(0, 3), (3, 7)]
    """
    start = 0
    while length is not None and (match := part_end.search(text, start + length)):
        yield start, match.end()
        start = match.end()
    yield start, len(text)
