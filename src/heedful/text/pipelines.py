"""What each kind of tokenizer is made of: normaliser, pre-tokenizer, model, trainer, decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from heedful.errors import HeedfulError

# What stands around a text, and around a pair of them; ":1" is the second segment (BERT's sentence B).
TEMPLATES = {
    "end": ("$A {end}", "$A {end} $B {end}"),  # as Marian's own
    "both": ("{start} $A {end}", "{start} $A {end} $B:1 {end}:1"),  # as BERT's own
    "none": ("$A", "$A $B:1"),
}


def train(
    texts: Sequence[str], size: int, kind: str, lowercase: bool, template: str, special: tuple[str, str, str, str]
) -> Tokenizer:
    """A trained `tokenizers.Tokenizer` of one of the kinds; `special` is (padding, start, end, unknown)."""
    _, start, end, unknown = special
    lower = [normalizers.Lowercase()] if lowercase else []
    common: dict[str, Any] = {"vocab_size": size, "special_tokens": list(special), "show_progress": False}
    trainer: Any
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        # One space is always put in front and always taken away, so that a word is the same token everywhere in a
        # text and decoding gives the very string back, whatever it begins with. A bare text may stand anywhere in a
        # longer one (a prompt): nothing is put before it.
        bare = template == "none"
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
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(),
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
        trainer = trainers.WordPieceTrainer(min_frequency=2, **common)
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
        tokenizer.normalizer = normalizers.Sequence(lower)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.WordLevelTrainer(**common)
    try:
        tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    except Exception as error:  # the library raises the bare class
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"no {kind} vocabulary of {size} from this text ({reason}); choose another size") from error
    # Who opens the folder in `transformers` gets the special tokens from this; here the task adds them.
    single, pair = (form.format(start=start, end=end) for form in TEMPLATES[template])
    used = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    return tokenizer
