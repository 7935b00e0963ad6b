"""HTML page of generated text, step by step: attention of each token, and its likely alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.attention_data import AttentionMaps, most_informative_layer, word_starts
from heedful.views.page import MAX_PAGE_BYTES, asset, base64_numbers, data, page, piece, scaled, size
from heedful.views.text import direction, escaped, visible

VISIBLE_WEIGHTS = 24  # largest weights of a row; smaller ones cannot be seen
Array = np.ndarray[Any, np.dtype[Any]]

LONG_TEXT = 2000  # pieces of a text that are drawn; a longer text is drawn without its middle
PIECES_BEFORE_GAP = 50  # pieces before the omitted middle
MAX_STEPS = 4000  # generated pieces that are drawn
LINE_BREAK = '<span class="line"></span>'
REDUCED_CANDIDATES = 3  # candidates of a step in a page that is too large
MIN_WEIGHTS_PER_ROW = 6  # weights of a row below which single heads are left out instead of more weights
MAX_WEIGHTS_TO_RANK_LAYERS = 4_000_000  # largest number of weights for which ``most_informative_layer`` is computed


@dataclass(frozen=True, kw_only=True)
class GenerationSteps:
    """A generated text of M tokens, with attention and candidates of each step.

    Args:
        prompt: the pieces before the first generated piece (the prompt, or the source of an encoder-decoder).
        generated: the M generated pieces, in order.
        chosen: the probability of each generated piece at its step.
        candidates: the likeliest pieces of each step with their probabilities, best first; the generated piece may not
            be among them (sampling, beams).
        maps: the weights of the query that chose each piece: ``queries`` are ``generated``, ``keys`` are prompt and
            generated pieces, or another text, such as the source. Empty if nothing was recorded.
        note: a sentence for the page, such as what was left out.

    Raises:
        HeedfulError: no generated piece, or lengths and probabilities that do not fit.
    """

    prompt: Sequence[str]
    generated: Sequence[str]
    chosen: Sequence[float]
    candidates: Sequence[Sequence[tuple[str, float]]]
    maps: Sequence[AttentionMaps] = ()
    note: str = ""

    def __post_init__(self) -> None:
        count = len(self.generated)
        if not count:
            raise HeedfulError("no token was generated, so there are no steps to show; give a larger max_new_tokens")
        for name, steps in (("chosen", len(self.chosen)), ("candidates", len(self.candidates))):
            if steps != count:
                raise HeedfulError(
                    f"{name} has {steps} steps, but {count} tokens were generated; give one step per token"
                )
        values = [*self.chosen, *(p for step in self.candidates for _, p in step)]
        outside = [value for value in values if not 0 <= value <= 1.001]
        if outside:
            raise HeedfulError(f"the probability {outside[0]:g} is not in 0..1; give probabilities after the softmax")
        for maps in self.maps:
            if len(maps.queries) != count:
                raise HeedfulError(
                    f"the maps of {maps.name} have {len(maps.queries)} queries, but {count} tokens were generated;"
                    " give a query for each generated token"
                )


def steps_page(steps: GenerationSteps, *, title: str, max_bytes: int = MAX_PAGE_BYTES) -> str:
    """Returns a self-contained HTML page that steps through a generated text.

    Choose a generated token by a click, with the arrow keys or the play button. The page shows the attention with which
    it was chosen (the text's tokens are shaded by their weights, in the chosen layer, by one head or the mean of
    heads), the strongest key of every head, and the likeliest candidates with probabilities. A strip shows the
    probability of each token. ``page.html#step=3&layer=1&head=2`` opens at a step (steps from 0; layer and head by
    number; ``maps=1`` for the second of several maps).

    Args:
        steps: the text with its steps.
        title: the heading.
        max_bytes: maximum bytes of data. If more are needed, the page has only the largest weights of each row, then
            only the mean of heads, then only the first steps. The page says what is left out.

    >>> maps = AttentionMaps.of("self-attention", [" mat"], [" the", " mat"], [[[[1.0, 0.0]]]])
    >>> candidates = [[(" mat", 0.6), (" cat", 0.3)]]
    >>> steps = GenerationSteps(prompt=[" the"], generated=[" mat"], chosen=[0.6], candidates=candidates, maps=[maps])
    >>> "likely alternatives" in steps_page(steps, title="A step")
    True
    """
    chips, key_texts = texts(steps.prompt, steps.generated, steps.maps)
    most_candidates = max(len(step) for step in steps.candidates)
    facts = _candidates(steps, most_candidates)
    if size(data(facts)) > max_bytes // 3:
        facts = _candidates(steps, REDUCED_CANDIDATES)
    byte_budget = (max_bytes - size("".join(chips)) - size(data(facts))) // max(1, len(steps.maps))
    shown_maps, notes = [], []
    for maps, text in zip(steps.maps, key_texts, strict=True):
        shown_map, note = _map_facts(maps, text, byte_budget)
        shown_maps += [shown_map] if shown_map else []
        notes += [f"{visible(maps.name).capitalize()}: {note}" if note and len(steps.maps) > 1 else note, maps.note]
    notes = [note for note in (*notes, steps.note) if note]
    if facts["count"] < most_candidates:
        notes.insert(0, f"To keep this page small, only {REDUCED_CANDIDATES} candidates per token are kept.")
    if len(steps.generated) > MAX_STEPS:
        notes.insert(0, f"Shown are the first {MAX_STEPS:,} of {len(steps.generated):,} generated tokens.")
    body = _body(steps, chips, " ".join(notes)) + data({**facts, "maps": shown_maps})
    style, script = (asset(f"parts.{kind}") + asset(f"steps.{kind}") for kind in ("css", "js"))
    return page(title, body, style, script)


def _body(steps: GenerationSteps, chips: Sequence[str], notes: str) -> str:
    kind = "source" if apart(steps.prompt, steps.maps) else "prompt"
    prompt_phrase = f" after {len(steps.prompt):,} of the {kind}" if steps.prompt else ""
    shown = min(len(steps.generated), MAX_STEPS)
    return f"""<p class="quiet">{shown:,} {"token was" if shown == 1 else "tokens were"} generated{prompt_phrase}.
