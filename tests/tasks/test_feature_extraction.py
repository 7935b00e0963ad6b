"""Vectors of texts: the losses by hand, cached gradients, retrieval by hand, folders that others open and made."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import cli, presets
from heedful.config import PooledHead, RotaryPosition
from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError, plural
from heedful.metrics.example_scores import overall
from heedful.models import Model
from heedful.pretrained import load, save
from heedful.settings import ModelSettings, PoolingSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.contrastive_loss import contrastive
from heedful.tasks.feature_extraction import FeatureExtraction
from heedful.tasks.retrieval_pairs import SIDES, groups_of
from heedful.training.optimisation import adamw
from tolerances import approx

transformers = pytest.importorskip("transformers")
SMALL = ModelSettings(dim=32, heads=2, depth=2)
MINILM = Path(__file__).parents[2].parent / "shared" / "data" / "weights" / "minilm-l6"
CALLS = {"dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "bird": "tweet", "hen": "cluck", "owl": "hoot"}


def rows(*values: tuple[Any, ...], columns: tuple[str, ...] = ("text", "text_pair")) -> Rows:
    found = (Row(dict(zip(columns, each, strict=True)), "set.tsv", i) for i, each in enumerate(values, 1))
    return Rows(found, 0, columns)


PAIRS = rows(*((f"what does the {animal} say ?", f"it says {call}") for animal, call in CALLS.items()))
TRIPLES = rows(
    ("the dog", "woof", "meow"),
    ("the cat", "meow", "moo woof"),
    ("the dog", "woof woof", "moo"),  # a text that comes twice
    ("the cow", "moo", "the cow"),  # whose negative is itself
    columns=("text", "text_pair", "negative"),
)
SCORED = rows(
    ("a dog", "a hound", 4.5), ("a dog", "a cat", 2.0), ("a dog", "the law", 0.0), ("moo", "a cow", 3.5),
    columns=("text", "text_pair", "score"),
)  # fmt: skip
SETS = {"pairs": PAIRS, "triples": TRIPLES, "scored": SCORED}


def settings(**given: Any) -> RunSettings:
    chosen = {"preset": "bert-tiny", "model": SMALL, "tokenizer": TokenizerSettings(kind="bpe", size=400)} | given
    return RunSettings(task="feature-extraction", train=("-",), out="-", **chosen)


def made(data: Rows, **given: Any) -> tuple[FeatureExtraction, Model]:
    asked = settings(**given)
    task = FeatureExtraction.prepare(data, asked)
    model = heedful.create(task.config(asked), seed=0)
    task.before_training(model, asked)
    return task, model.eval()


@cache
def taught(which: str = "pairs", steps: int = 100) -> tuple[FeatureExtraction, Model]:
    task, model = made(SETS[which])
    batch = task.collate(task.encode(SETS[which]).examples)
    optimiser = adamw(model, lr=3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        task.objective(model, batch).backward()
        optimiser.step()
    return task, model


def saved(task: FeatureExtraction, model: Model, folder: Path) -> Path:
    save(model, folder, extra={"task": task.name, "columns": dict(task.columns)})
    task.save(folder)
    return folder


# ------------------------------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize("most", [4, 6, 128])
def test_texts_are_read_as_transformers_reads_them(most: int, tmp_path: Path) -> None:
    task, _ = made(TRIPLES)
    task.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encoded = task.encode(TRIPLES, most)
    examples, note = encoded.examples, encoded.note
    assert encoded.rows == TRIPLES
    for row, example in zip(TRIPLES, examples, strict=True):
        wanted = theirs([*row.values.values()], truncation=True, max_length=most)["input_ids"]
        assert [*example.sides] == wanted
    lengths = [len(ids) for example in task.encode(TRIPLES).examples for ids in example.sides]
    cut = sum(length > most for length in lengths)
    assert note == (f"{plural(cut, 'text')} cut to {most} tokens (--data.max-length)" if cut else "")
    assert task.lengths(examples).tolist() == [[len(ids) for ids in example.sides] for example in examples]


def test_a_batch_knows_which_texts_are_equal() -> None:
    task, _ = made(TRIPLES)
    batch = task.collate(task.encode(TRIPLES).examples)
    texts = [[row.values[name] for row in TRIPLES] for name in ("text", "text_pair", "negative")]
    flat = [text for side in texts for text in side]
    same = batch["same"].flatten().tolist()
    for a, one in zip(same, flat, strict=True):
        assert [a == b for b in same] == [one == other for other in flat]
    assert task.count(batch) == 4
    assert "scores" not in batch
    assert task.collate(task.encode(SCORED).examples)["scores"].tolist() == [4.5, 2.0, 0.0, 3.5]


# ------------------------------------------------------------------------------------------------------------- learning


@torch.no_grad()
def by_hand(task: FeatureExtraction, model: Model, data: Rows, tau: float, epsilon: float, back: bool) -> float:
    """The loss from the texts themselves, the way back being from pairs to texts."""

    def vector(text: str) -> torch.Tensor:
        (ids,), _ = task._ids([text], 128)
        made = model(torch.tensor([ids]))[0]
        return made / made.norm()

    values = [tuple(row.values.values()) for row in data]
    asked = [(pair, text) if back else (text, pair) for text, pair, *_ in values]
    pool = [pair for _, pair in asked] + [text for one in values for text in one[2:] if not back]
    total = 0.0
    for text, pair in asked:
        mates = {other for one, other in asked if one == text} | {text}
        near = [float(vector(text) @ vector(other)) / tau for other in [pair, *(o for o in pool if o not in mates)]]
        norm = math.log(sum(map(math.exp, near)))
        total -= (1 - epsilon) * (near[0] - norm) + epsilon * sum(each - norm for each in near) / len(near)
    return total


@pytest.mark.parametrize("which", ["pairs", "triples"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_pairs_by_hand(which: str, symmetric: bool, smoothing: float) -> None:
    data = SETS[which]
    task, model = made(data, pooling=PoolingSettings(temperature=0.2, symmetric=symmetric, normalise=False))
    model.double()
    batch = task.collate(task.encode(data).examples)
    wanted = by_hand(task, model, data, 0.2, smoothing, back=False)
    if symmetric:
        wanted = (wanted + by_hand(task, model, data, 0.2, smoothing, back=True)) / 2
    assert task.objective(model, batch, smoothing).item() == approx(wanted, dtype=torch.float64)


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("which", ["pairs", "triples", "scored"])
def test_cached_gradients_are_those_of_the_whole_batch(which: str, chunk: int) -> None:
    data = SETS[which]
    task, model = made(data)
    model.double()
    batch = task.collate(task.encode(data).examples)
    found = []
    for each in (None, chunk):
        task.chunk = each
        model.zero_grad()
        loss = task.objective(model, batch)
        (loss / 3).backward()
        found.append((loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (whole, grads), (parts, cached) = found
    assert parts == approx(whole, "layer", dtype=torch.float64)
    assert max(float(g.abs().max()) for g in grads) > 1e-3
    for a, b in zip(grads, cached, strict=True):
        assert (a - b).abs().max() <= 1e-10


def test_cached_gradients_draw_the_same_dropout_twice() -> None:
    """Against chunks whose activations are all kept: the same masks, the same gradients, and the random state after
    it as if nothing had been made anew.
    """
    task, model = made(PAIRS, model=ModelSettings(dim=32, heads=2, depth=2, dropout=0.4))
    model.double().train()
    batch = task.collate(task.encode(PAIRS).examples)

    def kept() -> torch.Tensor:
        sides = [zip(batch[f"{s}.ids"].split(2), batch[f"{s}.mask"].split(2), strict=True) for s in SIDES[:2]]
        texts, pairs = (torch.cat([model(*part) for part in side]) for side in sides)
        others = ~torch.eye(len(PAIRS), dtype=torch.bool)
        return (contrastive(texts, pairs, others, 0.05) + contrastive(pairs, texts, others, 0.05)) / 2

    task.chunk, found = 2, []
    for make in (kept, lambda: task.objective(model, batch)):
        model.zero_grad()
        torch.manual_seed(7)
        loss = make()
        loss.backward()
        found.append((loss.item(), torch.rand(1).item(), [p.grad.clone() for p in model.parameters()]))
    (whole, drawn, grads), (parts, after, cached) = found
    assert parts == approx(whole, dtype=torch.float64)
    assert after == drawn
    assert all((a - b).abs().max() <= 1e-10 for a, b in zip(grads, cached, strict=True))
    torch.manual_seed(8)
    assert task.objective(model, batch).item() != approx(whole, "layer")  # dropout was on


def test_a_chunk_is_all_that_is_held() -> None:
    task, model = made(PAIRS)
    batch = task.collate(task.encode(rows(*(tuple(row.values.values()) for row in PAIRS for _ in range(6)))).examples)
    held = []
    for chunk in (None, 2):
        task.chunk, sizes = chunk, []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
        )
        with hooks:
            task.objective(model, batch)
        held.append(sum(sizes))
    assert held[1] < held[0] / 20


def test_a_few_steps_find_every_pair() -> None:
    task, model = made(PAIRS)
    examples = task.encode(PAIRS).examples
    before = task.measure(model, examples, PAIRS).metrics
    task, model = taught()
    after = task.measure(model, examples, PAIRS).metrics
    assert after["loss"] < before["loss"] / 10
    assert after["recall_at_1"] == after["mrr"] == 100
    task, model = taught("scored")
    assert task.measure(model, task.encode(SCORED).examples, SCORED).metrics["spearman"] == pytest.approx(100)


# ------------------------------------------------------------------------------------------------ measuring, answering


def test_metrics_are_those_of_a_search_by_hand() -> None:
    task, model = made(TRIPLES)
    assert task.main_metric == "mrr"
    encoded = task.encode(TRIPLES)
    measured = task.measure(model, encoded.examples, TRIPLES)
    texts = sorted({text for row in TRIPLES for text in row.values.values()})
    vectors = {answer.input: np.array(answer.output) for answer in task.predict(model, texts)}
    pool = {row.values[side] for row in TRIPLES for side in ("text_pair", "negative")}
    ranks = []
    for row, output in zip(TRIPLES, measured.outputs, strict=True):
        text, pair = row.values["text"], row.values["text_pair"]
        mates = {each.values["text_pair"] for each in TRIPLES if each.values["text"] == text}
        near = {other: float(vectors[text] @ vectors[other]) for other in pool - (mates - {pair}) - {text}}
        ranks.append(sorted(near, key=lambda other: -near[other]).index(pair) + 1)
        assert output == max(near, key=lambda other: near[other])
    assert measured.metrics["mrr"] == pytest.approx(100 * sum(1 / rank for rank in ranks) / 4)
    for k in (1, 5, 10):
        assert measured.metrics[f"recall_at_{k}"] == pytest.approx(25 * sum(rank <= k for rank in ranks))
    assert len(measured.details["mistakes"]) == sum(rank > 1 for rank in ranks)
    assert json.loads(json.dumps(measured.details)) == measured.details
    assert overall(measured.example_scores) == measured.metrics


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("which", ["pairs", "scored"])
def test_the_loss_that_is_measured_is_that_of_all_rows_as_one_batch(which: str, symmetric: bool) -> None:
    data = SETS[which]
    task, model = made(data)
    task.symmetric = symmetric
    examples = task.encode(data).examples
    wanted = task.objective(model, task.collate(examples)).item() / len(data)
    assert task.measure(model, examples, data, batch_tokens=20).metrics["loss"] == approx(wanted, "gradient")


def test_scores_are_ranked_as_scipy_ranks_them() -> None:
    stats = pytest.importorskip("scipy.stats")
    task, model = made(SCORED)
    encoded = task.encode(SCORED)
    assert task.main_metric == "spearman"
    measured = task.measure(model, encoded.examples, SCORED)
    near = []
    for row in SCORED:
        a, b = (
            np.array(answer.output) for answer in task.predict(model, [row.values["text"], row.values["text_pair"]])
        )
        near.append(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    scores = [row.values["score"] for row in SCORED]
    assert measured.outputs == approx(near)
    assert measured.metrics["spearman"] == pytest.approx(100 * stats.spearmanr(near, scores).statistic)
    assert measured.metrics["pearson"] == pytest.approx(100 * stats.pearsonr(near, scores).statistic, abs=1e-3)


def test_answers_keep_the_order_alone_and_together(caplog: pytest.LogCaptureFixture) -> None:
    task, model = taught()
    inputs = ["it says moo", " ", "what does the cow say ?", "", "it says moo", "the " * 200]
    with caplog.at_level(logging.WARNING, "heedful"):
        together = task.predict(model, inputs, batch_tokens=20)
    assert caplog.messages == ["1 of 4 texts cut to 128 tokens (the model takes no more)"]
    assert [answer.input for answer in together] == inputs
    assert [len(answer.output) for answer in together] == [32, 0, 32, 0, 32, 32]
    assert all(answer.score is None for answer in together)
    assert together[0].output == together[4].output
    for i in (0, 2):
        assert task.predict(model, inputs[i : i + 1])[0].output == approx(together[i].output)
    assert math.hypot(*together[0].output) == approx(1)
    assert task.predict(model, []) == []
    with pytest.raises(HeedfulError, match="takes a text or a list of texts; got tuple"):
        task.predict(model, [("a", "b")])


def test_the_baseline_is_scikit_learns() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    task, _ = made(PAIRS)
    learned = rows(("what does it say", "the dog says woof and the cow moo"), ("it", "quack meow tweet"))
    asked = rows(("the dog", "woof dog"), ("a cow", "a dog cow"), ("meow", "quack"))
    vectors = text.TfidfVectorizer().fit([t for row in learned for t in row.values.values()])
    left, right = (vectors.transform([row.values[side] for row in asked]).toarray() for side in ("text", "text_pair"))
    near = left @ right.T
    ranks = [1 + sum(near[i, j] >= near[i, i] for j in range(3) if j != i) for i in range(3)]
    found = task.baseline(asked, lambda: learned)
    assert found.name == "cosine of TF-IDF vectors"
    assert found.metrics["mrr"] == pytest.approx(100 * sum(1 / rank for rank in ranks) / 3)
    assert set(found.metrics) == {"recall_at_1", "recall_at_5", "recall_at_10", "mrr"}
    scored = task.baseline(SCORED, lambda: SCORED)
    assert set(scored.metrics) == {"spearman", "pearson"}


def test_samples() -> None:
    task, _ = made(PAIRS)
    assert task.row_line(TRIPLES[0]) == "the dog → woof, not meow"
    assert task.row_line(SCORED[0]) == "a dog + a hound → 4.5"
    assert task.row_line(PAIRS[0]) == "what does the dog say ? → it says woof"


# -------------------------------------------------------------------------------------------------------------- folders


def theirs(folder: Path, task: FeatureExtraction, texts: list[str], head: PooledHead) -> np.ndarray:
    """Vectors as sentence-transformers computes them: transformers' classes and the published pooling."""
    model, told = transformers.AutoModel.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not told["missing_keys"]
    found = []
    for ids in task._ids(texts, task.longest)[0]:
        with torch.no_grad():
            hidden = model.eval()(torch.tensor([ids])).last_hidden_state[0]
        pooled = {"first": hidden[0], "last": hidden[-1], "mean": hidden.mean(0), "max": hidden.amax(0)}[head.pooling]
        found.append((pooled / pooled.norm() if head.normalise else pooled).numpy())
    return np.stack(found)


