"""The four demos: dates (encoder-decoder), languages (encoder), code (decoder), digits (vision)."""

from __future__ import annotations

import lzma
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from heedful.data import Row, Rows
from heedful.demos.show import Demo, DemoReport
from heedful.inference.pipeline import Pipeline
from heedful.inspection.record import record
from heedful.metrics.translation import exact_match
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.task import Measured
from heedful.util.files import write
from heedful.views.attention_data import AttentionMaps, merge_words
from heedful.views.attention_figure import attention_svg
from heedful.views.attention_html import attention_page

# formats of the examples that are shown, where the language has them
DATE_FORMATS = ("datetime-full", "date-full", "datetime-short", "date-long", "yQQQQ")


def dates(to: str = "fr") -> Demo:
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
        tell=describe_dates,
        metric="exact_match",
        ask='"Friday, September 19, 1902"',
        mine="mine.en mine.fr",
    )


def describe_dates(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
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
    chosen = _date_examples(rows)
    answers = pipe.answers([row.values["source"] for row in chosen])
    for answer in answers:
        lines += [f"  {answer.input}", f"    → {answer.output}"]
    return DemoReport(
        headline=f"Held-out dates exactly right: {metrics['exact_match']:.1f} %",
        lines=lines,
        baseline={"copy_exact_match": copied},
        examples=[{"input": answer.input, "output": answer.output} for answer in answers],
        files=_draw_attention(pipe, chosen[0], folder),
    )


def _date_examples(rows: Rows) -> list[Row]:
    """Returns a few held-out rows of different formats, chosen without looking at the answers."""
    by_format: dict[str, list[Row]] = {}
    for row in rows:
        if row.values["exact"] != "no":
            by_format.setdefault(row.values["format"], []).append(row)
    names = [name for name in DATE_FORMATS if name in by_format] or sorted(by_format)[:5]
    return [random.Random(0).choice(by_format[name]) for name in names]


def _draw_attention(pipe: Pipeline, row: Row, folder: Path) -> dict[str, Path]:
    """Returns the cross-attention of one translation, as a page and as a picture."""
    text = pipe.answers([row.values["source"]])[0].output
    translated = replace(row, values={**row.values, "target": text})
    batch = pipe.task.collate(pipe.task.encode(Rows([translated])).examples)
    source, target = pipe.task.sides(batch)
    with torch.no_grad(), record(pipe.model, "cross_attention.pattern") as seen:
        pipe.model(batch["source"].to(pipe.model.device), batch["target"].to(pipe.model.device))
    weights = torch.cat(list(seen.values())).float().cpu()  # (layers, heads, target, source)
    words, said, merged = merge_words(source.pieces, target.targets, weights)
    title = f"What the model looked at: {row.values['source']}"
    maps = AttentionMaps.of("cross-attention", said, words, merged)
    return {
        "page": write(folder / "attention.html", attention_page(maps, title=title)),
        "picture": write(folder / "attention.svg", attention_svg(maps, title=title)),
    }


def languages() -> Demo:
    """Language identification of CLDR names (places, months, currencies): about two minutes on two cores."""
    return Demo(
        title="An encoder learns to tell in which of many languages a name or phrase is written.",
        settings=RunSettings(
            task="text-classification",
            train=("builtin:cldr-languages",),
            out="runs/demo-languages",
            max_minutes=2.0,
        ),
        tell=describe_languages,
        metric="accuracy",
        ask='"Donnerstag" "jeudi" "čtvrtek"',
        mine="labels.csv",
    )


def describe_languages(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
    """Accuracy beside the most frequent language, the easiest and hardest languages, a few names."""
    counts = Counter(row.values["label"] for row in rows)
    most = 100 * max(counts.values()) / len(rows)
    classes = sorted(measured.details["by_class"], key=lambda one: -one["f1"])
    lines = [f"  always the most frequent one: {most:.1f} %; macro F1 {measured.metrics['macro_f1']:.1f}", ""]
    for one in [*classes[:4], *classes[-4:]]:
        lines.append(f"  {one['label']:<14}F1 {one['f1']:5.1f}  {'█' * round(one['f1'] / 5)}")
    lines.append("")
    chosen = random.Random(0).sample(list(rows), 6)
    answers = pipe.answers([row.values["text"] for row in chosen])
    for answer, row in zip(answers, chosen, strict=True):
        truth = "" if answer.output == row.values["label"] else f"  (it is {row.values['label']})"
        lines.append(f"  {answer.input:<36} → {answer.output}, {answer.score:.0%}{truth}")
    return DemoReport(
        headline=f"Held-out names told right: {measured.metrics['accuracy']:.1f} % of {len(counts)} languages",
        lines=lines,
        baseline={"most_frequent_accuracy": most},
        examples=[{"input": answer.input, "output": answer.output} for answer in answers],
    )


PROMPT = "def "


def code() -> Demo:
    """Language model of the standard library's source, whole modules held out: about three minutes on two cores."""
    return Demo(
        title="A decoder learns to write Python from the source of the standard library, modules apart for the test.",
        settings=RunSettings(
            task="text-generation",
            train=("builtin:stdlib",),
            out="runs/demo-code",
            max_minutes=2.5,
        ),
        tell=describe_code,
        metric="bits_per_byte",
        ask='"class Queue" --max-new-tokens 200',
        mine="book.txt",
    )


def describe_code(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
    """Bits a byte beside those of xz on the same modules, and a sample."""
    text = "\n".join(row.values["text"] for row in rows).encode()
    packed = 8 * len(lzma.compress(text, preset=9)) / len(text)
    answer = pipe.answers([PROMPT], max_new_tokens=120, temperature=0.7, seed=0)[0]
    return DemoReport(
        headline=f"Unseen modules: {measured.metrics['bits_per_byte']:.2f} bits a byte",
        lines=[
            f"  xz -9 needs {packed:.2f}; perplexity {measured.metrics['perplexity']:.1f} a token",
            "",
            *(f"  {line}" for line in answer.output.splitlines()),
        ],
        baseline={"xz_bits_per_byte": packed},
        examples=[{"input": PROMPT, "output": answer.output}],
    )


INK = " ·░▒▓█"


def digits() -> Demo:
    """1,797 digits of 8 × 8 pixels: about a minute on two cores."""
    return Demo(
        title="A vision Transformer learns to read handwritten digits of 8 × 8 pixels.",
        settings=RunSettings(
            task="image-classification",
            train=("builtin:digits",),
            out="runs/demo-digits",
            max_minutes=1.5,
        ),
        tell=describe_digits,
        metric="accuracy",
        ask="{folder}/digit.png",
        mine="folder-of-folders",
    )


def describe_digits(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
    """Accuracy beside the most frequent digit, and the first digits as they look; one as a file, to ask with."""
    counts = Counter(row.values["label"] for row in rows)
    most = 100 * max(counts.values()) / len(rows)
    chosen = rows[:6]
    answers = pipe.answers([row.values["image"] for row in chosen])
    Image.fromarray(chosen[0].values["image"].pixels(1)[:, :, 0]).save(folder / "digit.png")
    drawn = [_drawing(row.values["image"].pixels(1)[:, :, 0].tolist()) for row in chosen]
    lines = [f"  always the most frequent one: {most:.1f} %", ""]
    lines += ["  " + "   ".join(parts) for parts in zip(*drawn, strict=True)]
    lines.append("  " + "   ".join(f"{answer.output}, {answer.score:.0%}".center(16) for answer in answers))
    return DemoReport(
        headline=f"Held-out digits read right: {measured.metrics['accuracy']:.1f} %",
        lines=lines,
        baseline={"most_frequent_accuracy": most},
        examples=[{"input": answer.input, "output": answer.output} for answer in answers],
    )


def _drawing(pixels: list[list[int]]) -> list[str]:
    """Grey values 0 to 255 as characters, two a pixel, so that it looks square."""
    return ["".join(2 * INK[value * (len(INK) - 1) // 255] for value in row) for row in pixels]
