"""Summarization: what is cut is said, figures by hand, published folders as transformers generates, one's own files."""

from __future__ import annotations

import json
import logging
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.cli import main
from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError
from heedful.inference.pipeline import Pipeline
from heedful.metrics.example_scores import overall
from heedful.metrics.rouge import rouge
from heedful.models import Model
from heedful.pretrained import load, read_card
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.published import prefix_of, task_specific_params
from heedful.tasks.summarization import Summarization, beginning, first_sentence
from heedful.tasks.task import Prediction
from heedful.text import Tokenizer
from heedful.views.inspect.model_input import read_source
from heedful.views.inspect.opened_model import open_model
from heedful.views.inspect.request import Request
from tolerances import approx

PLACES = ["lake", "hill", "valley", "island"]
TEXTS = [(f"the red bird sang on the {place} all day and flew on", f"a bird on the {place}") for place in PLACES]
ROWS = Rows(Row({"text": text, "summary": summary}, "s.tsv", i) for i, (text, summary) in enumerate(TEXTS, 1))


def settings(max_length: int | None = None, prefix: str | None = None, **more: Any) -> RunSettings:
    return RunSettings(
        task="summarization",
        train=("s.tsv",),
        out="s",
        preset="transformer-tiny",
        model=ModelSettings(dim=16, heads=2, depth=1),
        tokenizer=TokenizerSettings(size=300, shared=True),
        data=DataSettings(max_length=max_length, prefix=prefix),
        **more,
    )


def made(max_length: int | None = None, prefix: str | None = None) -> tuple[Summarization, Model]:
    asked = settings(max_length, prefix)
    task = Summarization.prepare(ROWS, asked)
    model = heedful.create(task.config(asked), seed=0).eval()
    task.before_training(model, asked)
    task.check_model(model)
    for parameter in model.double().parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return task, model


# ---------------------------------------------------------------------------------------------------------- examples


def test_a_batch_begins_with_the_prefix() -> None:
    task, _ = made(prefix="summarize: ")
    batch = task.collate(task.encode(ROWS).examples)
    for i, (text, summary) in enumerate(TEXTS):
        source, target = (task.source.encode([one])[0] for one in (f"summarize: {text}", summary))
        assert batch["source"][i][batch["source_mask"][i]].tolist() == [*source, task.source.end]
        assert batch["labels"][i][batch["labels"][i] != -100].tolist() == [*target, task.source.end]
    assert task.row_line(ROWS[0]).startswith("summarize: the red bird sang")


def test_cut_texts_are_counted_and_the_end_token_stays() -> None:
    task, _ = made(prefix="summarize: ")
    whole = [source for source, _ in task.encode(ROWS).examples]
    most = len(whole[0]) - 3
    longer = sum(len(ids) > most for ids in whole)
    cut = task.encode(ROWS, most)
    assert cut.note == f"{longer} of 4 texts cut to {most} tokens (--data.max-length)"
    assert [source for source, _ in cut.examples] == [
        ids if len(ids) <= most else [*ids[: most - 1], task.source.end] for ids in whole
    ]
    assert len(cut.rows) == 4
    assert task.encode(ROWS).note == ""


def test_a_summary_that_is_too_long_is_left_out_and_said() -> None:
    task, _ = made()
    long = Row({"text": "the bird", "summary": "a bird " * 30}, "s.tsv", 5)
    kept = task.encode(Rows([*ROWS, long]), 40)
    assert len(kept.examples) == len(kept.rows) == 4
    assert kept.note == "1 example longer than 40 tokens left out (--data.max-length)"


def test_no_room_beside_the_prefix_is_an_error() -> None:
    task, _ = made(prefix="summarize: ")
    with pytest.raises(
        HeedfulError, match=r"^3 tokens leave no room for text \(--data\.max-length\); give \d+ or more$"
    ):
        task.encode(ROWS, 3)


# ---------------------------------------------------------------------------------------------------------- measuring


