"""Translation: tensors, the loss by hand in float64, answers in order."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import heedful
from heedful.cli import main
from heedful.config import EmbeddingConfig
from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError
from heedful.inference.pipeline import Pipeline
from heedful.models import Model
from heedful.pretrained import save
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks import check, get, names
from heedful.tasks.task import Prediction
from heedful.tasks.translation import Translation
from heedful.text import Tokenizer
from tolerances import approx

TEXTS = [("a b", "b a"), ("one two three", "x"), ("é", "ü ö")]
ROWS = Rows(Row({"source": s, "target": t}, "f", 1) for s, t in TEXTS)


@pytest.fixture(scope="module")
def task() -> Translation:
    tokenizer = Tokenizer.train([text for row in ROWS for text in row.values.values()], 300)
    return Translation(tokenizer, tokenizer)


def settings(**model: object) -> RunSettings:
    return RunSettings(
        task="translation", train=("-",), out="-", preset="transformer-tiny", model=ModelSettings(**model)
    )


def test_a_batch(task: Translation) -> None:
    examples = task.encode(ROWS).examples
    batch = task.collate(examples)
    start, end, pad = task.target.start, task.target.end, task.target.pad
    for i, row in enumerate(ROWS):
        source, target = (task.source.encode([row.values[side]])[0] for side in ("source", "target"))
        real = batch["source_mask"][i]
        assert batch["source"][i][real].tolist() == [*source, end]
        assert batch["source"][i][~real].eq(pad).all()
        length = len(target) + 1
        assert batch["target"][i, :length].tolist() == [start, *target]
        assert batch["labels"][i, :length].tolist() == [*target, end]
        assert batch["labels"][i, length:].eq(-100).all()
        assert task.lengths(examples)[i].tolist() == [len(source) + 1, length]
    assert task.count(batch) == int(task.lengths(examples)[:, 1].sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_by_hand(task: Translation, smoothing: float) -> None:
    """Σ over real target tokens alone; padding takes no part in the smoothing either."""
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).double().eval()
    examples = task.encode(ROWS).examples
    expected = 0.0
    for example in examples:
        batch = task.collate([example])
        log_p = model(batch["source"], batch["target"])[0].log_softmax(-1)
        for row, label in zip(log_p, batch["labels"][0].tolist(), strict=True):
            expected += -(1 - smoothing) * row[label].item() - smoothing * row.mean().item()
    together = task.objective(model, task.collate(examples), smoothing).item()
    assert together == approx(expected, "layer")


def test_the_loss_of_another_model_or_of_a_wrapper_is_refused(task: Translation) -> None:
    batch = task.collate(task.encode(ROWS).examples)
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0)
    for wrong in (heedful.create("gpt-micro", seed=0), torch.nn.DataParallel(model)):
        with pytest.raises(HeedfulError, match=rf"needs a model of class EncoderDecoder, not {type(wrong).__name__};"):
            task.objective(wrong, batch)


def test_settings_change_the_preset(task: Translation) -> None:
    config = task.config(
        settings(dim=64, encoder_depth=2, decoder_depth=1, heads=2, dropout=0.25, tied=False, window=3)
    )
    assert (config.encoder.window, config.decoder.window) == (None, 3)
    assert (config.encoder.depth, config.decoder.depth) == (2, 1)
    assert config.encoder.ff_dim == config.decoder.ff_dim == 256
    assert config.decoder.dropout.residual == config.encoder.dropout.embedding == 0.25
    assert config.head.tied is False
    assert config.source.vocab_size == task.source.vocab_size
    with pytest.raises(HeedfulError, match="gpt2"):
        task.config(RunSettings(task="translation", train=("-",), out="-", preset="gpt2"))


def test_long_pairs_are_left_out_and_counted(task: Translation) -> None:
    longest = task.lengths(task.encode(ROWS).examples).max(axis=1)
    assert longest.argmax() == 1
    kept = task.encode(ROWS, int(longest.max()) - 1)
    assert [row.values["source"] for row in kept.rows] == ["a b", "é"]
    assert len(kept.examples) == 2
    assert kept.note == f"1 example longer than {longest.max() - 1} tokens left out (--data.max-length)"
    assert task.encode(ROWS).note == ""
    with pytest.raises(HeedfulError, match=r"every example is longer than 1 token, in .+; raise --data\.max-length"):
        task.encode(ROWS, 1)
    few = Translation(task.source, task.target, positions=1)  # where the model is the one that takes no more
    with pytest.raises(HeedfulError, match=r"every example is longer than 1 token, in .+; the model takes no more"):
        few.encode(ROWS, 50)


def test_a_model_whose_decoder_begins_with_nothing_is_refused(task: Translation) -> None:
    config = task.config(settings(dim=16, heads=2, depth=1))
    model = heedful.create(replace(config, special=replace(config.special, start=None)), seed=0)
    with pytest.raises(HeedfulError, match="has no start token for its decoder; set decoder_start_token_id"):
        task.check_model(model)


def test_rows_that_cannot_be_exact_count_by_format_only(task: Translation, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [("1", "long", "yes"), ("2", "long", "yes"), ("3", "short", "no")]
    rows = Rows(Row({"source": n, "target": n, "format": f, "exact": e}, "f", 1) for n, f, e in kinds)
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).eval()
    said = [Prediction(n, output, 0.0) for (n, _, _), output in zip(kinds, ["1", "x", "3"], strict=True)]
    monkeypatch.setattr(task, "predict", lambda model, inputs, **options: said)
    measured = task.measure(model, task.encode(rows).examples, rows)
    assert measured.metrics["exact_match"] == 50.0
    assert measured.details["by_format"]["long"] == {"exact_match": 50.0, "examples": 2, "counted": True}
    assert measured.details["by_format"]["short"] == {"exact_match": 100.0, "examples": 1, "counted": False}


@pytest.mark.parametrize(("folds", "asked"), [(False, False), (True, False), (False, True)])
def test_a_model_that_writes_no_capitals_is_scored_in_lower_case(
    folds: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(
        Row({"source": s, "target": t}, "f", 1) for s, t in [("ein hund", "A Dog ran over the Road"), ("ja", "YES")]
    )
    tokenizer = Tokenizer.train([text for row in rows for text in row.values.values()], 300, lowercase=folds)
    task, lowercase = Translation(tokenizer, tokenizer), folds or asked
    task.lowercase = asked
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).eval()
    said = [Prediction(row.values["source"], row.values["target"].lower(), 0.0) for row in rows]
    monkeypatch.setattr(task, "predict", lambda model, inputs, **options: said)
    metrics = task.measure(model, task.encode(rows).examples, rows).metrics
    assert metrics["exact_match"] == (100.0 if lowercase else 0.0)
    assert (metrics["bleu"] > 99.9) == lowercase
    assert ("case:lc" in metrics["bleu_signature"]) == lowercase
    copied = Rows(Row({"source": "One Two", "target": "one two"}, "f", 1) for _ in range(2))
    others = Rows([Row({"source": "three", "target": "drei"}, "f", 1)])
    assert task.baseline(copied, lambda: others).metrics["exact_match"] == (100.0 if lowercase else 0.0)


def test_the_measured_loss_is_the_mean_over_target_tokens(task: Translation) -> None:
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).eval()
    examples = task.encode(ROWS).examples
    batch = task.collate(examples)
    expected = task.objective(model, batch).item() / task.count(batch)
    assert task.measure(model, examples, ROWS, most=1).metrics["loss"] == approx(expected, "layer")


def test_answers_keep_the_order_and_blanks_stay_blank(task: Translation) -> None:
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).eval()
    pipe = Pipeline(task, model)
    texts = ["one two three", "", "a", "  ", "one two three one two three"]
    together = pipe(texts, max_new_tokens=5)
    assert [answer["input"] for answer in together] == texts
    assert together[1] == {"input": "", "output": "", "score": None}
    assert together[3] == {"input": "  ", "output": "", "score": None}
    for i in (0, 2, 4):
        alone = pipe(texts[i], max_new_tokens=5)
        assert alone["output"] == together[i]["output"]
        assert alone["score"] == approx(together[i]["score"])
    assert pipe([]) == []
    with pytest.raises(HeedfulError, match="num_beam has no effect for translation; did you mean 'num_beams'"):
        pipe("a", num_beam=3)
    with pytest.raises(HeedfulError, match="option prefill_chunk_size has no effect for translation"):
        pipe("a", prefill_chunk_size=3)


def test_an_answer_ends_right_after_a_stop_string(task: Translation) -> None:
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).eval()
    pipe = Pipeline(task, model)
    texts = ["one two three", "", "a b"]
    for options in ({"do_sample": True, "seed": 3}, {"num_beams": 2}):
        free = [answer["output"] for answer in pipe(texts, max_new_tokens=30, min_new_tokens=30, **options)]
        strings = [free[0][5:8], free[2][3:4]]
        made = [a["output"] for a in pipe(texts, max_new_tokens=30, min_new_tokens=30, stop_strings=strings, **options)]
        assert made[1] == ""
        for whole, text in zip(free, made, strict=True):
            assert text == "" or text.endswith(tuple(strings))
            if "seed" in options:
                ends = [whole.find(one) + len(one) for one in strings if one in whole]
                assert text == whole[: min(ends, default=len(whole))]


def test_a_seed_for_each_text(task: Translation) -> None:
    model = heedful.create(task.config(settings(dim=16, heads=2, depth=1)), seed=0).eval()
    pipe, texts, seeds = Pipeline(task, model), ["one two three", "", "a b", "one two three"], [3, 4, 5, 6]
    options = {"max_new_tokens": 12, "do_sample": True}
    made = pipe(texts, seed=seeds, **options)
    assert made[0]["output"] != made[3]["output"]
    for text, seed, answer in zip(texts, seeds, made, strict=True):
        assert pipe(text, seed=seed, **options)["output"] == answer["output"]
    with pytest.raises(HeedfulError, match="seed has 2 numbers, but there are 4 prompts"):
        pipe(texts, seed=[1, 2], **options)


def test_the_list_of_tasks() -> None:
    listed = [entry["name"] for entry in names()]
    assert len(listed) == 11
    assert {"translation", "summarization"} <= set(listed)
    assert [get(name).name for name in listed] == listed
    assert get("translation") is Translation
    with pytest.raises(HeedfulError, match="did you mean 'translation'"):
        check("translate")


@pytest.mark.parametrize("extra", [64, 0, -1])
def test_an_embedding_with_other_rows_than_the_tokenizer(task: Translation, tmp_path: Path, extra: int) -> None:
    """Rows to spare, as published models have them, change nothing; a row too few is refused when the folder opens."""
    config = task.config(settings(dim=16, heads=2, depth=1))
    spare = EmbeddingConfig(vocab_size=task.source.vocab_size + extra)
    model = heedful.create(replace(config, source=spare), seed=0)
    model.save_pretrained(tmp_path)
    task.save(tmp_path)
    if extra < 0:
        with pytest.raises(HeedfulError, match="do not belong together"):
            heedful.pipeline("translation", tmp_path)
    else:
        assert isinstance(heedful.pipeline("translation", tmp_path)("a b", max_new_tokens=4)["output"], str)


def test_a_model_that_reads_images_is_refused(task: Translation) -> None:
    with pytest.raises(HeedfulError, match="translation needs a model that reads text, but this one reads images"):
        task.check_model(heedful.create("captioner-micro"))


def test_a_model_of_another_family_is_refused(task: Translation, tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    task.save(tmp_path)
    with pytest.raises(HeedfulError, match="needs an encoder-decoder"):
        heedful.pipeline("translation", tmp_path)


# ------------------------------------------------------------------------------------- prefixes and target languages

SPOKEN = {"fr": {"one house": "une maison", "red": "rouge"}, "de": {"one house": "ein Haus", "red": "rot"}}
SEVERAL = Rows(
    Row({"source": source, "target": target, "language": language}, "m.tsv", line)
    for line, (source, target, language) in enumerate(
        ((s, t, language) for language, pairs in SPOKEN.items() for s, t in pairs.items()), start=2
    )
)


def multilingual(rows: Rows = SEVERAL, shared: bool = True) -> tuple[Translation, Model]:
    asked = replace(
        settings(dim=32, heads=2, depth=1, dropout=0.0), tokenizer=TokenizerSettings(size=300, shared=shared)
    )
    task = Translation.prepare(rows, asked)
    model = heedful.create(task.config(asked), seed=0).eval()
    task.before_training(model, asked)
    task.check_model(model)
    return task, model


@pytest.mark.parametrize("shared", [True, False])
def test_a_language_is_one_token_before_the_source(shared: bool) -> None:
    task, model = multilingual(shared=shared)
    assert dict(task.columns) == {"source": "text", "target": "text", "language": "text"}
    assert task.languages == ["<2de>", "<2fr>"]
    assert task.card_entries() == {"languages": ["de", "fr"]}
    assert model.config.source.vocab_size == task.source.vocab_size
    for row, (source, target) in zip(SEVERAL, task.encode(SEVERAL).examples, strict=True):
        tag = task.source.backend.token_to_id(f"<2{row.values['language']}>")
        assert source == [tag, *task.source.encode([row.values["source"]])[0], task.source.end]
        assert target == [*task.target.encode([row.values["target"]])[0], task.target.end]
    assert task.row_line(SEVERAL[0]) == "<2fr> one house → une maison"


def test_the_tag_decides_which_language_comes_out(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    task, model = multilingual()
    optimiser = torch.optim.Adam(model.train().parameters(), lr=0.01)
    batch = task.collate(task.encode(SEVERAL).examples)
    for _ in range(60):
        optimiser.zero_grad()
        task.objective(model, batch).backward()
        optimiser.step()
    save(model.eval(), tmp_path, extra={"task": "translation", "columns": dict(task.columns)})
    task.save(tmp_path)
    pipe = heedful.pipeline(None, tmp_path, device="cpu")
    assert isinstance(pipe.task, Translation)
    assert pipe.task.languages == ["<2de>", "<2fr>"]
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for language, pairs in SPOKEN.items():
        for source, target in pairs.items():
            assert pipe(f"<2{language}> {source}")["output"] == target
            assert pipe(source, prefix=f"<2{language}> ")["output"] == target
            ids = fast(f"<2{language}> {source}", return_tensors="pt").input_ids
            assert fast.decode(theirs.generate(ids, max_new_tokens=20)[0], skip_special_tokens=True) == target
    measured = pipe.task.measure(pipe.model, pipe.task.encode(SEVERAL).examples, SEVERAL)
    assert measured.metrics["exact_match"] == 100
    assert {name: one["exact_match"] for name, one in measured.details["by_language"].items()} == {"de": 100, "fr": 100}
    assert list(measured.outputs) == [row.values["target"] for row in SEVERAL]


def test_a_text_that_does_not_say_its_language_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    task, model = multilingual()
    with caplog.at_level(logging.WARNING):
        task.predict(model, ["red", "<2fr> red", " "], max_new_tokens=2)
        task.predict(model, ["red"], prefix="<2fr> ", max_new_tokens=2)
    assert caplog.messages == [
        "1 of 2 inputs have no language tag; write one of <2de>, <2fr> before each, or before all: --prefix '<2de> '"
    ]


def test_a_language_that_the_model_does_not_know_is_refused() -> None:
    task, _ = multilingual()
    rows = Rows([Row({"source": "red", "target": "rojo", "language": "es"}, "m.tsv", 7)])
    with pytest.raises(
        HeedfulError, match=r"^m\.tsv:7: the model has no tag for the language 'es'; known: <2de>, <2fr>"
    ):
        task.encode(rows)


def test_inputs_with_a_language() -> None:
    task, _ = multilingual()
    assert task.as_read({"source": "red", "language": "fr"}) == "<2fr> red"
    assert task.as_read({"source": "<2fr> red", "language": "fr"}) == "<2fr> red"
    with pytest.raises(HeedfulError, match="the source begins with <2de>, but the language is 'fr'; give one"):
        task.as_read({"source": "<2de> red", "language": "fr"})
    with pytest.raises(HeedfulError, match=r"^the language is 3, not a text; give one of <2de>, <2fr>$"):
        task.as_read({"source": "red", "language": 3})
    with pytest.raises(HeedfulError, match=r"^the input is {'text': 'red'}; give a text, or"):
        task.as_read({"text": "red"})


def test_tags_that_stand_in_the_text_are_tokens_too(task: Translation) -> None:
    """Marian's form, and the mark of what was translated back; markup is none."""
    sources = [">>fra<< one house", "<BT> red", "<b>one</b> house", "a <2de> house"]
    rows = Rows(Row({"source": source, "target": "x"}, "f", 1) for source in sources)
    made, _ = multilingual(rows)
    assert made.source.added == ["<BT>", ">>fra<<"]
    assert dict(made.columns) == {"source": "text", "target": "text"}
    [(ids, _)] = made.encode(Rows(rows[1:2])).examples
    assert ids[1:] == [*made.source.encode(["red"])[0], made.source.end]
    tagged = Rows([Row({"source": "red", "target": "x", "language": "fra"}, "f", 1)])
    assert made.source_text(tagged[0]) == ">>fra<< red"
    assert task.source.added == []
    assert task.source_text(tagged[0]) == "<2fra> red"  # a model without tags, a T5, learns it as text


