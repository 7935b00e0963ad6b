"""The four demos: dates (encoder-decoder), languages (encoder), code (decoder), digits (vision)."""

from __future__ import annotations

import lzma
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from heedful.data import Row, Rows
from heedful.demos.show import Demo, DemoReport
from heedful.inference.pipeline import Pipeline
from heedful.inspection.record import record
from heedful.metrics.translation import exact_match
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.task import Measured, Prediction
from heedful.util.files import write
from heedful.views.attention_data import AttentionMaps, merge_words
from heedful.views.attention_figure import attention_svg
from heedful.views.attention_html import attention_page

# formats of the examples to show, if the language has them
DATE_FORMATS = ("datetime-full", "date-full", "datetime-short", "date-long", "yQQQQ")


def dates(to: str = "fr") -> Demo:
    """Returns the demo that translates English dates into a language: about two minutes on two idle cores.

    ``to`` is the language's CLDR code: fr, de, es, ja, ...
    """
    return Demo(
        title=f"An encoder-decoder learns to write English dates in another language ({to}); the test uses other days.",
        settings=RunSettings(
            task="translation",
            train=(f"builtin:cldr-dates/en-{to}",),
            out=f"runs/demo-en-{to}",
            preset="transformer-tiny",
            max_epochs=3,  # no time limit: on a busy machine the demo takes longer, and learns as much
            tokenizer=TokenizerSettings(size=512),
            model=ModelSettings(depth=2, dropout=0.0),
            training=TrainingSettings(lr=2e-3, warmup=200, batch_tokens=1024, label_smoothing=0.0, log_every=100),
        ),
        describe=describe_dates,
        metric="exact_match",
        example_input='"Friday, September 19, 1902"',
        own_data="mine.en mine.fr",
    )


