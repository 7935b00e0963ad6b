"""Components of each trained kind of tokenizer: normaliser, pre-tokenizer, model, trainer, decoder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from heedful.errors import HeedfulError

# What stands around a text, and around a pair of them; ":1" is the second segment (BERT's sentence B).
TEMPLATES = {
    "end": ("$A {end}", "$A {end} $B {end}"),  # as Marian's own
    "both": ("{start} $A {end}", "{start} $A {end} $B:1 {end}:1"),  # as BERT's own
    "none": ("$A", "$A $B:1"),
}
MAX_ALPHABET = 1000  # the most that a WordPiece vocabulary spells with, as the library's own trainer has it


def train(
    texts: Sequence[str],
    size: int,
    kind: str,
    lowercase: bool,
    template: str,
    special: tuple[str, str, str, str],
    mask: str | None = None,
    sentinels: Sequence[str] = (),
) -> Tokenizer:
    """A trained `tokenizers.Tokenizer` of one of the kinds; `special` is (padding, start, end, unknown). The last ids
    are those of the `sentinels`.
    """
    _, start, end, unknown = special
    lower = [normalizers.Lowercase()] if lowercase else []
    # The space before a mask belongs to it, as it does to the word that is missing; a character has none.
    masks, holes = (
        [AddedToken(name, lstrip=kind != "character", normalized=False) for name in names]
        for names in ([mask] if mask else [], sentinels)
    )
    named, fills = [*special, *masks], bool(masks or holes)
    common: dict[str, Any] = {"vocab_size": size - len(holes), "special_tokens": named, "show_progress": False}
    trainer: Any
    most: int | None = PART_LENGTH  # characters learned from at a time: the library needs about 75 times their bytes
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        # One space is always put in front and always taken away, so that a word is the same token everywhere in a
        # text and decoding gives the very string back, whatever it begins with. A bare text may stand anywhere in a
        # longer one (a prompt), and with a mask what comes after it is a text of its own: nothing is put before those.
        bare = template == "none" or fills
        most = PART_LENGTH if bare else None
        tokenizer.normalizer = normalizers.Sequence(lower if bare else [*lower, normalizers.Prepend(" ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r" ?\p{N}"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        stripped = [] if bare else [decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *stripped])
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=2, **common)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        whole = not fills  # else what comes after a mask keeps its space, and is given none that it has not
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=whole)]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(prepend_scheme="always" if whole else "first"),
                pre_tokenizers.Digits(individual_digits=True),
                # This model's pieces include the special names: apart from its brackets, "</s>" in a text is only text.
                pre_tokenizers.Split(Regex("[<>]"), "isolated"),
            ]
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token=unknown, **common)
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        kept, inside = _alphabet(tokenizer, texts)
        common |= {"special_tokens": [*named, *inside], "initial_alphabet": kept, "limit_alphabet": max(1, len(kept))}
        trainer = trainers.WordPieceTrainer(min_frequency=2, **common)
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
        tokenizer.normalizer = normalizers.Sequence(lower)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.WordLevelTrainer(**common)
    try:
        parts = (text[start:end] for text in texts for start, end in part_bounds(text, most, WORD_PART_END))
        tokenizer.train_from_iterator(parts, trainer)
    except Exception as error:  # the library raises the bare class
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"no {kind} vocabulary of {size} from this text ({reason}); choose another size") from error
    if kind == "wordpiece":  # those letters are no special tokens
        made = Tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token=unknown))
        made.normalizer, made.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        made.decoder, tokenizer = tokenizer.decoder, made
        tokenizer.add_special_tokens(named)
    tokenizer.add_special_tokens(holes)
    # Who opens the folder in `transformers` gets the special tokens from this; here the task adds them.
    single, pair = (form.format(start=start, end=end) for form in TEMPLATES[template])
    used = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    return tokenizer


def _alphabet(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The commonest letters of the texts, and as WordPiece writes them within a word those that stand there, in order.

    The library numbers the second kind in an order that differs from run to run, and with it the pieces made of them:
    the same texts gave other vocabularies. Named beforehand, they have their places.
    """
    words = Counter(word for text in texts for word in tokenizer.normalizer.normalize_str(text).split())
    letters, following = Counter[str](), set[str]()
    for word, count in words.items():
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word):
            following.update(piece[1:])
            for letter in piece:
                letters[letter] += count
    kept = sorted(letters, key=lambda letter: (-letters[letter], letter))[:MAX_ALPHABET]
    return kept, [f"##{letter}" for letter in sorted(following.intersection(kept))]


PART_LENGTH = 1 << 18  # characters of one part, about
PART_END = re.compile(r"[^\W\d_](?=\n)")  # between a letter and a line's end tokenizers of words cut too
WORD_PART_END = re.compile(
    r"[^\W\d_](?=\n| [^\W\d_])"
)  # those that read a word alone as in a text cut before a word, too


def part_bounds(text: str, most: int | None, at: re.Pattern[str] = PART_END) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of parts of at least ``most`` characters each, but for the last; None: one part.

    >>> list(part_bounds("one\\ntwo", 2))
    [(0, 3), (3, 7)]
    """
    start = 0
    while most is not None and (found := at.search(text, start + most)):
        yield start, found.end()
        start = found.end()
    yield start, len(text)
