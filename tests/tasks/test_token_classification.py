"""Token classification: words in windows, the loss by hand, what comes out, and the folder opened by
`transformers`.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tagging_models import SENTENCES, SPEECH, rows, saved, settings

import heedful
from heedful.cli import main
from heedful.cli.scores import compared
from heedful.config import EncoderConfig
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.evaluation.compare import compare
from heedful.evaluation.evaluate import evaluate
from heedful.models import Model
from heedful.pretrained import load, save
from heedful.settings import AveragingSettings, DataSettings, TokenizerSettings, TrainingSettings
from heedful.tasks import tagging
from heedful.tasks.token_classification import TokenClassification
from heedful.tasks.word_tokens import tokens_of_texts, tokens_of_words, word_windows
from heedful.text import Tokenizer
from heedful.training.optimisation import adamw
from heedful.training.run import train
from tolerances import approx, assert_close

DATA = rows(*SENTENCES)
SETS = {"entities": DATA, "speech": rows(*SPEECH)}
LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def made(data: Rows = DATA, longest: int = 128, **given: Any) -> tuple[TokenClassification, Model]:
    asked = settings(data=DataSettings(max_length=longest), **given)
    task = TokenClassification.prepare(data, asked)
    model = heedful.create(task.config(asked), seed=0)
    task.before_training(model, asked)
    return task, model.eval()


@cache
def taught(which: str = "entities") -> tuple[TokenClassification, Model]:
    """A few steps over all rows at once: enough to tell these apart."""
    data = SETS[which]
    task, model = made(data)
    batch = task.collate(task.encode(data).examples)
    optimiser = adamw(model, lr=3e-3)
    for _ in range(80):
        optimiser.zero_grad()
        task.objective(model, batch).backward()
        optimiser.step()
    return task, model


# --------------------------------------------------------------------------------------------------- words and windows


def test_every_word_is_in_one_window_where_most_stands_around_it() -> None:
    """By brute force over all windows, for every size."""
    random = np.random.default_rng(0)
    for _ in range(300):
        length = int(random.integers(1, 30))
        starts = sorted({0, *random.choice(length, random.integers(1, length + 1)).tolist()})
        most = int(random.integers(1, 12))
        stride = int(random.integers(0, most))
        found = list(word_windows(starts, length, most, stride))
        every = [range(at, min(at + most, length)) for at in range(0, max(1, length - stride), most - stride)]
        assert [place for one in found for place in one.words] == list(range(len(starts)))
        for tokens, words in found:
            assert tokens in every
            for word in words:
                place, around = starts[word], {}
                for other in every:
                    if place in other:
                        before = place - other.start if other.start else 99
                        after = other.stop - 1 - place if other.stop < length else 99
                        around[other] = min(before, after)
                assert around[tokens] == max(around.values())
                assert tokens == min(
                    (one for one in around if around[one] == around[tokens]), key=lambda one: one.start
                )


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "character"])
def test_words_of_a_text_are_those_of_the_sentence(kind: Any) -> None:
    """Of words between blanks, whether they come as a list or as a text."""
    sentences = [words.replace(".", "x").replace("!", "y").replace(",", "z").split() for words, _ in SENTENCES]
    tokenizer = Tokenizer.train(map(" ".join, sentences), 300, kind, template="both")
    if kind == "character":
        sentences = [[*words[:1]] for words in sentences]  # it writes the space between words
    given = tokens_of_words(tokenizer, sentences)
    for one, other in zip(given, tokens_of_texts(tokenizer, [" ".join(words) for words in sentences]), strict=True):
        assert one == other
        assert [one.text[start:end] for start, end in one.spans] == one.text.split()
        assert all(before < after for before, after in pairwise(one.first))


def test_where_words_stand_in_a_text() -> None:
    task, _ = made()
    text = "\n In New-York, Ann (or Bób)  \u200bmet 日本. "
    worded = tokens_of_texts(task.tokenizer, [text, "", " \n"])
    found = [text[start:end] for start, end in worded[0].spans]
    assert found == ["In", "New", "-", "York", ",", "Ann", "(", "or", "Bób", ")", "met", "日", "本", "."]
    assert worded[1].spans == worded[2].spans == worded[1].first == []
    spaced = tokens_of_texts(Tokenizer.train([SENTENCES[0][0]], 300, "bpe", template="both"), [text])[0]
    assert [text[start:end] for start, end in spaced.spans] == [*text.split()[:5], "\u200bmet", "日本."]


def test_a_word_that_nothing_is_written_for_has_its_label() -> None:
    """BERT's normaliser takes control characters away: the word stands as the unknown token."""
    data = rows(("in \u0007 Rome", "O B-LOC B-PER"), ("Rome in", "B-PER O"))
    task, model = made(data)
    example = task.encode(data).examples[0]
    assert len(example.positions) == len(example.labels) == 3
    assert example.ids[example.positions[1]] == task.tokenizer.unknown
    assert task.predict(model, [["in", "\u0007", "Rome"]])[0].score is not None
    assert task.tokenizer.encode_words([["Rome"], []])[1] == ([], [])


