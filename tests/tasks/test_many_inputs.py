"""A thousand texts at once: equal prompts in different batches, and one text that is absurdly long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import heedful
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.inference.pipeline import Pipeline
from heedful.models import Model
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.task import EVALUATED
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.text_generation import TextGeneration
from heedful.tasks.translation import Translation
from heedful.text import Tokenizer
from tolerances import approx

TEXTS = [f"{'the small cat sat on a mat '[: 3 + n % 23]}{n % 10}" for n in range(999)]
ABSURD = "the cat sat on " * 12_500  # 50,000 words
LARGEST = 64 * 2**20  # bytes of one tensor; scores of all its tokens against each other would have 10**11


class Largest(TorchDispatchMode):
    """The largest storage that any operation made inside, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor) and one.device.type != "meta":
                self.size = max(self.size, one.untyped_storage().nbytes())
        return made


def settings(task: str, preset: str, **given: Any) -> RunSettings:
    made: dict[str, Any] = {"model": ModelSettings(dim=16, heads=2, depth=1), **given}
    return RunSettings(task=task, train=("-",), out="-", preset=preset, **made)


def translating() -> tuple[Translation, Model]:
    tokenizer = Tokenizer.train(TEXTS, 60, "character")
    task = Translation(tokenizer, tokenizer)
    return task, heedful.create(task.config(settings("translation", "transformer-tiny")), seed=0).eval()


def going_on() -> tuple[TextGeneration, Model]:
    given = settings(
        "text-generation",
        "gpt-micro",
        data=DataSettings(max_length=32),
        tokenizer=TokenizerSettings(kind="character"),
    )
    task = TextGeneration.prepare(Rows((Row({"text": text}, "f", 1) for text in TEXTS[:40]), 0, ("text",)), given)
    return task, heedful.create(task.config(given), seed=0).eval()


def classifying() -> tuple[TextClassification, Model]:
    rows = Rows(
        (Row({"text": text, "label": str(n % 2)}, "f", 1) for n, text in enumerate(TEXTS[:40])), 0, ("text", "label")
    )
    given = settings("text-classification", "bert-tiny", data=DataSettings(max_length=32))
    given = TextClassification.suggested_settings(rows, given) if given.training.lr else given
    task = TextClassification.prepare(rows, given)
    return task, heedful.create(task.config(given), seed=0).eval()


@pytest.mark.parametrize("made", [translating, going_on])
def test_equal_prompts_draw_anew_whatever_batch_they_fall_into(made: Callable[[], tuple[Any, Model]]) -> None:
    task, model = made()
    prompts = ["the cat", "the mat sat", "the cat", "a", "the cat", "the mat sat"]
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 3.0}
    expected = [answer.output for answer in task.predict(model, prompts, seed=5, **options)]
    assert len(set(expected)) == len(prompts)
    for tokens in (1, 16, 40):  # one a batch; two or three
        found = [answer.output for answer in task.predict(model, prompts, seed=5, batch_tokens=tokens, **options)]
        assert found == expected
    for place in (0, 1, 3):  # the first of each draws what it draws alone
        assert task.predict(model, [prompts[place]], seed=5, **options)[0].output == expected[place]
    listed = [answer.output for answer in task.predict(model, prompts, seed=[5] * 6, batch_tokens=1, **options)]
    assert listed == expected


@pytest.mark.parametrize("beams", [1, 3])
def test_a_thousand_translations_and_one_that_is_absurd(beams: int, caplog: pytest.LogCaptureFixture) -> None:
    task, model = translating()
    options: dict[str, Any] = {"max_new_tokens": 6, **({"num_beams": 3} if beams > 1 else {})}
    with caplog.at_level(logging.WARNING), Largest() as seen:
        answers = Pipeline(task, model).predict([*TEXTS[:500], ABSURD, *TEXTS[500:]], **options)
    assert seen.size < LARGEST
    assert len(answers) == 1000
    assert answers[500].input == ABSURD
    (said,) = caplog.messages
    long = len(task.source.encode([ABSURD])[0]) + 1
    assert said.startswith(f"input 500 has {long:,} tokens, only {EVALUATED:,} of them are read (a larger batch_tokens")
    plain = Pipeline(task, model).predict(TEXTS, **options)
    assert [one.output for one in answers[:500] + answers[501:]] == [one.output for one in plain]
    start = task.source.decode([task.source.encode([ABSURD])[0][: EVALUATED - 1]])[0]
    caplog.clear()
    assert task.predict(model, [start], **options)[0].output == answers[500].output  # its beginning, and the end token
    assert not caplog.messages


def test_learned_positions_cut_a_translation(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer.train(TEXTS, 60, "character")
    config = heedful.presets.bart(16, 1, 2, tokenizer.vocab_size, 32)
    task, model = Translation(tokenizer, tokenizer, config.special, 32), heedful.create(config, seed=0).eval()
    with caplog.at_level(logging.WARNING):
        long, short = task.predict(model, ["the small cat sat on a mat" * 3, "the cat"], max_new_tokens=5)
    assert caplog.messages == ["input 0 has 79 tokens, only 32 of them are read (the model takes no more)"]
    beginning = ("the small cat sat on a mat" * 3)[:31]
    assert task.predict(model, [beginning, "the cat"], max_new_tokens=5)[0].output == long.output
    assert task.predict(model, ["the cat"], max_new_tokens=5)[0].output == short.output


def test_a_thousand_prompts_and_one_that_is_absurd() -> None:
    task, model = going_on()
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    with Largest() as seen:
        answers = Pipeline(task, model).predict([*TEXTS[:500], ABSURD, *TEXTS[500:]], **options)
    assert seen.size < LARGEST
    assert len(answers) == 1000
    assert answers[500].output.startswith(ABSURD)
    half = Pipeline(task, model).predict([ABSURD[-16:]], **options)[0]  # what is read of it
    assert answers[500].output[len(ABSURD) :] == half.output[16:]
    plain = Pipeline(task, model).predict(TEXTS, **options)
    assert [one.output for one in answers[:500] + answers[501:]] == [one.output for one in plain]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_search_refuses_a_prompt_that_does_not_fit(positions: str) -> None:
    task, model = going_on()
    if positions == "rotary":
        config = heedful.presets.llama(16, 1, 2, 2, 32, task.tokenizer.vocab_size, length=32)
        model = heedful.create(config, seed=0).eval()
    with pytest.raises(
        HeedfulError, match=r"input 1 has 187,500 tokens, .*the model.s 32 tokens; .*num_beams"
    ) as caught:
        task.predict(model, ["the cat", ABSURD], num_beams=2, max_new_tokens=4, do_sample=False)
    assert "\n" not in str(caught.value)


def test_a_thousand_classified_and_one_that_is_absurd() -> None:
    task, model = classifying()
    with Largest() as seen:
        answers = Pipeline(task, model).predict([*TEXTS[:500], ABSURD, *TEXTS[500:]])
    assert seen.size < LARGEST
    plain = Pipeline(task, model).predict([*TEXTS, ABSURD[:200]])
    assert [one.output for one in answers[:500] + answers[501:]] == [one.output for one in plain[:999]]
    assert answers[500].output == plain[999].output
    assert answers[500].score == approx(plain[999].score, "layer")