def test_metrics_are_those_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = made()
    said = ["a bird on the lake", "a hill", "", "the island"]
    monkeypatch.setattr(
        task,
        "predict",
        lambda model, inputs, **options: [Prediction(i, o, 0.0) for i, o in zip(inputs, said, strict=True)],
    )
    examples = task.encode(ROWS).examples
    measured = task.measure(model, examples, ROWS)
    each = [rouge(output, summary) for output, (_, summary) in zip(said, TEXTS, strict=True)]
    for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
        assert measured.metrics[kind] == pytest.approx(25 * sum(one[kind].f1 for one in each))
    assert measured.metrics["rougeL"] == measured.metrics["rougeLsum"]
    batch = task.collate(examples)
    assert measured.metrics["loss"] == pytest.approx(task.objective(model, batch).item() / task.count(batch))
    assert measured.example_scores is not None
    assert overall(measured.example_scores) == pytest.approx(measured.metrics)
    alone = task.collate(examples[1:2])
    own = measured.example_scores.metrics_of(np.array([1]))["loss"]
    assert own == approx(task.objective(model, alone).item() / task.count(alone), "gradient")
    assert list(measured.outputs) == said
    worst = measured.details["worst"]
    assert [one["place"] for one in worst] == [2, 1, 3, 0]
    assert worst[0]["expected"] == "a bird on the valley"
    assert measured.details["rouge"]["rouge1"]["precision"] == pytest.approx(
        25 * sum(o["rouge1"].precision for o in each)
    )


def test_the_baseline_is_the_best_of_two_leads_and_the_nearest_text() -> None:
    task, _ = made()
    others = Rows([Row({"text": "zz", "summary": "qq"}, "s", 1)])
    found = task.baseline(ROWS, lambda: others)
    most = round(sum(len(summary) for _, summary in TEXTS) / 4)
    heads = [" ".join(text.split()[:4]) for text, _ in TEXTS]  # of 19 characters
    assert most == 19
    first = [rouge(text, summary)["rougeL"].f1 for text, summary in TEXTS]  # one sentence each, so whole
    second = [rouge(head, summary)["rougeL"].f1 for head, (_, summary) in zip(heads, TEXTS, strict=True)]
    assert sum(first) > sum(second)
    assert found.name == "lead: the first sentence"
    assert found.metrics["rougeL"] == pytest.approx(25 * sum(first))
    rows = Rows([Row({"text": "One two three. Four five", "summary": "one"}, "s", 1)])
    assert task.baseline(rows, lambda: others).name == "lead: the first 3 characters"
    assert task.baseline(rows, lambda: others).metrics["rougeL"] == 100
    nearest = task.baseline(ROWS, lambda: ROWS)
    assert (nearest.name, nearest.metrics["rougeL"]) == ("the summary of the most similar training text", 100)


def test_the_first_sentence() -> None:
    assert [first_sentence(text) for text in (" A b. C", "A 1.5 b! C", "A\nB. C", "A?", "雨。雪。", "क। ख।")] == [
        *("A b.", "A 1.5 b!", "A", "A?", "雨。", "क।")
    ]


def test_the_lead_ends_with_a_word() -> None:
    assert [beginning("one two three", most) for most in (2, 3, 5, 7, 12, 13, 99)] == [
        *("on", "one", "one", "one two", "one two", "one two three", "one two three")
    ]


# ---------------------------------------------------------------------------------------------------------- answering


def test_answers_are_bounded_in_order_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    task, model = made(max_length=30)
    longest = max(len(target) for _, target in task.encode(ROWS).examples)
    assert model.generation["max_new_tokens"] == longest
    texts = ["a bird", "", "the red bird sang on the hill " * 20, "the lake", "bird " * 100]
    with caplog.at_level(logging.WARNING):
        answers = task.predict(model, texts, min_new_tokens=3, logprobs=True)
    assert caplog.messages == ["2 of 4 inputs cut to 30 tokens (the model takes no more)"]
    assert [answer.input for answer in answers] == texts
    assert answers[1] == Prediction("", "", None, [])
    for text, answer in zip(texts, answers, strict=True):
        alone = task.predict(model, [text], min_new_tokens=3)[0]
        assert alone.output == answer.output
        if text:
            assert 3 <= len(answer.logprobs) <= longest
            assert sum(answer.logprobs) / len(answer.logprobs) == approx(answer.score, "layer")
    caplog.clear()
    task.measure(model, *task.encode(ROWS, 10)[:2], most=2)
    task.positions = 20
    assert task.limited_options(model, [([5], [5] * 19)], {}) == {"max_new_tokens": 20}  # not 1.5 times as many
    task.positions = None
    assert not caplog.messages  # ``encode`` has told
    model.generation = {}
    assert len(task.predict(model, ["a bird"], min_new_tokens=128, logprobs=True)[0].logprobs) == 128


