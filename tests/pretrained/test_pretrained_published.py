"""Published folders as they are, against what ``transformers`` computed from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.config import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    LanguageHead,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.generation import decode
from heedful.pretrained import load
from heedful.pretrained.rules import Rename
from tolerances import assert_close

WEIGHTS = Path(__file__).parents[2].parent / "shared" / "data" / "weights"


def folder(name: str) -> Path:
    if not (WEIGHTS / name / "model.safetensors").exists():
        pytest.skip(f"{name} is not beside this checkout")
    return WEIGHTS / name


def expected(path: Path) -> Any:
    return json.loads((path / "expected.json").read_text())


def close(found: torch.Tensor, wanted: list[Any]) -> None:
    assert (found.flatten() - torch.tensor(wanted).flatten()).abs().max() <= 3e-5  # five decimals are given


@torch.no_grad()
def test_minilm() -> None:
    """float16, names without ``bert.``, a stored row of position ids."""
    path = folder("minilm-l6")
    wanted, model = expected(path), load(path)
    assert model.dtype == torch.float32
    assert model.num_parameters() == wanted["parameters"]
    ids = {case["text"]: torch.tensor([case["ids"]]) for case in wanted["tokenizer"]}
    pooled = load(path, head="pooled")
    assert vars(pooled)["fresh"] == []
    for case in wanted["sentences"]:
        hidden = model(ids[case["text"]])[0]
        close(hidden[0, :8], case["last_hidden_first8"])
        close(model.head.pooler(hidden[0])[:8], case["pooler_first8"])
        close(hidden.mean(0).norm(), [case["mean_pooled_norm"]])
        close(pooled(ids[case["text"]])[0, :8], case["embedding_first8"])
    pair = wanted["pair"]
    hidden = model(torch.tensor([pair["ids"]]), segments=torch.tensor([pair["segments"]]))[0]
    close(hidden[0, :8], pair["last_hidden_first8"])
    close(hidden[-1, -8:], pair["last_hidden_last8"])


@torch.no_grad()
def test_bert_tiny_question() -> None:
    path = folder("bert-tiny-question")
    wanted, model = expected(path), load(path)
    assert model.num_parameters() == wanted["parameters"]
    assert vars(model)["labels"] == ["generic", "directed"]
    for case in wanted["sentences"]:
        ids = torch.tensor([case["ids"]])
        close(model(ids), case["logits"])
        close(model.hidden(ids)[0, 0, :8], case["hidden_first8"])
    pair = wanted["pair"]
    close(model(torch.tensor([pair["ids"]]), segments=torch.tensor([pair["segments"]])), pair["logits"])


@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
@torch.no_grad()
def test_stories(name: str) -> None:
    """Llama's layout in float32 with grouped queries, and in float16; the older and the newer spelling of its base."""
    path = folder(name)
    wanted, model = expected(path), load(path)
    assert model.dtype == torch.float32
    assert model.num_parameters() == wanted["parameters"]
    assert model.config.special.end == (1, 2)  # of generation_config.json
    for case in wanted["logits"]:
        logits = model(torch.tensor([case["ids"]]))[0]
        top = logits[-1].topk(5)
        assert top.indices.tolist() == [i for i, _ in case["last_top5"]]
        close(top.values, [value for _, value in case["last_top5"]])
        close(logits[-1, :8], case["last_first8"])
        ids, said = torch.tensor(case["ids"][1:]), logits.log_softmax(-1)
        found = said[:-1].gather(1, ids[:, None])[:, 0]
        assert_close(found, torch.tensor(case["log_prob_of_each_next_id"]), "training")


def titler() -> tuple[Path, Any]:
    """The folder that its script made of the published package, where the environment names it."""
    made = os.environ.get("HEEDFUL_TITLER")
    if not made or not (WEIGHTS / "flan-t5-small-titler").is_dir():
        pytest.skip("HEEDFUL_TITLER names no folder that shared/data/tools/t5_titler_to_hf.py made")
    return Path(made), expected(WEIGHTS / "flan-t5-small-titler")


@torch.no_grad()
def test_titler() -> None:
    """T5 1.1: gated, its head untied and unscaled, rows to spare in the embedding."""
    path, wanted = titler()
    model = load(path)
    assert model.num_parameters() == wanted["parameters"]
    assert (model.config.head.tied, model.config.head.scale) == (False, "none")
    for case in wanted["forced"]:
        source = torch.tensor([case["source_ids"]])
        memory = model.encode(source)[0]
        close(memory[0, :8], case["encoder_first8"])
        close(memory[-1, -8:], case["encoder_last8"])
        target = torch.tensor([[0, *case["target_ids"][:-1]]])
        said = model(source, target)[0]
        top = said[0].topk(5)
        assert top.indices.tolist() == [i for i, _ in case["first_step_top5"]]
        close(top.values, [value for _, value in case["first_step_top5"]])
        found = said.log_softmax(-1).gather(1, torch.tensor(case["target_ids"])[:, None])[:, 0]
        assert_close(found, torch.tensor(case["log_prob_of_each_target_id"]), "training")


