"""XLNet against transformers in float64: segments in every layout, memory of earlier parts, two streams."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import processors
from torch import Tensor, nn
from transformers.models.xlnet.modeling_xlnet import XLNetModel

import heedful
from heedful import HeedfulError, presets
from heedful.adapters import LoraConfig, add_adapter
from heedful.cache import Cache
from heedful.config import EmbeddingConfig, EncoderConfig, SequenceHead, TransformerXLPosition
from heedful.data import Row, Rows
from heedful.data.rows import Span
from heedful.kernels import using
from heedful.kernels.plan import apply_plan
from heedful.layers.relative import TERMS
from heedful.models.create import head_config
from heedful.pretrained import load, save
from heedful.settings import ModelSettings, RunSettings
from heedful.tasks.answer_spans import best_spans
from heedful.tasks.question_answering import QuestionAnswering
from heedful.tasks.text_classification import TextClassification
from heedful.text import Tokenizer
from tolerances import assert_close, is_close

CONFIG = presets.xlnet(16, 2, 4, vocab=23)
B, T = 4, 6
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0]]).bool()
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 1, 2], [0, 2, 0, 0, 0, 0], [0, 0, 1, 1, 2, 0]])


def ids(rows: int = B, tokens: int = T) -> Tensor:
    return torch.randint(6, 23, (rows, tokens), generator=torch.Generator().manual_seed(3))


def model_of(config: EncoderConfig = CONFIG) -> Any:
    model = heedful.create(config, seed=0).double().eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Our model and theirs with the same random weights, both with our frequencies (theirs are float32 powers)."""

    def sinusoids(positions: Tensor, frequencies: Tensor, rows: int | None = None) -> Tensor:
        exact = 10000.0 ** (-torch.arange(0, 2 * len(frequencies), 2, dtype=torch.float64) / (2 * len(frequencies)))
        angle = positions[:, None] * exact.float()
        return torch.cat((angle.sin(), angle.cos()), -1)[:, None].expand(-1, rows or 1, -1).double()

    monkeypatch.setattr(XLNetModel, "positional_embedding", staticmethod(sinusoids))
    theirs = XLNetModel(hf.XLNetConfig(vocab_size=23, d_model=16, n_layer=2, n_head=4, d_inner=64, mem_len=5))
    torch.manual_seed(2)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    theirs.save_pretrained(tmp_path)
    return load(tmp_path, dtype="float64"), theirs.double().eval()


# ------------------------------------------------------------------------------------------------------------- segments


def test_one_segment_is_none() -> None:
    """The term of the query's own segment is the same for all keys."""
    model = model_of()
    assert_close(model(ids(), None, torch.ones_like(ids())), model(ids()))
    assert not is_close(model(ids(), None, SEGMENTS), model(ids()))


@pytest.mark.parametrize("pooling", ["first", "last"])
@torch.no_grad()
def test_segments_without_padding_in_inference(pooling: Any) -> None:
    """All tokens, and the class token's query alone in the last block."""
    for config in (CONFIG, replace(CONFIG, head=SequenceHead(pooling=pooling))):
        model = model_of(config)
        y = model(ids(), REAL, SEGMENTS)
        with using(model, "cpu-inference"):
            found = model(ids(), REAL, SEGMENTS)
        rows = REAL if y.ndim == 3 else slice(None)
        assert_close(found[rows], y[rows])


def test_segments_without_padding_in_training() -> None:
    config = replace(CONFIG, encoder=replace(CONFIG.encoder, dropout=heedful.config.DropoutRates()))
    model = model_of(config).train()
    other = apply_plan(copy.deepcopy(model), "cpu-training")
    for part in (model, other):
        (part(ids(), REAL, SEGMENTS)[REAL] * torch.linspace(1, 2, 16)).sum().backward()
    for (name, ours), theirs in zip(other.named_parameters(), model.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None) == (name == "embedding.query")
        if ours.grad is not None:
            assert_close(ours.grad, theirs.grad)


@torch.no_grad()
def test_the_terms_add_up_to_the_scores() -> None:
    model = model_of()
    with heedful.record(model, [*TERMS, "scores"], layers=[1], heads=[2, 0], queries=[1, -1]) as seen:
        model(ids(), None, SEGMENTS)
    scores, *terms = (seen[f"encoder.block.1.attention.{name}"] for name in ("scores", *TERMS))
    assert terms[-1].any()
    assert_close(sum(terms), scores)


