"""Generated answers: learning, windows, the choice among them, scores by hand, T5's format, and the decoder variant."""

from __future__ import annotations

import itertools
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
from heedful import cli, tasks
from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError
from heedful.inference.pipeline import Pipeline
from heedful.metrics.squad import score
from heedful.models import Model
from heedful.pretrained import load, save
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings, resolve
from heedful.tasks.decoder_question_answering import DecoderQuestionAnswering
from heedful.tasks.generated_answers import GeneratedAnswers, WindowAnswers, window_targets
from heedful.tasks.generative_question_answering import GenerativeQuestionAnswering
from heedful.tasks.passages import TextWindow, text_windows
from heedful.tasks.text_generation import TextGeneration
from heedful.tasks.token_batches import GeneratedText
from heedful.training.optimisation import adamw
from tolerances import approx

NAME = "generative-question-answering"
FAMILIES = {"encoder-decoder": "transformer-tiny", "decoder": "gpt-micro"}
COLOURS, THINGS = ["red", "green", "blue", "white"], ["door", "roof", "wall", "gate"]
FILLER = "The street is long and the sky is high over the town. " * 4


def row(question: str, context: str, *answers: str, line: int = 1) -> Row:
    return Row({"question": question, "context": context, "answers": answers}, "set.jsonl", line)


def made_up(*, absent: bool = False, filler: str = "") -> Rows:
    """Which colour a thing has, in other words than the context's; with ``absent`` some ask for what is not there."""
    rows = []
    for (i, colour), (j, thing) in itertools.product(enumerate(COLOURS), enumerate(THINGS)):
        around = (filler, "") if (i + j) % 2 else ("", filler)
        context = f"{around[0]}The {thing} was painted {colour}. {around[1]}".strip()
        rows.append(row(f"Which colour has the {thing}?", context, f"it is {colour}", colour, line=len(rows) + 1))
        if absent:
            rows.append(row(f"Which colour has the {THINGS[j - 1]}?", context, line=len(rows) + 1))
    return Rows(rows, 0, ("question", "context", "answers"))


SETS = {"all": made_up(), "absent": made_up(absent=True), "long": made_up(filler=FILLER)}


def made(
    family: str, which: str = "all", length: int | None = None, stride: int | None = None
) -> tuple[GeneratedAnswers, Model]:
    asked = RunSettings(
        task=NAME,
        train=("-",),
        out="-",
        preset=FAMILIES[family],
        max_steps=10,
        model=ModelSettings(dim=32, heads=2, depth=1, dropout=0.0),
        data=DataSettings(max_length=length, stride=stride),
        tokenizer=TokenizerSettings(kind="wordpiece", size=300),
    )
    kind: Any = tasks.get(NAME, family)
    settings = resolve(asked, kind.suggested_settings(SETS[which], asked))
    task = kind.prepare(SETS[which], settings)
    model = heedful.create(task.config(settings), seed=0).eval()
    task.before_training(model, settings)
    task.check_model(model)
    return task, model


@cache
def taught(family: str, which: str = "all", length: int | None = None) -> tuple[GeneratedAnswers, Model]:
    task, model = made(family, which, length)
    batch = task.complete(task.collate(task.encode(SETS[which]).examples))
    optimiser, loss = adamw(model, lr=4e-3), 1.0
    while loss > 0.01:
        optimiser.zero_grad()
        mean = task.objective(model, batch) / task.count(batch)
        mean.backward()
        optimiser.step()
        loss = mean.item()
    return task, model


def asked_of(rows: Rows) -> list[dict[str, str]]:
    return [{name: each.values[name] for name in ("question", "context")} for each in rows]


def first_answers(rows: Rows) -> list[str]:
    return [next(iter(each.values["answers"]), "") for each in rows]


def saved(task: GeneratedAnswers, model: Model, folder: Path, **settings: Any) -> Path:
    save(model, folder, extra={"task": NAME, "settings": settings, **task.card_entries()})
    task.save(folder)
    return folder


