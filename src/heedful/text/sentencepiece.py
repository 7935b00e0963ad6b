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
from heedful.text.tokenizer_json import check_charsmap, check_pieces

SPACE = "▁"
MAX_LEADING_SPACES = 1 << 16  # removed before a decoded text; more than any text has
Kind = Literal["normal", "unknown", "control", "user", "unused", "byte"]
KINDS: tuple[Kind, ...] = ("normal", "unknown", "control", "user", "unused", "byte")  # numbered from 1 in the file
ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class Piece(NamedTuple):
    """Token of a SentencePiece file, with its kind and its score: a log probability, or minus the rank of its merge."""

    text: str
    score: float = 0.0
    kind: Kind = "control"


@dataclass(frozen=True)
class SentencePieceModel:
    """Content of a SentencePiece file.

    - ``charsmap``: the compiled normaliser
    - ``prefix``: a space is put before a text
    - ``collapse``: runs of spaces count as one, spaces around a text are removed
    - ``byte_fallback``: characters that no piece covers are spelled in bytes
    """

    pieces: list[Piece]
    algorithm: str
    charsmap: bytes
    prefix: bool
    collapse: bool
    byte_fallback: bool


def read_model(path: Path) -> SentencePieceModel:
    """Reads a SentencePiece file.

    Raises `HeedfulError` if the file is broken or truncated, its algorithm is not supported, or a package is missing
    or too old for the other.
    """
    try:
        protobuf = import_module("sentencepiece.sentencepiece_model_pb2")
        decode_error = import_module("google.protobuf.message").DecodeError
    except Exception as error:  # protobuf refuses, by an error of its own, what was generated for a newer version
        missing = isinstance(error, ModuleNotFoundError)
        remedy = "'heedful[sentencepiece]'" if missing else "--upgrade sentencepiece protobuf"
        raise HeedfulError(
            f"reading {path} needs sentencepiece and protobuf ({first_line(error)}): pip install {remedy}"
        ) from error
    proto = protobuf.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise HeedfulError(f"cannot read {path}: {error.strerror}; check its permissions") from None
    except (decode_error, UnicodeDecodeError) as error:
        raise HeedfulError(f"{path} is not a SentencePiece model ({first_line(error)}); download it again") from error
    trainer, normaliser = proto.trainer_spec, proto.normalizer_spec
    # Pieces come first in the file. A file without the rest was truncated after a piece.
    if not proto.pieces or not proto.HasField("trainer_spec") or not proto.HasField("normalizer_spec"):
        raise HeedfulError(f"{path} is not a complete SentencePiece model; download it again")
    algorithm = ALGORITHMS.get(trainer.model_type, str(trainer.model_type))
    if algorithm not in ("unigram", "bpe"):
        raise HeedfulError(
            f"{path} has the algorithm {algorithm!r}, which is not supported; use a model with unigram or bpe"
        )
    if trainer.treat_whitespace_as_suffix or not normaliser.escape_whitespaces:
        raise HeedfulError(
            f"{path} does not mark the space before a word by {SPACE}, which is not supported; use a model that does"
        )
    check_charsmap(normaliser.precompiled_charsmap, len(normaliser.precompiled_charsmap), path)
    check_pieces((piece.piece for piece in proto.pieces), path)
    return SentencePieceModel(
        pieces=[Piece(piece.piece, piece.score, KINDS[piece.type - 1]) for piece in proto.pieces],
        algorithm=algorithm,
        charsmap=normaliser.precompiled_charsmap,
        prefix=normaliser.add_dummy_prefix,
        collapse=normaliser.remove_extra_whitespaces,
        byte_fallback=trainer.byte_fallback,
    )


