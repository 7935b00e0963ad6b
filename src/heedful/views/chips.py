"""A generated text, and what it looked at, as chips: a piece each, and one for the middle of a long text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heedful.views.map_data import Maps
from heedful.views.parts import piece
from heedful.views.text import direction, escaped
from heedful.views.weights import starts

LONG = 2000  # pieces of a text that are drawn; of a longer one its beginning and its end
HEAD = 50  # pieces of such a beginning
STEPS = 4000  # generated pieces that are drawn
LINE = '<span class="line"></span>'


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text as it is drawn: ``firsts`` are the places where its chips begin, each up to the next."""

    place: int  # among the page's texts; 0 is the main one
    count: int  # of its pieces
    firsts: list[int]

    def ends(self) -> list[int]:
        """Where its chips end."""
        return [*self.firsts[1:], self.count]


def texts(prompt: Sequence[str], made: Sequence[str], maps: Sequence[Maps]) -> tuple[list[str], list[Text]]:
    """The texts as HTML, and of each map the text that its keys are.

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


def apart(prompt: Sequence[str], maps: Sequence[Maps]) -> bool:
    """Whether the prompt is a source, and not a text that is gone on with: then it is all there is to look at."""
    return any(len(one.keys) == len(prompt) for one in maps)


def _shortened(count: int) -> list[int]:
    """Where chips begin: one a piece, but one for all between the beginning and the end of a long text."""
    if count <= LONG:
        return list(range(count))
    return [*range(HEAD + 1), *range(count - LONG + HEAD + 1, count)]


def _html(name: str, pieces: Sequence[str], text: Text, prompt: int, apart: bool = False) -> str:
    """A text as chips; those from ``prompt`` on are the steps, and buttons. Pieces of a word stand together.

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