def test_settings_that_a_family_lacks_are_refused() -> None:
    decoder = presets.get("gpt-micro")
    with pytest.raises(HeedfulError, match="family 'decoder' takes no segments"):
        replace(decoder, decoder=replace(decoder.decoder, position=TransformerXLPosition(segments=True)))
    with pytest.raises(HeedfulError, match="family 'decoder' has no query stream"):
        replace(decoder, embedding=replace(decoder.embedding, query=True))
    with pytest.raises(HeedfulError, match="segments are embedded and relative"):
        replace(CONFIG, embedding=replace(CONFIG.embedding, segments=2))
    with pytest.raises(HeedfulError, match="a query stream, which needs"):
        replace(presets.get("bert-tiny"), embedding=EmbeddingConfig(vocab_size=9, query=True))


def test_classifiers_read_the_class_token() -> None:
    assert head_config(CONFIG, "sequence").pooling == "last"  # type: ignore[union-attr]
    assert head_config(presets.get("bert-tiny"), "sequence").pooling == "first"  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------------------- memory


@torch.no_grad()
def test_memory_of_earlier_parts_is_transformers_mems(pair: tuple[Any, Any]) -> None:
    """Three parts of a text, of which the third reads the last five tokens of the others."""
    ours, theirs = pair
    memory, mems = Cache(2, window=5), None
    text, segments = ids(2, 12), torch.arange(12).expand(2, -1) // 5
    for part in (slice(0, 4), slice(4, 9), slice(9, 12)):
        expected = theirs(text[:, part], mems=mems, token_type_ids=segments[:, part], use_mems=True)
        found = ours.hidden(text[:, part], segments=segments[:, part], cache=memory)
        assert (found - expected.last_hidden_state).abs().max() < 1e-10
        mems = expected.mems
    assert not is_close(found, ours.hidden(text[:, part], segments=segments[:, part]))


# ---------------------------------------------------------------------------------------------------------- two streams


@pytest.mark.parametrize("mask", [None, REAL], ids=["whole", "padded"])
@pytest.mark.parametrize("plan", ["plain", "cpu-training", "cpu-inference"])
@torch.no_grad()
def test_two_streams_are_transformers(pair: tuple[Any, Any], mask: Tensor | None, plan: str) -> None:
    """Random factorisation orders, of which the last two tokens of each row are predicted."""
    ours, theirs = pair
    random = torch.Generator().manual_seed(0)
    real = torch.ones(B, T).bool() if mask is None else mask
    order = torch.rand(B, T, generator=random).masked_fill(~real, -1.0)  # padding first
    visible = order[:, None, :] < order[:, :, None]
    targets = order.topk(2).indices
    targets[2] = targets[2, :1]  # only one of this row's tokens has one before it
    mapping = nn.functional.one_hot(targets, T).double()
    seen = (visible & real[:, None]).gather(1, targets[..., None].expand(-1, -1, T)).any(-1)
    given = {} if mask is None else {"attention_mask": mask.double()}
    expected = theirs(
        ids(), perm_mask=(~visible).double(), target_mapping=mapping, token_type_ids=SEGMENTS, **given
    ).last_hidden_state
    with using(ours, plan):
        found = ours.query_hidden(ids(), visible, targets, mask, SEGMENTS)
    assert seen[[0, 1, 3]].all()
    rows = torch.tensor([0, 1, 3])  # of the other, theirs maps two predictions to one token
    assert (found - expected)[rows].abs().max() < 1e-10
    changed = ids().scatter(1, targets[:, :1], 22)
    with using(ours, plan):
        assert torch.equal(ours.query_hidden(changed, visible, targets, mask, SEGMENTS)[:, 0], found[:, 0])


@torch.no_grad()
def test_two_streams_of_a_model_optimised_for_inference() -> None:
    """With one product for queries, keys and values."""
    model = model_of().float()
    visible = torch.ones(T, T).tril(-1).bool()[None]
    given = (ids(), visible, torch.tensor([[T - 1, 2]] * B), REAL, SEGMENTS)
    y = model.query_hidden(*given)
    assert (heedful.optimize(model).query_hidden(*given) - y).abs().max() < 1e-4


