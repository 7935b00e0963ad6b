"""``huggingface_hub``'s client and ``/predict`` against a folder of every task: what they get is the pipeline's."""

from __future__ import annotations

import base64
import importlib
import io
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from PIL import Image
from running_server import RELATIVE, Running

import heedful
from answering_folders import LABELS, made
from heedful import cli, tasks
from heedful.inference.pipeline import Pipeline
from heedful.serving.hub_shapes import SHAPES, shape_of
from test_every_task import MADE, SMALL
from tolerances import approx


@pytest.fixture(scope="module")
def served(
    serving: Callable[..., Running], folder_of: Callable[..., Path]
) -> Callable[..., tuple[Running, Pipeline, InferenceClient]]:
    """Server, pipeline and client for a task and, for encoders, a preset."""
    made: dict[tuple[str, ...], tuple[Running, Pipeline, InferenceClient]] = {}

    def serve(name: str, *encoder: str) -> tuple[Running, Pipeline, InferenceClient]:
        if (name, *encoder) not in made:
            pipe = heedful.pipeline(None, folder_of(name, *encoder))
            server = serving(pipe, max_tokens=16 if name == "text-generation" else 512)
            made[name, *encoder] = server, pipe, InferenceClient(server.address, token="none")
        return made[name, *encoder]

    return serve


def test_a_multilingual_translator(serving: Callable[..., Running], tmp_path: Path) -> None:
    """The client's names of the languages, and ours."""
    pytest.importorskip("transformers")
    from translators import TEXTS, published

    pipe = heedful.pipeline("translation", published("mbart-50", tmp_path))
    server, outputs = serving(pipe), []
    client = InferenceClient(server.address, token="none")
    for source, target in (("en_XX", "fr_XX"), ("fr_XX", "de_DE")):
        languages = {"source_language": source, "target_language": target}
        outputs.append([one["output"] for one in pipe(TEXTS, **languages)])
        assert [one["output"] for one in server.post("/predict", inputs=TEXTS, options=languages)] == outputs[-1]
        found = client.translation(TEXTS[0], src_lang=source, tgt_lang=target)
        assert found.translation_text == outputs[-1][0]
    assert outputs[0] != outputs[1]
    status, error = server.refused("/predict", inputs=["the man"], options={"target_language": "fr"})
    assert status in (400, 422)
    assert "the model has no language 'fr' (target_language); known: af_ZA" in str(error)


CHOICES = [*LABELS, "apple pie"]


@pytest.fixture(scope="module")
def inference_server(serving: Callable[..., Running]) -> tuple[Running, Pipeline]:
    """Server and pipeline of a classifier with the labels of natural language inference."""
    task, model = made("text-classification")
    task.labels = model.labels = ["entailment", "neutral", "contradiction"]  # type: ignore[attr-defined]
    task.columns = {"text": "text", "text_pair": "text?", "label": "label"}
    pipe = Pipeline(task, model)
    return serving(pipe), pipe


def png(shade: int = 200) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (8, 8), shade).save(stream, "PNG")
    return stream.getvalue()