def generated(texts: str, *scores: float) -> list[GeneratedText]:
    return [GeneratedText(text, number, None) for text, number in zip(texts.split("|"), scores, strict=True)]


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("which", ["all", "absent"])
def test_a_tiny_model_learns_a_tiny_set(family: str, which: str) -> None:
    task, model = taught(family, which)
    answers = Pipeline(task, model)(asked_of(SETS[which]))
    assert [one["output"] for one in answers] == first_answers(SETS[which])
    assert all(one["score"] <= 0 for one in answers)
    metrics = task.measure(model, task.encode(SETS[which]).examples, SETS[which]).metrics
    assert (metrics["exact_match"], metrics["f1"]) == (100, 100)
    assert metrics["loss"] < 0.02
    assert ("best_f1_thresh" in metrics) == (which == "absent")
    assert metrics.get("NoAns_f1", 100) == metrics.get("best_f1", 100) == 100


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_beyond_the_first_window_is_found(family: str, caplog: pytest.LogCaptureFixture) -> None:
    """Contexts of about 60 tokens in windows of 40; every second one has its fact at the end."""
    task, model = taught(family, "long", 40)
    encoded = task.encode(SETS["long"])
    assert "16 questions on texts read in windows of" in encoded.note
    rows = [example.row for example in encoded.examples]
    assert set(rows) == set(range(16))
    assert len(rows) > 16
    windows = task._windows([(each["question"], each["context"]) for each in asked_of(SETS["long"])], None, None)
    firsts = [next(window for window in windows.windows if window.row == row).context for row in range(16)]
    assert sum("painted" not in first for first in firsts) == 8
    answers = Pipeline(task, model)(asked_of(SETS["long"]))
    assert [one["output"] for one in answers] == first_answers(SETS["long"])
    measured = task.measure(model, encoded.examples, SETS["long"])
    assert (measured.metrics["exact_match"], list(measured.outputs)) == (100, first_answers(SETS["long"]))
    assert not caplog.records


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_same_answers_and_windows(family: str, tmp_path: Path) -> None:
    task, model = taught(family, "long", 40)
    folder = saved(task, model, tmp_path, data={"max_length": 40, "stride": 13})
    pipe = heedful.pipeline(NAME, folder, dtype="float32")
    assert type(pipe.task) is type(task)
    assert (pipe.task.window, pipe.task.stride, pipe.task.window_tokens) == (40, 13, task.window_tokens)  # type: ignore[attr-defined]
    answers = pipe(asked_of(SETS["long"]))
    assert [one["output"] for one in answers] == first_answers(SETS["long"])
    assert pipe.model.generation == model.generation


# -------------------------------------------------------------------------------------------------------------- windows


def test_windows_hold_all_of_a_context_and_fit() -> None:
    """Against the definition, for many lengths: each fits, neighbours overlap, and no character is lost."""
    task, _ = made("encoder-decoder")
    context = " ".join(
        f"The {thing} was painted {colour} in {1900 + 7 * n}."
        for n, (thing, colour) in enumerate(itertools.product(THINGS, COLOURS))
    )
    question = "Which colour has the door?"

    def count(pairs: Any) -> list[int]:
        return task.token_counts([task.input_text(pair) for pair in pairs])

    for most, stride in itertools.product(range(34, 70, 3), (0, 5, None)):
        split = text_windows(task.context_tokenizer, [(question, context), (question, "It is.")], most, stride, count)
        *pieces, last = split.windows
        assert last == TextWindow(question, "It is.", 1)
        assert max(count([(piece.question, piece.context) for piece in pieces])) <= most
        starts = [context.index(piece.context) for piece in pieces]
        ends = [start + len(piece.context) for start, piece in zip(starts, pieces, strict=True)]
        assert (starts[0], ends[-1]) == (0, len(context))
        assert starts == sorted(set(starts))
        for end, following in zip(ends, starts[1:], strict=False):
            assert following <= end + 1
            assert stride != 5 or following < end
        assert split.note.startswith("1 question on texts read in windows")