Click a token to see what the model attended to when it chose it<span class="where"></span>.</p>
<div class="tools">
<span class="knobs"><button type="button" data-go="first" aria-label="first token">⇤</button>
<button type="button" data-go="back" aria-label="one token back">◂</button>
<button type="button" class="play">▶ play</button>
<button type="button" data-go="on" aria-label="one token on">▸</button>
<button type="button" data-go="last" aria-label="last token">⇥</button></span>
<label class="which">maps <select class="maps"></select></label>
<label>layer <select class="layer"></select></label><label>head <select class="head"></select></label>
</div>
{"".join(chips)}
<p class="status" role="status"></p>
<noscript><p>Weights and candidates are drawn by this page's own script, which your browser does not run.</p></noscript>
<section class="sure" aria-label="how probable each token was"><h2>how probable each token was</h2>
<canvas role="slider" tabindex="0" aria-label="step" aria-valuemin="1"></canvas></section>
<div class="cards">
<section><h2>likely alternatives</h2><ol class="bars nearly"></ol></section>
<section class="looked"><h2>what it attended to</h2><ol class="bars seen"></ol></section>
</div>
<section class="sheet"><h2>strongest token of every head, in %</h2><div class="scroll"><table></table></div></section>
<div class="tip" hidden></div>
<footer>
<p><kbd>←</kbd> <kbd>→</kbd> from token to token, <kbd>Home</kbd> <kbd>End</kbd> to the first and last, <kbd>Space</kbd>
plays, <kbd>l</kbd> next layer, <kbd>h</kbd> next head (with Shift the one before), <kbd>m</kbd> other maps. The address
keeps the view.</p>
<p>Weights are kept in 8 bits, within 0.2 % of the largest in their row; probabilities within 0.001 percentage points;
␣ is the space before a word. {escaped(notes)}</p>
</footer>
"""


def _candidates(steps: GenerationSteps, per_step: int) -> dict[str, Any]:
    """Returns the page's data of ``per_step`` candidates per step: indices into a pool of pieces, probabilities."""
    candidates = [step[:per_step] for step in steps.candidates[:MAX_STEPS]]
    pool: dict[str, int] = {}
    indices, probabilities = np.full((len(candidates), per_step), -1, np.int64), np.zeros((len(candidates), per_step))
    for row, step in enumerate(candidates):
        for rank, (name, probability) in enumerate(step):
            indices[row, rank], probabilities[row, rank] = pool.setdefault(name, len(pool)), min(probability, 1.0)
    generated = [pool.get(name, -1) for name in list(steps.generated)[:MAX_STEPS]]
    indices[indices < 0] = len(pool)
    return {
        "generated": generated,
        "probabilities": base64_numbers(np.rint(np.minimum(steps.chosen[:MAX_STEPS], 1) * 0xFFFF), "<u2"),
        "count": per_step,
        "pool": [piece(name) for name in pool],
        "candidates": base64_numbers(indices, "<u4"),
        "shares": base64_numbers(np.rint(probabilities * 0xFFFF), "<u2"),
    }