def describe_dates(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
    """Returns a report with the share of exact dates by format, a baseline that copies the source, and some dates."""
    metrics = measured.metrics
    unambiguous = [row for row in rows if row.values["exact"] != "no"]
    copied = exact_match([row.values["source"] for row in unambiguous], [row.values["target"] for row in unambiguous])
    lines = [f"  copying the source: {copied:.1f} %; BLEU {metrics['bleu']:.1f}, chrF {metrics['chrf']:.1f}"]
    for name, group in measured.details["by_format"].items():
        bar = "█" * round(group["exact_match"] / 5)
        note = "" if group["counted"] else "  (not counted: the short form has no century)"
        lines.append(f"  {name:<18}{group['exact_match']:5.1f} %  {bar:<20}{note}")
    lines.append("")
    chosen = _date_examples(rows)
    answers = pipe.predict([row.values["source"] for row in chosen])
    for answer in answers:
        lines += [f"  {answer.input}", f"    → {answer.output}"]
    return DemoReport(
        headline=f"Held-out dates exactly right: {metrics['exact_match']:.1f} %",
        lines=lines,
        baseline={"copy_exact_match": copied},
        examples=_examples(answers),
        files=_draw_attention(pipe, chosen[0], folder),
    )


def _date_examples(rows: Rows) -> list[Row]:
    """Returns a few held-out rows of different formats, chosen at random."""
    by_format: dict[str, list[Row]] = {}
    for row in rows:
        if row.values["exact"] != "no":
            by_format.setdefault(row.values["format"], []).append(row)
    names = [name for name in DATE_FORMATS if name in by_format] or sorted(by_format)[:5]
    return [random.Random(0).choice(by_format[name]) for name in names]


def _draw_attention(pipe: Pipeline, row: Row, folder: Path) -> dict[str, Path]:
    """Writes the cross-attention of one translation as a page and a figure; returns their paths."""
    text = pipe.predict([row.values["source"]])[0].output
    translated = replace(row, values={**row.values, "target": text})
    batch = pipe.task.collate(pipe.task.encode(Rows([translated])).examples)
    source, target = pipe.task.sides(batch)
    with torch.no_grad(), record(pipe.model, "cross_attention.pattern") as recorded:
        pipe.model(batch["source"].to(pipe.model.device), batch["target"].to(pipe.model.device))
    weights = torch.cat(list(recorded.values())).float().cpu()  # (layers, heads, target, source)
    source_words, target_words, merged = merge_words(source.pieces, target.targets, weights)
    title = f"Cross-attention: {row.values['source']}"
    maps = AttentionMaps.of("cross-attention", target_words, source_words, merged)
    return {
        "page": write(folder / "attention.html", attention_page(maps, title=title)),
        "picture": write(folder / "attention.svg", attention_svg(maps, title=title)),
    }


def languages() -> Demo:
    """Returns the demo that tells the language of CLDR names (places, months, currencies).

    It takes about two minutes on two cores.
    """
    return Demo(
        title="An encoder learns to identify the language of a name or phrase.",
        settings=RunSettings(
            task="text-classification",
            train=("builtin:cldr-languages",),
            out="runs/demo-languages",
            max_minutes=2.0,
        ),
        describe=describe_languages,
        metric="accuracy",
        example_input='"Donnerstag" "jeudi" "čtvrtek"',
        own_data="labels.csv",
    )


def describe_languages(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
    """Returns a report with accuracy, a baseline, the easiest and hardest languages, and some names."""
    languages, most_frequent = _label_counts(rows)
    classes = sorted(measured.details["by_class"], key=lambda scores: -scores["f1"])
    lines = [f"  always the most frequent one: {most_frequent:.1f} %; macro F1 {measured.metrics['macro_f1']:.1f}", ""]
    for scores in [*classes[:4], *classes[-4:]]:
        lines.append(f"  {scores['label']:<14}F1 {scores['f1']:5.1f}  {'█' * round(scores['f1'] / 5)}")
    lines.append("")
    chosen = random.Random(0).sample(list(rows), 6)
    answers = pipe.predict([row.values["text"] for row in chosen])
    for answer, row in zip(answers, chosen, strict=True):
        truth = "" if answer.output == row.values["label"] else f"  (it is {row.values['label']})"
        lines.append(f"  {answer.input:<36} → {answer.output}, {answer.score:.0%}{truth}")
    return DemoReport(
        headline=f"Held-out names classified right: {measured.metrics['accuracy']:.1f} % of {languages} languages",
        lines=lines,
        baseline={"most_frequent_accuracy": most_frequent},
        examples=_examples(answers),
    )


def _label_counts(rows: Rows) -> tuple[int, float]:
    """Returns the number of labels, and the percentage of the most frequent one."""
    counts = Counter(row.values["label"] for row in rows)
    return len(counts), 100 * max(counts.values()) / len(rows)


def _examples(answers: Sequence[Prediction]) -> list[dict[str, Any]]:
    return [{"input": answer.input, "output": answer.output} for answer in answers]


PROMPT = "def "


def code() -> Demo:
    """Returns the demo of a language model of the standard library's source: about three minutes on two cores.

    The test uses modules that are not in training.
    """
    return Demo(
        title="A decoder learns to write Python from the source of the standard library; the test uses other modules.",
        settings=RunSettings(
            task="text-generation",
            train=("builtin:stdlib",),
            out="runs/demo-code",
            max_minutes=2.5,
        ),
        describe=describe_code,
        metric="bits_per_byte",
        example_input='"class Queue" --max-new-tokens 200',
        own_data="book.txt",
    )


def describe_code(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
    """Returns a report with bits per byte, xz on the same modules as baseline, and a sample."""
    text = "\n".join(row.values["text"] for row in rows).encode()
    compressed = 8 * len(lzma.compress(text, preset=9)) / len(text)
    answer = pipe.predict([PROMPT], max_new_tokens=120, temperature=0.7, seed=0)[0]
    return DemoReport(
        headline=f"Unseen modules: {measured.metrics['bits_per_byte']:.2f} bits a byte",
        lines=[
            f"  xz -9 needs {compressed:.2f} bits a byte; perplexity {measured.metrics['perplexity']:.1f} a token",
            "",
            *(f"  {line}" for line in answer.output.splitlines()),
        ],
        baseline={"xz_bits_per_byte": compressed},
        examples=[{"input": PROMPT, "output": answer.output}],
    )


INK = " ·░▒▓█"


def digits() -> Demo:
    """Returns the demo that recognises handwritten digits, 1,797 images of 8 × 8 pixels: a minute on two cores."""
    return Demo(
        title="A vision Transformer learns to read handwritten digits of 8 × 8 pixels.",
        settings=RunSettings(
            task="image-classification",
            train=("builtin:digits",),
            out="runs/demo-digits",
            max_minutes=1.5,
        ),
        describe=describe_digits,
        metric="accuracy",
        example_input="{folder}/digit.png",
        own_data="folder-of-folders",
    )


def describe_digits(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> DemoReport:
    """Writes one digit as a file; returns a report with accuracy, a baseline, and the first digits."""
    _, most_frequent = _label_counts(rows)
    chosen = rows[:6]
    answers = pipe.predict([row.values["image"] for row in chosen])
    Image.fromarray(chosen[0].values["image"].pixels(1)[:, :, 0]).save(folder / "digit.png")
    drawn = [_drawing(row.values["image"].pixels(1)[:, :, 0].tolist()) for row in chosen]
    lines = [f"  always the most frequent one: {most_frequent:.1f} %", ""]
    lines += ["  " + "   ".join(parts) for parts in zip(*drawn, strict=True)]
    lines.append("  " + "   ".join(f"{answer.output}, {answer.score:.0%}".center(16) for answer in answers))
    return DemoReport(
        headline=f"Held-out digits classified right: {measured.metrics['accuracy']:.1f} %",
        lines=lines,
        baseline={"most_frequent_accuracy": most_frequent},
        examples=_examples(answers),
    )


def _drawing(pixels: list[list[int]]) -> list[str]:
    """Returns grey values 0 to 255 as characters, two a pixel, so that pixels are about square."""
    return ["".join(2 * INK[value * (len(INK) - 1) // 255] for value in row) for row in pixels]
