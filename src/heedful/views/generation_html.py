"""The page (HTML) of generated text, step by step: attention of each token, and its likely alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.attention_data import AttentionMaps, clearest, starts
from heedful.views.page import MOST, asset, data, page, piece, scaled, size, stored
from heedful.views.text import direction, escaped, visible

MANY = 24  # weights of a row, of which the smallest are seen by nobody
Array = np.ndarray[Any, np.dtype[Any]]

LONG_TEXT = 2000  # pieces of a text that are drawn; of a longer one its beginning and its end
BEGINNING = 50  # pieces of such a beginning
STEPS = 4000  # generated pieces that are drawn
LINE = '<span class="line"></span>'
FEW = 3  # candidates of a step that are kept when a page grows too large
FEWEST = 6  # weights of a row, below which single heads are left out rather than more of their weights
QUICK = 4_000_000  # weights, up to which the clearest layer is looked for


@dataclass(frozen=True, kw_only=True)
class GenerationSteps:
    """A generated text of M tokens, with what the model weighed at each step.

    Args:
        prompt: the pieces before the first generated one (the prompt, or the source of an encoder–decoder).
        made: the M generated pieces, in order.
        chosen: the probability of each generated piece at its step.
        nearly: of each step the likeliest pieces with their probabilities, best first; the one that was chosen may
            not be among them (sampling, beams).
        maps: the weights of the query that chose each piece: ``queries`` are ``made``, ``keys`` are prompt and made
            pieces, or any other text that was looked at, such as the source. None where nothing was recorded.
        note: what was left out, in a sentence.

    Raises:
        HeedfulError: no generated piece, or lengths and probabilities that do not fit.
    """

    prompt: Sequence[str]
    made: Sequence[str]
    chosen: Sequence[float]
    nearly: Sequence[Sequence[tuple[str, float]]]
    maps: Sequence[AttentionMaps] = ()
    note: str = ""

    def __post_init__(self) -> None:
        count = len(self.made)
        if not count:
            raise HeedfulError("nothing to step through: no token was generated; allow more with max_new_tokens")
        for name, given in (("chosen", len(self.chosen)), ("nearly", len(self.nearly))):
            if given != count:
                raise HeedfulError(f"{name} has {given} steps, but {count} tokens were generated; give one each")
        values = [*self.chosen, *(p for step in self.nearly for _, p in step)]
        bad = [value for value in values if not 0 <= value <= 1.001]
        if bad:
            raise HeedfulError(f"the probability {bad[0]:g} is not in 0..1; give probabilities after the softmax")
        for maps in self.maps:
            if len(maps.queries) != count:
                raise HeedfulError(
                    f"the maps of {maps.name} have {len(maps.queries)} queries, but {count} tokens were generated;"
                    " give a query for each generated token"
                )


def steps_page(steps: GenerationSteps, *, title: str, most: int = MOST) -> str:
    """Returns a self-contained HTML page that steps through a generated text, to be opened from disk.

    A generated token that is clicked, or come to with the arrow keys or the play button, shows what it looked at when
    it was chosen (the text's tokens are shaded by their weights, in the chosen layer, by one head or the mean of
    heads), what every head looked at most, and what else was likely, with probabilities. A strip shows how probable
    each token was. ``page.html#step=3&layer=1&head=2`` opens at a step (steps from 0; layer and
    head by number; ``maps=1`` where there are several).

    Args:
        steps: what to show.
        title: the heading.
        most: bytes of data the page may hold. Above it only the largest weights of each row are kept, then only the
            mean of heads, then the first steps; the page says so, and what else it leaves out of long texts.

    >>> maps = AttentionMaps.of("self-attention", [" mat"], [" the", " mat"], [[[[1.0, 0.0]]]])
    >>> nearly = [[(" mat", 0.6), (" cat", 0.3)]]
    >>> steps = GenerationSteps(prompt=[" the"], made=[" mat"], chosen=[0.6], nearly=nearly, maps=[maps])
    >>> "what it nearly said" in steps_page(steps, title="A step")
    True
    """
    chips, read = texts(steps.prompt, steps.made, steps.maps)
    likely = _likely(steps, max(len(step) for step in steps.nearly))
    if size(data(likely)) > most // 3:
        likely = _likely(steps, FEW)
    room = (most - size("".join(chips)) - size(data(likely))) // max(1, len(steps.maps))
    looks, notes = [], []
    for maps, text in zip(steps.maps, read, strict=True):
        look, note = _look(maps, text, room)
        looks += [look] if look else []
        notes += [f"{visible(maps.name).capitalize()}: {note}" if note and len(steps.maps) > 1 else note, maps.note]
    notes = [note for note in (*notes, steps.note) if note]
    if likely["count"] < max(len(step) for step in steps.nearly):
        notes.insert(0, f"To keep this page small, only {FEW} candidates a token are kept.")
    if len(steps.made) > STEPS:
        notes.insert(0, f"Shown are the first {STEPS:,} of {len(steps.made):,} generated tokens.")
    facts = {**likely, "maps": looks}
    kind = "source" if apart(steps.prompt, steps.maps) else "prompt"
    after = f" after {len(steps.prompt):,} of the {kind}" if steps.prompt else ""
    shown = min(len(steps.made), STEPS)
    body = f"""<p class="quiet">{shown:,} {"token was" if shown == 1 else "tokens were"} generated{after}.
