"""An encoder-decoder learns to write dates in another language, and shows what it looked at."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from heedful.data import Row, Rows
from heedful.demos.show import Demo, Told
from heedful.inference.pipeline import Pipeline
from heedful.inspection.record import record
from heedful.metrics.translation import exact_match
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.sequence_to_sequence import whole
from heedful.tasks.task import Measured
from heedful.tasks.translation import Translation
from heedful.util.files import write
from heedful.views.attention_html import attention_page
from heedful.views.attention_picture import attention_svg
from heedful.views.map_data import Maps, merge_words

SHOWN = ("datetime-full", "date-full", "datetime-short", "date-long", "yQQQQ")  # formats of the examples, if there


def demo(to: str = "fr") -> Demo:
    """English dates in the language ``to``, as CLDR names it (fr, de, es, ja, ...): about two minutes on two cores."""
    return Demo(
        title=f"An encoder-decoder learns to write English dates in another language ({to}), on days it has not seen.",
        settings=RunSettings(
            task="translation",
            train=(f"builtin:cldr-dates/en-{to}",),
            out=f"runs/demo-en-{to}",
            preset="transformer-tiny",
            max_minutes=3.0,
            max_epochs=3,
            tokenizer=TokenizerSettings(size=512),
            model=ModelSettings(depth=2, dropout=0.0),
            training=TrainingSettings(lr=2e-3, warmup=200, batch_tokens=1024, label_smoothing=0.0, log_every=100),
        ),
        tell=tell,
        metric="exact_match",
        ask='"Friday, September 19, 1902"',
        mine="mine.en mine.fr",
    )


def tell(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> Told:
    """The share of dates exactly right, by format, beside copying the source; a few dates; what was looked at."""
    metrics = measured.metrics
    fair = [row for row in rows if row.values["exact"] != "no"]
    copied = exact_match([row.values["source"] for row in fair], [row.values["target"] for row in fair])
    lines = [f"  copying the source: {copied:.1f} %; BLEU {metrics['bleu']:.1f}, chrF {metrics['chrf']:.1f}"]
    for name, group in measured.details["by_format"].items():
        bar = "█" * round(group["exact_match"] / 5)
        note = "" if group["counted"] else "  the short form hides the century: not counted"
        lines.append(f"  {name:<18}{group['exact_match']:5.1f} %  {bar:<20}{note}")
    lines.append("")
    chosen = examples(rows)
    answers = pipe.answers([row.values["source"] for row in chosen])
    for answer in answers:
        lines += [f"  {answer.input}", f"    → {answer.output}"]
    return Told(
        headline=f"Held-out dates exactly right: {metrics['exact_match']:.1f} %",
        lines=lines,
        baseline={"copy_exact_match": copied},
        examples=[{"input": answer.input, "output": answer.output} for answer in answers],
        files=draw(pipe, chosen[0], folder),
    )


def examples(rows: Rows) -> list[Row]:
    """A few held-out rows of different formats, chosen without looking at the answers."""
    by_format: dict[str, list[Row]] = {}
    for row in rows:
        if row.values["exact"] != "no":
            by_format.setdefault(row.values["format"], []).append(row)
    names = [name for name in SHOWN if name in by_format] or sorted(by_format)[:5]
    return [random.Random(0).choice(by_format[name]) for name in names]


def draw(pipe: Pipeline, row: Row, folder: Path) -> dict[str, Path]:
    """The cross-attention of one translation, as a page and as a picture."""
    task = pipe.task
    assert isinstance(task, Translation)
    source, _ = task.encode(Rows([row])).examples[0]
    text = pipe.answers([row.values["source"]])[0].output
    target = whole(task.target, [text])[0]  # its end token too
    batch = task.collate([(source, target)])
    with torch.no_grad(), record(pipe.model, "cross_attention.pattern") as seen:
        pipe.model(batch["source"].to(pipe.model.device), batch["target"].to(pipe.model.device))
    weights = torch.cat(list(seen.values())).float().cpu()  # (layers, heads, target, source)
    pieces = task.source.pieces(source), task.target.pieces(target)
    words, said, merged = merge_words(*pieces, weights)
    title = f"What the model looked at: {row.values['source']}"
    maps = Maps.of("cross-attention", said, words, merged)
    return {
        "page": write(folder / "attention.html", attention_page(maps, title=title)),
        "picture": write(folder / "attention.svg", attention_svg(maps, title=title)),
    }