def test_rows_without_a_language_have_no_tag(task: Translation, tmp_path: Path) -> None:
    assert task.source_text(ROWS[0]) == "a b"
    file = tmp_path / "m.tsv"
    file.write_text("source\ttarget\tlanguage\nred\trouge\tfr\n")
    assert read(str(file), Translation.columns)[0].values == {"source": "red", "target": "rouge", "language": "fr"}
    file.write_text("red\trouge\tfr\n")
    assert read(str(file), Translation.columns, names=("1", "2"))[0].values == {"source": "red", "target": "rouge"}
    named = read(str(file), Translation.columns, names=("1", "2", "3"))
    assert named[0].values == {"source": "red", "target": "rouge", "language": "fr"}


def test_a_prefix_stands_before_every_source(task: Translation) -> None:
    asked = replace(settings(dim=16, heads=2, depth=1), data=DataSettings(prefix="en to fr: "))
    own = Translation(task.source, task.target)
    model = heedful.create(own.config(asked), seed=0).eval()
    own.before_training(model, asked)
    [(source, _), *_] = own.encode(ROWS).examples
    assert source == [*own.source.encode(["en to fr: a b"])[0], own.source.end]
    plain = task.predict(model, ["en to fr: one two"], max_new_tokens=5)[0]
    assert own.predict(model, ["one two"], max_new_tokens=5)[0].output == plain.output
    assert own.predict(model, ["en to fr: one two"], prefix="", max_new_tokens=5)[0].score == plain.score