@pytest.mark.parametrize("kind", ["mean", "first", "max", "last"])
@pytest.mark.parametrize("unit", [True, False])
def test_a_saved_folder_opens_in_transformers_and_comes_back(kind: str, unit: bool, tmp_path: Path) -> None:
    task, model = made(PAIRS, pooling=PoolingSettings(kind=kind, normalise=unit))
    folder = saved(task, model, tmp_path / "model")
    texts = ["what does the dog say ?", "it says moo", "hoot"]
    ours = np.array([answer.output for answer in task.predict(model, texts)])
    head = PooledHead(pooling=kind, normalise=unit)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertModel"]
    assert ours == approx(theirs(folder, task, texts, head))
    again = heedful.from_pretrained(folder)
    assert again.config == model.config
    assert all(again.state_dict()[name].equal(tensor) for name, tensor in model.state_dict().items())
    pipe = heedful.pipeline(None, folder)
    assert [answer["output"] for answer in pipe(texts)] == [approx(row.tolist()) for row in ours]
    assert pipe.task.longest == task.longest
    again.save_pretrained(folder)  # over what is there
    assert heedful.from_pretrained(folder).config.head == head
    assert load(folder, head="none").config.head.kind == "no-head"
    assert "head.pooler.dense.weight" in load(folder, head="sequence").fresh  # zeros stand for no pooler


