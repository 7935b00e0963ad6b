"""Maps of fixed inputs over a run: they are the model's own, change nothing in it, and go on where a run goes on."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import heedful
from heedful import cli, presets
from heedful.errors import HeedfulError
from heedful.settings import RunSettings, TrainingSettings, read_toml, to_toml
from heedful.tasks.text_classification import TextClassification
from heedful.text import Tokenizer
from heedful.training.record_attention import AttentionRecorder
from heedful.training.series import FILE, MEAN, RecordedMaps, Series, fit_maps

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SMALL = [
    "--preset=transformer-tiny",
    "--model.dim=16",
    "--model.heads=2",
    "--model.depth=1",
    "--tokenizer.size=300",
    "--training.batch-tokens=64",
    "--training.evaluate-every=4",
    "--training.log-every=4",
    "--training.schedule=constant",
    "--training.warmup=1",
    "--averaging.polynomial=0",
    "--training.save-every=3",
]
GIVEN, OWN = "one two three\tthree two one", "four 👋 <b>"


def run(folder: Path, name: str, *more: str) -> Path:
    file = folder / "pairs.tsv"
    lines = [" ".join(WORDS[int(digit)] for digit in f"{number:03}") for number in range(0, 1000, 20)]
    file.write_text("".join(f"{line}\t{' '.join(line.split()[::-1])}\n" for line in lines), encoding="utf-8")
    out = folder / name
    assert cli.main(["train", "translation", "--train", str(file), "--out", str(out), *SMALL, *more]) == 0
    return out


WATCH = ("--training.record-attention", GIVEN, OWN)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("watched"), "out", "--max-steps", "10", *WATCH)


def looks(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head, *lines = map(json.loads, (folder / FILE).read_text(encoding="utf-8").splitlines())
    return head, lines


def weights(one: dict[str, Any]) -> np.ndarray:
    shape = [len(one[side]) for side in ("layers", "heads", "queries", "keys")]
    return np.frombuffer(base64.b64decode(one["weights"]), np.uint8).reshape(shape) / 255


def test_a_look_at_the_start_and_at_each_evaluation(watched: Path) -> None:
    head, lines = looks(watched)
    assert [line["step"] for line in lines] == head["steps"] == [0, 4, 8, 10]
    assert [one["text"] for one in head["inputs"]] == [GIVEN, OWN]
    logged = {
        line["step"]: line["valid_bleu"]
        for line in map(json.loads, (watched / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        if "valid_bleu" in line
    }
    assert [(line["step"], line["value"]) for line in lines[1:]] == list(logged.items())
    assert lines[0]["value"] is None
    for line in lines:
        for maps in line["maps"]:
            names = [one["name"] for one in maps]
            assert names == ["encoder self-attention", "decoder self-attention", "cross-attention"]
            for one in maps:
                assert weights(one).sum(-1) == pytest.approx(1, abs=0.03)  # of up to 12 bytes, each rounded
    cross = lines[-1]["maps"][0][2]
    assert [piece.strip() for piece in cross["queries"]] == ["three", "two", "one", "</s>"]
    assert [piece.strip() for piece in cross["keys"]] == ["one", "two", "three", "</s>"]
    assert [piece.strip() for piece in lines[-1]["maps"][0][1]["queries"]][1:] == ["three", "two", "one"]


def test_the_maps_are_those_of_transformers_on_the_same_weights(watched: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(watched / "last", attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(watched / "last")
    source = tokenizer(["one two three"], return_tensors="pt").input_ids
    labels = tokenizer(["three two one"], return_tensors="pt").input_ids
    start = torch.tensor([[model.config.decoder_start_token_id]])
    with torch.no_grad():
        out = model(source, decoder_input_ids=torch.cat([start, labels[:, :-1]], 1), output_attentions=True)
    expected = out.encoder_attentions, out.decoder_attentions, out.cross_attentions
    _, lines = looks(watched)
    for one, theirs in zip(lines[-1]["maps"][0], expected, strict=True):
        np.testing.assert_allclose(weights(one), torch.cat(theirs).numpy(), atol=0.5 / 255 + 1e-5)


def test_without_a_target_the_models_own_words_are_looked_at(watched: Path) -> None:
    _, lines = looks(watched)
    said = heedful.pipeline("translation", watched / "last")(OWN, num_beams=1, do_sample=False, max_new_tokens=64)[
        "output"
    ]
    written = lines[-1]["maps"][1][2]["queries"]
    assert "".join(written).removesuffix("</s>").split() == said.split()
    first = lines[0]["maps"][1][2]
    assert len(first["queries"]) == len(lines[0]["maps"][1][1]["queries"])


def test_a_run_with_watch_ends_with_the_same_bits(watched: Path, tmp_path: Path) -> None:
    plain = run(tmp_path, "plain", "--max-steps", "10")
    assert not (plain / FILE).exists()
    assert not (plain / "watch.html").exists()
    for part in (".", "last"):
        one, other = (load_file(folder / part / "model.safetensors") for folder in (watched, plain))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_continues_the_series(watched: Path, tmp_path: Path) -> None:
    run(tmp_path, "stopped", "--max-steps", "6", *WATCH)
    out = run(tmp_path, "stopped", "--max-steps", "10", "--resume")
    straight, (head, lines) = looks(watched), looks(out)
    assert head["steps"] == [0, 4, 6, 8, 10]  # the end of the first part was evaluated too
    assert [line for line in lines if line["step"] != 6] == straight[1]
    assert "step 10" in (out / "watch.html").read_text(encoding="utf-8")


def test_other_inputs_are_refused_on_resuming(
    watched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(tmp_path, "out", "--max-steps", "2", *WATCH)
    arguments = ["train", "translation", "--train", str(tmp_path / "pairs.tsv"), "--out", str(out), *SMALL]
    assert cli.main([*arguments, "--max-steps", "4", "--resume", "--training.record-attention", "nine"]) == 2
    assert "names other inputs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\tb\tc", "3 texts"),
        (" ", "--training.record-attention is empty"),
        ("\tone", "a text has no words"),
        ("one " * 1100 + "\tone", "positions"),
    ],
)
def test_inputs_that_cannot_be_recorded_are_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{one}\t{one}\n" for one in WORDS * 3), encoding="utf-8")
    arguments = ["train", "translation", "--train", str(tmp_path / "pairs.tsv"), "--out", str(tmp_path / "out"), *SMALL]
    assert cli.main([*arguments, "--preset", "bart-base", "--max-steps", "1", "--training.record-attention", text]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------ other families


def test_a_decoder(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nand the dog sat on the log\n" * 30, encoding="utf-8")
    arguments = ["train", "text-generation", "--train", str(text), "--out", str(tmp_path / "out"), "--max-steps", "1"]
    assert cli.main([*arguments, "--preset", "gpt-micro", "--training.record-attention", "the cat"]) == 0
    _, lines = looks(tmp_path / "out")
    (one,) = lines[-1]["maps"][0]
    assert one["name"] == "self-attention"
    assert one["queries"] == one["keys"]
    assert one["keys"][1:] == list("the cat")
    found = weights(one)
    assert found.shape[:2] == (4, 4)
    assert not np.triu(found, 1).any()
    model = heedful.from_pretrained(tmp_path / "out" / "last")
    tokenizer = Tokenizer.load(tmp_path / "out")
    ids = torch.tensor([[tokenizer.backend.token_to_id(one["keys"][0]), *tokenizer.encode(["the cat"])[0]]])
    with torch.no_grad(), heedful.record(model, "pattern") as seen:
        model(ids)
    np.testing.assert_allclose(found, torch.cat(list(seen.values())).numpy(), atol=0.5 / 255 + 1e-5)


def test_an_encoder_and_its_pair_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{WORDS[i % 10]} {WORDS[i % 7]}\t{'odd' if i % 2 else 'even'}\n" for i in range(40)]
    (tmp_path / "texts.tsv").write_text("".join(lines), encoding="utf-8")
    arguments = ["train", "text-classification", "--train", str(tmp_path / "texts.tsv"), "--max-steps", "1"]
    more = ["--preset", "bert-tiny", "--training.record-attention"]
    assert cli.main([*arguments, "--out", str(tmp_path / "out"), *more, "one two"]) == 0
    (one,) = looks(tmp_path / "out")[1][-1]["maps"][0]
    assert one["name"] == "self-attention"
    assert len(one["queries"]) >= 4
    assert one["queries"] == one["keys"]
    assert cli.main([*arguments, "--out", str(tmp_path / "two"), *more, "one\ttwo"]) == 2
    assert "2 texts, separated by tabs, but text-classification takes 1" in capsys.readouterr().err


def test_a_classifier_with_a_decoder_names_what_each_side_reads(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(WORDS * 3, 60, "wordpiece")
    config = presets.get("bart-base")
    small = {"dim": 16, "depth": 1, "heads": 2, "ff_dim": 32}
    config = replace(
        config,
        source=replace(config.source, vocab_size=tokenizer.vocab_size),
        encoder=replace(config.encoder, **small),
        decoder=replace(config.decoder, **small),
        special=replace(config.special, start=tokenizer.end),
    )
    model = heedful.create(config, head="sequence", num_labels=2, seed=0)
    recorder = AttentionRecorder(TextClassification(tokenizer, ["a", "b"]), model, ["one two"], tmp_path)
    own, decoder, cross = recorder.untrained[0]
    pieces = list(own.queries)
    assert (own.name, decoder.name, cross.name) == (
        "encoder self-attention",
        "decoder self-attention",
        "cross-attention",
    )
    assert decoder.queries == decoder.keys == [*tokenizer.pieces([tokenizer.end or 0]), *pieces[:-1]]
    assert (cross.queries, cross.keys) == (pieces, pieces)
    assert model.training


def test_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    for label in ("dark", "light"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 120, (28, 28), np.uint8) + (120 if label == "light" else 0)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.png")
    arguments = ["train", "image-classification", "--train", str(tmp_path / "images"), "--max-steps", "1"]
    more = ["--preset", "vit-micro", "--training.record-attention"]
    file = tmp_path / "images" / "light" / "3.png"
    assert cli.main([*arguments, "--out", str(tmp_path / "out"), *more, str(file)]) == 0
    head, lines = looks(tmp_path / "out")
    (one,) = lines[-1]["maps"][0]
    assert one["queries"] == ["[class]"]
    assert one["keys"][:3] == ["[class]", "0,0", "0,1"]
    assert weights(one).sum(-1) == pytest.approx(1, abs=0.06)
    image = head["inputs"][0]["image"]
    stored = np.frombuffer(base64.b64decode(image["pixels"]), np.uint8).reshape(image["shape"])
    assert np.array_equal(stored[:, :, 0], np.asarray(Image.open(file)))
    assert image["grid"][0] * image["grid"][1] == len(one["keys"]) - 1
    assert "data:image/png" in (tmp_path / "out" / "watch.html").read_text(encoding="utf-8")
    assert cli.main([*arguments, "--out", str(tmp_path / "none"), *more, str(tmp_path / "none.png")]) == 2
    assert "none.png" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ the file


def seen(size: int = 4, heads: int = 1, value: float = 0.5) -> RecordedMaps:
    names = [str(i) for i in range(size)]
    array = np.full((1, heads, size, size), value)
    return RecordedMaps(name="self-attention", queries=names, keys=names, layers=[0], heads=range(heads), weights=array)


def test_a_series_is_bounded_and_evenly_spread(tmp_path: Path) -> None:
    series = Series(tmp_path, [{"text": "a"}], max_weights=5 * 16)
    for step in range(0, 1000, 10):
        series.add(step, "loss", 1.0, [[seen()]])
        head, lines = looks(tmp_path)
        kept = [line["step"] for line in lines]
        assert len(kept) <= 5
        assert kept[0] == 0
        assert kept[-1] == step
        assert len({later - one for one, later in pairwise(kept[:-1])}) <= 1
    assert head["steps"] == list(range(0, 1000, 10))
    assert kept == [0, 320, 640, 960, 990]


@pytest.mark.parametrize("stop", [1, 3, 7, 8, 20, 33])
@pytest.mark.parametrize("back", [0, 1, 5])
def test_a_series_taken_up_anywhere_ends_as_one_never_stopped(tmp_path: Path, stop: int, back: int) -> None:
    def add(folder: Path, steps: range) -> None:
        series = Series(folder, [{"text": "a"}], max_weights=6 * 16)
        for step in steps:
            series.add(step, "loss", float(step), [[seen(value=step / 50)]])

    add(tmp_path / "straight", range(40))
    add(tmp_path / "stopped", range(stop))
    add(
        tmp_path / "stopped", range(max(0, stop - back), 40)
    )  # from an earlier checkpoint: what came after is made again
    assert (tmp_path / "stopped" / FILE).read_bytes() == (tmp_path / "straight" / FILE).read_bytes()


def test_a_damaged_series_is_an_error(tmp_path: Path) -> None:
    Series(tmp_path, [{"text": "a"}]).add(0, "loss", None, [[seen()]])
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    for broken in (text[:-30], "", text.replace('"format": 1', '"format": 9'), "[]\n"):
        (tmp_path / FILE).write_text(broken, encoding="utf-8")
        with pytest.raises(HeedfulError, match="damaged"):
            Series(tmp_path, [{"text": "a"}])


def test_large_maps_are_averaged_then_cut_with_a_note() -> None:
    (whole,) = fit_maps([seen(4, heads=3)], max_weights=48)
    assert (whole.weights.shape, whole.note) == ((1, 3, 4, 4), "")
    one = seen(4, heads=2)
    one.weights[:, 1] = 0.1
    (averaged,) = fit_maps([one], max_weights=20)
    assert averaged.heads == [MEAN]
    assert averaged.weights == pytest.approx(0.3)
    assert averaged.note == "the mean of 2 heads"
    (cut,) = fit_maps([one], max_weights=9)
    assert cut.queries == ["0", "1"]
    assert cut.weights.shape == (1, 1, 2, 4)
    assert cut.note == "the mean of 2 heads, the first 2 of 4 queries"
    with pytest.raises(HeedfulError, match="give a shorter text"):
        fit_maps([one], max_weights=3)


def test_any_letter_comes_back_from_the_settings_file(tmp_path: Path) -> None:
    texts = ("👋 \u0007\t\x7f", 'a "b" \\ \u2028é')
    settings = RunSettings("translation", train=("a",), out="b", training=TrainingSettings(record_attention=texts))
    (tmp_path / "run.toml").write_text(to_toml(settings), encoding="utf-8")
    assert read_toml(tmp_path / "run.toml").training.record_attention == texts