def build_tokenizer(model: SentencePieceModel, vocabulary: Sequence[Piece], legacy: bool = True) -> Tokenizer:
    """Builds a tokenizer that segments texts as a SentencePiece file does. A piece's id is its index in ``vocabulary``.

    One difference remains: the library normalises by visible characters, so a half-width kana and its voicing mark stay
    two characters.

    Pieces of the kind ``unused`` have an id and are decoded, but texts are not segmented into them. There is one
    exception, as in Marian: a run of characters that no other piece covers becomes an unused piece if the two are
    equal.

    With ``legacy``, the space that the file puts before a text is also put after a special token within a text.
    """
    texts = [
        PIECE_BOUNDARY + piece.text + PIECE_BOUNDARY if piece.kind == "unused" else piece.text for piece in vocabulary
    ]
    unknown = next((index for index, piece in enumerate(vocabulary) if piece.kind == "unknown"), None)
    if unknown is None:
        raise HeedfulError("the vocabulary has no unknown token; download the folder again")
    tokenizer = Tokenizer(
        models.Unigram([*zip(texts, _scores(vocabulary), strict=True)], unknown, model.byte_fallback)
        if model.algorithm == "unigram"
        else models.BPE(
            {text: index for index, text in enumerate(texts)},
            _merges(vocabulary),
            unk_token=texts[unknown],
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    )
    has_unused = any(piece.kind == "unused" for piece in vocabulary)
    tokenizer.normalizer = normalizers.Sequence(_normalizers(model, vocabulary, has_unused, legacy))
    # If no piece contains a space, words are segmented separately: the result is the same, and faster.
    by_words = not any(SPACE in piece.text[1:] for piece in vocabulary if piece.kind in ("normal", "user"))
    prefix_first_only = model.prefix and not legacy
    if by_words or prefix_first_only:
        scheme = "first" if prefix_first_only else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, by_words)
    leading_spaces = MAX_LEADING_SPACES if model.collapse else 1 if model.prefix else 0
    tokenizer.decoder = decoders.Sequence(
        [
            *([decoders.Replace(PIECE_BOUNDARY, "")] if has_unused else []),
            decoders.Replace(SPACE, " "),
            *([decoders.ByteFallback()] if model.byte_fallback else []),
            decoders.Fuse(),
            *([decoders.Strip(" ", leading_spaces, 0)] if leading_spaces else []),
        ]
    )
    return tokenizer


def _normalizers(
    model: SentencePieceModel, vocabulary: Sequence[Piece], has_unused: bool, legacy: bool
) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if has_unused:
        steps.append(normalizers.Replace(PIECE_BOUNDARY, "\ufffe"))  # no character either: becomes an unknown token
    if model.collapse:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.prefix and legacy:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    if has_unused and model.algorithm == "unigram":
        steps += _unknown_run_marks(vocabulary)
    return steps


def _unknown_run_marks(vocabulary: Sequence[Piece]) -> list[normalizers.Normalizer]:
    """Returns normalisers that put marks around each run of characters that no other piece covers.

    Only an unused piece, which has the two marks, can match such a run, and only as a whole.
    """
    own = {piece.text for piece in vocabulary if piece.kind in ("normal", "user") and len(piece.text) == 1}
    characters = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(own))
    return [
        normalizers.Replace(Regex(f"(?<![^{characters}])(?=[^{characters}])"), PIECE_BOUNDARY),
        normalizers.Replace(Regex(f"(?<=[^{characters}])(?![^{characters}])"), PIECE_BOUNDARY),
    ]


def added_tokens(model: SentencePieceModel, vocabulary: Sequence[Piece]) -> list[AddedToken]:
    """Returns the pieces that are matched before segmentation: control pieces and, for BPE, user-defined ones."""
    kinds = ("control", "unknown") if model.algorithm == "unigram" else ("control", "unknown", "user")
    return [
        AddedToken(piece.text, special=piece.kind != "user", normalized=False)
        for piece in vocabulary
        if piece.kind in kinds  # unigram models match the user's symbols by their score
    ]


def _scores(vocabulary: Sequence[Piece]) -> list[float]:
    """Returns the scores of unigram pieces: a user-defined piece scores above every segmentation of its text."""
    return [
        {"normal": piece.score, "user": 1000.0 * len(piece.text.encode())}.get(piece.kind, 0.0) for piece in vocabulary
    ]


def _merges(vocabulary: Sequence[Piece]) -> list[tuple[str, str]]:
    """Returns every pair of pieces that makes a piece, best first. The file has scores; the library needs pairs."""
    ids = {piece.text: index for index, piece in enumerate(vocabulary) if piece.kind == "normal"}
    pairs = [
        (-vocabulary[index].score, index, ids[text[:split]], ids[text[split:]])
        for text, index in ids.items()
        for split in range(1, len(text))
        if text[:split] in ids and text[split:] in ids
    ]
    return [(vocabulary[left].text, vocabulary[right].text) for _, _, left, right in sorted(pairs)]