def test_a_model_of_no_family_is_saved_in_our_own_layout(tmp_path: Path) -> None:
    task, model = made(PAIRS)
    encoder = replace(model.config.encoder, position=RotaryPosition(length=128))
    model = heedful.create(replace(model.config, encoder=encoder), seed=0)
    folder = saved(task, model, tmp_path / "model")
    assert not (folder / "modules.json").exists()
    pipe = heedful.pipeline(None, folder)
    assert pipe("moo")["output"] == approx(task.predict(model.eval(), ["moo"])[0].output)


def published(folder: Path, name: str, task: FeatureExtraction, **more: Any) -> Path:
    """A tiny random model as sentence-transformers publishes it."""
    size = {"vocab_size": task.tokenizer.vocab_size}
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **size)
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = transformers.AutoConfig.for_model(
            name, max_position_embeddings=66, pad_token_id=task.tokenizer.pad, **sizes, **size
        )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    task.tokenizer.save(folder)
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in paths.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": name == "roberta", "pooling_mode_mean_tokens": name == "bert"}
    modes |= {"pooling_mode_lasttoken": True} if name == "gpt2" else {}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    for file, content in more.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(("name", "kind"), [("bert", "mean"), ("roberta", "first"), ("gpt2", "last")])
def test_a_published_folder_answers_as_its_own_library(name: str, kind: str, tmp_path: Path) -> None:
    task, _ = made(PAIRS)
    folder = published(tmp_path, name, task, sentence_bert_config={"max_seq_length": 7, "do_lower_case": False})
    pipe = heedful.pipeline(None, folder)  # the folder names no task, its modules do
    texts = ["what does the dog say ?", "it says moo", "hoot"]
    wanted = theirs(folder, pipe.task, texts, PooledHead(pooling=kind, normalise=True))
    assert pipe.task.longest == 7
    assert np.array([answer["output"] for answer in pipe(texts)]) == approx(wanted)