def plain(value: Any) -> Any:
    """Numbers of a batch may differ in their last bits."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-4, abs=1e-5)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("model", [*((name,) for name in tasks.TASKS), *RELATIVE], ids=" ".join)
def test_predict_is_the_pipeline(served: Callable[..., Any], model: tuple[str, ...]) -> None:
    name, (server, pipe, _) = model[0], served(*model)
    inputs = MADE[name][2] or [base64.b64encode(png(shade)).decode() for shade in (10, 200)]
    ours = MADE[name][2] or [png(10), png(200)]
    options = {"max_new_tokens": 3, "do_sample": False}
    options = {key: value for key, value in options.items() if key in pipe.task.options}
    expected = pipe(list(ours), **options)
    if "image" in pipe.task.columns:
        expected = [{**one, "input": "the image"} for one in expected]
    assert server.post("/predict", inputs=inputs, options=options) == plain(expected)
    if not isinstance(inputs[0], tuple):
        assert server.post("/predict", inputs=inputs[0], options=options) == plain(expected[0])
    assert server.post("/predict", inputs=[]) == []
    status, error = server.refused("/predict", inputs=inputs, options={"colour": 1})
    assert (status, error["param"]) == (400, "colour")
    assert server.refused("/predict", inputs=inputs, options={"batch_tokens": 1})[1]["param"] == "batch_tokens"
    assert server.refused("/predict", inputs=[{"a": 1}])[0] == 400
    assert server.refused("/predict", inputs=inputs, colour=1)[1]["param"] == "colour"
    (entry,) = server.http.get("/v1/models").json()["data"]
    assert entry["heedful"]["task"] == name
    assert set(entry["heedful"]["columns"]) == set(pipe.task.input_columns)


@pytest.mark.parametrize("name", ["translation", "summarization"])
def test_text_to_text(served: Callable[..., Any], name: str) -> None:
    _, pipe, client = served(name)
    ask = client.translation if name == "translation" else client.summarization
    options = {"max_new_tokens": 4}
    for text in MADE[name][2]:
        answer = ask(text, generate_parameters=options)
        found = answer.translation_text if name == "translation" else answer.summary_text
        assert found == pipe(text, **options)["output"]
    with pytest.raises(Exception, match="clean_up_tokenization_spaces"):
        ask("a", clean_up_tokenization_spaces=True)


def test_text_classification(served: Callable[..., Any]) -> None:
    server, pipe, client = served("text-classification")
    expected = pipe("one fig 1", top_k=2)["output"]
    found = client.text_classification("one fig 1")
    assert [(one.label, one.score) for one in found] == [(one["label"], plain(one["score"])) for one in expected]
    assert len(client.text_classification("one fig 1", top_k=1)) == 1
    assert client.text_classification("one fig 1", function_to_apply="softmax")
    with pytest.raises(Exception, match="function_to_apply"):
        client.text_classification("one fig 1", function_to_apply="none")
    assert server.post("/predict", inputs="one fig 1", options={"top_k": None})["output"] == plain(expected)
    assert len(server.post("/", inputs=["one fig 1", "one saw"])) == 2
    assert server.post("/pipeline/text-classification", inputs="one saw")
    assert server.refused("/pipeline/translation", inputs="one saw")[0] == 404
    plain_text = server.http.post("/", content='{"inputs": "one saw"}', headers={"Content-Type": "text/plain"})
    assert plain_text.status_code == 400
    assert "not declared as JSON; send it with Content-Type: application/json" in plain_text.text


@pytest.mark.parametrize("given", [{}, {"multi_label": True}, {"hypothesis_template": "it is {} ."}])
def test_zero_shot_classification(inference_server: tuple[Running, Pipeline], given: dict[str, Any]) -> None:
    server, pipe = inference_server
    client, text = InferenceClient(server.address, token="none"), "the apple is a fruit"
    expected = pipe(text, choices=CHOICES, top_k=None, **given)["output"]
    found = client.zero_shot_classification(text, CHOICES, **given)
    assert [(one.label, one.score) for one in found] == [(one["label"], plain(one["score"])) for one in expected]
    assert client.zero_shot_classification(" ", CHOICES) == []
    asked = {"parameters": {"candidate_labels": CHOICES, **given}}
    assert server.post("/", inputs=[text, text], **asked) == plain([expected, expected])
    assert server.post("/pipeline/zero-shot-classification", inputs=text, **asked) == plain(expected)
    assert len(client.text_classification(text)) == 3


def test_zero_shot_requests_that_are_refused(
    served: Callable[..., Any], inference_server: tuple[Running, Pipeline]
) -> None:
    server, _ = inference_server
    for wrong, says in (
        ({}, "candidate_labels is missing; add it to parameters"),
        ({"candidate_labels": 5}, "choices must be a list of texts, not 5"),
        ({"candidate_labels": ["fruit"]}, "give two or more different texts"),
        ({"candidate_labels": CHOICES, "hypothesis_template": "it is"}, "'it is' needs one {}"),
        ({"candidate_labels": CHOICES, "hypothesis_template": 5}, "hypothesis_template must be a text, not 5"),
        ({"candidate_labels": CHOICES, "multi_label": "no"}, "multi_label must be true or false, not 'no'"),
        ({"candidate_labels": CHOICES, "function_to_apply": "softmax"}, "function_to_apply is not supported"),
    ):
        status, error = server.refused("/pipeline/zero-shot-classification", inputs="a saw", parameters=wrong)
        assert status == 400
        assert says in error["message"]
    many = {"candidate_labels": [f"kind {number}" for number in range(1000)]}
    assert server.refused("/", inputs="a saw " * 100, parameters=many)[0] == 413  # a text is read with each label
    _, _, client = served("text-classification")
    with pytest.raises(Exception, match="need a model of natural language inference"):
        client.zero_shot_classification("a saw", CHOICES)


def test_token_classification(served: Callable[..., Any]) -> None:
    _, pipe, client = served("token-classification")
    expected = pipe("take the fig or the saw")["output"]
    found = client.token_classification("take the fig or the saw", aggregation_strategy="first")
    assert [(one.entity_group, one.word, one.start, one.end) for one in found] == [
        (one["label"], one["text"], one["start"], one["end"]) for one in expected
    ]
    assert found
    with pytest.raises(Exception, match="aggregation_strategy"):
        client.token_classification("a", aggregation_strategy="max")
    with pytest.raises(Exception, match="ignore_labels"):
        client.token_classification("a", ignore_labels=["O"])


def test_question_answering(served: Callable[..., Any]) -> None:
    server, pipe, client = served("question-answering")
    asked = {"question": "What hangs?", "context": "The saw hangs."}
    found, expected = client.question_answering(**asked), pipe(asked)
    assert (found.answer, found.start, found.end) == tuple(expected["output"].values())
    assert found.score == plain(expected["score"])
    several = client.question_answering(**asked, top_k=2, max_answer_len=1)
    assert [one.answer for one in several] == [
        one["answer"] for one in pipe(asked, top_k=2, max_answer_length=1)["output"]
    ]
    for name, value in {"top_k": True, "max_answer_len": "9", "doc_stride": 0.5}.items():
        ours = {"max_answer_len": "max_answer_length", "doc_stride": "stride"}.get(name, name)
        assert server.refused("/", inputs=asked, parameters={name: value})[1]["param"] == ours
    with pytest.raises(Exception, match="handle_impossible_answer"):
        client.question_answering(**asked, handle_impossible_answer=True)


def test_generated_answers(served: Callable[..., Any]) -> None:
    server, pipe, client = served("generative-question-answering")
    asked = {"question": "What hangs?", "context": "The saw hangs."}
    found, expected = client.question_answering(**asked, max_answer_len=4), pipe(asked, max_new_tokens=4)
    assert found.answer == expected["output"]
    assert found.score == plain(math.exp(expected["score"]))
    named = server.post("/pipeline/question-answering", inputs=asked, parameters={"max_answer_len": 4})
    assert (named["answer"], named["score"]) == (found.answer, plain(found.score))
    assert ("start" in named) == (found.answer in asked["context"])
    with pytest.raises(Exception, match="handle_impossible_answer"):
        client.question_answering(**asked, handle_impossible_answer=True)
    several = server.post("/", inputs=asked, parameters={"num_beams": 2, "top_k": 2})
    assert [one["answer"] for one in several] == [
        one["text"] for one in pipe(asked, num_beams=2, num_return_sequences=2)["output"]
    ]
    assert server.refused("/v1/completions", prompt="a")[0] == 404
    look = {"input": asked, "target": "the saw", "layers": [0], "heads": [0]}
    [cross] = [one for one in server.post("/v1/attention", **look)["maps"] if "cross" in one["name"]]
    assert "".join(cross["keys"]).replace(" ", "").startswith("question:Whathangs?context:Thesaw")


def test_fill_mask(served: Callable[..., Any]) -> None:
    _, pipe, client = served("fill-mask")
    found, expected = client.fill_mask("the <mask> fell"), pipe("the <mask> fell", top_k=5)["output"]
    assert [(one.token_str, one.sequence) for one in found] == [(one["label"], one["text"]) for one in expected]
    assert len(client.fill_mask("the <mask> fell", top_k=3)) == 3
    assert client.fill_mask("the <mask> fell", top_k=1)
    with pytest.raises(Exception, match="top_k"):
        client.fill_mask("the <mask> fell", top_k=0)
    with pytest.raises(Exception, match="targets"):
        client.fill_mask("the <mask> fell", targets=["fig"])


def test_vectors(served: Callable[..., Any]) -> None:
    server, pipe, client = served("feature-extraction")
    texts = ["fig", "a saw", "a saw"]
    expected = np.array([one["output"] for one in pipe(texts)])
    assert np.allclose(client.feature_extraction(texts), expected, atol=1e-5)
    assert client.feature_extraction("fig").shape == (1, expected.shape[1])
    assert np.allclose(server.post("/embed", inputs=texts), expected, atol=1e-5)
    similar = client.sentence_similarity("fig", ["a saw", "fig"])
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert similar == plain([float(unit[0] @ unit[1]), 1.0])
    ranked = server.post("/rerank", query="fig", texts=["a saw", "fig"], return_text=True)
    assert [(one["index"], one["text"]) for one in ranked] == [(1, "fig"), (0, "a saw")]
    assert [one["score"] for one in ranked] == plain([1.0, similar[0]])
    assert server.refused("/rerank", query="fig", texts=["a", " "])[0] == 400
    assert server.refused("/embed", inputs="fig " * 2000)[0] == 413
    assert len(server.post("/embed", inputs="fig " * 2000, truncate=True)) == 1
    assert server.refused("/embed", inputs="fig", prompt_name="query")[1]["param"] == "prompt_name"
    similar_to = {"source_sentence": "fig", "sentences": ["a saw"]}
    assert server.refused("/", inputs=similar_to, parameters={"truncate": True})[1]["param"] == "parameters"
    assert server.refused("/", inputs="fig", normalize=False)[1]["param"] == "normalize"


def test_image_classification(served: Callable[..., Any], tmp_path: Path) -> None:
    server, pipe, client = served("image-classification")
    expected = pipe(png(), top_k=5)["output"]
    (tmp_path / "x.png").write_bytes(png())
    for image in (png(), tmp_path / "x.png"):
        found = client.image_classification(image)
        assert [(one.label, one.score) for one in found] == [(one["label"], plain(one["score"])) for one in expected]
    assert len(client.image_classification(png(), top_k=2)) == 2
    code = base64.b64encode(png()).decode()
    assert server.post("/predict", inputs=f"data:image/png;base64,{code}")["output"] == expected[0]["label"]
    for wrong in ("http://127.0.0.1/x.png", "file:///etc/passwd", str(tmp_path / "x.png"), "AAAA", 5, {"path": "x"}):
        status, error = server.refused("/predict", inputs=wrong)
        assert (status, error["param"]) == (400, "inputs")
    stream = io.BytesIO()
    Image.new("L", (5000, 5000)).save(stream, "PNG")
    assert server.http.post("/", content=stream.getvalue(), headers={"Content-Type": "image/png"}).status_code == 413
    form = server.http.post("/", files={"file": ("x.png", stream.getvalue())})
    assert form.status_code == 400
    assert "multipart forms are not read; send the file as the body: curl --data-binary @x.png" in form.text


def test_image_to_text(served: Callable[..., Any], tmp_path: Path) -> None:
    server, pipe, client = served("image-to-text")
    (tmp_path / "x.png").write_bytes(png())
    expected = pipe(png())["output"]
    for image in (png(), tmp_path / "x.png"):
        assert client.image_to_text(image).generated_text == expected
    code = base64.b64encode(png()).decode()
    assert server.post("/", inputs=code) == [{"generated_text": expected}]
    short = {"max_new_tokens": 2, "num_beams": 2}
    assert server.post("/", inputs=code, parameters={"generate_parameters": short}) == [
        {"generated_text": pipe(png(), **short)["output"]}
    ]
    assert server.refused("/", inputs=code, parameters={"encoder_no_repeat_ngram_size": 2})[0] == 400
    assert server.refused("/", inputs=code, stream=True)[1]["param"] == "stream"


def test_text_generation(served: Callable[..., Any]) -> None:
    server, pipe, client = served("text-generation")
    asked: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6}
    expected = pipe("the fig", **asked)["output"]
    assert client.text_generation("the fig", **asked, return_full_text=True) == expected
    text = expected.removeprefix("the fig")
    assert client.text_generation("the fig", **asked) == text
    details = client.text_generation("the fig", **asked, details=True)
    assert details.generated_text == text
    assert (details.details.finish_reason, details.details.generated_tokens) == ("length", 6)
    assert len(details.details.tokens) == 6
    assert "".join(client.text_generation("the fig", **asked, stream=True)) == text
    last = list(client.text_generation("the fig", **asked, stream=True, details=True))[-1]
    assert (last.generated_text, last.details.generated_tokens) == (text, 6)
    stopped = client.text_generation("the fig", **asked, stop=[text[2:4]], details=True)
    assert stopped.generated_text == text[: text.index(text[2:4])]
    assert stopped.details.finish_reason == "stop_sequence"
    for wrong in (5, [5], {"text": "a"}, None, [[1, 2]]):
        assert server.refused("/", inputs=wrong)[1]["param"] == "inputs"
    for several in ([], ["a", "b"]):
        assert server.refused("/", inputs=several, stream=True)[1]["param"] == "inputs"
    for name, value in {
        "generate_parameters": 5,
        "grammar": {"type": "json", "value": {}},
        "best_of": 2,
        "truncate": 5,
        "watermark": True,
    }.items():
        assert server.refused("/", inputs="the fig", parameters={name: value})[1]["param"] == name


def test_predict_of_a_decoder_stops_as_the_pipeline_does(served: Callable[..., Any]) -> None:
    server, pipe, _ = served("text-generation")
    options: dict[str, Any] = {"max_new_tokens": 6, "seed": 3}
    whole = pipe("the fig", **options)["output"]
    options["stop_strings"] = [whole[-3:-1]]
    found = server.post("/predict", inputs=["the fig", "the fig"], options={**options, "logprobs": True})
    expected = pipe(["the fig", "the fig"], **options, logprobs=True)
    assert found == plain(expected)
    several = {"max_new_tokens": 4, "num_return_sequences": 3, "seed": 1}
    assert server.post("/predict", inputs="the fig", options=several) == plain(pipe("the fig", **several))
    searched = {"max_new_tokens": 4, "num_beams": 3}
    assert server.post("/predict", inputs="the fig", options=searched) == plain(pipe("the fig", **searched))


def test_pairs_with_numbers_are_ranked(serving: Callable[..., Running], tmp_path: Path) -> None:
    rows = [f"fig {i}\tsaw {j}\t{(i * j) / 7:.3f}" for i in range(6) for j in range(6)]
    (tmp_path / "set.tsv").write_text("\n".join(["text\ttext_pair\tlabel", *rows]) + "\n", encoding="utf-8")
    command = ["train", "text-classification", "--train", str(tmp_path / "set.tsv"), "--preset=bert-tiny", *SMALL]
    command += ["--tokenizer.size=200", "--data.label-kind=number", "--out", str(tmp_path / "out"), "--max-steps=2"]
    assert cli.main([*command, "--json"]) == 0
    pipe = heedful.pipeline(None, tmp_path / "out")
    server = serving(pipe)
    texts = ["saw 1", "saw 5", "fig"]
    scores = [pipe(("fig 3", text))["output"] for text in texts]
    ranked = server.post("/rerank", query="fig 3", texts=texts)
    assert [one["index"] for one in ranked] == sorted(range(3), key=lambda i: -scores[i])
    assert [one["score"] for one in ranked] == plain(sorted(scores, reverse=True))
    assert server.post("/", inputs={"text": "fig 3", "text_pair": "saw 1"}) == [
        [{"label": "LABEL_0", "score": approx(scores[0], "layer")}]
    ]


def test_every_task_has_a_shape_and_every_shape_a_task() -> None:
    classes = {
        base.__name__: kind
        for entry in tasks.TASKS.values()
        for path in (entry.path, *entry.families.values(), *entry.kinds.values())
        for kind in [getattr(importlib.import_module(path.partition(":")[0]), path.partition(":")[2])]
        for base in kind.__mro__
    }
    assert SHAPES.keys() <= classes.keys()
    own = type("Stars", (classes["TextRegression"],), {"name": "stars"})
    assert shape_of(own.__new__(own)) is SHAPES["TextRegression"], "a task of one's own has that of its base"


def test_equal_options_are_computed_together_and_others_apart(served: Callable[..., Any]) -> None:
    """While a first batch is held, others come; then those of equal options are one batch."""
    server, pipe, _ = served("text-classification")
    sizes, go, entered = [], threading.Event(), threading.Event()
    own = server.service.pipe.predict_block

    def held(inputs: list[Any], options: Any) -> Any:
        sizes.append(len(inputs))
        entered.set()
        assert go.wait(20)
        return own(inputs, options)

    server.service.pipe.predict_block = held
    texts = [f"one fig {number}" for number in range(12)]
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(server.post, "/predict", inputs=["one saw"])
        assert entered.wait(20)
        others = [pool.submit(server.post, "/predict", inputs=[text]) for text in texts]
        ranked = [pool.submit(server.post, "/predict", inputs=[text], options={"top_k": 2}) for text in texts[:3]]
        bad = pool.submit(server.refused, "/predict", inputs=[{"text": 5}])
        server.until(lambda: server.service.admission.inputs == 16)
        go.set()
        found = [other.result()[0] for other in others]
        assert bad.result()[0] == 400
        assert [one.result()[0] for one in ranked] == plain(pipe(texts[:3], top_k=2))
    del server.service.pipe.predict_block
    assert first.result() == plain(pipe(["one saw"]))
    assert found == plain(pipe(texts))
    assert sizes[0] == 1
    assert sorted(sizes[1:])[-2:] == [3, 13]
