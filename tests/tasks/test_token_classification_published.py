"""Token classification on folders that others wrote: their tokens, their logits, the spans of their pipeline."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tagging_models import CONFIGS, KINDS, SENTENCES, published, rows, saved, settings

import heedful
from heedful.pretrained import load
from heedful.tasks.token_classification import TokenClassification
from heedful.tasks.word_tokens import tokens_of_texts, tokens_of_words
from heedful.text import Tokenizer
from tolerances import approx

transformers = pytest.importorskip("transformers")

TEXTS = [
    "Ann Lee lives in New York.",
    "In Paris, Bob don't meet the Stones!",
    "café in 日本 and 日本本 , Rome",
    "rainy",
    "to Delhi-Rome (and) Yorks; the rain is",
]


def pipe(model: Any, tokenizer: Any) -> Any:
    return transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first", device=-1
    )


def theirs_of(pipeline: Any, text: str) -> list[tuple[Any, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a byte-level vocabulary marks no words
        found = pipeline(text)
    return [(one["entity_group"], one["start"], one["end"], approx(one["score"])) for one in found]


def ours_of(output: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["label"], one["start"], one["end"], one["score"]) for one in output]


@pytest.mark.parametrize("labels", [KINDS, ["O", "PER", "LOC", "ORG"]], ids=["BIO", "IO"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_spans_of_their_pipeline(name: str, labels: list[str], tmp_path: Path) -> None:
    theirs, model = published(name, tmp_path, labels)
    ours = heedful.pipeline("token-classification", tmp_path)
    assert ours.task.labels == labels
    asked = pipe(model, theirs)
    answers = ours(TEXTS)
    kinds = set()
    for text, answer in zip(TEXTS, answers, strict=True):
        assert ours_of(answer["output"]) == theirs_of(asked, text), text
        kinds |= {one["label"] for one in answer["output"]}
        for one in answer["output"]:
            assert one["text"] == text[one["start"] : one["end"]]
    assert len(kinds) > 1


@pytest.mark.parametrize("name", CONFIGS)
def test_ids_of_words_are_theirs(name: str, tmp_path: Path) -> None:
    """Also of a byte-level folder that was saved without a space before words, which they must open otherwise."""
    published(name, tmp_path, KINDS, prefix=False)
    again = transformers.AutoTokenizer.from_pretrained(
        tmp_path, **({"add_prefix_space": True} if name == "Roberta" else {})
    )
    task = TokenClassification.load(tmp_path)
    sentences = [words.split() for words, _ in SENTENCES] + [["don't", "日本本", "🙂", "x-y", "café"]]
    batch = again(sentences, is_split_into_words=True)
    for i, text in enumerate(tokens_of_words(task.tokenizer, sentences)):
        around = task.tokenizer.template()
        assert around.join(text.ids)[0] == batch["input_ids"][i]
        owners = batch.word_ids(i)
        assert [place + len(around.before) for place in text.first] == [owners.index(n) for n in range(len(text.first))]


def test_a_token_of_the_space_alone_begins_its_word(tmp_path: Path) -> None:
    """A byte-level vocabulary without a token for " 🙂" writes the space apart: there the word's label was learned. Of
    several spaces only the last is the word's, and the bytes of the letter are one word.
    """
    published("Roberta", tmp_path, KINDS)
    tokenizer = Tokenizer.load(tmp_path)
    words = ["the", "🙂", "rain", "🙂!"]
    (given,), (found,) = tokens_of_words(tokenizer, [words]), tokens_of_texts(tokenizer, [" ".join(words)])
    assert found == given
    assert tokenizer.pieces([found.ids[found.first[1]]]) == [" "]
    wide = tokens_of_texts(tokenizer, ["the   rain"])[0]
    assert [tokenizer.pieces([wide.ids[place]]) for place in wide.first] == [[" the"], [" rain"]]
    assert len(wide.ids) == 4


def test_ids_of_words_are_those_of_gpt2(tmp_path: Path) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=backend.pre_tokenizer.alphabet()
    )
    backend.train_from_iterator(["the rain in the rain"] * 3, trainer)
    transformers.GPT2TokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, add_prefix_space=True)
    sentences = [["the", "rain", "rain's", "é"], ["in"]]
    assert [ids for ids, _ in Tokenizer.load(tmp_path).encode_words(sentences)] == theirs(
        sentences, is_split_into_words=True
    )["input_ids"]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_words_are_theirs(name: str, tmp_path: Path) -> None:
    """Labels of the words of a sentence, and the loss, by the published model in float64."""
    theirs, model = published(name, tmp_path, KINDS)
    task, ours = TokenClassification.load(tmp_path), load(tmp_path, dtype="float64")
    task.check_model(ours)
    data = rows(*SENTENCES)
    measured = task.measure(ours.eval(), task.encode(data).examples, data)
    model.double()
    loss = words = right = 0.0
    for row in data:
        inputs = theirs(list(row.values["words"]), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            log_p = model(**inputs).logits[0].log_softmax(-1)
        owners = inputs.word_ids(0)
        for n, tag in enumerate(row.values["tags"]):
            at = log_p[owners.index(n)]
            loss -= at[KINDS.index(tag)].item()
            right += KINDS[int(at.argmax())] == tag
            words += 1
    assert measured.metrics["loss"] == approx(loss / words)
    assert measured.metrics["accuracy"] == pytest.approx(100 * right / words)


def test_bioes_is_read_where_their_pipeline_does_not(tmp_path: Path) -> None:
    """They take E- and S- for kinds of their own; here an entity is one entity."""
    labels = ["O", "B-x", "I-x", "E-x", "S-x"]
    published("Bert", tmp_path, labels)
    task, ours = TokenClassification.load(tmp_path), load(tmp_path)
    assert task.scheme == "BIO"
    words = ["ann", "lee", "live", "in", "paris"]
    with torch.no_grad():  # each word says one label whatever stands around it
        head = ours.get_submodule("head.output")
        for parameter in (*ours.encoder.parameters(), *head.parameters()):
            parameter.zero_()
    ours.head = Fixed([0, 1, 3, 0, 0, 4, 0], len(labels))
    answer = task.predict(ours, [" ".join(words)])[0]
    assert [(one["label"], one["text"]) for one in answer.output] == [("x", "ann lee"), ("x", "paris")]


class Fixed(torch.nn.Module):
    """A head that says the same of each place."""

    def __init__(self, said: list[int], labels: int) -> None:
        super().__init__()
        self.logits = torch.nn.functional.one_hot(torch.tensor(said), labels) * 9.0

    def forward(self, hidden: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        return self.logits[None, : hidden.size(1)].expand(len(hidden), -1, -1)


def test_going_on_from_a_published_model(shared_data: Any, tmp_path: Path) -> None:
    folder = shared_data("weights/minilm-l6")
    asked = settings(preset=None, start_from=str(folder), model=settings().model)
    data = rows(*SENTENCES)
    task, model = TokenClassification.for_fine_tuning(folder, data, asked)
    task.before_training(model, asked)
    assert task.labels == list(model.labels) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert {"head.output.weight", "head.output.bias"} == set(model.fresh)
    stored = load(folder, dtype="float32").state_dict()
    assert all(model.state_dict()[key].equal(stored[key]) for key in stored if not key.startswith("head."))
    again = saved(task, model.eval(), tmp_path / "model")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(again)
    asked = pipe(theirs, transformers.AutoTokenizer.from_pretrained(again))
    task.splitting = None  # their pipeline does not know the words of the training data
    for text in TEXTS:
        assert ours_of(task.predict(model, [text])[0].output) == theirs_of(asked, text)


@pytest.mark.parametrize("name", CONFIGS)
def test_going_on_with_known_tags_keeps_the_head(name: str, tmp_path: Path) -> None:
    _, theirs = published(name, tmp_path, KINDS)
    data = rows(*SENTENCES[:2])
    task, model = TokenClassification.for_fine_tuning(tmp_path, data, settings(preset=None, start_from=str(tmp_path)))
    assert (task.labels, list(model.fresh)) == (KINDS, [])
    assert model.state_dict()["head.output.weight"].equal(theirs.classifier.weight)
    other = rows(("Ann in Rome", "B-PER O B-CITY"))
    task, model = TokenClassification.for_fine_tuning(tmp_path, other, settings(preset=None, start_from=str(tmp_path)))
    assert task.labels == ["O", "B-CITY", "B-PER"]
    assert {"head.output.weight", "head.output.bias"} <= set(model.fresh)