def test_prompts_and_lower_case_are_kept(tmp_path: Path) -> None:
    task, _ = made(PAIRS)
    told = {"prompts": {"query": "what is ", "passage": ""}, "default_prompt_name": "query"}
    folder = published(
        tmp_path / "model", "bert", task,
        sentence_bert_config={"max_seq_length": 30, "do_lower_case": True}, config_sentence_transformers=told,
    )  # fmt: skip
    pipe = heedful.pipeline("feature-extraction", folder)
    plain = published(tmp_path / "plain", "bert", task)
    wanted = heedful.pipeline("feature-extraction", plain)("what is moo")["output"]
    assert pipe("MOO")["output"] == approx(wanted, "layer")
    pipe.task.save(tmp_path / "model")
    assert heedful.pipeline(None, folder)("MOO")["output"] == approx(wanted, "layer")
    (folder / "config_sentence_transformers.json").write_text('{"default_prompt_name": "gone"}')
    with pytest.raises(
        HeedfulError, match=r"config_sentence_transformers.json: the default prompt 'gone' is not among the prompts"
    ):
        heedful.pipeline(None, folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": "long"}')
    with pytest.raises(HeedfulError, match=r"sentence_bert_config.json: max_seq_length is 'long'; write a whole"):
        heedful.pipeline(None, folder)


@pytest.mark.parametrize(
    ("asked", "head"),
    [
        ({}, PooledHead(pooling="first", normalise=True)),
        ({"kind": "mean", "normalise": False}, PooledHead(pooling="mean", normalise=False)),
    ],
)
def test_going_on_pools_as_the_folder_does_or_as_asked(asked: dict[str, Any], head: PooledHead, tmp_path: Path) -> None:
    task, _ = made(PAIRS)
    folder = published(tmp_path / "model", "roberta", task)
    plain: dict[str, Any] = {"preset": None, "model": ModelSettings(), "tokenizer": TokenizerSettings()}
    going = settings(start_from=str(folder), pooling=PoolingSettings(**asked), **plain)
    _, model = FeatureExtraction.for_fine_tuning(folder, PAIRS, going)
    assert model.config.head == head
    (folder / "modules.json").unlink()  # then the mean, to length 1
    _, model = FeatureExtraction.for_fine_tuning(folder, PAIRS, settings(start_from=str(folder), **plain))
    assert model.config.head == PooledHead(pooling="mean", normalise=True)


def test_an_adapter_is_trained_and_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, _ = made(PAIRS)
    base = published(tmp_path / "base", "bert", task)
    file = tmp_path / "set.tsv"
    file.write_text("\n".join(["text\ttext_pair", *("\t".join(row.values.values()) for row in PAIRS)]))
    command = ["train", "feature-extraction", "--train", str(file), "--valid", str(file), "--from", str(base)]
    command += ["--lora.rank=2", "--pooling.kind=max", "--max-steps=3", "--out", str(tmp_path / "out"), "--json"]
    assert cli.main(command) == 0, capsys.readouterr().err
    model = heedful.from_pretrained(tmp_path / "out")
    assert model.adapter is not None
    assert model.config.head == PooledHead(pooling="max", normalise=True)
    assert len(heedful.pipeline(None, tmp_path / "out")("moo")["output"]) == 32


def test_a_model_without_pooling_is_one_line() -> None:
    task, _ = made(PAIRS)
    with pytest.raises(HeedfulError, match="needs an encoder or a decoder; this model is of kind 'encoder-decoder'"):
        task.check_model(_small_translator())
    with pytest.raises(HeedfulError, match="needs a pooled head, and this model's head is of kind 'no-head'; load"):
        task.check_model(heedful.create("bert-tiny", seed=0))


def _small_translator() -> Model:
    config = presets.get("transformer-base")
    small = {"dim": 16, "heads": 2, "depth": 1, "ff_dim": 16}
    sides = {side: replace(getattr(config, side), **small) for side in ("encoder", "decoder")}
    return heedful.create(replace(config, **sides), seed=0)


def test_minilm_is_what_was_published() -> None:
    if not MINILM.is_dir():
        pytest.skip("minilm-l6 is not beside this checkout")
    wanted = json.loads((MINILM / "expected.json").read_text())
    pipe = heedful.pipeline(None, MINILM)
    assert pipe.task.name == "feature-extraction"
    assert pipe.task.longest == 256
    texts = [case["text"] for case in wanted["sentences"]]
    for answer, case in zip(pipe(texts), wanted["sentences"], strict=True):
        assert answer["output"][:8] == approx(case["embedding_first8"])
        assert len(answer["output"]) == 384


# ---------------------------------------------------------------------------------------------------------- wrong files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("text\tother\na\t1\nb\t2\n", "no column 'text_pair' among 'text', 'other', in {file}:1; "),
        ("text\ttext_pair\tscore\na\tb\t3\nc\td\thigh\n", "'score' is \"high\", but a number is expected, in {file}:3"),
        ("text\ttext_pair\tscore\na\tb\t3,5\n", "'score' is \"3,5\", but a number is expected, in {file}:2"),
        ("text\ttext_pair\tscore\na\tb\tnan\n", "'score' is \"nan\", but a number is expected, in {file}:2"),
        ("text\ttext_pair\tscore\na\tb\t3\nc\td\t3\n", "{file}: every score is 3, in 2 rows; give different"),
        ("text\ttext_pair\na\tb\n", "{file}:2: there is a single pair, and no other pair to contrast it with; add"),
        ("text\ttext_pair\na\tb\na\tb\n", "{file}:2: there is a single pair"),
        ("text\ttext_pair\tnegative\tscore\na\tb\tc\t1\nd\te\tf\t2\n", "{file}:2: the row has both 'negative' and"),
        ("text\ttext_pair\na\tb\tc\n", "3 columns, but line 1 has 2, in {file}:2"),
        ("a\n", "1 column, but column 2 is needed for 'text_pair', in {file}:1"),
        ("", "no rows in {file}"),
        (b"text\ttext_pair\n\xe9t\xe9\tb\n", "invalid UTF-8 (byte 0xe9 at byte 1 of the line), in {file}:2"),
        ("text\ttext_pair\na\tb\n", "{file}: there is a single row, so no row can be held out"),
        ("text\ttext_pair\na\tb\na\tc\nd\tc\n", "{file}: shared texts connect all rows, so no row can be held out"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line(
    text: str | bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "set.tsv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    command = ["train", "feature-extraction", "--train", str(file), "--out", str(tmp_path / "out"), "--max-steps=1"]
    alone = "a single pair" in said or "every score" in said or "both" in said
    assert cli.main([*command, *(["--valid", str(file)] if alone else [])]) == 2
    told = capsys.readouterr().err.strip()
    assert len(told.splitlines()) == 1, told
    assert said.format(file=file) in told
    assert not (tmp_path / "out").exists()


def test_settings_without_effect_on_scores() -> None:
    for given, flag in (
        ({"training": TrainingSettings(label_smoothing=0.1)}, "--training.label-smoothing"),
        ({"pooling": PoolingSettings(symmetric=False)}, "--pooling.symmetric"),
    ):
        with pytest.raises(HeedfulError, match=rf"{flag} has no effect on pairs with scores, as in set\.tsv"):
            FeatureExtraction.prepare(SCORED, settings(**given))
        FeatureExtraction.prepare(PAIRS, settings(**given))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "set.jsonl",
            '{"text": "a", "text_pair": "b", "score": 3}\n{"text": "c", "text_pair": "d", "score": "-1.5"}\n',
        ),
        ("set.csv", "\ufeffscore,text_pair,text\r\n3.0,b,a\r\n,x,y\r\n -1.5e0,d,c\r\n"),
        ("set.tsv", "text\tscore\ttext_pair\r\na\t3\tb\r\nc\t-1.5\td\r\n"),
    ],
)
def test_scores_as_people_write_them(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode())
    found = read(tmp_path / name, FeatureExtraction.columns)
    assert [row.values for row in found] == [
        {"text": "a", "text_pair": "b", "score": 3.0}, {"text": "c", "text_pair": "d", "score": -1.5}
    ]  # fmt: skip
    assert found.skipped == ("csv" in name)


