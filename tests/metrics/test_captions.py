"""Metrics of captions against the field's own scorers."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
from pycocoevalcap.cider.cider import Cider
from sacrebleu.metrics import BLEU

from heedful.metrics.captions import caption_scores, cider, signature
from heedful.metrics.example_scores import overall
from heedful.metrics.rouge import rouge

WORDS = ["a", "the", "red", "blue", "circle", "square", "above", "left", "of", "small"]


def texts(seed: int, most: int = 4) -> tuple[list[str], list[list[str]]]:
    draw = random.Random(seed)
    sentence = lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))  # noqa: E731
    references = [[sentence() for _ in range(draw.randint(1, most))] for _ in range(20)]
    outputs = [draw.choice(own) if draw.random() < 0.5 else sentence() for own in references]
    return ["", *outputs[1:]], references


@pytest.mark.parametrize("seed", range(4))
def test_cider_is_that_of_the_coco_captions(seed: int) -> None:
    outputs, references = texts(seed)
    theirs = Cider().compute_score(dict(enumerate(references)), {i: [text] for i, text in enumerate(outputs)})
    ours = cider(outputs, references)
    assert ours == pytest.approx((100 * theirs[1]).tolist(), abs=1e-9)
    assert overall(caption_scores(outputs, references))["cider"] == pytest.approx(100 * theirs[0], abs=1e-9)
    assert max(ours) > 100
    assert ours[0] == 0.0


def test_the_other_metrics_are_those_of_their_scorers() -> None:
    outputs, references = texts(7)
    found = overall(caption_scores(outputs, references))
    most = max(map(len, references))
    streams = [[own[i] if i < len(own) else None for own in references] for i in range(most)]
    assert found["bleu"] == pytest.approx(BLEU().corpus_score(outputs, streams).score, abs=1e-9)
    overlaps = [max(rouge(o, r)["rougeL"].f1 for r in own) for o, own in zip(outputs, references, strict=True)]
    assert found["rougeL"] == pytest.approx(100 * sum(overlaps) / len(overlaps))
    exact = [output in own for output, own in zip(outputs, references, strict=True)]
    assert found["exact_match"] == pytest.approx(5.0 * sum(exact))
    assert "nrefs:var" in signature(references)
    assert "nrefs:2" in signature([["a", "b"]] * 3)


def test_rows_of_one_image_count_once() -> None:
    outputs, references = texts(3)
    doubled = [outputs[0], *outputs], [references[0], *references], [True, False, *[True] * 19]
    assert overall(caption_scores(*doubled)) == pytest.approx(overall(caption_scores(outputs, references)))
    scores = caption_scores(outputs, references)
    exact = [output in own for output, own in zip(outputs[:10], references[:10], strict=True)]
    assert scores.metrics_of(np.arange(10))["exact_match"] == pytest.approx(10.0 * sum(exact))


def test_a_single_image_and_case() -> None:
    assert cider(["a cat"], [["a cat"]]) == [0.0]  # every word is in the references of all images
    refs = [["A red circle!"], ["a dog"]]
    assert cider(["a RED circle", "x"], refs) == cider(["A red, circle.", "x"], refs)
    assert overall(caption_scores(["a red circle"], [["A red circle"]]))["exact_match"] == 0.0


SCORED = """
import random
from heedful.metrics.captions import cider

draw, words = random.Random(0), [f"w{number}" for number in range(40)]
outputs = [" ".join(draw.choices(words, k=draw.randint(8, 20))) for _ in range(60)]
references = [[" ".join(draw.sample(text.split(), k=len(text.split())))] for text in outputs]
print(cider(outputs, references))
"""


def test_cider_does_not_depend_on_hashes() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", SCORED], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
