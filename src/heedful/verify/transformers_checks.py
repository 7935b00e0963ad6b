"""Checks against ``transformers``: outputs, greedy text and token ids."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.config import EncoderDecoderConfig
from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.verify import reference
from heedful.verify.check_report import Outcome, Skipped
from heedful.verify.inputs import (
    ModelCall,
    distance,
    draw,
    greedy_ids,
    need_language_head,
    new_tokens,
    output,
    pack,
    prompts,
    real_rows,
)
from heedful.verify.verified_folder import VerifiedFolder

LOGITS_ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-5}  # of the largest value
EVEN, RAGGED = (1.0, 1.0, 1.0), (1.0, 0.6, 0.3, 0.1)  # lengths of rows, of the longest


def logits(verified: VerifiedFolder, dtype: torch.dtype) -> Outcome:
    """Returns the largest difference in a type, over all the paddings that both can take."""
    reference.need_their_layout(verified)
    config = verified.config
    pad = config.special.pad if hasattr(config, "special") else None
    with reference.quiet() as transformers:
        ours, other = verified.model(dtype), reference.reference_model(transformers, verified, dtype)
        sides, left_out = reference.sides(other, config)
        worst = 0.0
        for side in sides:
            call = pack(draw(config, EVEN if side == "none" else RAGGED), side, pad)
            found, wanted = output(ours, call), reference.output(other, call, config)
            worst = max(worst, distance(real_rows(found, call, config), real_rows(wanted, call, config)))
    return Outcome(difference=worst, allowed=LOGITS_ALLOWED[dtype], reason=left_out)


def logits_of_saved(verified: VerifiedFolder) -> Outcome:
    """Compares the outputs of ``transformers`` for the folder and for the folder saved again."""
    reference.need_their_layout(verified)
    config = verified.config
    call: ModelCall = pack(draw(config, EVEN), "none", None)
    with reference.quiet() as transformers:
        other = reference.reference_model(transformers, verified, torch.float32)
        again = reference.opened(transformers, verified.saved, torch.float32)
        wanted, found = (reference.output(model, call, config) for model in (other, again))
    return Outcome(difference=distance(list(found), list(wanted)), allowed=0.0)


def greedy_text(verified: VerifiedFolder) -> Outcome:
    """Counts generated tokens that differ, over a few prompts, each alone."""
    need_language_head(verified)
    reference.need_their_layout(verified)
    rows, count = prompts(verified), new_tokens(verified)
    reason = ""
    with reference.quiet() as transformers:
        for dtype in (torch.float32, torch.float64):
            ours, other = verified.model(dtype), reference.reference_model(transformers, verified, dtype)
            other.generation_config.stop_strings = None
            pairs = []
            for row in rows:
                ids = row[None]
                made = other.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=count
                )
                pairs.append((greedy_ids(ours, ids, None, count)[0].tolist(), made[0].tolist()))
            apart = sum(_apart(*pair) for pair in pairs)
            if not apart:
                break
            first = next(number for number, pair in enumerate(pairs) if _apart(*pair))
            reason = _parting(verified, rows[first], *pairs[first], str(dtype).removeprefix("torch."))
    told = reason and (reason if apart else f"{reason}: a tie, equal in float64")
    return Outcome(difference=float(apart), allowed=0.0, reason=told)


def _apart(ours: list[int], other: list[int]) -> int:
    return sum(a != b for a, b in zip(ours, other, strict=False)) + abs(len(ours) - len(other))


def _parting(verified: VerifiedFolder, row: Tensor, ours: list[int], other: list[int], dtype: str) -> str:
    """Describes the first different token of two texts, and the gap between its two logits."""
    pairs = list(zip(ours, other, strict=False))
    place = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return f"in {dtype} one text ends after {len(pairs)} tokens, the other does not"
    before = torch.tensor([ours[:place]])
    call = (
        ModelCall(row[None], target=before) if isinstance(verified.config, EncoderDecoderConfig) else ModelCall(before)
    )
    scores = output(verified.model(torch.float32), call)[0, -1]
    a, b = pairs[place]
    gap = float((scores[a] - scores[b]).abs() / scores.abs().max())
    return f"in {dtype} token {place} is {a} here and {b} there, {gap:.1g} of the largest logit apart"


ODD = (
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


def token_ids(verified: VerifiedFolder) -> Outcome:
    """Counts texts with other ids: plain, one with its special tokens, and a pair with them."""
    if not Tokenizer.lies_in(verified.path):
        raise Skipped("the folder has no tokenizer")
    try:
        ours = Tokenizer.load(verified.path)
    except HeedfulError as error:
        raise Skipped(f"the tokenizer does not open here: {error}") from None
    texts = [*ODD, *verified.texts]
    with reference.quiet() as transformers:
        other = transformers.AutoTokenizer.from_pretrained(verified.path)
        wrong = []
        for text, found in zip(texts, ours.encode(texts), strict=True):
            wanted = other(text, add_special_tokens=False)["input_ids"]
            if found != wanted:
                wrong.append(text)
        for pair in (texts[:1], texts[:2]):
            made = ours.around(pair=len(pair) > 1).join(*ours.encode(pair))[0]
            if made != other(*pair)["input_ids"]:
                wrong.append(" + ".join(pair))
    reason = f"{wrong[0]!r} gets other ids" if wrong else ""
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=reason)