@pytest.mark.parametrize("value", ["true", "null", "[1]", "1e999"])
def test_scores_that_are_no_numbers_are_refused(value: str, tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text('{"text": "a", "text_pair": "b", "score": ' + value + "}\n")
    with pytest.raises(HeedfulError, match=r"'score' is .*, but a number is expected, in .*set\.jsonl:1; write it"):
        read(file, FeatureExtraction.columns)


def test_no_text_stands_on_both_sides() -> None:
    random = np.random.default_rng(0)
    many = rows(*((f"t{random.integers(150)}", f"p{random.integers(150)}") for _ in range(120)))
    train, held = FeatureExtraction.split_rows(many, 0.2, 0)
    assert sorted(row.line for row in (*train, *held)) == list(range(1, 121))
    seen = {text for row in train for text in row.values.values()}
    assert not seen & {text for row in held for text in row.values.values()}
    assert len(held) >= 15
    groups = groups_of(rows(("a", "b"), ("c", "d"), ("d", "a"), ("e", "f")))
    assert groups[0] == groups[1] == groups[2] != groups[3]


def test_suggested_settings() -> None:
    asked = settings(preset=None, model=ModelSettings(), tokenizer=TokenizerSettings())
    told = FeatureExtraction.suggested_settings(PAIRS, asked)
    assert (told.training.batch_size, told.training.batch_tokens, told.training.label_smoothing) == (64, None, 0.0)
    assert told.pooling == PoolingSettings(kind="mean", normalise=True, temperature=0.05, symmetric=True)
    given = settings(training=TrainingSettings(batch_tokens=500))
    assert FeatureExtraction.suggested_settings(PAIRS, given).training.batch_size is None
