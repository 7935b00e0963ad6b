"""Ensembles of classifiers: probabilities by their members alone, by `transformers` and by hand; runs and folders."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful import cli
from heedful.adapters import LoraConfig, add_adapter
from heedful.config import (
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EnsembleConfig,
    PooledHead,
    SequenceHead,
    StackConfig,
)
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.export import export
from heedful.inference.pipeline import Pipeline
from heedful.inference.predict_file import fingerprint
from heedful.layers import TokenEmbedding
from heedful.models import Encoder, Ensemble
from heedful.models.ensemble import mean_logits
from heedful.pretrained.upload import model_files
from heedful.serving.run_attention import RunAttention
from heedful.serving.runs import WatchedRun
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks import defaults
from heedful.tasks.classifier_ensemble import ClassifierEnsemble
from heedful.tasks.text_classification import TextClassification
from heedful.tasks.text_regression import TextRegression
from heedful.training import Loop, resolve
from heedful.training.ceiling import flops_of
from heedful.training.optimisation import layer_rates
from heedful.verify.run_comparison import compare_runs
from tolerances import approx, assert_close

NAMES = {"fruit": "apple pear plum quince", "tool": "hammer saw chisel drill", "place": "lake valley island hill"}
FORMS = ("the {} is here", "one {} ?", "is that a {} or not ?", "no {} at all")
TEXTS = [(form.format(word), label) for label, words in NAMES.items() for word in words.split() for form in FORMS]
SMALL = ["--model.members=4", "--model.dim=16", "--tokenizer.size=60", "--training.evaluate-every=2", "--json"]
SMALL += ["--training.save-every=2"]
SMALL += ["--training.schedule=constant", "--training.warmup=1", "--training.log-every=1", "--training.lr=0.01"]
ASKED = ["a pear or a saw ?", "the hill", "one unknown island here"]


def rows(values: list[tuple[Any, ...]], columns: tuple[str, ...] = ("text", "label")) -> Rows:
    return Rows((Row(dict(zip(columns, each, strict=True)), "set.tsv", i) for i, each in enumerate(values, 1)), 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Folder and command of a run of six steps."""
    folder = tmp_path_factory.mktemp("ensemble")
    (folder / "set.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in TEXTS))
    command = ["train", "text-classification", "--train", str(folder / "set.tsv"), *SMALL]
    assert cli.main([*command, "--out", str(folder / "whole"), "--max-steps=6"]) == 0
    return folder / "whole", command


@pytest.fixture(scope="module")
def pipe(run: tuple[Path, list[str]]) -> Pipeline:
    return heedful.pipeline(None, run[0], device="cpu", dtype="float32")


def probabilities(answers: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [{each["label"]: each["score"] for each in answer["output"]} for answer in answers]


# --------------------------------------------------------------------------------------------------------------- values


def test_its_probabilities_are_the_mean_of_those_of_members_opened_alone(pipe: Pipeline, run: Any) -> None:
    ours = probabilities(pipe(ASKED, top_k=9))
    alone = [heedful.pipeline(None, run[0] / f"member-{i}", device="cpu", dtype="float32") for i in range(4)]
    theirs = [probabilities(member(ASKED, top_k=9)) for member in alone]
    assert {type(member.task) for member in alone} == {TextClassification}
    for number, answer in enumerate(ours):
        mean = {label: np.mean([member[number][label] for member in theirs]) for label in answer}
        assert answer == {label: approx(p) for label, p in mean.items()}
    assert ours[0] != theirs[0][0]
    assert len({json.dumps(each) for each in theirs}) == 4  # no two members are alike


@pytest.mark.parametrize("several", [False, True])
def test_the_mean_of_probabilities_in_float64(several: bool) -> None:
    logits = 3 * torch.randn(5, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = (logits.sigmoid() if several else logits.softmax(-1)).mean(0)
    ours = mean_logits(logits, several)
    assert_close(ours.sigmoid() if several else ours.softmax(-1), p)
    assert mean_logits(1e4 * logits.float(), several).isfinite().all()


def test_the_first_member_is_a_bert_that_transformers_opens(run: Any, tmp_path: Path) -> None:
    """Body and tokens by `transformers`; the mean over the tokens and the linear map by hand."""
    transformers = pytest.importorskip("transformers")
    member = heedful.from_pretrained(run[0] / "member-0")
    body = heedful.from_pretrained(run[0] / "member-0", head="pooled")
    assert body.config.head == PooledHead()
    body.save_pretrained(tmp_path / "bert")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "bert").eval()
    assert type(theirs).__name__ == "BertModel"
    tokenizer = transformers.AutoTokenizer.from_pretrained(run[0] / "member-0")
    inputs = tokenizer(ASKED, padding=True, return_tensors="pt")
    real = inputs["attention_mask"]
    with torch.no_grad():
        hidden = theirs(**inputs).last_hidden_state
        mean = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        ours = member(inputs["input_ids"], real.bool(), inputs["token_type_ids"])
        assert_close(ours, member.head.output(mean), "gradient")


def test_pairs_of_tokens_have_rows_of_a_hash_table() -> None:
    torch.manual_seed(0)
    table = TokenEmbedding(9, 4, bigrams=11)
    ids = torch.tensor([[5, 7, 7], [0, 5, 7]])  # the second row is padded on the left by id 0
    by_hand = [
        [
            table.token.weight[i] + table.bigram.weight[(1_000_003 * before + i) % 11]
            for before, i in zip((0, *row[:-1]), row, strict=True)
        ]
        for row in ids.tolist()
    ]
    assert_close(table(ids), torch.stack([torch.stack(row) for row in by_hand]))
    assert table(ids)[0, :2].equal(table(ids)[1, 1:])
    assert "bigram.weight" not in TokenEmbedding(9, 4).state_dict()
    config = EmbeddingConfig(vocab_size=9, bigrams=3)
    with pytest.raises(HeedfulError, match=r"embedding\.bigrams is 3 in a model of family 'decoder'; leave it out"):
        DecoderConfig(embedding=config, decoder=StackConfig(dim=8, depth=1, heads=1, causal=True))


def test_members_learn_as_each_would_alone(run: Any) -> None:
    """The gradient of a member is a quarter of its own loss's, whatever the others are."""
    task = ClassifierEnsemble.load(run[0])
    model = heedful.from_pretrained(run[0])
    batch = task.collate(task.encode(rows(TEXTS[::7])).examples)
    task.objective(model, batch, 0.1).backward()
    for member, own in zip(task.members, model.members, strict=True):
        together = {name: p.grad.clone() for name, p in own.named_parameters() if p.grad is not None}
        own.zero_grad()
        member.objective(own, member.collate(member.encode(rows(TEXTS[::7])).examples), 0.1).backward()
        alone = {name: p.grad / 4 for name, p in own.named_parameters() if p.grad is not None}
        assert_close(together, alone, "gradient")
    assert task.count(batch) == len(TEXTS[::7])


def test_its_operations_are_those_of_the_members(run: Any) -> None:
    task, model = ClassifierEnsemble.load(run[0]), heedful.from_pretrained(run[0])
    batch = task.collate(task.encode(rows(TEXTS[:9])).examples)
    alone = [
        flops_of(own)(member.collate(member.encode(rows(TEXTS[:9])).examples))
        for member, own in zip(task.members, model.members, strict=True)
    ]
    assert flops_of(model)(batch) == sum(alone) > 0
    rates = layer_rates(model, 0.5)
    assert rates == {key: rate for own in model.members for key, rate in layer_rates(own, 0.5).items()}
    assert min(rates.values()) == 0.25


def test_members_hide_their_tokens_apart(run: Any) -> None:
    task, model = ClassifierEnsemble.load(run[0]), heedful.from_pretrained(run[0])
    task.before_training(model, settings())
    examples = task.encode(rows(TEXTS)).examples
    plain, hidden = task.collate(examples), task.collate(examples, np.random.default_rng(0))
    for number, member in enumerate(task.members):
        before, after, mask = plain[f"{number}.ids"], hidden[f"{number}.ids"], plain[f"{number}.mask"]
        changed = (before != after).sum() / (mask.sum() - 2 * len(mask))
        assert changed == pytest.approx(0.2, abs=0.06)
        assert set(after[before != after].tolist()) == {member.tokenizer.unknown}
    assert not hidden["0.ids"].equal(hidden["1.ids"])  # of the same tokenizer


# ------------------------------------------------------------------------------------------------------ which runs have


def settings(**given: Any) -> RunSettings:
    return RunSettings(task="text-classification", train=("-",), out="-", **given)


def test_few_texts_of_known_words_have_an_ensemble() -> None:
    few, changed = rows(TEXTS), settings(model=ModelSettings(dim=32))
    assert TextClassification.for_rows(few, settings()) is ClassifierEnsemble
    assert TextClassification.for_rows(few, settings(model=ModelSettings(members=1))) is TextClassification
    assert TextClassification.for_rows(few, changed) is TextClassification
    assert TextClassification.for_rows(few, settings(preset="bert-tiny")) is TextClassification
    assert TextClassification.for_rows(few, settings(start_from="auto")) is TextClassification
    assert TextClassification.for_rows(few, settings(tokenizer=TokenizerSettings(size=100))) is TextClassification
    names = rows([(f"name{number}", "ab"[number % 2]) for number in range(50)])
    assert TextClassification.for_rows(names, settings()) is TextClassification
    for words, most in [(30, 14), (1_000, 453), (10_000, 2_273), (50_000, 7_500)]:  # 0.15 (40,000 / N)^0.3 of N words
        for new, kind in [(most, ClassifierEnsemble), (most + 1, TextClassification)]:
            text = " ".join([*(f"w{number}" for number in range(new)), *["the"] * (words - new)])
            assert TextClassification.for_rows(rows([(text, "a"), ("", "b")]), settings()) is kind
    assert TextClassification.for_rows(names, settings(model=ModelSettings(members=2))) is ClassifierEnsemble
    pairs = rows([(text, "it", label) for text, label in TEXTS], ("text", "text_pair", "label"))
    several = rows([(text, (label,)) for text, label in TEXTS])
    assert {TextClassification.for_rows(data, settings()) for data in (pairs, several)} == {TextClassification}
    many = Rows(few[number % len(few)] for number in range(defaults.ENSEMBLE_EXAMPLES))
    assert TextClassification.for_rows(many, settings()) is TextClassification
    assert TextClassification.for_rows(Rows(many[1:]), settings()) is ClassifierEnsemble


def test_an_objective_of_ones_own_has_a_single_model(tmp_path: Path) -> None:
    def objective(model: Any, batch: Any) -> Any:
        logits = model(batch["ids"], batch["mask"])
        return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")

    data = [{"text": text, "label": label} for text, label in TEXTS]
    given: dict[str, Any] = {"max_steps": 1, "quiet": True}
    run = heedful.train("text-classification", data, out=tmp_path / "run", objective=objective, **given)
    assert isinstance(run.model, Encoder)


def test_numbers_and_preferences_have_no_members() -> None:
    asked = settings(model=ModelSettings(members=2))
    with pytest.raises(HeedfulError, match=r"--model\.members has no effect on labels that are numbers"):
        resolve.suggested(TextRegression, rows([("a", 0.5)]), asked)


@pytest.mark.parametrize(("words", "epochs"), [(10, 15), (70_000, 10), (1_000_000, 4)])
def test_epochs_read_about_as_many_words(words: int, epochs: int) -> None:
    suggested = defaults.ensemble(10, settings(), [" ".join(["word"] * (words // 10))] * 10)
    assert suggested.max_epochs == epochs
    assert (suggested.model.members, suggested.model.dim, suggested.model.depth) == (4, 64, 1)
    wider = defaults.ensemble(10, settings(preset="bert-mini"), ["word"])
    assert (wider.preset, wider.model.members, wider.model.dim) == ("bert-mini", 4, None)


def test_tokenizers_of_members() -> None:
    asked = settings(model=ModelSettings(members=5), tokenizer=TokenizerSettings(size=99))
    specs = defaults.members(asked)
    assert [spec.tokenizer.kind for spec in specs] == ["word", "word", "wordpiece", "wordpiece", "word"]
    assert [bool(spec.bigrams) for spec in specs] == [False, True, True, False, False]
    assert {spec.tokenizer.size for spec in specs} == {99}
    task = ClassifierEnsemble.prepare(rows(TEXTS), asked)
    assert task.members[0].tokenizer is task.members[1].tokenizer
    config = task.config(asked)
    assert isinstance(config, EnsembleConfig)
    assert [member.encoder.placement for member in config.members] == ["post", "pre", "pre", "post", "post"]
    assert EnsembleConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("several", [False, True], ids=["pairs", "several labels"])
def test_members_may_read_pairs_and_give_several_labels(several: bool, tmp_path: Path) -> None:
    """Asked for, since the default there is a single model: the probabilities are means all the same."""
    data: list[dict[str, Any]] = [{"text": text, "text_pair": "it is", "label": label} for text, label in TEXTS]
    if several:
        data = [{"text": text, "label": [label, "long"][: 1 + (len(text) > 16)]} for text, label in TEXTS]
    sizes: dict[str, Any] = {"model_settings": {"members": 2, "dim": 16}, "tokenizer": {"size": 60}}
    if several:
        sizes["model_settings"]["r_drop"] = 1.0
    run = heedful.train("text-classification", data, out=tmp_path / "out", max_steps=2, quiet=True, **sizes)
    asked = [text if several else (text, "it is") for text in ASKED]
    ours = probabilities(run.pipeline(asked, top_k=9))
    alone = [heedful.pipeline(None, tmp_path / "out" / f"member-{number}", device="cpu") for number in range(2)]
    theirs = [probabilities(member(asked, top_k=9)) for member in alone]
    for number, answer in enumerate(ours):
        assert answer == {label: approx(sum(own[number][label] for own in theirs) / 2) for label in answer}
    assert {member.task.multi_label for member in alone} == {several}


# ----------------------------------------------------------------------------------------------------- runs and folders


def test_a_run_that_broke_off_ends_with_the_same_bits(
    run: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, command = run
    parts, steps, own = tmp_path / "whole", iter(range(9)), Loop._step
    again = [*command, "--out", str(parts), "--max-steps=6"]

    def breaking(*given: Any) -> Any:
        if next(steps) == 3:
            raise HeedfulError("broken off")
        return own(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_step", breaking)
        assert cli.main(again) == 2
    assert cli.main([*again, "--resume"]) == 0
    found = {check.name: check for check in compare_runs(whole, parts)}
    for name in ("last weights", "averaged weights", "checkpoint", "losses", "files"):
        assert found[name].verdict == "ok", (name, found[name].reason)
    path = Path("last", "member-2", "model.safetensors")
    ours, theirs = load_file(parts / path), load_file(whole / path)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    (parts / path).write_bytes(b"")
    assert "last weights" in {check.name for check in compare_runs(whole, parts) if check.verdict == "failed"}
    assert not list(whole.glob("model*.safetensors"))


def test_predict_and_evaluate_agree(run: Any, pipe: Pipeline, capsys: Any) -> None:
    data = run[1][3]
    result = heedful.evaluate(run[0], data)
    answers = pipe([text for text, _ in TEXTS])
    right = [answer["output"] == label for answer, (_, label) in zip(answers, TEXTS, strict=True)]
    assert result["accuracy"] == approx(100 * np.mean(right))
    capsys.readouterr()
    assert cli.main(["predict", str(run[0]), *ASKED, "--json", "--device=cpu"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ours = pipe(ASKED)
    assert [(line["output"], line["score"]) for line in lines] == [
        (one["output"], approx(one["score"])) for one in ours
    ]


def test_the_head_of_a_run_says_it_and_the_advice_how_to_train_one(tmp_path: Path, caplog: Any) -> None:
    """Of a run in which nothing but the data chooses an ensemble."""
    data = [{"text": text, "label": label} for text, label in TEXTS]
    given: dict[str, Any] = {"training": {"record_attention": ["the hill"]}, "max_steps": 1, "quiet": True}
    with caplog.at_level(logging.INFO, logger="heedful.training"):
        run = heedful.train("text-classification", data, out=tmp_path / "out", **given)
    assert isinstance(run.model, Ensemble)
    assert f"whose probabilities are averaged; --teacher {tmp_path / 'out'} trains one model, which" in caplog.text
    assert "on fewer than 2,000 texts that one is worse (667 questions of TREC: 72.1 for 75.5)" in caplog.text
    assert (tmp_path / "out" / "watch.jsonl").is_file()


def test_it_is_verified_and_looked_into_member_by_member(run: Any, tmp_path: Path, capsys: Any) -> None:
    capsys.readouterr()
    assert cli.main(["verify", str(run[0]), "--json"]) == 0
    names = [check["name"] for check in json.loads(capsys.readouterr().out)["checks"]]
    assert names[:3] == ["round trip", "answers", "member-0: round trip"]
    assert "member-3: padded left" in names
    assert cli.main(["inspect", str(run[0]), "the hill", "--out", str(tmp_path / "look.html")]) == 0
    assert "whole/member-0: the hill" in (tmp_path / "look.html").read_text(encoding="utf-8")
    seen = heedful.inspect(heedful.from_pretrained(run[0]), "the hill")
    assert "member-0" in seen.title


def test_the_dashboard_shows_the_attention_of_the_first_member(run: Any) -> None:
    saved = WatchedRun(run[0], "tiny").saved_model()
    assert saved is not None
    threads = torch.get_num_threads()
    try:
        found = RunAttention().view("tiny", saved, 0)
    finally:
        torch.set_num_threads(threads)
    assert "<title>tiny/member-0: " in found["page"]


def test_one_model_in_its_place_opens_in_transformers(run: Any, tmp_path: Path, capsys: Any) -> None:
    transformers = pytest.importorskip("transformers")
    command = ["--model.members=1" if word == "--model.members=4" else word for word in run[1]]
    assert cli.main([*command, "--out", str(tmp_path / "one"), "--max-steps=2"]) == 0
    assert json.loads(capsys.readouterr().out)["next"][-1] in dict(TEXTS)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "one").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")(ASKED[0], return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**tokens).logits.softmax(-1)[0]
    ours = probabilities([heedful.pipeline(None, tmp_path / "one", device="cpu")(ASKED[0], top_k=3)])[0]
    assert ours == {theirs.config.id2label[number]: approx(p) for number, p in enumerate(expected.tolist())}


def test_commands_that_refuse_an_ensemble(run: Any, tmp_path: Path, capsys: Any) -> None:
    folder, out = run[0], str(tmp_path / "out")
    refused = {
        ("export", str(folder), "--to", "hf", "--out", out): "is an ensemble, which only --to onnx writes; for other",
        ("summary", str(folder)): "is an ensemble of 4 models, which are counted one by one",
        (*run[1][:4], "--from", str(folder), "--out", out): "is an ensemble; fine-tune one of its members",
    }
    for command, told in refused.items():
        capsys.readouterr()
        assert cli.main(list(command)) == 2
        error = capsys.readouterr().err
        assert told in error
        assert f"{folder}/member-0" in error or command[0] == "export"
        assert error.count("\n") == 1
    member = ["export", f"{folder}/member-0", "--to"]
    assert cli.main([*member, "hf", "--out", out]) == 2
    assert "; train one model that learns from it (--teacher), or use --to onnx" in capsys.readouterr().err
    assert cli.main([*member, "onnx", "--out", out + ".onnx"]) == 0
    for given in ({"head": "pooled"}, {"num_labels": 7}, {"positions": 9}):
        with pytest.raises(HeedfulError, match=f"is an ensemble, whose members have their own {next(iter(given))}"):
            heedful.from_pretrained(folder, **given)
    model = heedful.from_pretrained(folder)
    assert isinstance(model, Ensemble)
    with pytest.raises(HeedfulError, match="an ensemble of 4 members takes a list of their inputs"):
        model(torch.tensor([[1, 2]]))
    with pytest.raises(HeedfulError, match="an ensemble has the heads of its members"):
        heedful.create(model.config, num_labels=9)
    with pytest.raises(HeedfulError, match="an adapter is added to one model, not to an ensemble"):
        add_adapter(model, LoraConfig())
    files = model_files(folder)
    cards = [content for name, content in files.items() if name.endswith("heedful.json")]
    assert len(cards) == 5
    assert not [card for card in cards if not isinstance(card, bytes) or str(folder.parent).encode() in card]
    assert str(folder.parent) in (folder / "member-0" / "heedful.json").read_text()  # which is left out
    assert {f"member-{i}/{name}" for i in range(4) for name in ("model.safetensors", "tokenizer.json")} <= set(files)


def test_it_is_one_graph_of_onnx(run: Any, pipe: Pipeline, tmp_path: Path) -> None:
    runtime, tokenizers = pytest.importorskip("onnxruntime"), pytest.importorskip("tokenizers")
    out = tmp_path / "graph"
    details = export(run[0], "onnx", out)
    assert {f"member-{i}/tokenizer.json" for i in range(4)} <= set(details["beside"])
    session = runtime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    readers = [tokenizers.Tokenizer.from_file(str(out / f"member-{i}" / "tokenizer.json")) for i in range(4)]
    for texts in (ASKED, ["saw"], ["a pear or a saw ?"] * 3):
        inputs = {}
        for i, reader in enumerate(readers):
            reader.enable_padding()
            read = reader.encode_batch(texts)
            inputs[f"input_ids_{i}"] = np.array([each.ids for each in read])
            inputs[f"attention_mask_{i}"] = np.array([each.attention_mask for each in read])
            if f"token_type_ids_{i}" in details["inputs"]:
                inputs[f"token_type_ids_{i}"] = np.zeros_like(inputs[f"input_ids_{i}"])
        assert {*inputs} == {*details["inputs"]}
        (logits,) = session.run(None, inputs)
        found = torch.from_numpy(logits).softmax(-1)
        for row, answer in zip(found.tolist(), probabilities(pipe(texts, top_k=9)), strict=True):
            assert dict(zip(pipe.labels, row, strict=True)) == {label: approx(p) for label, p in answer.items()}


@pytest.mark.parametrize("member", [1, 2])
def test_a_member_with_pairs_of_tokens_is_a_graph(run: Any, member: int, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    file = tmp_path / "pairs.onnx"
    inputs = export(run[0] / f"member-{member}", "onnx", file)["inputs"]
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    model = heedful.from_pretrained(run[0] / f"member-{member}").eval()
    for length in (1, 2, 7):
        ids = torch.arange(4, 4 + 2 * length).view(2, length)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        (logits,) = session.run(None, {name: given[name].numpy() for name in inputs})
        torch.testing.assert_close(torch.from_numpy(logits), model(ids).detach(), atol=1e-5, rtol=1e-4)


def test_files_of_members_tell_whether_a_prediction_can_go_on(run: Any, tmp_path: Path) -> None:
    shutil.copytree(run[0], tmp_path / "copy")
    assert fingerprint(tmp_path / "copy") == fingerprint(run[0])
    (tmp_path / "copy" / "member-3" / "model.safetensors").write_bytes(b"other")
    assert fingerprint(tmp_path / "copy") != fingerprint(run[0])


def test_members_of_different_labels_are_refused(run: Any, tmp_path: Path) -> None:
    member = EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=5),
        encoder=StackConfig(dim=8, depth=1, heads=1),
        head=SequenceHead(labels=2),
    )
    headless = EncoderConfig(embedding=member.embedding, encoder=member.encoder)
    for members in ((member,), (member, headless)):
        with pytest.raises(HeedfulError, match="an ensemble has two or more members"):
            EnsembleConfig(members=members)
    model = heedful.from_pretrained(run[0])
    model.save_pretrained(tmp_path / "again")
    config = tmp_path / "again" / "member-1" / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"tool"', '"other"'))
    with pytest.raises(HeedfulError, match=r"member-1/config\.json: the labels differ"):
        heedful.from_pretrained(tmp_path / "again")
    config.unlink()
    with pytest.raises(HeedfulError, match=r"member-1 is not a model folder: config\.json is missing"):
        heedful.from_pretrained(tmp_path / "again")
    top = tmp_path / "again" / "config.json"
    top.write_text(json.dumps(json.loads(top.read_text(encoding="utf-8")) | {"members": 7}), encoding="utf-8")
    with pytest.raises(HeedfulError, match="an ensemble has a list of two or more members"):
        heedful.from_pretrained(tmp_path / "again")