def test_a_question_that_leaves_no_room_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    task, model = made("encoder-decoder", length=40)
    asked = {"question": "which " * 200, "context": "The door was painted red. " * 3}
    with caplog.at_level(logging.WARNING):
        assert Pipeline(task, model)([asked], max_new_tokens=2)
    assert any("cut to half of a window" in message for message in caplog.messages)
    with pytest.raises(HeedfulError, match="stride 30 is too large for windows of 40 tokens; give 20 or less"):
        Pipeline(task, model)([asked], stride=30)
    with pytest.raises(HeedfulError, match=r"windows of 5 tokens have no room .*, which need 9; give a larger") as told:
        task.encode(SETS["all"], 5)
    least = int(str(told.value).partition("need ")[2].partition(";")[0])
    task.stride = None
    assert task.encode(SETS["all"], least).examples
    task.stride = 13
    with pytest.raises(HeedfulError, match=r"windows of 40 tokens have no room .*, or a shorter prefix"):
        Pipeline(task, model)([asked], prefix="which " * 50)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_of_no_token_is_refused(family: str) -> None:
    with pytest.raises(HeedfulError, match="max_new_tokens is 0"):
        Pipeline(*made(family))(("Who came?", "Ann came."), max_new_tokens=0)


def test_the_context_of_a_decoder_holds_window_and_answer() -> None:
    task, _ = made("decoder", length=20)
    assert (task.window_tokens, task.answer_room) == (16, 4)
    task.window = 9
    with pytest.raises(HeedfulError, match=r"windows of 5 tokens beside the 4 tokens of an answer have no room .*need"):
        task.encode(SETS["all"])
    with pytest.raises(HeedfulError, match=r"--data\.max-length 64 is more than the 20 tokens that the model reads"):
        task.encode(SETS["all"], 64)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [30, 47, 100])
