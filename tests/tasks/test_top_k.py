"""Several labels with their probabilities, as transformers tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from answering_folders import LABELS, WORDS, made, saved
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import evaluate
from heedful.inference.pipeline import Pipeline
from heedful.tasks.labels import top_labels
from tolerances import approx

TEXTS = [f"the {word}" for word in WORDS]


def pictures() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (28, 28), dtype=np.uint8) for _ in range(5)]


@pytest.mark.parametrize("name", ["text-classification", "image-classification"])
def test_the_best_come_first(name: str) -> None:
    pipe = Pipeline(*made(name))
    inputs: list[Any] = TEXTS if name == "text-classification" else pictures()
    whole = pipe(inputs)
    for k in (1, 2, 3, 50):
        for answer, one in zip(pipe(inputs, top_k=k), whole, strict=True):
            told = answer["output"]
            assert len(told) == min(k, len(LABELS))
            assert [set(each) for each in told] == [{"label", "score"}] * len(told)
            scores = [each["score"] for each in told]
            assert scores == sorted(scores, reverse=True)
            assert told[0]["label"] == one["output"]
            assert answer["score"] == scores[0] == approx(one["score"], "layer")
        assert k < 3 or sum(scores) == approx(1)
        assert k < 3 or {each["label"] for each in told} == set(LABELS)


def test_several_labels_each_on_their_own() -> None:
    task, model = made("text-classification")
    task.multi_label = True  # type: ignore[attr-defined]
    pipe = Pipeline(task, model)
    logits = task.logits(model, next(task.map_batches(model, task.encode(ROWS := rows()).examples, dict))[1])  # type: ignore[attr-defined]
    (told,) = pipe([ROWS[0].values["text"]], top_k=3)
    assert sorted(each["score"] for each in told["output"]) == approx(
        sorted(torch.sigmoid(logits[0]).tolist()), "layer"
    )


def rows() -> heedful.data.Rows:
    return heedful.data.Rows([heedful.data.Row({"text": "the saw", "label": ("tool",)}, "f", 1)], 0, ("text", "label"))


def test_blank_inputs_have_no_predictions() -> None:
    pipe = Pipeline(*made("text-classification"))
    assert pipe(" ", top_k=2) == {"input": " ", "output": [], "score": None}
    assert pipe(" ") == {"input": " ", "output": "", "score": None}


@pytest.mark.parametrize("name", ["text-classification", "image-classification"])
@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3"])
def test_no_number_of_labels(name: str, k: Any) -> None:
    with pytest.raises(HeedfulError, match=rf"^top_k is {k!r}; give the number of predictions, a whole number from 1"):
        Pipeline(*made(name))([], top_k=k)


def test_options_that_change_no_score_are_refused_in_evaluation(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("source\ttarget\ttext\tlabel\na\tb\tthe saw\ttool\n")
    for name, option in (("text-classification", "top_k"), ("translation", "logprobs")):
        folder = str(saved(name, tmp_path / name))
        with pytest.raises(HeedfulError, match=rf"^{option} has no effect: it changes the shown output, but no score"):
            evaluate(folder, [str(tmp_path / "x.tsv")], decoding={option: 1})


def test_equally_likely_labels_keep_their_order() -> None:
    p = torch.tensor([[0.25, 0.5, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    assert [[one["label"] for one in row] for row in top_labels(p, ["a", "b", "c"], 3)] == [
        ["b", "a", "c"],
        ["a", "b", "c"],
    ]


def test_as_transformers_tells_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = saved("text-classification", tmp_path / "text")
    ours = heedful.pipeline(None, folder)(TEXTS, top_k=2)
    theirs = transformers.pipeline("text-classification", str(folder), device="cpu")(TEXTS, top_k=2)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert [one["label"] for one in mine["output"]] == [one["label"] for one in wanted]
        assert [one["score"] for one in mine["output"]] == approx([one["score"] for one in wanted])


def test_images_as_transformers_tells_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=28,
        patch_size=7,
        num_channels=3,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.3,
        id2label=dict(enumerate("abcdefg")),
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 28, "width": 28})
    processor.save_pretrained(tmp_path)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28, 3), dtype=np.uint8))
    ours = heedful.pipeline(None, tmp_path)(image, top_k=4)["output"]
    theirs = transformers.pipeline("image-classification", str(tmp_path), device="cpu")(image, top_k=4)
    assert [one["label"] for one in ours] == [one["label"] for one in theirs]
    assert [one["score"] for one in ours] == approx([one["score"] for one in theirs])