def test_a_long_text_is_split_where_a_stride_is_given() -> None:
    task, model = made(max_length=20, prefix="sum: ")
    pipe, long = Pipeline(task, model), " ".join(f"a bird {number}" for number in range(30))
    room = 20 - len(task.source.encode(["sum: "])[0]) - 1
    pieces = task._split(long, 4, task.prefix)
    assert len(pieces) > 3
    assert all(len(task.source.encode([f"sum: {piece}"])[0]) + 1 <= 20 for piece in pieces)
    spots = [(long.find(piece), long.find(piece) + len(piece)) for piece in pieces]
    assert spots[0][0] == 0
    assert spots[-1][1] == len(long)
    for (begins, ends), (next_begins, next_ends) in pairwise(spots):
        assert begins < next_begins < ends < next_ends  # all of it is there, and neighbours share some
    options = {"min_new_tokens": 4, "do_sample": True}
    found = pipe(["a bird", long, ""], stride=4, seed=[1, 2, 3], **options)
    alone = pipe(pieces, seed=[2] * len(pieces), **options)
    assert found[1]["output"] == " ".join(one["output"] for one in alone)
    assert found[1]["score"] is None
    whole = pipe(long, stride=4, logprobs=True)["logprobs"]
    assert whole == pytest.approx([log_p for piece in pieces for log_p in pipe(piece, logprobs=True)["logprobs"]])
    assert found[0] == pipe("a bird", seed=1, **options)
    assert found[2] == {"input": "", "output": "", "score": None}
    with pytest.raises(HeedfulError, match=f"stride is {room}, but a piece has room for only {room} tokens"):
        pipe("short", stride=room)  # before any input is read
    with pytest.raises(HeedfulError, match="a list of texts; got int"):
        pipe([3], stride=1)


def test_a_prefix_that_is_given_stands_in_place_of_the_models() -> None:
    task, model = made(prefix="summarize: ")
    bare = Summarization(task.source, task.target)
    ask = {"min_new_tokens": 5}
    assert (
        task.predict(model, ["a bird"], **ask)[0].output == bare.predict(model, ["summarize: a bird"], **ask)[0].output
    )
    for prefix in ("", "tl;dr: "):
        ours, plain = (
            task.predict(model, ["a bird"], prefix=prefix, **ask),
            bare.predict(model, [f"{prefix}a bird"], **ask),
        )
        assert (ours[0].output, ours[0].score) == (plain[0].output, plain[0].score)


# ------------------------------------------------------------------------------------------------- from file to folder