def test_the_default_stride_suits_the_windows(family: str, length: int) -> None:
    """Also where the model's folder limits the windows, and where half of a decoder's context is for the answer."""
    rows = Rows([row("Who came?", FILLER, FILLER[:300])])
    asked = RunSettings(task=NAME, train=("-",), out="-", preset=FAMILIES[family], data=DataSettings(max_length=length))
    kind: Any = tasks.get(NAME, family)
    settings = resolve(asked, kind.suggested_settings(rows, asked))
    task = kind.prepare(rows, settings)
    assert settings.data.stride <= (length - (length // 2 if family == "decoder" else 0)) // 2
    assert task.answer_room == (length // 2 if family == "decoder" else 0)


def test_the_default_stride_suits_the_model_of_a_folder(tmp_path: Path) -> None:
    folder = saved(*made("encoder-decoder", length=40), tmp_path)
    given = RunSettings(task=NAME, train=("-",), out="-", start_from=str(folder))
    assert GenerativeQuestionAnswering.suggested_settings(SETS["all"], given).data.stride == 13


def test_targets_of_each_window() -> None:
    windows = [TextWindow("Where?", text, 0) for text in ("Ann is in Rome.", "Bob is in Oslo.", "Ann was in Rome.")]
    assert window_targets(windows, ["Rome"]) == ["Rome", "", "Rome"]
    assert window_targets(windows, ["Italy", "Rome"]) == ["Italy", "", "Italy"]
    assert window_targets(windows, ["by bob in oslo"]) == ["", "by bob in oslo", ""]
    assert window_targets(windows, []) == ["", "", ""]
    assert window_targets(windows[:1], ["yes"]) == ["yes"]


def test_the_best_answer_of_all_windows() -> None:
    answers = WindowAnswers(generated("|Ann| |Bob|Ann", -0.1, -0.7, -0.2, -0.5, -0.6), null=-0.3)
    assert [one.text for one in answers.best()] == ["Bob", "Ann"]
    assert answers.best()[1].score == -0.6
    assert answers.margin == pytest.approx(0.2)
    assert [one.text for one in answers.chosen(None)] == ["Bob", "Ann"]
    assert [one.text for one in answers.chosen(0.25)] == ["Bob", "Ann"]
    assert next((one.text, one.score) for one in answers.chosen(0.1)) == ("", -0.3)
    empty = WindowAnswers(generated("|", -0.1, -0.4))
    assert [(one.text, one.score) for one in empty.chosen(None)] == [("", -0.4)]
    assert empty.margin == math.inf


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_threshold_is_the_mean_log_probability_of_nothing(family: str) -> None:
    """By one forward pass of the model, against the score of the answer."""
    task, model = taught(family, "absent")
    model.double()
    asked = asked_of(SETS["absent"])[0]
    [text] = [task.prefixed((asked["question"], asked["context"]), None)]
    if isinstance(task, GenerativeQuestionAnswering):
        source = torch.tensor([[*task.source.encode([text])[0], task.source.end]])
        log_p = model(source, torch.tensor([[task.first]]))[0, 0].log_softmax(-1)[task.target.end]  # type: ignore[index]
    else:
        assert isinstance(task, DecoderQuestionAnswering)
        log_p = model(torch.tensor(task.writer.tokenizer.encode([text])))[0, -1].log_softmax(-1)[task.writer.end]
    answer = Pipeline(task, model)(asked)
    margin = float(log_p) - answer["score"]
    assert Pipeline(task, model)(asked, null_threshold=margin + 1e-6)["output"] == answer["output"] == "it is red"
    below = Pipeline(task, model)(asked, null_threshold=margin - 1e-6)
    assert (below["output"], below["score"]) == ("", pytest.approx(float(log_p)))
    model.float()


def test_several_answers_are_the_best_of_all_windows() -> None:
    task, model = taught("encoder-decoder", "long", 40)
    pipe, asked = Pipeline(task, model), asked_of(SETS["long"])[1]
    several = pipe(asked, num_beams=3, num_return_sequences=3)["output"]
    assert several[0]["text"] == pipe(asked)["output"]
    assert [one["score"] for one in several] == sorted((one["score"] for one in several), reverse=True)
    assert len({one["text"] for one in several}) == len(several) == 3
    with_logprobs = pipe(asked, logprobs=True)
    assert with_logprobs["score"] == approx(np.mean(with_logprobs["logprobs"]))
    blank = {"question": "What?", "context": " "}
    assert pipe(blank, num_beams=2, num_return_sequences=2) == {"input": blank, "output": [], "score": None}


# --------------------------------------------------------------------------------------------------- scores and formats


def test_scores_are_those_of_squad_over_all_references() -> None:
    """Mean of the best over the references; ``exact_match`` of a later reference counts."""
    task, model = taught("encoder-decoder")
    rows = Rows(
        [*SETS["all"][:3], row("Which colour has the roof?", "The roof was painted blue.", "nothing", "It is, blue!")]
    )
    rows.append(row("Which colour has the wall?", "The wall was painted red.", "green", "a red one"))
    measured = task.measure(model, task.encode(rows).examples, rows)
    scores = [score(output, each.values["answers"]) for output, each in zip(measured.outputs, rows, strict=True)]
    assert measured.metrics["exact_match"] == approx(100 * np.mean([one.exact for one in scores])) == approx(80)
    assert measured.metrics["f1"] == approx(100 * np.mean([one.f1 for one in scores]))
    assert scores[4].f1 == approx(2 * 1 / (3 + 2))  # "it is red" and "red one": articles do not count
    assert measured.details["mistakes_total"] == 1
    assert measured.details["mistakes"][0]["output"] == "it is red"
    first = task.measure(model, task.encode(rows).examples, rows, most=2)
    assert (len(first.outputs), first.metrics["exact_match"]) == (2, 100)
    assert first.metrics["loss"] == approx(measured.metrics["loss"])
    assert task.baseline(rows, lambda: rows).metrics["f1"] > 0


def test_files_and_objects(tmp_path: Path) -> None:
    """SQuAD 2.0, the Hub's shape, a table, references that are not in the context; and what is missing, by its line."""
    kinds = GenerativeQuestionAnswering.columns
    context, question = "The door was painted red.", "Which colour?"
    qas = [
        {"id": "1", "question": question, "answers": [{"text": "red", "answer_start": 21}, {"text": "of blood"}]},
        {"id": "2", "question": "Who?", "is_impossible": True, "answers": []},
    ]
    squad = {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    records = [
        {"question": question, "context": context, "answers": {"text": ["red", "of blood"], "answer_start": [99, 0]}},
        {"question": "Who?", "context": context, "answers": []},
    ]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (tmp_path / "set.tsv").write_text(
        f"question\tcontext\tanswer\n{question}\t{context}\tred as blood\nWho?\t{context}\t\n"
    )
    for name, expected in {
        "squad.json": ("red", "of blood"),
        "set.jsonl": ("red", "of blood"),
        "set.tsv": ("red as blood",),
    }.items():
        rows = read(tmp_path / name, kinds)
        assert [each.values["answers"] for each in rows] == [expected, ()], name
    (tmp_path / "bare.jsonl").write_text(json.dumps({"question": "a", "answers": ["b"]}) + "\n")
    with pytest.raises(HeedfulError, match=r"no column 'context' among 'question', 'answers', in .*bare.jsonl:1"):
        read(tmp_path / "bare.jsonl", kinds)
    (tmp_path / "bare.tsv").write_text("question\tcontext\nWho?\tAnn.\n")
    with pytest.raises(HeedfulError, match=r"no column 'answers' among 'question', 'context', in .*bare.tsv:1"):
        read(tmp_path / "bare.tsv", kinds)
    (tmp_path / "odd.jsonl").write_text(json.dumps({**records[0], "answers": 5}) + "\n")
    with pytest.raises(HeedfulError, match=r"the answers are 5, in .*odd.jsonl:1"):
        read(tmp_path / "odd.jsonl", kinds)


@pytest.mark.parametrize("value", [5, {"question": "a"}, ("a",), "a question alone"])
def test_inputs_that_are_no_questions_are_refused(value: Any) -> None:
    task, model = made("encoder-decoder")
    with pytest.raises(HeedfulError, match=f"^{NAME} takes a question and a context: .*; got "):
        Pipeline(task, model)([value])


def test_t5_reads_and_answers_as_in_transformers(tmp_path: Path) -> None:
    """The source of its example for sequence-to-sequence questions, and the output of ``generate``."""
    transformers = pytest.importorskip("transformers")
    task, _ = made("encoder-decoder")
    torch.manual_seed(4)
    size = {"d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 2, "d_ff": 32, "vocab_size": task.source.vocab_size}
    ids = {"pad_token_id": task.source.pad, "eos_token_id": task.source.end, "decoder_start_token_id": task.source.pad}
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**size, **ids, initializer_factor=3.0))
    theirs.save_pretrained(tmp_path)
    task.save(tmp_path)
    ours, fast = GenerativeQuestionAnswering.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    model, theirs = load(tmp_path, dtype="float64").eval(), theirs.double().eval()
    ours.check_model(model)
    said = set()
    for each in asked_of(SETS["all"]):
        text = " ".join(["question:", each["question"].lstrip(), "context:", each["context"].lstrip()])
        source = fast(text, return_tensors="pt").input_ids
        [example] = ours.encode(Rows([row(each["question"], each["context"], "red")])).examples
        assert example.example[0] == source[0].tolist()
        out = theirs.generate(source, max_new_tokens=6, num_beams=2, return_dict_in_generate=True, output_scores=True)
        answer = ours.predict(model, [each], max_new_tokens=6, num_beams=2)[0]
        assert answer.output == fast.decode(out.sequences[0], skip_special_tokens=True)
        assert answer.score == pytest.approx(out.sequences_scores[0].item(), abs=1e-3)  # their norms are in float32
        said.add(answer.output)
    assert len(said) > 1


# --------------------------------------------------------------------------------------------------------- the commands


def test_the_attention_of_each_answer_token_to_the_passage(tmp_path: Path) -> None:
    task, model = taught("encoder-decoder")
    asked = asked_of(SETS["all"])[0]
    looked = heedful.inspect((model, saved(task, model, tmp_path)), asked).data
    [cross] = [one for one in looked["maps"] if "cross" in one["name"]]
    assert "".join(cross["keys"]).replace(" ", "").startswith("question:Whichcolour")
    assert "context:Thedoor" in "".join(cross["keys"]).replace(" ", "").replace("##", "")
    pair = heedful.inspect((model, tmp_path), "\t".join(asked.values())).data
    assert pair["maps"][0]["queries"] == looked["maps"][0]["queries"]
    steps = heedful.inspect((model, tmp_path), tuple(asked.values()), view="steps").data
    assert [piece.strip() for piece in steps["generated"]][:3] == ["it", "is", "red"]


def test_the_decoder_learns_the_answer_alone_and_reads_a_prompt() -> None:
    task, model = taught("decoder")
    assert isinstance(task, DecoderQuestionAnswering)
    [example] = task.encode(SETS["all"][:1] and Rows(SETS["all"][:1])).examples
    ids, learned = example.example.ids, example.example.learned
    [prompt, answer] = task.writer.tokenizer.encode(
        ["The door was painted red.\n\nQuestion: Which colour has the door?\nAnswer:\n", "it is red"]
    )
    assert ids == [*prompt, *answer, task.writer.end]
    assert learned == [False] * len(prompt) + [True] * (len(answer) + 1)
    batch = task.collate([example])
    assert task.count(batch) == len(answer) + 1
    log_p = model(torch.tensor([ids[:-1]]))[0].log_softmax(-1).detach()
    nats = -sum(float(log_p[place - 1, ids[place]]) for place in range(len(prompt), len(ids)))
    assert task.objective(model, batch).item() == approx(nats, "gradient")
    assert not isinstance(task, TextGeneration)


@pytest.mark.parametrize(
    "option", ["--preference.beta=0.3", "--tokenizer.chat-template=llama3", "--data.document-mask"]
)
def test_a_decoder_refuses_options_of_text_generation(option: str, tmp_path: Path, capsys: Any) -> None:
    data = tmp_path / "set.jsonl"
    data.write_text("".join(json.dumps(dict(each.values)) + "\n" for each in SETS["all"]))
    command = [
        "train",
        NAME,
        "--train",
        str(data),
        "--out",
        str(tmp_path / "run"),
        "--preset=gpt-micro",
        "--max-steps=1",
    ]
    assert cli.main([*command, option]) == 2
    assert f"{option.partition('=')[0]} has no effect for {NAME}; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("preset", ["transformer-tiny", "gpt-micro"])
def test_commands(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained on a file of objects, evaluated, asked, audited, inspected and verified."""
    data, out = tmp_path / "set.jsonl", str(tmp_path / "run")
    data.write_text("".join(json.dumps(dict(each.values)) + "\n" for each in SETS["absent"]))
    small = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=300", f"--preset={preset}"]
    assert cli.main(["audit", NAME, "--train", str(data), *small]) == 0
    watched = f"--training.record-attention=Who?\t{SETS['absent'][0].values['context']}"
    assert cli.main(["train", NAME, "--train", str(data), "--out", out, "--max-steps=2", watched, *small]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", out, "--data", str(data), "--null-threshold=0", "--stride=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"exact_match", "f1", "HasAns_f1", "NoAns_f1", "best_f1_thresh"} <= set(told["metrics"])
    assert {"exact_match", "f1"} <= set(told["intervals"])
    assert told["decoding"] == {"null_threshold": 0.0, "stride": 2}
    assert cli.main(["predict", out, "--in", str(data), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(SETS["absent"])
    assert cli.main(["inspect", out, "Who?\tThe door was painted red.", "--out", str(tmp_path / "x.html")]) == 0
    assert cli.main(["verify", out, "--json"]) == 0
    again = ["train", NAME, "--train", str(data), "--from", out, "--out", f"{out}2", "--max-steps=1"]
    assert cli.main(again) == 0
    assert heedful.pipeline(NAME, f"{out}2")(("Who?", "The door was painted red."))["score"] <= 0