# ------------------------------------------------------------------------------------------------------------- encoding


def test_a_batch_by_hand() -> None:
    task, _ = made()
    assert task.labels == LABELS
    encoded = task.encode(DATA)
    examples = encoded.examples
    assert encoded.rows is DATA
    assert encoded.note == "IOB2 tags of 2 kinds, 9 entities"
    batch = task.collate(examples)
    for i, row in enumerate(DATA):
        pieces = [task.tokenizer.encode([word])[0] for word in row.values["words"]]
        ids, labels = [1], [-100]
        for own, tag in zip(pieces, row.values["tags"], strict=True):
            ids += own
            labels += [LABELS.index(tag)] + [-100] * (len(own) - 1)
        assert batch["ids"][i][batch["mask"][i]].tolist() == [*ids, 2]
        assert batch["labels"][i][batch["mask"][i]].tolist() == [*labels, -100]
        assert batch["labels"][i][~batch["mask"][i]].eq(-100).all()
        assert task.lengths(examples)[i].tolist() == [len(ids) + 1]
    assert not batch["segments"].any()
    assert task.count(batch) == sum(len(words.split()) for words, _ in SENTENCES)


@pytest.mark.parametrize("stride", [None, 0, 3])
def test_no_label_is_lost_with_a_long_sentence(stride: int | None) -> None:
    words, tags = (" ".join(side * 12) for side in zip(*SENTENCES[:2], strict=True))
    long = rows((words, tags), SENTENCES[2])
    task, model = made(longest=16)
    task.stride = stride
    encoded = task.encode(long)
    examples, note = encoded.examples, encoded.note
    assert len(examples) > 5
    assert all(len(example.ids) <= 16 for example in examples)
    assert "; 1 sentence in " in note
    assert "windows of 16 tokens (the model's limit), each word counted once" in note
    said = [task.labels[label] for example in examples if example.row == 0 for label in example.labels]
    assert said == tags.split()
    assert task.count(task.collate(examples)) == len(said) + 5
    for example in examples:
        own = task.tokenizer.encode_words([[words.split()[word]] for word in example.words] if example.row == 0 else [])
        assert [example.ids[place] for place in example.positions] == [ids[0] for ids, _ in own] or example.row == 1
    measured = task.measure(model, examples, long)
    gold = sum(one["support"] for one in measured.details["by_class"])
    assert gold == len(tagging.entities(tags.split()))
    other = task.measure(model, examples, long, stride=5)
    assert sum(one["support"] for one in other.details["by_class"]) == gold
    assert other.metrics["loss"] != measured.metrics["loss"]
    assert task.encode(long, 12).note.endswith("windows of 12 tokens (--data.max-length), each word counted once")
    with pytest.raises(HeedfulError, match=r"stride 14 is too large for windows of 14 tokens; give 13 or less"):
        task.predict(model, [], stride=14)  # before any input is read
    with pytest.raises(HeedfulError, match=r"max-length 2 has no room for a word; give 3 or more"):
        task.encode(long, 2)


