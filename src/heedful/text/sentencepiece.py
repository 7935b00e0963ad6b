"""SentencePiece files (.model, .spm; Kudo & Richardson 2018), rebuilt with the library's components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from heedful.errors import HeedfulError
from heedful.text.readable import PIECE_BOUNDARY
from heedful.text.tokenizer_config import first_line

SPACE = "▁"
MAX_LEADING_SPACES = 1 << 16  # spaces taken away before a decoded text: all that there may be
Kind = Literal["normal", "unknown", "control", "user", "unused", "byte"]
KINDS: tuple[Kind, ...] = ("normal", "unknown", "control", "user", "unused", "byte")  # the file counts from 1
ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class Piece(NamedTuple):
    """A token: its text, its score (a log probability, or minus the rank of its merge), its kind."""

    text: str
    score: float = 0.0
    kind: Kind = "control"


@dataclass(frozen=True)
class SentencePieceModel:
    """Content of one file; ``charsmap`` is its compiled normaliser; ``prefix``: a space is put before a text."""

    pieces: list[Piece]
    algorithm: str
    charsmap: bytes
    prefix: bool
    collapse: bool
    byte_fallback: bool


def read_model(path: Path) -> SentencePieceModel:
    """A SentencePiece file. Raises `HeedfulError` for a broken or cut one, an unknown kind, and a missing package."""
    try:
        form = import_module("sentencepiece.sentencepiece_model_pb2")
        broken = import_module("google.protobuf.message").DecodeError
    except ImportError as error:
        raise HeedfulError(
            f"{path} is read with sentencepiece and protobuf ({first_line(error)}): "
            "pip install 'heedful[sentencepiece]'"
        ) from error
    found = form.ModelProto()
    try:
        found.ParseFromString(path.read_bytes())
    except OSError as error:
        raise HeedfulError(f"cannot read {path}: {error.strerror}; look at its permissions") from None
    except (broken, UnicodeDecodeError) as error:
        raise HeedfulError(f"{path} is no SentencePiece model ({first_line(error)}); download it again") from error
    trainer, normaliser = found.trainer_spec, found.normalizer_spec
    # Pieces come first in the file: what lacks the rest was cut at the end of one.
    if not found.pieces or not found.HasField("trainer_spec") or not found.HasField("normalizer_spec"):
        raise HeedfulError(f"{path} is no whole SentencePiece model; download it again")
    algorithm = ALGORITHMS.get(trainer.model_type, str(trainer.model_type))
    if algorithm not in ("unigram", "bpe"):
        raise HeedfulError(f"{path} is of the kind {algorithm!r}; only unigram and bpe are read")
    if trainer.treat_whitespace_as_suffix or not normaliser.escape_whitespaces:
        raise HeedfulError(f"{path} writes spaces in another way than before a word as {SPACE}; that is not read")
    return SentencePieceModel(
        pieces=[Piece(piece.piece, piece.score, KINDS[piece.type - 1]) for piece in found.pieces],
        algorithm=algorithm,
        charsmap=normaliser.precompiled_charsmap,
        prefix=normaliser.add_dummy_prefix,
        collapse=normaliser.remove_extra_whitespaces,
        byte_fallback=trainer.byte_fallback,
    )


def build_tokenizer(model: SentencePieceModel, vocabulary: Sequence[Piece], legacy: bool = True) -> Tokenizer:
    """A tokenizer that cuts texts as the file does, a piece's id being its place in ``vocabulary``. (One difference is
    the library's: it normalises by visible characters, so that a half-width kana and its mark are not joined.)

    Pieces of the kind ``unused`` have an id and are decoded, but no text is cut into them; only a run of characters
    that no other piece spells is one where it is that very piece, as published (`Marian` looks up what SentencePiece
    leaves over). ``legacy`` puts the prefix also after a special token within a text; without it only before the text.
    """
    texts = [
        PIECE_BOUNDARY + piece.text + PIECE_BOUNDARY if piece.kind == "unused" else piece.text for piece in vocabulary
    ]
    unknown = next((place for place, piece in enumerate(vocabulary) if piece.kind == "unknown"), None)
    if unknown is None:
        raise HeedfulError("the vocabulary has no unknown token; download the folder again")
    tokenizer = Tokenizer(
        models.Unigram([*zip(texts, _scores(vocabulary), strict=True)], unknown, model.byte_fallback)
        if model.algorithm == "unigram"
        else models.BPE(
            {text: place for place, text in enumerate(texts)},
            _merges(vocabulary),
            unk_token=texts[unknown],
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    )
    marked = any(piece.kind == "unused" for piece in vocabulary)
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if marked:
        steps.append(
            normalizers.Replace(PIECE_BOUNDARY, "\ufffe")
        )  # no character either: unknown, as it would be in a text
    if model.collapse:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.prefix and legacy:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    if marked and model.algorithm == "unigram":
        steps += _unknown_run_marks(vocabulary)
    tokenizer.normalizer = normalizers.Sequence(steps)
    # Where no piece reaches over a space, each word is cut for itself: the same pieces, sooner found.
    alone = not any(SPACE in piece.text[1:] for piece in vocabulary if piece.kind in ("normal", "user"))
    first = model.prefix and not legacy
    if alone or first:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first" if first else "never", alone)
    tokenizer.decoder = decoders.Sequence(
        [
            *([decoders.Replace(PIECE_BOUNDARY, "")] if marked else []),
            decoders.Replace(SPACE, " "),
            *([decoders.ByteFallback()] if model.byte_fallback else []),
            decoders.Fuse(),
            *(
                [decoders.Strip(" ", MAX_LEADING_SPACES if model.collapse else 1, 0)]
                if model.collapse or model.prefix
                else []
            ),
        ]
    )
    return tokenizer


def _unknown_run_marks(vocabulary: Sequence[Piece]) -> list[normalizers.Normalizer]:
    """Marks before and after each run of characters that no piece of the model's own is, which only an unused piece
    with its two marks matches: from end to end, or not at all.
    """
    own = {piece.text for piece in vocabulary if piece.kind in ("normal", "user") and len(piece.text) == 1}
    known = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(own))
    return [
        normalizers.Replace(Regex(f"(?<![^{known}])(?=[^{known}])"), PIECE_BOUNDARY),
        normalizers.Replace(Regex(f"(?<=[^{known}])(?![^{known}])"), PIECE_BOUNDARY),
    ]


def added_tokens(model: SentencePieceModel, vocabulary: Sequence[Piece]) -> list[AddedToken]:
    """The pieces that are found in a text before it is cut: control pieces, as published, and the user's symbols."""
    found = ("control", "unknown") if model.algorithm == "unigram" else ("control", "unknown", "user")
    return [
        AddedToken(piece.text, special=piece.kind != "user", normalized=False)
        for piece in vocabulary
        if piece.kind in found  # a unigram's score sees to the user's
    ]


def _scores(vocabulary: Sequence[Piece]) -> list[float]:
    """Of unigram pieces: a symbol of the user's wins over whatever it could be cut into."""
    return [
        {"normal": piece.score, "user": 1000.0 * len(piece.text.encode())}.get(piece.kind, 0.0) for piece in vocabulary
    ]


def _merges(vocabulary: Sequence[Piece]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, best first: the file has scores where the library wants pairs."""
    places = {piece.text: place for place, piece in enumerate(vocabulary) if piece.kind == "normal"}
    found = [
        (-vocabulary[place].score, place, places[text[:cut]], places[text[cut:]])
        for text, place in places.items()
        for cut in range(1, len(text))
        if text[:cut] in places and text[cut:] in places
    ]
    return [(vocabulary[left].text, vocabulary[right].text) for _, _, left, right in sorted(found)]