PROJECTIONS, SIDES, END = ("query", "key", "value", "out"), ("source", "target"), 2
AREN = {  # its names ↔ ours
    "encoder.embedding.weight": "embedding.token.weight",
    "decoder.embedding.weight": "target_embedding.token.weight",
    "decoder.output.{p}": "head.output.{p}",
    **{f"{side}.norm.{{p}}": f"{side}.norm.{{p}}" for side in ("encoder", "decoder")},
    **{
        f"{side}.layers.{{i}}.{theirs}.{{p}}": f"{side}.block.{{i}}.{ours}.{{p}}"
        for side in ("encoder", "decoder")
        for theirs, ours in {
            "self_attention_norm": "attention_residual.before",
            "cross_attention_norm": "cross_residual.before",
            "ffn_norm": "feed_forward_residual.before",
            "ffn.up": "feed_forward.up",
            "ffn.down": "feed_forward.down",
            **{f"self_attention.{a}": f"attention.{b}" for a, b in zip("qkvo", PROJECTIONS, strict=True)},
            **{f"cross_attention.{a}": f"cross_attention.{b}" for a, b in zip("qkvo", PROJECTIONS, strict=True)},
        }.items()
    },
}


@torch.no_grad()
def test_aren(tmp_path: Path) -> None:
    """A model of no published family: a configuration of ours says it, a few renames carry its tensors over.

    Its slowest sine has the rate 1/10000, not the next one: that is the paper's formula for another base.
    """
    path = folder("aren-transliteration")
    wanted, told = expected(path), json.loads((path / "config.json").read_text(encoding="utf-8"))

    def stack(depth: int, decoder: bool) -> StackConfig:
        pairs = told["dim"] // 2
        return StackConfig(
            dim=told["dim"],
            depth=depth,
            heads=told["heads"],
            ff_dim=told["ffn_dim"],
            norm_eps=told["layer_norm_eps"],
            activation="relu",
            position=SinusoidalPosition(order="halves", base=10000 ** (pairs / (pairs - 1)), offset=1),
            causal=decoder,
            cross=decoder,
        )

    vocabularies = [(path / f"{side}_vocabulary.txt").read_text("utf-8").split("\n")[:-1] for side in SIDES]
    source, target = (EmbeddingConfig(vocab_size=len(words), scale="sqrt") for words in vocabularies)
    config = EncoderDecoderConfig(
        source=source,
        target=target,
        encoder=stack(told["encoder_layers"], False),
        decoder=stack(told["decoder_layers"], True),
        head=LanguageHead(tied=False, bias=True),
        special=SpecialTokens(start=vocabularies[1].index("<s>"), end=(vocabularies[1].index("</s>"),), pad=0),
    )
    model = heedful.create(config, seed=0).eval()
    stored, made = load_file(path / "model.safetensors"), {}  # type: tuple[Tensors, Tensors]
    for theirs, ours in AREN.items():
        Rename(theirs, ours).read(stored, made)
    assert not stored
    model.load_state_dict(made, strict=True)
    assert model.num_parameters() == wanted["parameters"]
    model.save_pretrained(tmp_path)  # in our own layout, since no family says it
    model = load(tmp_path)
    for case in wanted["words"]:
        ids = torch.tensor([case["source_ids"]])
        close(model.encode(ids)[0, 0, :8], case["encoder_first8"])
        out = model.generate(ids, max_new_tokens=40)
        assert out[0, 1:].tolist() == case["greedy_ids"]
        said = model(ids, out[:, :-1])[0].log_softmax(-1)
        close(said.gather(1, out[0, 1:, None])[:, 0], case["log_prob_of_each_id"])
        beams = decode(model, ids, num_beams=4, num_return_sequences=4, length_penalty=0.0, max_new_tokens=40)
        texts = ["".join(vocabularies[1][i] for i in row[1:] if i > END) for row in beams.ids.tolist()]
        best = case["beam4"]
        assert texts[:2] == [beam["text"] for beam in best[:2]]  # searches may differ in the last they keep
        scores = dict(zip(texts, beams.scores.tolist(), strict=True))
        for beam in best:
            target = torch.tensor([[1, *map(vocabularies[1].index, beam["text"]), END]])
            said = model(ids, target[:, :-1])[0].log_softmax(-1).gather(1, target[0, 1:, None])
            assert abs(float(said.sum()) - beam["sum_log_prob"]) <= 1e-4
        assert sum(scores.values()) >= sum(beam["sum_log_prob"] for beam in best) - 1e-4