def test_words_are_hidden_in_training_alone() -> None:
    task, _ = made()
    examples = task.encode(DATA).examples * 20
    plain = task.collate(examples)["ids"]
    drawn = [task.collate(examples, np.random.default_rng(seed))["ids"] for seed in (0, 0, 1)]
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])
    hidden = drawn[0] != plain
    assert drawn[0][hidden].eq(3).all()
    assert not hidden[plain <= 2].any()  # padding, start, end
    assert hidden[plain > 3].float().mean().item() == pytest.approx(0.1, abs=0.03)
    task.before_training(heedful.create("bert-tiny", head="token"), settings(preset=None, start_from="elsewhere"))
    assert task.collate(examples, np.random.default_rng(0))["ids"].equal(plain)


# ----------------------------------------------------------------------------------------------------------------- tags


@pytest.mark.parametrize(
    ("tags", "labels", "told"),
    [
        (["O B-x I-x", "B-y O B-x"], ["O", "B-x", "I-x", "B-y", "I-y"], "IOB2 tags of 2 kinds, 3 entities"),
        (["O I-x I-x", "I-x B-x O"], ["O", "B-x", "I-x"], "IOB1 tags of 1 kind, 3 entities"),
        (["O I-x B-x", "O B-x O"], ["O", "B-x", "I-x"], "BIO (1 begin with I-) tags of 1 kind, 3 entities"),
        (["O I-x I-y"], ["O", "I-x", "I-y"], "IO tags of 2 kinds, 2 entities"),
        (["B-x E-x S-y"], ["B-x", "E-x", "S-x", "B-y", "E-y", "S-y"], "BIOES tags of 2 kinds, 2 entities"),
        (["B-x L-x U-y"], ["B-x", "L-x", "U-x", "B-y", "L-y", "U-y"], "BILOU tags of 2 kinds, 2 entities"),
        (["B M E", "O S O"], ["O", "B", "M", "E", "S"], "BMES tags of 1 kind, 2 entities"),
        (["O PER PER", "O LOC O"], ["O", "LOC", "PER"], "IO tags of 2 kinds, 2 entities"),
        (["DET NOUN VERB"], ["DET", "NOUN", "VERB"], "3 tags"),
    ],
)
def test_schemes_are_known_by_themselves(tags: list[str], labels: list[str], told: str) -> None:
    data = rows(*(("a b c", one) for one in tags))
    assert tagging.tag_labels(data) == labels
    assert tagging.tag_summary(data, labels) == told


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([("a b", "O O")], r"^set\.conll: only the tag 'O' in 1 sentence; add sentences"),
        (
            [("a b", "O B-PER"), ("c d", "I-PER PERS")],
            r"^set\.conll:3: the tag 'PERS' of 'd' has no prefix B- or I-, but other tags have one; did you mean "
            r"'[BI]-PER'\?$",
        ),
        (
            [("Wort a b", "Etikett O B-PER"), ("c d", "I-PER O")],
            r"^set\.conll:1: the tag 'Etikett' .* if this line is a header, name its columns: .*columns Wort,Etikett$",
        ),
    ],
)
def test_tags_that_cannot_be_learned(sentences: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        TokenClassification.prepare(rows(*sentences), settings())


def test_a_tag_that_was_not_learned() -> None:
    task, _ = made()
    with pytest.raises(HeedfulError, match=r"^set\.conll:3: the model has no tag 'B-PRE' .*; did you mean 'B-PER'\?"):
        task.encode(rows(("a", "O"), ("a b", "O B-PRE")))
    assert task.encode(rows(("a", "I-LOC"))).examples[0].labels == [2]


def test_held_back_rows_have_only_trained_tags() -> None:
    many = rows(*((f"word {i}", "O B-common") for i in range(100)), *((f"rare {i}", f"O B-rare{i}") for i in range(10)))
    train, held = TokenClassification.split_rows(many, 0.2, 0)
    assert sorted(row.line for row in (*train, *held)) == list(range(1, 111))
    assert len(held) > 10
    assert {tag for row in held for tag in row.values["tags"]} == {"O", "B-common"}
    with pytest.raises(HeedfulError, match="--valid"):
        TokenClassification.split_rows(rows(*((f"a {i}", f"O B-k{i}") for i in range(20))), 0.2, 0)
    with pytest.raises(HeedfulError, match=r"^set\.conll:1: all 3 words are one sentence, .* put blank lines between"):
        TokenClassification.split_rows(rows(("a b c", "O O B-k")), 0.2, 0)


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_by_hand(smoothing: float) -> None:
    task, model = made()
    model.double()
    expected = 0.0
    examples = task.encode(DATA).examples
    for row, example in zip(DATA, examples, strict=True):
        ids = torch.tensor([example.ids])
        log_p = model(ids, segments=torch.zeros_like(ids))[0].log_softmax(-1)
        for place, tag in zip(example.positions, row.values["tags"], strict=True):
            expected -= (1 - smoothing) * log_p[place, LABELS.index(tag)].item()
            expected -= smoothing * log_p[place].mean().item()
    assert task.objective(model, task.collate(examples), smoothing).item() == approx(expected, "layer")


def test_suggestions_are_those_of_encoders() -> None:
    plain = settings(preset=None, model=settings().model.__class__(), tokenizer=TokenizerSettings())
    told = TokenClassification.suggested_settings(DATA, plain)
    assert (told.preset, told.tokenizer.kind) == ("bert-tiny", "wordpiece")
    asked = settings(preset=None, start_from="gone", training=TrainingSettings(lr=1e-4))
    fine = TokenClassification.suggested_settings(DATA, asked)
    assert fine.training.lr == 1e-4
    assert fine.max_epochs < told.max_epochs * 2
    for tags, epochs in [(5, 3), (13, 8)]:  # 3,200 sentences are 100 steps an epoch, a tag wants 60
        many = Rows(
            Row({"words": ("rain",), "tags": (f"TAG{number % tags}",)}, "set.conll", number) for number in range(3_200)
        )
        assert TokenClassification.suggested_settings(many, asked).max_epochs == epochs


# ------------------------------------------------------------------------------------------------ measuring, answering


@pytest.mark.parametrize("which", SETS)
def test_metrics_are_those_of_the_predictions(which: str) -> None:
    task, model = taught(which)
    assert (task.scheme, task.main_metric) == {"entities": ("BIO", "f1"), "speech": ("plain", "accuracy")}[which]
    data = Rows(
        [*SETS[which], *rows(("rain plants Ann York", {"entities": "B-LOC O O I-PER"}.get(which, "NOUN " * 4)))]
    )
    examples = task.encode(data).examples
    measured = task.measure(model, examples, data)
    answers = task.predict(model, [list(row.values["words"]) for row in data])
    assert [answer.output for answer in answers] == list(measured.outputs)
    assert measured.metrics["loss"] == approx(
        task.objective(model, task.collate(examples)).item() / task.count(task.collate(examples))
    )
    assert measured.metrics[task.main_metric] < 100
    assert measured.example_scores is not None
    assert measured.example_scores.metrics_of(np.arange(len(data))) == pytest.approx(measured.metrics)
    learned = measured.example_scores.metrics_of(np.arange(len(data) - 1))
    assert learned["accuracy"] == 100
    wrong = measured.details["mistakes"][0]
    assert wrong["place"] == len(data) - 1
    assert wrong["input"] == "rain plants Ann York"
    assert wrong["score"] == approx(answers[-1].score)
    assert ("confusion" in measured.details) == (which == "speech")
    if which == "speech":
        counts = np.array(measured.details["confusion"]["counts"])
        assert counts.sum() == sum(len(row.values["words"]) for row in data)
        assert 100 * np.trace(counts) / counts.sum() == pytest.approx(measured.metrics["accuracy"])
    assert json.loads(json.dumps(measured.details)) == measured.details


def test_spans_of_texts_and_of_words() -> None:
    task, model = taught()
    words, tags = SENTENCES[0]
    one, other, third = task.predict(model, [words, words.split(), {"words": tuple(words.split())}])
    assert one.output == other.output == third.output
    assert [(span["label"], span["text"]) for span in one.output] == [("PER", "Ann Lee"), ("LOC", "New York")]
    for span in one.output:
        assert words[span["start"] : span["end"]] == span["text"]
    example = task.encode(rows((words, tags))).examples[0]
    p = model(torch.tensor([example.ids]))[0].softmax(-1).max(-1).values[example.positions]
    assert one.output[0]["score"] == approx(p[:2].mean().item())
    assert one.score == approx(p.prod().item())
    assert task.row_line(DATA[0]) == "Ann Lee lives in New York . → Ann Lee (PER), New York (LOC)"
    assert task.row_line(DATA[2]).endswith(" → O")
    speech, reader = taught("speech")
    assert speech.row_line(SETS["speech"][0]) == "the rain falls → the (DET), rain (NOUN), falls (VERB)"
    assert [(span["label"], span["text"]) for span in speech.predict(reader, ["rain the plants"])[0].output] == [
        ("VERB", "rain"),
        ("DET", "the"),
        ("NOUN", "plants"),
    ]


def test_answers_keep_the_order_and_blanks_stay_blank() -> None:
    task, model = taught()
    inputs = [SENTENCES[0][0], " ", SENTENCES[3][0].split(), "", [], "York " * 300, SENTENCES[1][0]]
    together = task.predict(model, inputs, batch_tokens=20)
    assert [answer.input for answer in together] == inputs
    for i in (1, 3, 4):
        assert (together[i].output, together[i].score) == ([], None)
    for i in (0, 2, 5, 6):
        alone = task.predict(model, inputs[i : i + 1])[0]
        assert [{**span, "score": 0} for span in alone.output] == [{**span, "score": 0} for span in together[i].output]
        assert alone.score == approx(together[i].score)
    assert together[5].output[-1]["end"] == 5 * 300 - 1
    assert task.predict(model, []) == []
    for wrong in (7, ["a", ""], {"text": "a"}, [1]):
        with pytest.raises(HeedfulError, match=r'this model takes a text, a list of words, or \{"words": \[\.\.\.\]\}'):
            task.predict(model, [wrong])


def test_the_baseline_is_a_linear_model() -> None:
    task, _ = made()
    train = rows(("Rome and Rome", "B-LOC O B-LOC"), ("Ann in Rome", "B-PER O B-LOC"))
    asked = rows(("Rome in Rome", "B-LOC O B-LOC"), ("Ann and Rome", "B-PER O O"))
    baseline = task.baseline(asked, lambda: train)
    assert baseline.name == "a linear SVM on words, their letters and neighbours"
    assert baseline.metrics["accuracy"] == pytest.approx(500 / 6)
    assert (baseline.metrics["precision"], baseline.metrics["recall"]) == pytest.approx((75, 100))


def test_the_constant_tag_is_the_best_one_of_training() -> None:
    task, _ = made()
    found = task.guess([], rows(("Rome Bonn", "B-LOC B-LOC")), rows(("a b c Rome", "O O O B-LOC")))
    assert found is not None
    assert (found.name, found.metrics["f1"]) == ("the tag B-LOC for every word", 100)


# -------------------------------------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("which", SETS)
def test_the_folder_opens_in_transformers_with_the_same_logits(which: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    data, (task, model) = SETS[which], taught(which)
    folder = saved(task, model, tmp_path / "model")
    again, opened = TokenClassification.load(folder), load(folder)
    again.check_model(opened)
    assert (again.labels, again.scheme, again.longest) == (task.labels, task.scheme, 128)
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    assert type(theirs).__name__ == "BertForTokenClassification"
    assert [theirs.config.id2label[i] for i in range(len(task.labels))] == task.labels
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(
        [list(row.values["words"]) for row in data], is_split_into_words=True, padding=True, return_tensors="pt"
    )
    batch = task.collate(task.encode(data).examples)
    assert inputs["input_ids"].equal(batch["ids"])
    with torch.no_grad():
        ours = model(batch["ids"], batch["mask"], batch["segments"])
        assert_close(theirs(**inputs).logits[batch["mask"]], ours[batch["mask"]], "gradient")
    asked = [" ".join(row.values["words"]) for row in data]
    assert [one.output for one in again.predict(opened, asked)] == [one.output for one in task.predict(model, asked)]


def test_models_that_cannot_tell_words_apart() -> None:
    task, model = made()
    assert isinstance(model.config, EncoderConfig)
    for other, message in [
        (heedful.create("gpt-micro"), "needs an encoder; this model is of kind 'decoder'"),
        (
            heedful.create(task.config(settings()), head="none"),
            r"its head is of kind 'no-head'\); train one: heedful",
        ),
        (heedful.create(task.config(settings()), num_labels=7), "has 7 classes, but its folder names 5 labels"),
    ]:
        with pytest.raises(HeedfulError, match=message):
            task.check_model(other)


def test_sentences_are_compared_as_a_person_reads_them(tmp_path: Path) -> None:
    """Words with a space between, and none of a long text's thousands."""
    long = (" ".join(["in Paris"] * 400), " ".join(["O B-LOC"] * 400))
    told = ["\n".join(f"{w} {t}" for w, t in zip(*map(str.split, one), strict=True)) for one in (*SENTENCES, long)]
    file = tmp_path / "set.conll"
    file.write_text("\n\n".join(told))
    task, fresh = made()
    folders = [str(saved(task, model, tmp_path / name)) for name, model in (("a", fresh), ("b", taught()[1]))]
    found = compare(folders, [str(file)], examples=100, say=lambda line: None)
    texts = [one["input"] for one in found["differing_examples"]]
    assert "Ann Lee lives in New York ." in texts
    assert all(len(text) <= 300 for text in texts)
    assert any(text.startswith("in Paris in Paris") for text in texts)
    assert max(map(len, compared(found))) <= 320


def test_a_model_that_is_no_encoder_is_refused_before_it_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(heedful.create("transformer-tiny"), tmp_path)
    with pytest.raises(HeedfulError, match=r"needs an encoder; the model in .* is of kind 'encoder-decoder'; choose"):
        TokenClassification.for_fine_tuning(tmp_path, rows(("a b", "O B-PER")), settings())
    assert not caplog.messages  # nothing of a new head


def test_a_run_from_files_to_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, go on, evaluate and predict, with a stride that the folder keeps."""
    path = tmp_path / "set.conll"
    text = "\n\n".join("\n".join(f"{w}\t{t}" for w, t in zip(a.split(), b.split(), strict=True)) for a, b in SENTENCES)
    path.write_text(f"{text}\n", encoding="utf-8")
    out = tmp_path / "model"
    asked = settings(
        data=DataSettings(max_length=12, stride=2),
        max_steps=30,
        training=TrainingSettings(lr=3e-3),
        averaging=AveragingSettings(polynomial=0.0),
    )
    whole = heedful.settings.resolve(
        heedful.settings.RunSettings(
            task="token-classification", train=(str(path),), valid=(str(path),), out=str(out), device="cpu"
        ),
        asked,
    )
    lines: list[str] = []
    result = train(whole, say=lines.append, quiet=True)
    assert any("IOB2 tags of 2 kinds, 9 entities" in line for line in lines)
    assert result["metrics"]["f1"] > 50
    card = json.loads((out / "heedful.json").read_text())
    assert card["stride"] == 2
    assert TokenClassification.load(out).stride == 2
    found = evaluate(str(out), [str(path)], device="cpu", say=lines.append)
    assert found["metrics"]["f1"] == pytest.approx(result["metrics"]["f1"])
    assert main(["predict", str(out), "Ann Lee lives in New York .", "--json", "--stride", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"label", "text", "start", "end", "score"} == set(answer["output"][0])
    assert main(["predict", str(out), "x", "--stride", "99"]) == 2
    assert "--stride 99 is too large" in capsys.readouterr().err