def test_trained_asked_and_opened_by_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    file, out = tmp_path / "s.jsonl", tmp_path / "run"
    file.write_text("".join(json.dumps({"text": t, "summary": s}) + "\n" for t, s in TEXTS))
    line = ["train", "summarization", "--train", str(file), "--valid", str(file), "--out", str(out), "--json"]
    small = ["--model.dim", "32", "--model.heads", "2", "--model.depth", "1", "--model.dropout", "0"]
    learning = [
        "--max-steps",
        "120",
        "--training.lr",
        "0.005",
        "--averaging.polynomial",
        "0",
        "--training.save-every",
        "999",
    ]
    assert main([*line, *small, *learning, "--data.prefix", "summarize: ", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["rougeL"] > 95
    assert read_card(out)["settings"]["data"]["prefix"] == "summarize: "
    assert prefix_of(out, "summarization") == "summarize: "
    assert prefix_of(out, "translation") == ""
    pipe = heedful.pipeline("summarization", out, device="cpu")
    assert pipe(TEXTS[0][0])["output"] == TEXTS[0][1]
    subject, _ = open_model(str(out), Request.of([TEXTS[0][0]], None))
    assert read_source(subject, TEXTS[0][0])[1] == pipe.task.encode(ROWS).examples[0][0]  # what is looked at, too
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    fast = transformers.AutoTokenizer.from_pretrained(out)
    for text, _ in TEXTS:
        ids = fast(f"summarize: {text}", return_tensors="pt").input_ids
        assert fast.decode(theirs.generate(ids)[0], skip_special_tokens=True) == pipe(text)["output"]
    assert main(["evaluate", str(out), "--data", str(file), "--prefix", "x", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["metrics"]) >= {"rouge1", "rouge2", "rougeL", "rougeLsum", "loss"}


# -------------------------------------------------------------------------------------------------------- as published

CNN = {  # how BART's own summarizer generates
    "num_beams": 4,
    "max_length": 24,
    "min_length": 9,
    "no_repeat_ngram_size": 3,
    "length_penalty": 2.0,
    "early_stopping": True,
    "forced_bos_token_id": 1,
    "forced_eos_token_id": 2,
}
SPECIFIC = {
    "summarization": {
        "prefix": "the : ",
        "num_beams": 3,
        "min_length": 5,
        "max_length": 16,
        "no_repeat_ngram_size": 2,
        "length_penalty": 2.0,
        "early_stopping": True,
    },
    "translation_en_to_de": {"prefix": "a : ", "num_beams": 4, "max_length": 30},
    "translation_en_to_fr": {"prefix": "on : ", "num_beams": 4, "max_length": 30},
}


def vocabulary(template: str) -> Tokenizer:
    texts = [text for pair in TEXTS for text in pair] + ["the : a : on : "]
    return Tokenizer.train(texts, 60, "unigram", template=template)  # type: ignore[arg-type]


def published(place: Path, kind: str) -> tuple[Path, Any, Any]:
    """A folder as transformers writes it, their model in float64, their tokenizer."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    if kind == "bart":
        sides = {
            f"{side}_{what}": size
            for side in ("encoder", "decoder")
            for what, size in (("layers", 2), ("ffn_dim", 32), ("attention_heads", 2))
        }
        ids = {
            "bos_token_id": 1,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": 2,
        }
        config = transformers.BartConfig(
            vocab_size=60, d_model=16, init_std=0.3, max_position_embeddings=80, **sides, **ids
        )
        theirs = transformers.BartForConditionalGeneration(config)
        theirs.generation_config.update(**CNN)
    else:
        size = {"d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 2, "d_ff": 32, "vocab_size": 60}
        ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
        theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**size, **ids, initializer_factor=3.0))
        theirs.generation_config.update(max_length=40)
    folder = place / kind
    theirs.save_pretrained(folder)
    vocabulary("both" if kind == "bart" else "end").save(folder)
    if kind == "t5":
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, "task_specific_params": SPECIFIC}))
    return folder, theirs.double().eval(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_a_published_summarizer_answers_as_in_transformers(kind: str, tmp_path: Path) -> None:
    folder, theirs, fast = published(tmp_path, kind)
    task, model = Summarization.load(folder), load(folder, dtype="float64").eval()
    task.check_model(model)
    prefix, options = (
        ("", {})
        if kind == "bart"
        else ("the : ", {k: v for k, v in SPECIFIC["summarization"].items() if k != "prefix"})
    )
    texts, told = [text for text, _ in TEXTS], set()
    for text, answer in zip(texts, task.predict(model, texts), strict=True):
        ids = fast(prefix + text, return_tensors="pt").input_ids
        out = theirs.generate(ids, return_dict_in_generate=True, output_scores=True, **options)
        assert answer.output == fast.decode(out.sequences[0], skip_special_tokens=True)
        close = 1e-6 if kind == "bart" else 1e-3  # theirs is kept in float32, and so are the norms of their T5
        assert answer.score == pytest.approx(out.sequences_scores[0].item(), abs=close)
        told.add(answer.output)
    assert len(told) > 1
    pipe = heedful.pipeline("summarization", folder, device="cpu")
    assert pipe.model.generation.items() >= (CNN if kind == "bart" else options).items()
    assert isinstance(pipe(texts[0])["output"], str)


def test_settings_of_a_published_folder_for_one_task_are_read_for_that_task(tmp_path: Path) -> None:
    folder, *_ = published(tmp_path, "t5")
    assert task_specific_params(folder, "summarization") == SPECIFIC["summarization"]
    assert task_specific_params(folder, "translation") == {}  # two pairs of languages: the person says which
    assert prefix_of(folder, "translation") == ""
    plain = heedful.pipeline("translation", folder, device="cpu")
    assert plain.model.generation["max_length"] == 40
    assert "num_beams" not in plain.model.generation
    config = json.loads((folder / "config.json").read_text())
    del config["task_specific_params"]["translation_en_to_fr"]
    (folder / "config.json").write_text(json.dumps(config))
    assert prefix_of(folder, "translation") == "a : "
    assert heedful.pipeline("translation", folder, device="cpu").model.generation["num_beams"] == 4
    config["task_specific_params"]["summarization"] = "beams"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeedfulError, match="task_specific_params of summarization is not a JSON object"):
        heedful.pipeline("summarization", folder, device="cpu")


def test_a_folder_that_speaks_of_summaries_alone_is_a_summarizer(tmp_path: Path) -> None:
    folder, *_ = published(tmp_path, "bart")
    assert heedful.pipeline(None, folder, device="cpu").task.name == "translation"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "task_specific_params": {"summarization": CNN}}))
    assert heedful.pipeline(None, folder, device="cpu").task.name == "summarization"
    (folder / "config.json").write_text(json.dumps({**config, "task_specific_params": SPECIFIC}))
    assert heedful.pipeline(None, folder, device="cpu").task.name == "translation"


def test_a_fine_tuned_one_keeps_its_prefix_and_its_way_of_generating(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, *_ = published(tmp_path, "t5")
    file, out = tmp_path / "s.tsv", tmp_path / "out"
    file.write_text("".join(f"{text}\t{summary}\n" for text, summary in TEXTS))
    line = ["train", "summarization", "--train", str(file), "--valid", str(file), "--from", str(folder)]
    assert main([*line, "--out", str(out), "--max-steps", "2", "--device", "cpu"]) == 0
    assert "the : the red bird sang" in capsys.readouterr().out
    pipe = heedful.pipeline(None, out, device="cpu")
    assert isinstance(pipe.task, Summarization)
    assert pipe.task.prefix == "the : "
    assert pipe.model.generation["num_beams"] == 3
    assert main([*line, "--out", str(out), "--overwrite", "--max-steps", "1", "--data.prefix=", "--device", "cpu"]) == 0
    assert heedful.pipeline(None, out, device="cpu").task.prefix == ""  # type: ignore[attr-defined]


def test_the_tokenizer_of_a_published_folder_says_how_much_is_read(tmp_path: Path) -> None:
    folder, *_ = published(tmp_path, "t5")
    assert Summarization.load(folder).longest is None
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "model_max_length": 12}))
    assert Summarization.load(folder).longest == 12
    bart, *_ = published(tmp_path, "bart")
    assert Summarization.load(bart).longest == 80


def test_titles_by_a_published_t5(shared_data: Any) -> None:
    made = os.environ.get("HEEDFUL_TITLER")
    if not made:
        pytest.skip("HEEDFUL_TITLER names no folder that shared/data/tools/t5_titler_to_hf.py made")
    wanted = json.loads((shared_data("weights") / "flan-t5-small-titler" / "expected.json").read_text())
    pipe, prefix = heedful.pipeline("summarization", made, device="cpu"), "summarize agent step: "
    for case in wanted["greedy"]:
        own = prefix if case["prompt"].startswith(prefix) else ""
        assert pipe(case["prompt"].removeprefix(own), prefix=own, max_new_tokens=32)["output"] == case["text"]
    for case in wanted["beam"]:
        options = {name: value for name, value in case["settings"].items() if name != "num_return_sequences"}
        best = pipe(case["prompt"].removeprefix(prefix), prefix=prefix, **options)
        assert best["output"] == case["returned"][0]["text"]
        assert best["score"] == approx(case["returned"][0]["score"])


# ------------------------------------------------------------------------------------------------------- people's files


def test_line_ends_in_a_document_stay(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps({"text": "one\n\n two\t", "summary": "a\nb"}) + "\n")
    assert read(str(file), Summarization.columns)[0].values == {"text": "one\n\n two\t", "summary": "a\nb"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "s.jsonl",
            b'{"text": "a"}\n',
            r"no column 'summary' among 'text', in .*s\.jsonl:1; .*name the columns: --data\.c",
        ),
        ("s.csv", b"article,summary\n7,y\n", r"no column 'text' among 'article', 'summary', in .*s\.csv:1"),
        (
            "s.jsonl",
            b'{"text": "a", "summary": ["b"]}\n',
            r"'summary' is \[\"b\"\], but text is expected, in .*s\.jsonl:1",
        ),
        ("s.tsv", b"a long text\n", r"1 column, but column 2 is needed for 'summary', in .*s\.tsv:1; separate the"),
        ("s.tsv", b"a\tb\nc\n", r"1 column, but line 1 has 2, in .*s\.tsv:2; correct this row"),
        ("s.tsv", b"", r"no rows in .*s\.tsv; give a file with text and summary"),
        ("s.tsv", b"a\t\n\tb\n", r"only blank rows \(2\) in .*s\.tsv; give a file with text and summary"),
        ("s.tsv", b"caf\xe9\tb\n", r"invalid UTF-8 \(byte 0xe9 .* in .*s\.tsv:1; convert the file: iconv"),
        ("s.txt", b"a\n", r"unknown extension '\.txt', .*, in .*s\.txt; give one table .* or 2 plain text files"),
    ],
)
def test_wrong_files_are_one_line(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert main(["train", "summarization", "--train", str(file), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(message, told), told


def test_windows_line_ends_and_a_byte_order_mark_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "s.tsv"
    file.write_bytes(b"\xef\xbb\xbftext\tsummary\r\none two\tone\r\n")
    assert read(str(file), Summarization.columns)[0].values == {"text": "one two", "summary": "one"}


def test_an_option_without_effect_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.tsv"
    file.write_text("a\tb\n")
    assert (
        main(["train", "summarization", "--train", str(file), "--out", str(tmp_path / "o"), "--data.stride", "3"]) == 2
    )
    assert "--data.stride has no effect for summarization; leave it out" in capsys.readouterr().err
