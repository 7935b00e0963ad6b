"""Checks against ``transformers``: outputs, greedy text and token ids."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.config import EncoderDecoderConfig
from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.verify import inputs, reference
from heedful.verify.check_report import Comparison, Skipped
from heedful.verify.verified_folder import VerifiedFolder

LOGITS_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative to the largest value
EVEN, RAGGED = (1.0, 1.0, 1.0), (1.0, 0.6, 0.3, 0.1)  # lengths of rows, as shares of the longest


def logits(verified: VerifiedFolder, dtype: torch.dtype) -> Comparison:
    """Compares the outputs of heedful and ``transformers`` in a dtype, on each side of padding that both support."""
    reference.need_published_layout(verified)
    config = verified.config
    pad = config.special.pad if hasattr(config, "special") else None
    with reference.quiet_transformers() as transformers:
        ours, other = verified.model(dtype), reference.reference_model(transformers, verified, dtype)
        sides, left_out = reference.comparable_sides(other, config)
        worst = 0.0
        for side in sides:
            call = inputs.batch_of(inputs.random_rows(config, EVEN if side == "none" else RAGGED), side, pad)
            actual, expected = inputs.model_output(ours, call), reference.output(other, call, config)
            worst = max(
                worst,
                inputs.largest_distance(
                    inputs.rows_without_padding(actual, call, config),
                    inputs.rows_without_padding(expected, call, config),
                ),
            )
    return Comparison(difference=worst, tolerance=LOGITS_TOLERANCE[dtype], reason=left_out)


def logits_of_saved(verified: VerifiedFolder) -> Comparison:
    """Compares the outputs of ``transformers`` for the folder and for the folder saved again."""
    reference.need_published_layout(verified)
    config = verified.config
    call: inputs.ModelCall = inputs.batch_of(inputs.random_rows(config, EVEN), "none", None)
    with reference.quiet_transformers() as transformers:
        other = reference.reference_model(transformers, verified, torch.float32)
        reloaded = reference.load_reference(transformers, verified.saved, torch.float32)
        expected, actual = (reference.output(model, call, config) for model in (other, reloaded))
    return Comparison(difference=inputs.largest_distance(list(actual), list(expected)), tolerance=0.0)


def greedy_text(verified: VerifiedFolder) -> Comparison:
    """Counts the generated tokens that differ between heedful and ``transformers``, over a few prompts."""
    inputs.need_language_head(verified)
    reference.need_published_layout(verified)
    rows, count = inputs.prompts(verified), inputs.new_tokens(verified)
    reason = ""
    with reference.quiet_transformers() as transformers:
        for dtype in (torch.float32, torch.float64):
            ours, other = verified.model(dtype), reference.reference_model(transformers, verified, dtype)
            other.generation_config.stop_strings = None
            pairs = []
            for row in rows:
                ids = row[None] if row.dim() == 1 else row[None].to(dtype)  # ids, or an image
                mask = {"attention_mask": torch.ones_like(ids)} if row.dim() == 1 else {}
                generated = other.generate(ids, **mask, do_sample=False, num_beams=1, max_new_tokens=count)
                pairs.append((inputs.greedy_ids(ours, ids, None, count)[0].tolist(), generated[0].tolist()))
            differing = sum(_differing(*pair) for pair in pairs)
            if not differing:
                break
            first = next(number for number, pair in enumerate(pairs) if _differing(*pair))
            reason = _first_difference(verified, rows[first], *pairs[first], str(dtype).removeprefix("torch."))
    if reason and not differing:
        reason += ": a tie, equal in float64"
    return Comparison(difference=float(differing), tolerance=0.0, reason=reason)


def _differing(ours: list[int], other: list[int]) -> int:
    return sum(a != b for a, b in zip(ours, other, strict=False)) + abs(len(ours) - len(other))


def _first_difference(verified: VerifiedFolder, row: Tensor, ours: list[int], other: list[int], dtype: str) -> str:
    """Describes the first difference of two texts, and the gap between the logits of the two tokens."""
    pairs = list(zip(ours, other, strict=False))
    position = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return f"in {dtype} one program's text ends after {len(pairs)} tokens, the other's does not"
    before = torch.tensor([ours[:position]])
    call = (
        inputs.ModelCall(row[None], target=before)
        if isinstance(verified.config, EncoderDecoderConfig)
        else inputs.ModelCall(before)
    )
    scores = inputs.model_output(verified.model(torch.float32), call)[0, -1]
    a, b = pairs[position]
    gap = float((scores[a] - scores[b]).abs() / scores.abs().max())
    return (
        f"in {dtype} token {position} is {a} in heedful and {b} in transformers; their logits differ by {gap:.1g} of "
        "the largest"
    )


DIFFICULT_TEXTS = (
    "Hello, world!",
    "I don't think it's over — we'll see…",
    "  two  spaces   and a tab\t, then\na new line\n\n",
    "naïve café, Zürich, Straße",
    "cafe\u0301 with a combining accent",
    "ＡＢＣ １２３ ﬁne",
    "1234567890 3.14159 1,000,000 2026-11-22",
    "東京は日本の首都です。 안녕하세요",
    "مرحبا بالعالم — שלום",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽",
    "zero\u200bwidth\u00a0and no-break",
    "internationalisation" * 4,
    "e-mail: a.b+c@example.org, https://example.org/?q=1&r=%20",
    "MiXeD CaSe and ALLCAPS",
)


def token_ids(verified: VerifiedFolder) -> Comparison:
    """Counts the texts whose token ids differ from those of ``transformers``.

    These are single texts without special tokens, and one text and one pair with special tokens.
    """
    if not Tokenizer.has_files(verified.path):
        raise Skipped("the folder has no tokenizer")
    try:
        ours = Tokenizer.load(verified.path)
    except HeedfulError as error:
        raise Skipped(f"the tokenizer cannot be loaded: {error}") from None
    texts = [*DIFFICULT_TEXTS, *verified.texts]
    with reference.quiet_transformers() as transformers:
        try:
            other = transformers.AutoTokenizer.from_pretrained(verified.path)
        except Exception as error:  # of a class that takes other files, or none
            raise HeedfulError(
                f"AutoTokenizer does not load the folder's tokenizer ({type(error).__name__}: {error}); for "
                "tokenizer.json as it is, set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
            ) from None
        differing = []
        for text, ids in zip(texts, ours.encode(texts), strict=True):
            if ids != other(text, add_special_tokens=False)["input_ids"]:
                differing.append(text)
        for pair in (texts[:1], texts[:2]):
            ids = ours.template(pair=len(pair) > 1).join(*ours.encode(pair))[0]
            if ids != other(*pair)["input_ids"]:
                differing.append(" + ".join(pair))
    reason = f"{differing[0]!r} has different ids" if differing else ""
    return Comparison(difference=float(len(differing)), tolerance=0.0, reason=reason)
