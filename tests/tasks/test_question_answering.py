"""Question answering: windows, the loss by hand, answers as transformers gives them, and the folder opened by it."""

from __future__ import annotations

import json
import logging
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.data import Row, Rows, read
from heedful.data.rows import Span
from heedful.errors import HeedfulError
from heedful.metrics.squad import AnswerScore, squad_sums
from heedful.metrics.verdict import Rival, verdict
from heedful.models import Model
from heedful.pretrained import load, save
from heedful.pretrained.folder import read_card
from heedful.pretrained.model_card import update_model_card
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks import span_regression
from heedful.tasks.answer_spans import best_spans
from heedful.tasks.passages import NOWHERE, Passage, passages_of, question_windows
from heedful.tasks.question_answering import QuestionAnswering
from heedful.text import Tokenizer
from heedful.training.optimisation import adamw
from tolerances import approx, assert_close

transformers = pytest.importorskip("transformers")
SMALL = ModelSettings(dim=32, heads=2, depth=1)
PEOPLE, PLACES = ["Ann", "Bob", "Cleo", "Dan", "Eve"], ["Rome", "Oslo", "Bern", "Lima"]


def row(question: str, context: str, answer: str | None, place: int = 1, title: str | None = None) -> Row:
    answers = () if answer is None else (Span(answer, context.index(answer)),)
    extra = {} if title is None else {"title": title}
    return Row({"question": question, "context": context, "answers": answers} | extra, "set.json", place)


def made_up(none: bool = False) -> Rows:
    """Who is where: two sentences, of which one answers; with `none` some ask for who is not there."""
    rows = []
    for i, person in enumerate(PEOPLE):
        for j, place in enumerate(PLACES):
            other, there = PEOPLE[(i + 1 + j) % 5], PLACES[(j + 1 + i % 3) % 4]
            told = [f"{person} is in {place} .", f"{other} is in {there} ."]
            context = " ".join(told if (i + j) % 2 else told[::-1])
            rows.append(row(f"Where is {person} ?", context, place, len(rows) + 1) if other != person else None)
            if none:
                absent = next(name for name in PEOPLE if name not in (person, other))
                rows.append(row(f"Where is {absent} ?", context, None, len(rows) + 1))
    return Rows((each for each in rows if each), 0, ("question", "context", "answers"))


LONG = " ".join(f"{PEOPLE[i % 5]} was in {PLACES[i % 4]} ." for i in range(30)) + " Eve is in Lima now ."
SETS = {"all": made_up(), "none": made_up(none=True)}


def settings(**given: Any) -> RunSettings:
    chosen = {"preset": "bert-tiny", "model": SMALL, "tokenizer": TokenizerSettings(size=200)} | given
    return RunSettings(task="question-answering", train=("-",), out="-", **chosen)


def made(data: Rows, longest: int = 64, stride: int | None = None) -> tuple[QuestionAnswering, Model]:
    asked = settings(data=DataSettings(max_length=longest, stride=stride))
    task = QuestionAnswering.prepare(data, asked)
    model = heedful.create(task.config(asked), seed=0).eval()
    task.before_training(model, asked)
    task.check_model(model)
    return task, model