def test_gradients_of_both_streams_with_recomputed_blocks() -> None:
    from heedful.kernels.plan import apply_training_plan

    config = replace(CONFIG, encoder=replace(CONFIG.encoder, dropout=heedful.config.DropoutRates()))
    visible = torch.ones(T, T).tril(-1).bool()[None]
    gradients = []
    for recompute in (False, True):
        model = apply_training_plan(model_of(config).train(), recompute=recompute)
        model.query_hidden(ids(), visible, torch.tensor([[T - 1, 2]] * B), None, SEGMENTS).sin().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(gradient is not None for gradient in gradients[0])
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b)


def test_segments_of_the_embedding_reach_the_query_stream() -> None:
    """With positions that have no segments, they are embedded: the content stream is that of ``hidden``."""
    position = replace(CONFIG.encoder.position, segments=False)
    encoder, embedding = replace(CONFIG.encoder, position=position), replace(CONFIG.embedding, segments=2)
    model = model_of(replace(CONFIG, encoder=encoder, embedding=embedding))
    segments = (SEGMENTS > 0).long()
    model.embedding.query.data.copy_(model.embedding(ids()[:1, :1], segments[:1, :1])[0, 0])
    everything = torch.ones(B, T, T, dtype=torch.bool)  # the query then sees what the first token of the content sees
    found = model.query_hidden(ids()[:1], everything[:1], torch.tensor([[0]]), None, segments[:1])
    assert_close(found, model.hidden(ids()[:1], None, segments[:1])[:, :1])


def test_a_model_without_a_query_stream_says_so() -> None:
    model = heedful.create("bert-tiny", seed=0)
    with pytest.raises(HeedfulError, match="no query stream"):
        model.query_hidden(ids(), torch.ones(1, T, T).bool(), torch.tensor([[1]]))


# ---------------------------------------------------------------------------------------------------------------- tasks


def class_last() -> Tokenizer:
    """A tokenizer with XLNet's template: the class token after the text."""
    tokenizer = Tokenizer.train(["who is the man ? the man is here ."], 60, kind="word", template="both")
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="$A </s> <s>:2", pair="$A </s> $B:1 </s>:1 <s>:2", special_tokens=[("</s>", 2), ("<s>", 1)]
    )
    return tokenizer


def test_no_answer_is_the_class_token_at_the_end() -> None:
    logits = torch.randn(3, 7, 2, generator=torch.Generator().manual_seed(0))
    context = torch.tensor([0, 0, 1, 1, 1, 1, 0]).bool().expand(3, -1)
    first = best_spans(logits, context, context, 3, 2)
    moved = context.roll(-1, 1)
    last = best_spans(logits.roll(-1, 1), moved, moved, 3, 2, torch.full((3,), 6))
    assert torch.equal(last.starts + 1, first.starts)
    for name in ("scores", "best", "null", "null_score"):
        assert_close(getattr(last, name), getattr(first, name))


def test_questions_without_an_answer_learn_the_class_token() -> None:
    rows = Rows(
        [
            Row({"question": "who ?", "context": "the man is here .", "answers": answers}, "a.json", 1)
            for answers in ([], [Span("man", 4)])
        ]
    )
    task = QuestionAnswering(class_last())
    batch = task.collate(task.encode(rows).examples)
    last = len(batch["ids"][0]) - 1
    assert batch["ids"][0, last] == 1
    assert batch["segments"][0, last] == 2
    assert batch["labels"].tolist() == [[last, last], [4, 4]]


def test_a_new_classifier_is_saved_in_xlnets_layout(tmp_path: Path) -> None:
    rows = Rows([Row({"text": "a man", "label": label}, "a.tsv", 1) for label in ("no", "yes")], 0, ("text", "label"))
    model = ModelSettings(dim=32, heads=2, depth=1)
    asked = RunSettings(task="text-classification", train=("-",), out="-", preset="xlnet-base", model=model)
    task = TextClassification.prepare(rows, asked)
    assert task.tokenizer.config["padding_side"] == "left"  # as transformers reads the last column
    config = task.config(asked)
    ours = heedful.create(config, seed=0).eval()
    assert save(ours, tmp_path) == "xlnet"
    theirs = hf.XLNetForSequenceClassification.from_pretrained(tmp_path).eval()
    text = torch.tensor([[1, 5, 6, 2]])
    assert (theirs(text).logits - ours(text)).abs().max() < 1e-5