def _map_facts(maps: AttentionMaps, text: Text, byte_budget: int) -> tuple[dict[str, Any] | None, str]:
    """Returns the page's data of one map (None if its window is outside the shown text), and a note on omissions."""
    (top, bottom), (left, right) = maps.rows, maps.columns
    bottom, right = min(bottom, MAX_STEPS), min(right, text.count)
    if bottom <= top or right <= left:
        return None, "The weights are of tokens that are not shown, and are left out."
    ends = text.ends()
    chips = [
        i for i, (start, end) in enumerate(zip(text.chip_starts, ends, strict=True)) if start < right and end > left
    ]
    weights = maps.weights[:, :, : bottom - top, : right - left]
    weights = sum_key_groups(weights, [max(text.chip_starts[i] - left, 0) for i in chips])
    layers, heads, steps, keys = shape = weights.shape
    chosen = fitting_reduction(shape, byte_budget // 2)  # a smaller page, if that costs no head and few weights
    if chosen.weights_per_row < VISIBLE_WEIGHTS or not chosen.keeps_heads:
        chosen = fitting_reduction(shape, byte_budget)
    facts = {
        "name": visible(maps.name),
        "text": text.index,
        "layers": [str(layer) for layer in maps.layers],
        "heads": [str(head) for head in maps.heads],
        "layer": (
            most_informative_layer(np.asarray(weights, np.float64))
            if weights.size <= MAX_WEIGHTS_TO_RANK_LAYERS
            else layers - 1
        ),
        "first": top,
        "from": chips[0],
        "keys": keys,
        "reach": sum(start < len(maps.keys) for start in text.chip_starts),
        **kept_rows(weights, chosen),
    }
    note = chosen.note(heads, steps, keys)
    if (top, bottom) != (0, min(len(maps.queries), MAX_STEPS)):
        note += f" Only tokens {top:,} to {bottom - 1:,} have weights."
    if (left, right) != (0, min(len(maps.keys), text.count)):
        note += f" Of the keys, only tokens {left:,} to {right - 1:,} have weights."
    return facts, note.strip()


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text that a page shows as chips (boxes): one for each piece, and one for an omitted middle."""

    index: int  # index among the page's texts; 0 is the main one
    count: int  # number of pieces
    chip_starts: list[int]  # first piece of each chip

    def ends(self) -> list[int]:
        """Returns the index after the last piece of each chip."""
        return [*self.chip_starts[1:], self.count]


def texts(
    prompt: Sequence[str], generated: Sequence[str], maps: Sequence[AttentionMaps]
) -> tuple[list[str], list[Text]]:
    """Returns the HTML of each text on the page, and for each map the text that shows its keys.

    The keys are shown by the main text (prompt and generated tokens) if they begin with the same pieces, else by a text
    of their own.
    """
    main, count = (*prompt, *generated[:MAX_STEPS]), len(prompt)
    text_of_pieces = {main: Text(index=0, count=len(main), chip_starts=[*_shortened(count), *range(count, len(main))])}
    html, key_texts = [_html("the text", main, text_of_pieces[main], count, apart(prompt, maps))], []
    for attention in maps:
        keys = tuple(attention.keys)
        if keys[: len(main)] == main[: len(keys)]:
            keys = main
        if keys not in text_of_pieces:
            text_of_pieces[keys] = Text(index=len(text_of_pieces), count=len(keys), chip_starts=_shortened(len(keys)))
            html.insert(-1, _html(f"keys of {attention.name}", keys, text_of_pieces[keys], len(keys)))
        key_texts.append(text_of_pieces[keys])
    return html, key_texts


def apart(prompt: Sequence[str], maps: Sequence[AttentionMaps]) -> bool:
    """Returns True if the prompt is a source text, not the beginning of the generated text."""
    return any(len(attention.keys) == len(prompt) for attention in maps)


def _shortened(count: int) -> list[int]:
    """Returns the first piece of each chip: one chip for each piece, and one for the omitted middle of a long text."""
    if count <= LONG_TEXT:
        return list(range(count))
    return [*range(PIECES_BEFORE_GAP + 1), *range(count - LONG_TEXT + PIECES_BEFORE_GAP + 1, count)]


def _html(name: str, pieces: Sequence[str], text: Text, prompt: int, apart: bool = False) -> str:
    """Returns a text as chips; pieces from ``prompt`` on are the steps, as buttons. Pieces of a word are joined.

    ``apart`` starts the steps on a new line.
    """
    shown = [
        pieces[start] if end - start == 1 else " …" for start, end in zip(text.chip_starts, text.ends(), strict=True)
    ]
    lines = ["\n" in words for words in shown]
    first = [*(a or b for a, b in zip(word_starts(shown), [False, *lines[:-1]], strict=True)), True]
    parts = []
    for i, (start, end) in enumerate(zip(text.chip_starts, text.ends(), strict=True)):
        kinds = "word" + ("" if first[i] else " inside") + ("" if first[i + 1] else " open")
        tag = "button" if start >= prompt else "span"
        kinds = f'type="button" class="{kinds} made"' if start >= prompt else f'class="{kinds}"'
        words = escaped(_short(shown[i])) if end - start == 1 else f"… {end - start:,} tokens …"
        parts.append(LINE_BREAK if apart and start == prompt else "")
        parts.append(f"<{tag} {kinds}><bdi>{words}</bdi><i></i></{tag}>")
        parts.append(LINE_BREAK if lines[i] else "")
    way = direction(list(shown))
    drawn = f'<div class="text" data-text="{text.index}" dir="{way}">{"".join(parts)}</div>'
    return f'<section class="aside" hidden><h2>{escaped(name)}</h2>{drawn}</section>' if text.index else drawn


def _short(text: str) -> str:
    return piece(text.strip(" ")) if text.strip(" ") else text


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """Reduction of attention weights (L, H, t, s) that lets them fit a page. The mean of heads is always kept."""

    keeps_heads: bool  # keep the weights of single heads too
    weights_per_row: int  # number of weights to keep of a row
    steps: int  # queries to keep, from the first

    def note(self, heads: int, steps: int, keys: int) -> str:
        """Returns sentences that say what is left out; "" if nothing is."""
        notes = []
        if self.weights_per_row < keys:
            notes.append(
                f"Of each row the {self.weights_per_row} largest weights are kept; “all others” is the sum of the rest."
            )
        if not self.keeps_heads and heads > 1:
            notes.append(f"Of {heads} heads only the mean is kept.")
        if self.steps < steps:
            notes.append(f"Only the first {self.steps:,} of {steps:,} tokens have weights.")
        return " ".join(notes)


def fitting_reduction(shape: tuple[int, int, int, int], byte_budget: int) -> Reduction:
    """Returns the smallest reduction of weights of this shape that fits ``byte_budget`` bytes of a page.

    >>> fitting_reduction((12, 12, 500, 510), 4_000_000)
    Reduction(keeps_heads=True, weights_per_row=11, steps=500)
    """
    layers, heads, steps, keys = shape
    for keeps_heads in (True, False) if heads > 1 else (False,):
        rows = layers * (heads + 1 if keeps_heads else 1)
        bytes_of_a_row = 3 * byte_budget / 4 / (rows * steps) - 4
        if bytes_of_a_row >= keys:
            return Reduction(keeps_heads=keeps_heads, weights_per_row=keys, steps=steps)
        weights_per_row = int(bytes_of_a_row // 3)
        if weights_per_row >= min(MIN_WEIGHTS_PER_ROW, keys):
            return Reduction(keeps_heads=keeps_heads, weights_per_row=min(weights_per_row, keys), steps=steps)
    weights_per_row = min(MIN_WEIGHTS_PER_ROW, keys)
    return Reduction(
        keeps_heads=False,
        weights_per_row=weights_per_row,
        steps=max(1, min(steps, int(3 * byte_budget / 4 / (layers * (3 * weights_per_row + 4))))),
    )


def sum_key_groups(weights: Array, starts: Sequence[int]) -> Array:
    """Returns weights (..., s) summed over groups of keys.

    A group begins at one of ``starts`` and ends before the next; the last ends at s.

    >>> sum_key_groups(np.array([[0.1, 0.2, 0.3, 0.4]]), [0, 1, 3])
    array([[0.1, 0.5, 0.4]])
    """
    if len(starts) == weights.shape[-1]:
        return weights
    sums: Array = np.add.reduceat(weights, starts, axis=-1)
    return sums


def kept_rows(weights: Array, chosen: Reduction) -> dict[str, Any]:
    """Returns the weights that a page stores, reduced as ``chosen`` says: (L, H + 1, t, s), or (L, 1, t, s).

    The last "head" is the mean of heads, or the only one. Weights are coded by ``views.page.scaled``. If only some
    weights of a row are stored, ``places`` are their keys.
    """
    rows = weights[:, :, : chosen.steps].mean(axis=1, keepdims=True)
    if chosen.keeps_heads:
        rows = np.concatenate([weights[:, :, : chosen.steps], rows], axis=1)
    places = None
    if chosen.weights_per_row < rows.shape[-1]:
        places = np.argpartition(rows, -chosen.weights_per_row, axis=-1)[..., -chosen.weights_per_row :]
        rows = np.take_along_axis(rows, places, axis=-1)
    return {
        "steps": chosen.steps,
        "alone": chosen.keeps_heads,
        "most": chosen.weights_per_row,
        **scaled(rows),
        "places": None if places is None else base64_numbers(places, "<u2"),
    }
