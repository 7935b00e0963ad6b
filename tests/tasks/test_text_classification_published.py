"""Text classification on folders that others wrote: their tokens, their logits, tuned and opened by them again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import cli
from heedful.config import EncoderConfig, SequenceHead
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import evaluate
from heedful.pretrained import load
from heedful.settings import RunSettings, TrainingSettings
from heedful.tasks.text_classification import TextClassification
from heedful.training.run import train
from tolerances import approx

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = "the a apple pear plum quince hammer saw chisel drill lake valley island hill is here one and good bad film ? ,"
TEXTS = ["a pear is here ?", "the film", "good , a good film and the hill is here", "bad"]
PAIRS = [("is the pear here ?", "a lake"), ("the film , one", "the hill and the valley and the island"), ("a", "bad")]
SHAPE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
RANDOM = {"initializer_range": 0.3}
CONFIGS: dict[str, dict[str, Any]] = {
    "Bert": SHAPE | RANDOM | {"max_position_embeddings": 40},
    "Roberta": SHAPE | RANDOM | {"max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1},
    "DistilBert": RANDOM | {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 40, "max_position_embeddings": 40},
    "GPT2": RANDOM | {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 40, "eos_token_id": 0, "bos_token_id": 0},
    "Llama": SHAPE | RANDOM | {"max_position_embeddings": 40, "pad_token_id": 0},
    "Bart": {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "init_std": 0.3, "max_position_embeddings": 40}
    | {
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("attention_heads", 2), ("ffn_dim", 40))
    },
}
CONFIGS["DebertaV2"] = CONFIGS["Bert"] | {
    "type_vocab_size": 0,
    "relative_attention": True,
    "norm_rel_ebd": "layer_norm",
}
CONFIGS["DebertaV2"] |= {"position_biased_input": False, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
CONFIGS["DebertaV2"] |= {"share_att_key": True}
CONFIGS["T5"] = {"d_model": 24, "d_kv": 12, "d_ff": 40, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
NAMES = {0: "fruit", 1: "place", 2: "tool"}


def tokenizer(name: str) -> Any:
    """The family's own, over a small vocabulary."""
    if name in ("Bert", "DistilBert"):
        letters = [prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz" for prefix in ("", "##")]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS.split())), *letters]
        ids = {word: i for i, word in enumerate(dict.fromkeys(vocabulary))}
        return getattr(transformers, f"{name}Tokenizer")(vocab=ids)
    if name == "DebertaV2":
        words = dict.fromkeys("▁" + word for word in WORDS.split())
        pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *words, "▁", *"abcdefghijklmnopqrstuvwxyz", "[MASK]"]
        scored = [(piece, -1.0 - i / 10) for i, piece in enumerate(pieces)]
        return transformers.DebertaV2Tokenizer(vocab=scored, unk_id=3, model_max_length=40)
    if name == "T5":
        pieces = [
            "<pad>",
            "</s>",
            "<unk>",
            *dict.fromkeys("▁" + word for word in WORDS.split()),
            "▁",
            *"abcdefghijklmno",
        ]
        scored = [(piece, -1.0 - i / 10) for i, piece in enumerate(pieces)]
        return transformers.T5Tokenizer(vocab=scored, extra_ids=0, model_max_length=40)
    special = {"GPT2": ["<|endoftext|>"], "Llama": ["<unk>", "<s>", "</s>"]}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = split
    asked = special.get(name, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=asked, initial_alphabet=split.alphabet(), show_progress=False
    )
    backend.train_from_iterator([WORDS] * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    bos = {"add_bos_token": True} if name == "Llama" else {}
    merges = [tuple(pair) for pair in model["merges"]]
    return getattr(transformers, f"{name}Tokenizer")(vocab=model["vocab"], merges=merges, **bos)


def published(name: str, folder: Path, kind: str = "ForSequenceClassification", **config: Any) -> tuple[Any, Any]:
    """A folder as its own library writes it: its tokenizer and model."""
    theirs = tokenizer(name)
    made = getattr(transformers, f"{name}Config")(vocab_size=len(theirs), **CONFIGS[name] | config)
    model = getattr(transformers, f"{name}{kind}")(made).eval()
    model.save_pretrained(folder)
    theirs.save_pretrained(folder)
    return theirs, model


def logits(theirs: Any, model: Any, texts: list[Any]) -> torch.Tensor:
    """By their own code, one text at a time: not all of them have a padding token."""
    with torch.no_grad():
        rows = [theirs(*([text] if isinstance(text, str) else text), return_tensors="pt") for text in texts]
        return torch.cat([model(**row).logits for row in rows])


def rows(texts: list[Any], label: str = "fruit") -> Rows:
    names = ("text", "text_pair")
    return Rows(
        Row(dict(zip(names, [text] if isinstance(text, str) else text, strict=False)) | {"label": label}, "set.tsv", i)
        for i, text in enumerate(texts, 1)
    )


# ------------------------------------------------------------------------------------------------------------ as it is


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_segments_and_answers_are_theirs(name: str, tmp_path: Path) -> None:
    theirs, model = published(name, tmp_path, id2label=NAMES)
    task, ours = TextClassification.load(tmp_path), load(tmp_path)
    task.check_model(ours)
    assert task.labels == list(NAMES.values())
    assert task.longest == 40
    assert isinstance(heedful.pipeline(None, tmp_path).task, TextClassification)
    for texts in (TEXTS, PAIRS):
        examples = task.encode(rows(texts)).examples
        for text, example in zip(texts, examples, strict=True):
            wanted = theirs(*([text] if isinstance(text, str) else text))
            assert example.ids == wanted["input_ids"]
            assert example.segments == wanted.get("token_type_ids", example.segments)
        expected = logits(theirs, model, texts).softmax(1)
        for answer, p in zip(task.predict(ours, texts), expected, strict=True):
            assert answer.output == NAMES[int(p.argmax())]
            assert answer.score == approx(float(p.max()))
        assert expected.std(0).max() > 0.01  # the texts tell


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("most", [9, 40])
def test_long_texts_are_cut_as_by_transformers(name: str, most: int, tmp_path: Path) -> None:
    theirs, model = published(name, tmp_path, id2label=NAMES)
    task, ours = TextClassification.load(tmp_path), load(tmp_path)
    task.check_model(ours)
    text, other = " ".join(TEXTS * 9), " ".join(TEXTS[:3])
    for sides in ((text,), (text, other)):
        cut = theirs(*sides, truncation="longest_first", max_length=most, return_tensors="pt")
        encoded = task.encode(rows([sides if len(sides) > 1 else text]), most if most < 40 else None)
        assert [encoded.examples[0].ids] == cut["input_ids"].tolist()
        assert "1 example cut" in encoded.note
        with torch.no_grad():
            expected = model(**cut).logits.softmax(1).max().item()
    assert most < 40 or task.predict(ours, [(text, other)])[0].score == approx(expected)


@pytest.mark.parametrize("table", [None, {0: "LABEL_0", 1: "LABEL_1"}])
def test_classes_without_names(table: dict[int, str] | None, tmp_path: Path) -> None:
    published("Bert", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("id2label", None)
    config.pop("label2id", None)
    (tmp_path / "config.json").write_text(json.dumps(config | ({"id2label": table} if table else {})))
    classify = heedful.pipeline("text-classification", tmp_path)
    assert classify.task.labels == ["LABEL_0", "LABEL_1"]
    assert classify("a pear")["output"] in classify.task.labels


@pytest.mark.parametrize("name", ["Bert", "GPT2", "T5"])
@pytest.mark.parametrize("problem", ["regression", None])
def test_a_model_of_one_output_gives_its_number(name: str, problem: str | None, tmp_path: Path) -> None:
    theirs, model = published(name, tmp_path, id2label={0: "LABEL_0"}, problem_type=problem)
    number = heedful.pipeline("text-classification", tmp_path)
    expected = logits(theirs, model, TEXTS)[:, 0].tolist()
    assert [answer["output"] for answer in number(TEXTS)] == approx(expected)


def test_a_model_of_several_numbers_is_refused(tmp_path: Path) -> None:
    published("Bert", tmp_path, problem_type="regression")
    with pytest.raises(HeedfulError, match="has 2 outputs, but regression needs one"):
        heedful.pipeline("text-classification", tmp_path)


def test_a_model_without_a_classifier_is_refused(shared_data: Any, tmp_path: Path) -> None:
    published("GPT2", tmp_path / "gpt2", "LMHeadModel")
    for folder, kind in ((shared_data("weights/minilm-l6"), "no-head"), (tmp_path / "gpt2", "language-model")):
        with pytest.raises(
            HeedfulError, match=rf"has none \(its head is of kind '{kind}'\); train one: heedful train t"
        ) as e:
            heedful.pipeline("text-classification", folder)
        assert "\n" not in str(e.value)


def test_a_published_classifier_answers_through_the_pipeline(shared_data: Any) -> None:
    folder = shared_data("weights/bert-tiny-question")
    expected = json.loads((folder / "expected.json").read_text())
    classify = heedful.pipeline("text-classification", folder)
    for case, answer in zip(expected["sentences"], classify([c["text"] for c in expected["sentences"]]), strict=True):
        assert answer["output"] == case["label"]
        assert answer["score"] == approx(max(case["probabilities"]))
    pair = classify(tuple(expected["pair"]["text"]))
    assert pair["score"] == approx(torch.tensor(expected["pair"]["logits"]).softmax(0).max().item())


# --------------------------------------------------------------------------------------------------------------- tuned


def written(folder: Path, pairs: bool = False) -> Path:
    """Which of two words a text names, said often enough to be learned in a few steps."""
    lines = [
        "\t".join([f"{start} {word} {end}", *(["a film"] if pairs else []), label])
        for word, label in (("pear", "yes"), ("saw", "no"))
        for start in ("a", "the", "one", "here a")
        for end in ("is here", "?", "and a hill", "and the lake ?")
    ]
    header = "text\ttext_pair\tlabel" if pairs else "text\tlabel"
    (folder / "set.tsv").write_text("\n".join([header, *lines * 2]) + "\n")
    return folder / "set.tsv"


def tuned(folder: Path, data: Path, out: Path, steps: int, lr: float) -> dict[str, Any]:
    asked = RunSettings(
        task="text-classification",
        train=(str(data),),
        valid=(str(data),),
        out=str(out),
        start_from=str(folder),
        max_steps=steps,
        training=TrainingSettings(lr=lr),
    )
    return train(asked, say=lambda line: None, quiet=True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Bert", "Model"),
        ("Roberta", "ForMaskedLM"),
        ("Roberta", "ForSequenceClassification"),
        ("DistilBert", "Model"),
        ("DebertaV2", "Model"),
        ("GPT2", "LMHeadModel"),
        ("Llama", "ForCausalLM"),
        ("Bart", "ForConditionalGeneration"),
        ("T5", "ForConditionalGeneration"),
    ],
)
@pytest.mark.full(keep=3)
def test_tuned_evaluated_and_opened_by_its_own_library(name: str, kind: str, tmp_path: Path) -> None:
    published(name, tmp_path / "from", kind)
    data, out = written(tmp_path, pairs=name == "Roberta"), tmp_path / "out"
    result = tuned(tmp_path / "from", data, out, steps=100, lr=3e-3)
    assert result["metrics"]["accuracy"] > 95
    assert evaluate(str(out), [str(data)], say=lambda line: None)["metrics"] == approx(result["metrics"], "training")
    texts: list[Any] = ["a pear ?", "here is the saw", "one pear and a saw"]
    texts = [(text, "a film") for text in texts] if name == "Roberta" else texts
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    assert type(model).__name__ == f"{name}ForSequenceClassification"
    assert model.config.id2label == {0: "no", 1: "yes"}
    expected = logits(theirs, model, texts).softmax(1)
    for answer, p in zip(heedful.pipeline(None, out)(texts), expected, strict=True):
        assert answer["output"] == model.config.id2label[int(p.argmax())]
        assert answer["score"] == approx(float(p.max()))


def test_a_deberta_is_tuned_for_two_tasks_and_inspected(tmp_path: Path) -> None:
    """By the commands: its own folder, a classifier and masked words of it, opened by its own library."""
    published("DebertaV2", tmp_path / "from", "ForMaskedLM")
    data = written(tmp_path)
    (tmp_path / "book.txt").write_text("\n".join(TEXTS * 20))
    started = ["--from", str(tmp_path / "from"), "--max-steps", "3", "--out"]
    assert cli.main(["train", "text-classification", "--train", str(data), *started, str(tmp_path / "labels")]) == 0
    assert (
        cli.main(["train", "fill-mask", "--train", str(tmp_path / "book.txt"), *started, str(tmp_path / "words")]) == 0
    )
    for folder, kind, given in (
        ("labels", "ForSequenceClassification", "a pear ?"),
        ("words", "ForMaskedLM", "a [MASK] ?"),
    ):
        task = heedful.pipeline(None, tmp_path / folder)
        model = getattr(transformers, f"DebertaV2{kind}").from_pretrained(tmp_path / folder).eval()
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        ids = theirs(given, return_tensors="pt")
        with torch.no_grad():
            scores = model(**ids).logits.softmax(-1)
        best = scores[0] if folder == "labels" else scores[0, ids["input_ids"][0] == theirs.mask_token_id]
        assert task(given)["score"] == approx(best.max().item(), "training")
        page = tmp_path / f"{folder}.html"
        assert cli.main(["inspect", str(tmp_path / folder), given, "--out", str(page)]) == 0
        assert "attention" in page.read_text()


def test_suggested_settings_of_fine_tuning(shared_data: Any) -> None:
    """As published: passes, batches, rates, warm-up and decay (Devlin et al. 2019, A.3)."""
    folder = str(shared_data("weights/minilm-l6"))
    asked = RunSettings(task="text-classification", train=("-",), out="-", start_from=folder)
    many = rows(["a film"] * 6920)
    found = TextClassification.suggested_settings(many, asked)
    training = found.training
    assert (found.max_epochs, training.batch_size, training.batch_tokens) == (3, 32, None)
    assert training.lr == pytest.approx(5e-5 * 768 / 384)
    assert (training.schedule, training.warmup) == ("linear", 3 * math.ceil(6920 / 32) // 10 + 1)
    assert (training.weight_decay, training.label_smoothing, training.clip) == (0.01, 0, 1)
    assert found.averaging.polynomial == 0
    assert training.evaluate_every == math.ceil(6920 / 32)
    few = TextClassification.suggested_settings(many[:200], asked)
    assert (few.max_epochs, few.training.warmup) == (20, 20 * 7 // 10 + 1)
    steps = RunSettings(task="text-classification", train=("-",), out="-", start_from=folder, max_steps=50)
    assert TextClassification.suggested_settings(many, steps).training.warmup == 6
    tokens = TrainingSettings(batch_tokens=2048)
    by_tokens = RunSettings(task="text-classification", train=("-",), out="-", start_from=folder, training=tokens)
    assert TextClassification.suggested_settings(many, by_tokens).training.batch_size is None


def test_the_stored_pooler_is_used_and_the_output_is_drawn_as_bert_draws_it(shared_data: Any) -> None:
    folder = shared_data("weights/minilm-l6")
    asked = RunSettings(task="text-classification", train=("-",), out="-", start_from=str(folder))
    two = Rows([*rows(["a good film"], "good"), *rows(["a bad film"], "bad")])
    task, model = TextClassification.for_fine_tuning(folder, two, asked)
    config = model.config
    assert isinstance(config, EncoderConfig)
    assert isinstance(config.head, SequenceHead)
    assert (config.head.pooler, config.head.pooling, config.head.dropout) == (True, "first", 0.1)
    assert (config.encoder.dropout.embedding, config.encoder.dropout.residual) == (0.1, 0.1)
    assert set(model.fresh) == {"head.output.weight", "head.output.bias"}
    state = model.state_dict()
    assert state["head.output.weight"].std().item() == pytest.approx(0.02, rel=0.1)
    assert not state["head.output.bias"].any()
    assert state["head.pooler.dense.weight"].std() > 0
    assert (task.longest, task.labels) == (512, ["bad", "good"])