@torch.no_grad()
def test_an_adapter_of_its_attention_comes_back(pair: tuple[Any, Any], tmp_path: Path) -> None:
    base = load(tmp_path, head="sequence", dtype="float64")
    ours = add_adapter(base, LoraConfig(rank=2, targets=("all",)), seed=0)
    for parameter in ours.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    save(ours, tmp_path / "adapter")
    again = load(tmp_path / "adapter", dtype="float64")
    assert again.adapter is not None
    assert_close(again(ids()), ours(ids()))


# ----------------------------------------------------------------------------------------------------------- generation

PROMPTS = ((9, 7, 12, 8), (14, 7), (10, 6, 11, 13, 9))


@pytest.fixture(scope="module")
def language_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Theirs with random weights, and ours from its folder."""
    config = hf.XLNetConfig(vocab_size=23, d_model=16, n_layer=2, n_head=4, d_inner=24, tie_word_embeddings=False)
    theirs = hf.XLNetLMHeadModel(config).eval()  # its masks are float32
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.6)
    theirs.generation_config = hf.GenerationConfig(eos_token_id=[3, 20], pad_token_id=5, bos_token_id=1)
    theirs.config.eos_token_id = [3, 20]
    folder = tmp_path_factory.mktemp("xlnet")
    theirs.save_pretrained(folder)
    return theirs, load(folder, dtype="float64")


def padded(side: str) -> tuple[Tensor, Tensor]:
    width = max(map(len, PROMPTS))
    rows = [[5] * (width - len(p)) + [*p] if side == "left" else [*p] + [5] * (width - len(p)) for p in PROMPTS]
    reals = [[0] * (width - len(p)) + [1] * len(p) for p in PROMPTS]
    mask = torch.tensor(reals).bool()
    return torch.tensor(rows), mask if side == "left" else mask.flip(1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generates_as_transformers(beams: int, side: str, language_models: tuple[Any, Any]) -> None:
    """Theirs alone and without its memory, which keeps what tokens were before those after them; ours in a batch."""
    theirs, ours = language_models
    options = {"max_new_tokens": 9, "num_beams": beams, "num_return_sequences": beams}
    wanted = [
        [token for token in row.tolist() if token != 5]
        for prompt in PROMPTS
        for row in theirs.generate(torch.tensor([prompt]), use_mems=False, do_sample=False, **options)
    ]
    rows = ours.generate(*padded(side), **options)
    assert [[token for token in row.tolist() if token != 5] for row in rows] == wanted
    assert len(set(map(len, wanted))) > 2


def test_choices_are_scored_as_they_are_generated(language_models: tuple[Any, Any]) -> None:
    from heedful.generation import decode
    from heedful.generation.scoring import choice_logprobs

    ours = language_models[1]
    prompts, mask = padded("right")
    generated = decode(ours, prompts, mask, max_new_tokens=3, min_new_tokens=3, logprobs=True, do_sample=False)
    rows = zip(generated.ids, generated.logprobs, map(len, PROMPTS), strict=True)
    choices, sums = zip(*((row[n : n + 3].tolist(), log_p[n : n + 3].sum()) for row, log_p, n in rows), strict=True)
    assert_close(choice_logprobs(ours, prompts, mask, [[choice] for choice in choices])[:, 0], torch.stack(sums))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefill_chunk_size": 2}, "it has no prefill_chunk_size"),
        ({"cache_implementation": "static"}, "it has no cache_implementation='static'"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "it has no contrastive"),
        ({"prompt_lookup_num_tokens": 2}, "it has no .*assisted"),
    ],
)
def test_what_needs_a_cache_is_refused(options: dict[str, Any], said: str, language_models: tuple[Any, Any]) -> None:
    with pytest.raises(HeedfulError, match=said):
        language_models[1].generate(torch.tensor([[9, 7]]), **options)