Click a token to see what the model looked at when it chose it<span class="where"></span>.</p>
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
<p class="told" role="status"></p>
<noscript><p>Weights and candidates are drawn by this page's own script, which your browser does not run.</p></noscript>
<section class="sure" aria-label="how probable each token was"><h2>how probable each token was</h2>
<canvas role="slider" tabindex="0" aria-label="step" aria-valuemin="1"></canvas></section>
<div class="cards">
<section><h2>what it nearly said</h2><ol class="bars nearly"></ol></section>
<section class="looked"><h2>what it looked at</h2><ol class="bars seen"></ol></section>
</div>
<section class="sheet"><h2>what every head looked at most, in %</h2><div class="scroll"><table></table></div></section>
<div class="tip" hidden></div>
<footer>
<p><kbd>←</kbd> <kbd>→</kbd> from token to token, <kbd>Home</kbd> <kbd>End</kbd> to the first and last, <kbd>Space</kbd>
plays, <kbd>l</kbd> next layer, <kbd>h</kbd> next head (with Shift the one before), <kbd>m</kbd> other maps. The address
keeps the view.</p>
<p>Weights are kept in 8 bits, within 0.2 % of the largest in their row; probabilities within 0.001 percentage points;
␣ is the space before a word. {escaped(" ".join(notes)) if notes else ""}</p>
</footer>
{data(facts)}"""
    style, script = (asset(f"parts.{kind}") + asset(f"steps.{kind}") for kind in ("css", "js"))
    return page(title, body, style, script)


def _likely(steps: GenerationSteps, most: int) -> dict[str, Any]:
    """The at most ``most`` candidates of each step: places in a pool of pieces, and probabilities in 16 bits."""
    nearly = [step[:most] for step in steps.nearly[:STEPS]]
    pool: dict[str, int] = {}
    places, shares = np.full((len(nearly), most), -1, np.int64), np.zeros((len(nearly), most))
    for row, step in enumerate(nearly):
        for rank, (name, share) in enumerate(step):
            places[row, rank], shares[row, rank] = pool.setdefault(name, len(pool)), min(share, 1.0)
    made = [pool.get(name, -1) for name in list(steps.made)[:STEPS]]
    places[places < 0] = len(pool)
    return {
        "made": made,
        "chosen": stored(np.rint(np.minimum(steps.chosen[:STEPS], 1) * 0xFFFF), "<u2"),
        "count": most,
        "pool": [piece(name) for name in pool],
        "nearly": stored(places, "<u4"),
        "shares": stored(np.rint(shares * 0xFFFF), "<u2"),
    }


def _look(maps: AttentionMaps, text: Text, room: int) -> tuple[dict[str, Any] | None, str]:
    """Returns the page's data of one map (None if its window lies beyond the texts), and a note on what is left out."""
    (top, bottom), (left, right) = maps.rows, maps.columns
    bottom, right = min(bottom, STEPS), min(right, text.count)
    if bottom <= top or right <= left:
        return None, "The weights belong to tokens beyond those that are shown, and are left out."
    ends = text.ends()
    chips = [i for i, (start, end) in enumerate(zip(text.firsts, ends, strict=True)) if start < right and end > left]
    weights = maps.weights[:, :, : bottom - top, : right - left]
    weights = grouped(weights, [max(text.firsts[i] - left, 0) for i in chips])
    layers, heads, steps, keys = shape = weights.shape
    chosen = cut(shape, room // 2)  # a small page, where that costs no head and few weights
    if chosen.most < MANY or not chosen.alone:
        chosen = cut(shape, room)
    facts = {
        "name": visible(maps.name),
        "text": text.place,
        "layers": [str(layer) for layer in maps.layers],
        "heads": [str(head) for head in maps.heads],
        "layer": clearest(np.asarray(weights, np.float64)) if weights.size <= QUICK else layers - 1,
        "first": top,
        "from": chips[0],
        "keys": keys,
        **kept_rows(weights, chosen),
    }
    note = chosen.note(heads, steps, keys)
    if (top, bottom) != (0, min(len(maps.queries), STEPS)):
        note += f" Only tokens {top:,} to {bottom - 1:,} have weights."
    if (left, right) != (0, min(len(maps.keys), text.count)):
        note += f" Of what was looked at, only tokens {left:,} to {right - 1:,} have weights."
    return facts, note.strip()


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text as it is drawn: ``firsts`` are the places where its chips begin, each up to the next."""

    place: int  # among the page's texts; 0 is the main one
    count: int  # of its pieces
    firsts: list[int]

    def ends(self) -> list[int]:
        """Returns the end of each chip."""
        return [*self.firsts[1:], self.count]


def texts(prompt: Sequence[str], made: Sequence[str], maps: Sequence[AttentionMaps]) -> tuple[list[str], list[Text]]:
    """Returns the texts as HTML, and of each map the text that its keys are.

    That is the main one (prompt and generated tokens) where the keys begin as it does, else one of their own.
    """
    main, count = (*prompt, *made[:STEPS]), len(prompt)
    drawn = {main: Text(place=0, count=len(main), firsts=[*_shortened(count), *range(count, len(main))])}
    html, found = [_html("the text", main, drawn[main], count, apart(prompt, maps))], []
    for one in maps:
        keys = tuple(one.keys)
        if keys[: len(main)] == main[: len(keys)]:
            keys = main
        if keys not in drawn:
            drawn[keys] = Text(place=len(drawn), count=len(keys), firsts=_shortened(len(keys)))
            html.insert(-1, _html(f"looked at by {one.name}", keys, drawn[keys], len(keys)))
        found.append(drawn[keys])
    return html, found


def apart(prompt: Sequence[str], maps: Sequence[AttentionMaps]) -> bool:
    """Returns whether the prompt is a source text, not the beginning of the generated text."""
    return any(len(one.keys) == len(prompt) for one in maps)


def _shortened(count: int) -> list[int]:
    """Returns the first piece of each chip: a chip per piece, but one for the whole middle of a long text."""
    if count <= LONG_TEXT:
        return list(range(count))
    return [*range(BEGINNING + 1), *range(count - LONG_TEXT + BEGINNING + 1, count)]


def _html(name: str, pieces: Sequence[str], text: Text, prompt: int, apart: bool = False) -> str:
    """Returns a text as chips; those from ``prompt`` on are the steps, and buttons. Pieces of a word stand together.

    ``apart`` puts the steps on a line of their own.
    """
    shown = [pieces[start] if end - start == 1 else " …" for start, end in zip(text.firsts, text.ends(), strict=True)]
    lines = ["\n" in words for words in shown]
    first = [*(a or b for a, b in zip(starts(shown), [False, *lines[:-1]], strict=True)), True]
    parts = []
    for i, (start, end) in enumerate(zip(text.firsts, text.ends(), strict=True)):
        kinds = "word" + ("" if first[i] else " inside") + ("" if first[i + 1] else " open")
        tag = "button" if start >= prompt else "span"
        kinds = f'type="button" class="{kinds} made"' if start >= prompt else f'class="{kinds}"'
        words = escaped(_short(shown[i])) if end - start == 1 else f"… {end - start:,} tokens …"
        parts.append(LINE if apart and start == prompt else "")
        parts.append(f"<{tag} {kinds}><bdi>{words}</bdi><i></i></{tag}>")
        parts.append(LINE if lines[i] else "")
    way = direction(list(shown))
    drawn = f'<div class="text" data-text="{text.place}" dir="{way}">{"".join(parts)}</div>'
    return f'<section class="aside" hidden><h2>{escaped(name)}</h2>{drawn}</section>' if text.place else drawn


def _short(text: str) -> str:
    return piece(text.strip(" ")) if text.strip(" ") else text


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Reduction of (L, H, t, s) weights to fit a page, beside the mean of heads."""

    alone: bool  # single heads, not only their mean
    most: int  # weights of a row; s keeps them all
    steps: int  # queries, from the first

    def note(self, heads: int, steps: int, keys: int) -> str:
        """Describes in sentences what is left out."""
        notes = []
        if self.most < keys:
            notes.append(f"Of each row the {self.most} largest weights are kept; “all others” is the sum of the rest.")
        if not self.alone and heads > 1:
            notes.append(f"Of {heads} heads only the mean is kept.")
        if self.steps < steps:
            notes.append(f"Only the first {self.steps:,} of {steps:,} tokens have weights.")
        return " ".join(notes)


def cut(shape: tuple[int, int, int, int], room: int) -> Cut:
    """Returns the cut of weights of this shape that gives up least and stays within ``room`` bytes of a page.

    >>> cut((12, 12, 500, 510), 4_000_000)
    Cut(alone=True, most=11, steps=500)
    """
    layers, heads, steps, keys = shape
    for alone in (True, False) if heads > 1 else (False,):
        rows = layers * (heads + 1 if alone else 1)
        bytes_of_a_row = 3 * room / 4 / (rows * steps) - 4
        if bytes_of_a_row >= keys:
            return Cut(alone=alone, most=keys, steps=steps)
        most = int(bytes_of_a_row // 3)
        if most >= min(FEWEST, keys):
            return Cut(alone=alone, most=min(most, keys), steps=steps)
    most = min(FEWEST, keys)
    return Cut(alone=False, most=most, steps=max(1, min(steps, int(3 * room / 4 / (layers * (3 * most + 4))))))


def grouped(weights: Array, starts: Sequence[int]) -> Array:
    """(..., s) summed over groups of keys, each from one of ``starts`` to the next; the last to the end.

    >>> grouped(np.array([[0.1, 0.2, 0.3, 0.4]]), [0, 1, 3])
    array([[0.1, 0.5, 0.4]])
    """
    if len(starts) == weights.shape[-1]:
        return weights
    sums: Array = np.add.reduceat(weights, starts, axis=-1)
    return sums


def kept_rows(weights: Array, chosen: Cut) -> dict[str, Any]:
    """The rows that the page holds: (L, H + 1, t, s), the last "head" the mean; or (L, 1, t, s), the mean alone.

    Weights are as ``scaled``. Where not all of a row are kept, ``places`` says which keys they belong to.
    """
    rows = weights[:, :, : chosen.steps].mean(axis=1, keepdims=True)
    if chosen.alone:
        rows = np.concatenate([weights[:, :, : chosen.steps], rows], axis=1)
    places = None
    if chosen.most < rows.shape[-1]:
        places = np.argpartition(rows, -chosen.most, axis=-1)[..., -chosen.most :]
        rows = np.take_along_axis(rows, places, axis=-1)
    return {
        "steps": chosen.steps,
        "alone": chosen.alone,
        "most": chosen.most,
        **scaled(rows),
        "places": None if places is None else stored(places, "<u2"),
    }