def test_back_translations_are_learned_with_their_tag(tmp_path: Path) -> None:
    """The recipe of the documentation, from the other direction's model to this one's data."""
    english, french, more = tmp_path / "train.en", tmp_path / "train.fr", tmp_path / "more.fr"
    english.write_text("one house\nred\nold\n")
    french.write_text("une maison\nrouge\nvieux\n")
    more.write_text("une maison rouge\n\nrouge\n")
    small = ["--model.dim", "16", "--model.heads", "2", "--model.depth", "1", "--tokenizer.size", "280"]
    learn = [*small, "--max-steps", "1", "--device", "cpu", "--data.valid-fraction", "0.3"]
    back, out = tmp_path / "fr-en", tmp_path / "more.en"
    assert main(["train", "translation", "--train", str(french), str(english), "--out", str(back), *learn]) == 0
    asked = ["--do-sample", "--seed", "1", "--max-new-tokens", "4", "--min-new-tokens", "4"]
    assert main(["predict", str(back), "--in", str(more), "--out", str(out), *asked, "--device", "cpu"]) == 0
    made = out.read_text().split("\n")[:-1]  # what is drawn may have other ends of lines
    assert len(made) == 3
    assert [bool(line) for line in made] == [True, False, True]
    both = [tmp_path / "both.en", tmp_path / "both.fr"]
    both[0].write_text(english.read_text() + "".join(f"<BT> {line}\n" for line in made))
    both[1].write_text(french.read_text() + more.read_text())
    forth = tmp_path / "en-fr"
    assert main(["train", "translation", "--train", *map(str, both), "--out", str(forth), *learn]) == 0
    task = Translation.load(forth)
    assert task.source.added == ["<BT>"]
    assert len(task.source.encode(["<BT> red"])[0]) == len(task.source.encode(["red"])[0]) + 1
    assert task.languages == []
