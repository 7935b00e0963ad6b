"""Scores of single examples: the metrics of any rows follow from them, and logits are never all kept."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import heedful
from heedful import tasks
from heedful.data import Row, Rows, read
from heedful.metrics.example_scores import Scored, overall
from heedful.models import Model
from heedful.settings import DataSettings, ImageSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.task import Encoded, Measured, Task
from tolerances import approx

FRUIT = ["apple", "pear", "plum", "quince", "fig", "grape"]
TOOLS = ["hammer", "saw", "chisel", "drill", "pliers", "file"]
ONE = [
    {"text": f"one {w} {n}", "label": k} for k, ws in zip("ft", (FRUIT, TOOLS), strict=True) for w in ws for n in "12"
]
SEVERAL = [{"text": f"{a} {b}", "label": (a, b) if a < b else ()} for a in FRUIT for b in TOOLS[:3]]
PAIRS = [{"source": f"the {a} and a {b}", "target": f"{b} {a}"} for a in FRUIT for b in TOOLS[:3]]
BOOKS = [
    {"text": f"the {a} fell on the {b} .\n" * (1 + n % 3)} for n, (a, b) in enumerate(zip(FRUIT, TOOLS, strict=True))
]


def rows_of(values: list[dict[str, Any]]) -> Rows:
    return Rows((Row(one, "file", i + 1) for i, one in enumerate(values)), 0, list(values[0]))


def made(name: str, rows: Rows) -> tuple[Task, Model, Encoded]:
    """A task and a model of random weights, sharpened so that its answers differ."""
    kind = tasks.get(name)
    preset = {
        "text-classification": "bert-tiny",
        "translation": "transformer-tiny",
        "text-generation": "gpt-micro",
        "image-classification": "vit-micro",
    }[name]
    settings = RunSettings(
        name,
        train=("file",),
        out="run",
        preset=preset,
        data=DataSettings(max_length=16),
        image=ImageSettings(size=8, channels=1),
        model=ModelSettings(dim=16, heads=2, depth=1, patch_size=4 if name.startswith("image") else None),
        tokenizer=TokenizerSettings(kind="bpe", size=300, shared=True),
    )
    task = kind.prepare(rows, settings)
    model = heedful.create(task.config(settings), seed=0)
    task.before_training(model, settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return task, model.eval(), task.encode(rows)


SETS = {
    "one": ("text-classification", ONE),
    "several": ("text-classification", SEVERAL),
    "pairs": ("translation", PAIRS),
    "digits": ("image-classification", None),
}


@pytest.fixture(scope="module", params=list(SETS))
def scored(request: pytest.FixtureRequest) -> tuple[Task, Model, Encoded, Measured]:
    name, values = SETS[request.param]
    columns = {"image": "image", "label": "label"}
    rows = read("builtin:digits", columns, limit=60) if values is None else rows_of(values)
    task, model, encoded = made(name, rows)
    return task, model, encoded, task.measure(model, encoded.examples, encoded.rows)


def each_of(measured: Measured) -> Scored:
    assert measured.example_scores is not None
    return measured.example_scores


def numbers(measured: Measured) -> dict[str, float]:
    return {name: value for name, value in measured.metrics.items() if name in overall(each_of(measured))}


def test_of_all_rows_they_are_the_metrics(scored: tuple[Task, Model, Encoded, Measured]) -> None:
    _, _, encoded, measured = scored
    assert len(each_of(measured)) == len(encoded.rows) == len(measured.outputs)
    assert overall(each_of(measured)) == pytest.approx(numbers(measured))
    assert len(numbers(measured)) >= 3


def test_of_some_rows_they_are_the_metrics_of_these(scored: tuple[Task, Model, Encoded, Measured]) -> None:
    task, model, encoded, measured = scored
    places = np.random.default_rng(0).choice(len(encoded.rows), 9, replace=False)
    some = task.encode(Rows([encoded.rows[i] for i in places]))
    alone = task.measure(model, some.examples, some.rows)
    assert each_of(measured).metrics_of(places) == approx(numbers(alone), "gradient")
    assert list(alone.outputs) == [measured.outputs[i] for i in places]
    if task.name == "translation":
        few = task.measure(model, some.examples, some.rows, most=4)
        assert len(each_of(few)) == len(few.outputs) == 4
        assert "ter" not in overall(each_of(few))


def test_outputs_are_the_answers(scored: tuple[Task, Model, Encoded, Measured]) -> None:
    task, model, encoded, measured = scored
    first = next(iter(task.columns))
    answers = task.predict(model, [row.values[first] for row in encoded.rows])
    assert list(measured.outputs) == [answer.output for answer in answers]


def test_of_a_translation_without_an_exact_answer_no_figures() -> None:
    task, model, encoded = made("translation", rows_of([{**one, "exact": "no"} for one in PAIRS[:3]]))
    measured = task.measure(model, encoded.examples, encoded.rows)
    assert list(measured.metrics) == ["loss"]
    assert measured.example_scores is None
    assert len(measured.outputs) == 3


def test_documents_each_with_their_own_nats() -> None:
    """Token by token from the windows of the whole stream, in float64."""
    task, model, encoded = made("text-generation", rows_of(BOOKS))
    stream = encoded.examples[0].stream
    measured = task.measure(model, encoded.examples, encoded.rows, batch_tokens=40)
    tokens = stream.tokens.astype(np.int64)
    nats = np.zeros(len(tokens))
    for first in range(0, len(tokens) - 1, stream.context):
        window = torch.from_numpy(tokens[first : first + stream.context + 1])
        logits = model.double()(window[None, :-1])[0]
        nats[first + 1 : first + len(window)] = F.cross_entropy(logits, window[1:], reduction="none").detach().numpy()
    ends = [*stream.starts[1:].tolist(), len(tokens)]
    lengths = [len(ids) for ids in task.tokenizer.encode([row.values["text"] for row in encoded.rows])]
    around = len(task.begins) + len(task.closes)
    assert [end - start for start, end in zip(stream.starts.tolist(), ends, strict=True)] == [
        n + around for n in lengths
    ]
    sizes = [len(book["text"].encode()) for book in BOOKS]
    for place, (start, end) in enumerate(zip(stream.starts.tolist(), ends, strict=True)):
        own, count = nats[start:end].sum(), end - max(start, 1)
        assert each_of(measured).metrics_of(np.array([place])) == {
            "loss": approx(own / count, "gradient"),
            "perplexity": pytest.approx(math.exp(own / count), rel=1e-3),
            "bits_per_byte": approx(own / math.log(2) / sizes[place], "gradient"),
        }
    assert overall(each_of(measured)) == measured.metrics
    assert measured.metrics["bits_per_byte"] == approx(nats.sum() / math.log(2) / sum(sizes), "gradient")


@pytest.mark.parametrize("name", ["one", "several", "pairs", "digits", "books"])
def test_no_more_logits_are_held_than_two_batches_have(name: str) -> None:
    """Of each output of the model a weak reference: when the next one is made at most one of the others is alive."""
    values = {**SETS, "books": ("text-generation", BOOKS)}[name]
    columns = {"image": "image", "label": "label"}
    rows = read("builtin:digits", columns, limit=60) if values[1] is None else rows_of(values[1])
    task, model, encoded = made(values[0], rows)
    made_so_far: list[weakref.ref[Tensor]] = []
    alive = []

    def watch(module: Any, given: Any, output: Tensor) -> None:
        alive.append(sum(ref() is not None for ref in made_so_far))
        made_so_far.append(weakref.ref(output))

    handle = model.register_forward_hook(watch)
    options = {"max_new_tokens": 2} if name == "pairs" else {}
    measured = task.measure(model, encoded.examples, encoded.rows, batch_tokens=20, **options)
    handle.remove()
    assert len(alive) > 3 or name == "pairs"
    assert max(alive) <= 1
    held = [value for value in vars(each_of(measured)).values() if isinstance(value, Tensor)]
    assert held == []