@cache
def taught(which: str, steps: int = 150) -> tuple[QuestionAnswering, Model]:
    data = SETS[which]
    task, model = made(data)
    batch = task.collate(task.encode(data).examples)
    optimiser = adamw(model, lr=3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        (task.objective(model, batch) / len(data)).backward()
        optimiser.step()
    return task, model


def lively(model: Model) -> Model:
    """Weights that tell positions apart, so that no two pieces are equally likely."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.double().parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    return model


def saved(task: QuestionAnswering, model: Model, folder: Path) -> Path:
    save(model, folder, extra={"task": task.name, "columns": dict(task.columns), **task.card_entries()})
    task.save(folder)
    update_model_card(folder)
    return folder


# ------------------------------------------------------------------------------------------------------------- encoding


def test_a_question_and_its_context_as_bert_has_them() -> None:
    task, _ = made(SETS["all"])
    examples, rows, note, lost, _ = task.encode(SETS["all"])
    batch = task.collate(examples)
    assert (len(examples), note, rows, lost) == (len(SETS["all"]), "", SETS["all"], 0)
    for i, each in enumerate(SETS["all"]):
        question, context = task.tokenizer.encode([each.values["question"], each.values["context"]])
        ids = [1, *question, 2, *context, 2]
        real = batch["mask"][i]
        assert batch["ids"][i][real].tolist() == ids
        assert batch["segments"][i][real].tolist() == [0] * (len(question) + 2) + [1] * (len(context) + 1)
        inner = [False] * (len(question) + 2) + [True] * len(context) + [False]
        assert batch["context"][i].tolist() == inner + [False] * (len(real) - len(inner))
        start, end = batch["labels"][i].tolist()
        assert task.tokenizer.decode([batch["ids"][i, start : end + 1].tolist()]) == [each.values["answers"][0].text]
        assert task.lengths(examples)[i].tolist() == [len(ids)]
    assert task.count(batch) == len(examples)


@pytest.mark.parametrize(("most", "stride"), [(40, None), (40, 5), (33, 0), (64, 28), (400, 100)])
def test_windows_are_those_of_transformers(most: int, stride: int | None, tmp_path: Path) -> None:
    """The same ids in each; where the last would hold nothing new there is none."""
    task, _ = made(SETS["all"], longest=400)
    task.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    question = "Where is Eve now ?"
    data = Rows([row(question, LONG, "Lima now")])
    shared = min(128, most // 3) if stride is None else stride
    task.stride = stride
    examples, rows, note, lost, _ = task.encode(data, most)
    wanted = theirs(
        question, LONG, truncation="only_second", max_length=most, stride=shared, return_overflowing_tokens=True
    )["input_ids"]
    batch = task.collate(examples)
    assert [ids[real].tolist() for ids, real in zip(batch["ids"], batch["mask"], strict=True)] == wanted
    assert rows == data
    several = f"1 question on texts read in windows of {most} tokens that share {shared}"
    assert (note, lost) == (several if len(wanted) > 1 else "", 0)
    held = [window for window in examples if window.start != NOWHERE]
    assert held
    assert all(window.first <= window.start <= window.end < window.last for window in held)
    outside = batch["labels"][[window.start == NOWHERE for window in examples]]
    assert not outside.any()  # the class token


def test_cut_and_lost_examples_are_counted() -> None:
    tokenizer = Tokenizer.train(["a b c d e f g h i j k l m n o p ? ."] * 3, 60, "character", template="both")
    long = ("a" * 30 + "?", "b c d", (Span("c", 2),))
    wide = ("a?", "b" * 40, (Span("b" * 30, 5),))
    found = question_windows(tokenizer, [long[:2], wide[:2]], [long[2], wide[2]], 23, 4)
    assert found.note == (
        "1 question on texts read in windows of 23 tokens that share 4; 1 question cut to 10 tokens; "
        "1 answer that no window contains completely, learned as no answer"
    )
    assert found.unread == [0, 1]  # the one cut, the other without its answer
    assert all(len(window.question) + window.last - window.first + 3 <= 23 for window in found.windows)
    task, _ = made(SETS["all"])
    data = Rows([*SETS["all"][:2], row("Where is Eve now ? " * 9, "Eve is in Lima now .", "Lima")])
    told = task.encode(data, 40)
    assert (told.lost, told.unread) == (1, [data[2]])
    with pytest.raises(HeedfulError, match=r"max-length 6 has no room for a question and a text; give 7 or more$"):
        question_windows(tokenizer, [], [], 6)
    with pytest.raises(HeedfulError, match=r"stride 12 is too large for windows of 23 tokens; give 11 or less$"):
        question_windows(tokenizer, [], [], 23, 12)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "character", "unigram"])
def test_every_piece_is_found_again(kind: Any) -> None:
    """Characters to tokens and back: exactly where tokens end, and never less than asked for."""
    text = "Ünïcode, 東京 and\tÉlan: naïve — “quoted” 12,345.6 😀 end"
    tokenizer = Tokenizer.train([text, "and end"] * 2, 300, kind, template="both")
    passage = passages_of(tokenizer, [text])[text]
    words = text.split()
    for i in range(len(words)):
        for j in range(i, len(words)):
            start = text.index(words[i])
            piece = text[start : text.index(words[j]) + len(words[j])]
            found = passage.characters(*passage.tokens(Span(piece, start)))
            assert found == Span(piece, start)
    middle = Span("code", text.index("code"))
    found = passage.characters(*passage.tokens(middle))
    assert found.start <= middle.start
    assert "code" in found.text
    assert text[found.start :].startswith(found.text)


def test_held_back_are_whole_articles_or_whole_contexts() -> None:
    titled = Rows(row(f"Q{i} ?", f"context {i // 3} .", "context", title=f"article {i // 9}") for i in range(180))
    for seed in range(3):
        train, held = QuestionAnswering.split_rows(titled, 0.2, seed)
        assert len(train) + len(held) == 180
        assert len(held) == 36
        assert not {each.values["title"] for each in train} & {each.values["title"] for each in held}
        assert set(held[0].values) == {"question", "context", "answers", "title"}
        bare = Rows(row(f"Q{i} ?", f"context {i // 3} .", "context") for i in range(180))
        train, held = QuestionAnswering.split_rows(bare, 0.2, seed)
        assert len(held) == 36
        assert not {each.values["context"] for each in train} & {each.values["context"] for each in held}
    one = Rows(row(f"Q{i} ?", f"context {i // 3} .", "context", title="the only one") for i in range(60))
    assert len(QuestionAnswering.split_rows(one, 0.2, 0)[1]) == 12


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_by_hand(smoothing: float) -> None:
    task, model = made(SETS["none"])
    lively(model)
    expected = 0.0
    data = Rows(
        [*SETS["none"], row("Where is Eve ?", "Eve is in Rome .", "Rome"), row("Who ?", LONG, "Eve is in Lima")]
    )
    for window in task.encode(data).examples:
        alone = task.collate([window])
        logits = model(alone["ids"], segments=alone["segments"])[0]
        for side, place in enumerate(alone["labels"][0].tolist()):
            log_p = logits[:, side].log_softmax(0)
            expected -= ((1 - smoothing) * log_p[place] + smoothing * log_p.mean()).item() / 2
    batch = task.collate(task.encode(data).examples)
    assert batch["mask"].sum() < batch["mask"].numel()  # padding takes no part
    assert task.objective(model, batch, smoothing).item() == approx(expected, "layer")


def test_settings_that_the_data_suggests(tmp_path: Path) -> None:
    asked = settings(preset=None, model=ModelSettings(), tokenizer=TokenizerSettings())
    many = Rows(SETS["all"][i % len(SETS["all"])] for i in range(4000))
    told = QuestionAnswering.suggested_settings(many, asked)
    assert (told.preset, told.data.max_length, told.data.stride) == ("bert-tiny", 384, 128)
    assert told.training.label_smoothing == 0.0
    assert told.training.lr is not None
    short = QuestionAnswering.suggested_settings(many, settings(data=DataSettings(max_length=60)))
    assert short.data.stride == 20
    task, model = made(SETS["all"])
    folder = str(saved(task, model, tmp_path / "model"))
    plain: dict[str, Any] = {"preset": None, "model": ModelSettings(), "tokenizer": TokenizerSettings()}
    fine = QuestionAnswering.suggested_settings(many, settings(start_from=folder, **plain))
    assert fine.training.lr == pytest.approx(5e-5 * 768 / 32)
    assert (fine.training.label_smoothing, fine.training.batch_size) == (0.0, 32)
    assert (fine.data.max_length, fine.data.stride) == (64, 21)  # the model reads no more at a time
    assert QuestionAnswering.for_fine_tuning(folder, SETS["all"], fine)[0].encode(SETS["all"]).note == ""
    given = settings(start_from=folder, training=TrainingSettings(lr=1e-4), **plain)
    assert QuestionAnswering.suggested_settings(many, given).training.lr == 1e-4


# --------------------------------------------------------------------------------------------- as transformers answers


def published(folder: Path, name: str) -> tuple[Any, Any]:
    """A tiny random model of transformers with its tokenizer, written as they are published."""
    config: dict[str, Any] = {"vocab_size": 200, "max_position_embeddings": 130}
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    if name == "DistilBert":
        small = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    kind = "bpe" if name == "Roberta" else "wordpiece"
    texts = [each.values[side] for each in SETS["all"] for side in ("question", "context")]
    tokenizer = Tokenizer.train(texts, 290 if kind == "bpe" else 200, kind, template="both")
    if name == "Roberta":
        from tokenizers.processors import RobertaProcessing

        tokenizer.backend.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 1))
    tokenizer.config["model_max_length"] = 120
    tokenizer.save(folder)
    config["vocab_size"] = tokenizer.vocab_size
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{name}Config")(**config, **small, pad_token_id=0, initializer_range=0.4)
    model = getattr(transformers, f"{name}ForQuestionAnswering")(theirs).double().eval()
    model.save_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def pieces(model: Any, tokenizer: Any, question: str, context: str, most: int, stride: int) -> Any:
    """The probability of the best pieces by (start, end), as the pipeline of transformers 4 had it but for the words it
    rounded up to and for pieces that begin or end with a token of blanks alone; the least probability of none; and by
    how much the logits of none are above those of the best.

    What it took from the logits lives on in transformers 5, for documents.
    """
    from transformers.pipelines.document_question_answering import select_starts_ends

    given = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=min(tokenizer.model_max_length, 384),
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    found: dict[tuple[int, int], float] = {}
    null, logits_null, logits_best = 1e6, math.inf, -math.inf
    for i, ids in enumerate(given["input_ids"]):
        own = torch.tensor([ids])
        kinds = {"token_type_ids": torch.tensor([given["token_type_ids"][i]])} if "token_type_ids" in given else {}
        with torch.no_grad():
            out = model(own, **kinds)
        inner = np.array([side != 1 for side in given.sequence_ids(i)])
        seen = [bool(context[slice(*place)].strip()) for place in given["offset_mapping"][i]] & ~inner
        mask = inner & (np.array(ids) != tokenizer.cls_token_id)
        starts, ends, scores, null = select_starts_ends(
            out.start_logits.numpy(), out.end_logits.numpy(), mask[None].astype(int), None, null, 60, True, most
        )
        for start, end, score in zip(starts, ends, scores, strict=True):
            if not seen[start] or not seen[end]:
                continue
            place = (given["offset_mapping"][i][start][0], given["offset_mapping"][i][end][1])
            found[place] = max(score.item(), found.get(place, 0.0))
        logits_null = min(logits_null, (out.start_logits[0, 0] + out.end_logits[0, 0]).item())
        first, last = out.start_logits[0], out.end_logits[0]
        places = np.flatnonzero(seen)
        pairs = [(first[s] + last[e]).item() for s in places for e in places if s <= e < s + most]
        logits_best = max(logits_best, *pairs)
    return [found, null, logits_null - logits_best]


@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert"])
def test_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, tokenizer = published(tmp_path, name)
    answers = heedful.pipeline("question-answering", tmp_path, dtype="float64")
    assert answers.card == {}
    asked = [(each.values["question"], each.values["context"]) for each in SETS["all"][:6]]
    asked += [("Where is Eve now ?", LONG), ("Ann ?", "Rome"), ("Who is in Lima ?", LONG[:333] + "\n" + LONG)]
    least = []
    for k, most, stride in ((1, 30, 40), (4, 3, 40), (3, 1, 17)):
        found = answers(asked, top_k=k, max_answer_length=most, stride=stride, align_to_words=False)
        none = answers(asked, null_threshold=-1e9, max_answer_length=most, stride=stride)
        for one, without, (question, context) in zip(found, none, asked, strict=True):
            wanted, null, margin = pieces(model, tokenizer, question, context, most, stride)
            output = one["output"] if k > 1 else [one["output"] | {"score": one["score"]}]
            assert [each["score"] for each in output] == approx(sorted(wanted.values())[: -k - 1 : -1], "gradient")
            assert len({(each["start"], each["end"]) for each in output}) == len(output)
            for each in output:
                assert each["score"] == approx(wanted[each["start"], each["end"]], "gradient")
            assert all(context[each["start"] : each["end"]] == each["answer"] for each in output)
            assert one["score"] == output[0]["score"]
            assert without["output"] == {"answer": "", "start": 0, "end": 0}
            assert without["score"] == approx(null, "gradient")
            least.append(null)
            for threshold in (margin - 1e-4, margin + 1e-4):
                said = answers((question, context), null_threshold=threshold, max_answer_length=most, stride=stride)
                assert (said["output"]["answer"] == "") == (threshold < margin)
    assert len(set(least)) > 5


@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert"])
def test_the_loss_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """Theirs counts padding among the places, so each window is given alone."""
    model, _ = published(tmp_path, name)
    ours, task = load(tmp_path, dtype="float64"), QuestionAnswering.load(tmp_path)
    task.check_model(ours)
    for window in task.encode(SETS["all"][:5]).examples:
        batch = task.collate([window])
        kinds = {"token_type_ids": batch["segments"]} if name == "Bert" else {}
        start, end = batch["labels"].T
        theirs = model(batch["ids"], start_positions=start, end_positions=end, **kinds).loss
        assert task.objective(ours, batch).item() == approx(theirs.item(), "gradient")


def test_a_saved_folder_opens_in_transformers(tmp_path: Path) -> None:
    task, model = taught("all")
    saved(task, model, tmp_path / "model")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "model").eval()
    assert type(theirs).__name__ == "BertForQuestionAnswering"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    each = SETS["all"][0].values
    given = tokenizer(each["question"], each["context"], return_tensors="pt")
    batch = task.collate(task.encode(SETS["all"][:1]).examples)
    with torch.no_grad():
        out = theirs(**given)
        logits = model(batch["ids"], batch["mask"], batch["segments"])
    assert_close(torch.stack([out.start_logits, out.end_logits], 2), logits)


# ------------------------------------------------------------------------------------------------ measuring, answering


WHOLE = [  # text, answer as pointed at, answer as given
    ("The Denver Broncos won.", "enve", "Denver"),
    ("The Denver Broncos won.", "Denver Bron", "Denver Broncos"),
    ("Denver's team", "Denver", "Denver"),
    ("(Denver)", "Denver", "Denver"),
    ("a 308-point lead", "308", "308"),
    ("about 3,000 fans", "3", "3,000"),
    ("it costs 2.50.", "50", "2.50"),
    ("in the 1990s", "1990", "1990s"),
    ("Die Pariserin kam", "Paris", "Pariserin"),
    ("Он живёт в Москве.", "Моск", "Москве"),
    ("वह दिल्ली में है", "दिल", "दिल्ली"),
    ("هو في القاهرة.", "قاهرة", "القاهرة"),
    ("他住在北京市", "北京", "北京"),
    ("東京タワーは高い", "タワー", "タワー"),
    ("เขาอยู่ในกรุงเทพ", "กรุงเทพ", "กรุงเทพ"),
    ("เขาชื่อกี้มา", "เขาชื", "เขาชื่"),  # a mark belongs to the letter before it
    ("파리에서 왔다", "파리", "파리"),  # a particle is no part of the answer
    ("cafe\u0301 noir", "caf", "cafe\u0301"),
    ("می\u200cخواهم بروم", "خواهم", "می\u200cخواهم"),
]


@pytest.mark.parametrize(("text", "pointed", "whole"), WHOLE)
def test_answers_are_widened_to_whole_words(text: str, pointed: str, whole: str) -> None:
    passage = Passage(text, np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros(0, np.bool_))
    found = passage.whole_words(Span(pointed, text.index(pointed)))
    assert found == Span(whole, text.index(whole))
    assert passage.whole_words(found) == found  # at borders nothing changes


def test_every_published_answer_but_broken_ones_is_at_borders() -> None:
    """XQuAD's golds, of which four of 2,380 begin or end inside a word by mistake."""
    files = [Path("../shared/data/xquad") / f"xquad.{language}.json.xz" for language in ("en", "de")]
    if not all(file.exists() for file in files):
        pytest.skip(f"no {files[0].parent}")
    inside = []
    for file in files:
        for each in read(str(file), QuestionAnswering.columns):
            text, answer = each.values["context"], each.values["answers"][0]
            passage = Passage(text, np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros(0, np.bool_))
            inside += [answer.text] if passage.whole_words(answer) != answer else []
    assert sorted(inside) == ["7,000,000 square kilometres (2,70", "Manning", "Tentakel", "Virginia"]


def pointing(answer: str, text: str) -> tuple[QuestionAnswering, Model, list[tuple[str, str]]]:
    """A task whose model points at a piece of a text, and the question; tokens are characters."""
    data = Rows([row("Where ?", text, answer)])
    asked = settings(tokenizer=TokenizerSettings(kind="character", size=60), data=DataSettings(max_length=64))
    task = QuestionAnswering.prepare(data, asked)
    model = heedful.create(task.config(asked), seed=0).eval()
    batch = task.collate(task.encode(data).examples)
    optimiser = adamw(model, lr=3e-3)
    for _ in range(60):
        optimiser.zero_grad()
        task.objective(model, batch).backward()
        optimiser.step()
    return task, model, [("Where ?", text)]


def test_answers_end_at_word_borders_unless_training_ends_inside_words(tmp_path: Path) -> None:
    task, model, asked = pointing("Oslo", "Eve went to Osloby today .")
    assert task.card_entries()["align_to_words"] is False  # as its one answer has it
    assert task.predict(model, asked)[0].output == {"answer": "Oslo", "start": 12, "end": 16}
    wide = {"answer": "Osloby", "start": 12, "end": 18}
    [whole] = task.predict(model, asked, align_to_words=True)
    assert whole.output == wide
    assert whole.score == task.predict(model, asked)[0].score  # of the piece
    several = task.predict(model, asked, align_to_words=True, top_k=3)[0].output
    assert len({(one["start"], one["end"]) for one in several}) == len(several)
    assert {name: several[0][name] for name in wide} == wide
    folder = saved(task, model, tmp_path / "model")
    assert QuestionAnswering.load(folder).align_to_words is False
    rows = Rows([row("Where ?", asked[0][1], "Osloby")])

    def opened_without(*names: str) -> QuestionAnswering:
        card = json.loads((folder / "heedful.json").read_text())
        (folder / "heedful.json").write_text(json.dumps({n: value for n, value in card.items() if n not in names}))
        return QuestionAnswering.load(folder)

    earlier = opened_without("align_to_words")
    assert earlier.predict(model, asked)[0].output == {"answer": "Oslo", "start": 12, "end": 16}
    assert earlier.measure(model, earlier.encode(rows).examples, rows).metrics["exact_match"] == 0
    foreign = opened_without("task")
    assert foreign.predict(model, asked)[0].output == wide
    measured = foreign.measure(model, foreign.encode(rows).examples, rows)
    assert measured.metrics["exact_match"] == 100
    assert foreign.measure(model, foreign.encode(rows).examples, rows, align_to_words=False).metrics["exact_match"] == 0


def test_it_learns_to_point() -> None:
    task, model = taught("all")
    measured = task.measure(model, task.encode(SETS["all"]).examples, SETS["all"])
    assert measured.metrics["exact_match"] > 95
    assert measured.metrics.keys() == {"loss", "exact_match", "f1"}
    baseline = task.baseline(SETS["all"], lambda: Rows())
    assert 20 < baseline.metrics["f1"] < 60
    assert baseline.metrics["exact_match"] == 0
    assert baseline.metrics.keys() == {"exact_match", "f1"}


def test_the_baseline_learns_which_words_answer() -> None:
    """Dates for "When", places for "Where": the sentence of a question has both, and more."""
    draw = np.random.default_rng(0)
    people, verbs = ("Ann", "Bob", "Eve", "Kim", "Tom"), ("met", "saw", "left")

    def asked(i: int) -> Row:
        one, other, verb = draw.choice(people), draw.choice(people), draw.choice(verbs)
        day, place = f"{draw.integers(1, 29)} {draw.choice(['May', 'June'])}", f"{draw.choice(PLACES)} {i}"
        told = f"{one} {verb} {other} in the old town of {place} on {day} because it rained ."
        answer = day if i % 2 else place
        return row(f"{'When' if i % 2 else 'Where'} was it that {one} {verb} {other} ?", f"It was so . {told}", answer)

    learned, held = Rows(asked(i) for i in range(80)), Rows(asked(i) for i in range(80, 120))
    task, _ = made(SETS["all"])
    sentence = task.baseline(held, lambda: Rows())
    baseline = task.quick_baseline([], held, learned)
    assert sentence.name == "the sentence most like the question (TF-IDF)"
    assert sentence.metrics["f1"] < 40
    assert baseline is not None
    assert baseline.name == "ridge regression on the words of a span"
    assert baseline.metrics["f1"] > 90
    assert baseline.metrics["exact_match"] > 80
    perfect = squad_sums([AnswerScore(1, 1)] * 40, [True] * 40, np.zeros(40), np.zeros(40))
    assert baseline.example_scores is not None
    assert sentence.example_scores is not None
    found = verdict(sentence.example_scores, "f1", baseline=Rival(baseline.name, baseline.example_scores))
    assert (found.kind, found.rival_value) == ("below", baseline.metrics["f1"])
    assert verdict(perfect, "f1", baseline=Rival("sentence", sentence.example_scores)).kind == "better"


def test_the_spans_of_the_baseline_are_all_short_ones_of_a_sentence() -> None:
    long = "One two three . " + " ".join(f"w{i}" for i in range(25)) + " ."
    (passage,) = span_regression._passages(["Who is w3 or w5 or two ?"], [long])
    places = [(word.sentence, passage.text((i, i))) for i, word in enumerate(passage.words)]
    one = [word for _, word in places].index("One")
    expected = [(i, j) for i in range(30) for j in range(i, min(30, i + 20)) if places[i][0] == places[j][0]]
    assert [tuple(span) for span in passage.spans().tolist()] == expected
    assert passage.text((one, one + 2)) == "One two three"
    kept = {tuple(span) for span in passage.training_spans(["One two three"], np.random.default_rng(0)).tolist()}
    near = {(0, 2), (1, 2), (0, 3), (0, 1), (0, 0), (2, 2)}
    assert {(one + first, one + last) for first, last in near} <= kept <= {*expected}


def test_it_learns_when_to_say_nothing(tmp_path: Path) -> None:
    task, model = taught("none")
    rows = SETS["none"]
    measured = task.measure(model, task.encode(rows).examples, rows)
    assert measured.metrics["NoAns_exact"] > 90
    assert measured.metrics["HasAns_exact"] > 90
    assert measured.metrics["best_exact"] >= measured.metrics["exact_match"]
    assert measured.details["by_kind"]["without answer"]["examples"] == len(PEOPLE) * len(PLACES)
    asked = [(each.values["question"], each.values["context"]) for each in rows]
    said = [answer.output for answer in task.predict(model, asked)]
    assert said == list(measured.outputs)
    always = task.measure(model, task.encode(rows).examples, rows, null_threshold=1e9)
    assert always.metrics["NoAns_exact"] == 0
    never = task.measure(model, task.encode(rows).examples, rows, null_threshold=-1e9)
    assert (never.metrics["NoAns_exact"], never.metrics["HasAns_f1"]) == (100, 0)
    at_best = measured.metrics["best_f1_thresh"]
    again = task.measure(model, task.encode(rows).examples, rows, null_threshold=at_best)
    assert again.metrics["f1"] == pytest.approx(measured.metrics["best_f1"])
    folder = saved(task, model, tmp_path / "model")
    assert read_card(folder)["null_threshold"] == 0.0
    assert QuestionAnswering.load(folder).null_threshold == 0.0
    assert taught("all")[0].card_entries() == {"null_threshold": None, "align_to_words": True}


def test_metrics_are_those_of_the_predictions() -> None:
    task, model = taught("all", steps=12)
    rows = SETS["all"]
    examples = task.encode(rows).examples
    measured = task.measure(model, examples, rows)
    answers = task.predict(model, [{"question": r.values["question"], "context": r.values["context"]} for r in rows])
    wrong = [i for i, each in enumerate(rows) if answers[i].output["answer"] != each.values["answers"][0].text]
    assert 0 < len(wrong) < len(rows)
    assert measured.metrics["exact_match"] == pytest.approx(100 * (1 - len(wrong) / len(rows)))
    assert measured.metrics["loss"] == pytest.approx(task.objective(model, task.collate(examples)).item() / len(rows))
    mistakes = measured.details["mistakes"]
    assert sorted(each["place"] for each in mistakes) == wrong
    for each in mistakes:
        assert each["input"] == rows[each["place"]].values["question"]
        assert each["expected"] == rows[each["place"]].values["answers"][0].text
        assert each["output"] == answers[each["place"]].output["answer"]
        assert each["score"] == approx(answers[each["place"]].score)
    assert measured.example_scores is not None
    assert measured.example_scores.metrics_of(np.arange(len(rows))) == measured.metrics
    half = task.measure(model, task.encode(Rows(rows[:7])).examples, Rows(rows[:7])).metrics
    assert measured.example_scores.metrics_of(np.arange(7)) == approx(half, "gradient")
    assert json.loads(json.dumps(measured.details)) == measured.details
    with pytest.raises(HeedfulError, match="top_k has no effect"):
        task.measure(model, examples, rows, top_k=2)


def test_a_long_context_is_read_to_its_end() -> None:
    """The answer lies far beyond the first window, and windows of another stride are read where one is asked for."""
    task, model = made(SETS["all"], longest=48)
    lively(model)
    data = Rows([row("Where is Eve now ?", LONG, "Lima now"), row("Ann ?", "Ann is in Rome .", "Rome")])
    examples = task.encode(data).examples
    assert len(examples) > 5
    reached = {task.predict(model, [("Where is Eve now ?", LONG)], stride=s)[0].output["start"] for s in (0, 5, 16, 24)}
    assert max(reached) > len(LONG) // 4
    other = task.measure(model, examples, data, stride=24)
    assert other.metrics["loss"] != approx(task.measure(model, examples, data).metrics["loss"], dtype=torch.float64)
    assert other.outputs[0] == task.predict(model, [("Where is Eve now ?", LONG)], stride=24)[0].output
    with pytest.raises(HeedfulError, match=r"stride 25 is too large for windows of \d+ tokens; give 24 or less$"):
        task.predict(model, [], stride=25)  # before any input is read
    with pytest.raises(HeedfulError, match=r"stride 25 is too large for windows of \d+ tokens; give 24 or less$"):
        task.predict(model, [("Where ?", LONG)], stride=25)


def test_answers_keep_the_order_and_blanks_stay_blank(caplog: pytest.LogCaptureFixture) -> None:
    task, model = taught("all")
    first, second = (SETS["all"][i].values for i in (0, 5))
    inputs: list[Any] = [
        (first["question"], first["context"]),
        {"question": " ", "context": "Ann is here ."},
        f"{second['question']}\t{second['context']}",
        "",
        [first["question"], "\n"],
        ("Where is Ann ?", LONG),
    ]
    with caplog.at_level(logging.WARNING):
        together = task.predict(model, inputs, batch_tokens=60)
    assert not caplog.messages
    assert [answer.input for answer in together] == inputs
    assert together[0].output["answer"] == first["answers"][0].text
    assert together[2].output["answer"] == second["answers"][0].text
    for i in (1, 3, 4):
        assert (together[i].output, together[i].score) == ({"answer": "", "start": 0, "end": 0}, None)
    for i in (0, 2, 5):
        alone = task.predict(model, inputs[i : i + 1])[0]
        assert (alone.output, alone.score) == (together[i].output, approx(together[i].score))
    assert task.predict(model, []) == []
    assert task.input_columns == {"question": "text", "context": "text"}
    assert all(
        answer.output["answer"] for answer in task.predict(model, task.trial_inputs(["Ann is in Rome .", "Bob ."]))
    )
    assert task.row_line(SETS["all"][0]) == f"{first['question']} → {first['answers'][0].text}"
    assert task.row_line(SETS["none"][1]).endswith("→ (no answer)")


@pytest.mark.parametrize("one", ["no tab", ("one",), {"question": "Q"}, 3, ("Q", 3), {"question": "Q", "text": "C"}])
def test_inputs_that_are_no_question(one: Any) -> None:
    task, model = taught("all")
    with pytest.raises(HeedfulError, match=r"^question-answering takes a question and a context: .*; got "):
        task.predict(model, [one])
    with pytest.raises(
        HeedfulError, match=r"the option topk has no effect for question-answering; did you mean 'top_k'"
    ):
        task.predict(model, [], topk=3)


def test_a_question_that_is_too_long_is_cut_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    task, model = taught("all")
    with caplog.at_level(logging.WARNING):
        (answer,) = task.predict(model, [(LONG + " ?", "Ann is in Rome .")])
    assert answer.output["answer"]
    assert caplog.messages == ["1 of 1 question cut to 30 tokens (half of a window of 64, without its special tokens)"]


def test_no_answer_is_blank_nor_begins_so() -> None:
    """A tokenizer of bytes has tokens of line ends and spaces; what is answered begins and ends in sight."""
    texts = [each.values[side] for each in SETS["all"] for side in ("question", "context")]
    tokenizer = Tokenizer.train([*texts, "\n \n  \n"], 300, "bpe", template="both")
    task = QuestionAnswering(tokenizer)
    model = lively(heedful.create("bert-tiny", head="span", seed=0))
    task.check_model(model)
    context = "\n\n  Ann \n\n \t is   in\n\n\n Rome .   \n\n"
    found = task.predict(model, [("Where ?", context)], top_k=40)[0].output
    assert len(found) > 8
    assert all(each["answer"] == each["answer"].strip() != "" for each in found)
    assert all(context[each["start"] : each["end"]] == each["answer"] for each in found)
    assert len({(each["start"], each["end"]) for each in found}) == len(found)
    blank = [("Where ?", "\u200b"), ("Where ?", "\x00")]  # not blank for Python, perhaps without a token
    for answer, (_, text) in zip(task.predict(model, blank), blank, strict=True):
        assert answer.output["answer"] == text[answer.output["start"] : answer.output["end"]]


def test_a_thousand_questions_in_bounds() -> None:
    """No batch is larger than its budget, and what is asked of one text alone is answered so among many."""
    task, model = made(SETS["all"])
    lively(model)
    draw = np.random.default_rng(0)
    asked = []
    for _ in range(1000):
        told = [f"{draw.choice(PEOPLE)} is in {draw.choice(PLACES)} ." for _ in range(draw.integers(1, 9))]
        asked.append((f"Where is {draw.choice(PEOPLE)} ?", " ".join(told)))
    asked[437] = ("Where is Ann ?", LONG * 20)
    shapes: list[tuple[int, int]] = []
    model.embedding.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    answers = task.predict(model, asked, batch_tokens=2048)
    assert all(rows * columns <= 2048 for rows, columns in shapes)
    for i in (0, 436, 437, 999):
        alone = task.predict(model, [asked[i]])[0]
        assert (answers[i].output, answers[i].score) == (alone.output, approx(alone.score, "layer"))


def test_pieces_by_brute_force() -> None:
    """Every start with every end, over random logits in float64."""
    torch.manual_seed(0)
    for longest, k in ((1, 1), (3, 4), (30, 9), (30, 1)):
        logits, context = torch.randn(5, 14, 2, dtype=torch.double) * 3, torch.zeros(5, 14, dtype=torch.bool)
        for i in range(5):
            context[i, 3 + i : 9 + i] = True
        found = best_spans(logits, context, context, longest, k)
        for i in range(5):
            places = [0, *range(3 + i, 9 + i)]
            p = logits[i, places].softmax(0)
            pairs = [
                ((p[s, 0] * p[e, 1]).item(), places[s], places[e])
                for s in range(1, 7)
                for e in range(s, min(7, s + longest))
            ]
            wanted = sorted(pairs, reverse=True)[:k]
            told = [
                (math.exp(score), start, end)
                for score, start, end in zip(*(t[i].tolist() for t in found[:3]), strict=True)
                if score > -math.inf
            ]
            assert [place for _, *place in map(list, told)] == [place for _, *place in map(list, wanted)]
            assert [score for score, *_ in told] == approx([score for score, *_ in wanted], "gradient")
            _, start, end = wanted[0]
            assert found.best[i].item() == approx((logits[i, start, 0] + logits[i, end, 1]).item(), "gradient")
            assert found.null[i].item() == approx(logits[i, 0].sum().item(), "gradient")
            assert found.null_score[i].item() == approx(p[0].log().sum().item(), "gradient")


# -------------------------------------------------------------------------------------------------------------- folders


def test_going_on_from_a_model_without_a_head(tmp_path: Path) -> None:
    task, model = made(SETS["all"])
    bare = heedful.create(task.config(settings()), head="none", seed=0)
    save(bare, tmp_path / "bare")
    task.save(tmp_path / "bare")
    asked = settings(preset=None, model=ModelSettings(), start_from=str(tmp_path / "bare"))
    task, model = QuestionAnswering.for_fine_tuning(tmp_path / "bare", SETS["none"], asked)
    assert sorted(model.fresh) == ["head.output.bias", "head.output.weight"]
    assert task.null_threshold == 0.0
    assert model.get_submodule("embedding").token.weight.equal(bare.get_submodule("embedding").token.weight)
    again = QuestionAnswering.for_fine_tuning(tmp_path / "bare", SETS["none"], asked)[1]
    assert model.state_dict()["head.output.weight"].equal(again.state_dict()["head.output.weight"])
    taught_task, learned = taught("all")
    folder = saved(taught_task, learned, tmp_path / "learned")
    kept = QuestionAnswering.for_fine_tuning(folder, SETS["all"], asked)[1]
    assert list(kept.fresh) == []
    assert all(tensor.equal(learned.state_dict()[name]) for name, tensor in kept.state_dict().items())


def test_a_model_that_is_no_encoder_is_refused_before_it_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(heedful.create("transformer-tiny"), tmp_path)
    with pytest.raises(HeedfulError, match=r"needs an encoder; the model in .* is of kind 'encoder-decoder'; choose"):
        QuestionAnswering.for_fine_tuning(tmp_path, SETS["all"], settings())
    assert not caplog.messages  # nothing of a new head


def test_questions_of_which_none_has_an_answer_teach_nothing() -> None:
    none = Rows([row("Where ?", "Ann is in Rome .", None), row("Who ?", "Bob is in Oslo .", None)])
    with pytest.raises(
        HeedfulError, match=r":\d+: none of 2 questions has an answer, .*; give answers: \"answers\": {"
    ):
        QuestionAnswering.prepare(none, settings())
    task, model = made(SETS["none"])  # but such questions alone may be measured
    told = task.measure(model, task.encode(none).examples, none)
    assert not [name for name in told.metrics if name.startswith(("HasAns", "NoAns"))]
    assert "best_f1_thresh" in told.metrics
    assert "by_kind" not in told.details


def test_models_that_cannot_point(tmp_path: Path) -> None:
    task, _ = made(SETS["all"])
    for other, message in [
        (heedful.create("gpt-micro"), "needs an encoder; this model is of kind 'decoder'"),
        (heedful.create(task.config(settings()), head="none"), "head is of kind 'no-head'; train one"),
        (heedful.create("vit-micro"), "this model is of kind 'vision'"),
    ]:
        with pytest.raises(HeedfulError, match=message):
            task.check_model(other)
    bare = Tokenizer.train(["a b"], 30, "character", template="none")
    model = heedful.create("bert-tiny", head="span")
    with pytest.raises(HeedfulError, match="the tokenizer puts no class token before a pair"):
        QuestionAnswering(bare).check_model(model)


def test_a_whole_run_from_files(tmp_path: Path) -> None:
    """Trained from nothing and gone on with, evaluated with its mistakes drawn, and asked."""
    from heedful.evaluation.evaluate import evaluate
    from heedful.training.run import train
    from heedful.views.run_figures import draw_report

    documents = [
        {"title": each.values["context"], "paragraphs": [{"context": each.values["context"], "qas": [asked]}]}
        for i, each in enumerate(SETS["none"])
        for asked in [
            {
                "question": each.values["question"],
                "id": str(i),
                "is_impossible": not each.values["answers"],
                "answers": [{"text": text, "answer_start": start} for text, start in each.values["answers"]],
            }
        ]
    ]
    data = tmp_path / "set.json"
    data.write_text(json.dumps({"version": "v2.0", "data": documents}), encoding="utf-8")
    out, drawn = tmp_path / "run", tmp_path / "drawn"
    short: dict[str, Any] = {"max_steps": 3, "data": DataSettings(max_length=40, stride=10), "train": (str(data),)}
    fresh: dict[str, Any] = {"preset": "bert-tiny", "model": SMALL, "tokenizer": TokenizerSettings(size=200)}
    first = RunSettings(task="question-answering", out=str(out), **short, **fresh)
    told = train(first, say=lambda line: None, quiet=True, draw=draw_report)
    assert {"exact_match", "f1", "NoAns_f1", "best_f1_thresh", "loss"} <= told["metrics"].keys()
    assert (out / "mistakes.html").is_file()
    task = QuestionAnswering.load(out)
    assert (task.longest, task.stride, task.null_threshold) == (40, 10, 0.0)
    measured = evaluate(str(out), [str(data)], say=lambda line: None)
    assert measured["examples"] == len(SETS["none"])
    assert measured["by_kind"].keys() == {"answerable", "without answer"}
    again = RunSettings(task="question-answering", out=str(drawn), start_from=str(out), **short)
    train(again, say=lambda line: None, quiet=True)
    answer = heedful.pipeline("question-answering", drawn)
    assert answer({"question": "Where is Ann ?", "context": "Ann is in Rome ."}, null_threshold=1e9)["output"]["answer"]


def test_half_a_surrogate_pair_in_what_the_model_does_not_read(tmp_path: Path) -> None:
    """JSON can write it in a title, an id and an unknown key, and UTF-8 cannot write it anywhere."""
    from heedful.evaluation.evaluate import evaluate
    from heedful.training.run import train
    from heedful.views.run_figures import draw_report

    documents: list[dict[str, Any]] = []
    for i, each in enumerate(SETS["all"]):
        answers = [{"text": text, "answer_start": start} for text, start in each.values["answers"]]
        asked = {"question": each.values["question"], "id": f"{i}\ud800", "answers": answers, "\udfff": "\ud800"}
        paragraph = {"context": each.values["context"], "qas": [asked]}
        documents.append({"title": f"{i % 5}\ud800", "paragraphs": [paragraph]})
    data, out = tmp_path / "set.json", tmp_path / "run"
    data.write_text(json.dumps({"version": "\ud800", "data": documents}), encoding="utf-8")
    assert "\\ud800" in data.read_text(encoding="utf-8")
    fresh: dict[str, Any] = {"preset": "bert-tiny", "model": SMALL, "tokenizer": TokenizerSettings(size=200)}
    asked_for = RunSettings(
        task="question-answering", train=(str(data),), valid=(str(data),), out=str(out), max_steps=1, **fresh
    )
    train(asked_for, say=lambda line: None, quiet=True, draw=draw_report)
    assert (out / "mistakes.html").read_text(encoding="utf-8")
    for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    assert evaluate(str(out), [str(data)], say=lambda line: None)["examples"] == len(SETS["all"])
