"""Text generation: windows of a stream, the loss by hand, continuations, and the folder opened by `transformers`."""

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
from safetensors.torch import load_file

import heedful
from heedful.config import DecoderConfig, LanguageHead, LearnedPosition, SpecialTokens
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.inference.pipeline import Pipeline
from heedful.models import Model
from heedful.pretrained import load, save
from heedful.settings import (
    AveragingSettings,
    DataSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
)
from heedful.tasks.task import Streams
from heedful.tasks.text_generation import TextGeneration
from heedful.text import Tokenizer
from heedful.training.optimisation import adamw
from heedful.training.run import train
from tolerances import approx, assert_close

BOOK = "".join(f"The {n} birds sang: «é 🙂», then flew.\n" for n in ("two", "ten", "six", "one")) * 6
CONTEXT = 16


def rows(*texts: str) -> Rows:
    return Rows((Row({"text": text}, f"{i}.txt", 1) for i, text in enumerate(texts)), 0, ("text",))


def settings(kind: str = "character", **given: Any) -> RunSettings:
    chosen: dict[str, Any] = {
        "preset": "gpt-micro",
        "data": DataSettings(max_length=CONTEXT),
        "model": ModelSettings(dim=32, heads=2, depth=1),
        "tokenizer": TokenizerSettings(kind=kind, size=320),  # type: ignore[arg-type]
    }
    return RunSettings(task="text-generation", train=("-",), out="-", **(chosen | given))


@cache
def trained(kind: str) -> tuple[TextGeneration, Model]:
    """A model that has read the book for a second or two."""
    task = TextGeneration.prepare(rows(BOOK), settings(kind))
    model = heedful.create(task.config(settings(kind)), seed=0)
    task.before_training(model, settings(kind))
    examples = task.encode(rows(BOOK), CONTEXT).examples
    optimiser, random = adamw(model, lr=5e-3), np.random.default_rng(0)
    for _ in range(40):
        batch = task.collate([examples[i] for i in random.permutation(len(examples))[:16]], random)
        optimiser.zero_grad()
        (task.objective(model, batch) / task.count(batch)).backward()
        optimiser.step()
    return task, model.eval()


def test_the_loss_of_another_model_or_of_a_wrapper_is_refused() -> None:
    task, model = trained("character")
    batch = task.collate(task.encode(rows(BOOK), CONTEXT).examples[:1])
    for wrong in (heedful.create("bert-tiny", seed=0), torch.nn.DataParallel(model)):
        with pytest.raises(HeedfulError, match=rf"needs a model of class Decoder, not {type(wrong).__name__};"):
            task.objective(wrong, batch)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ the data


def test_few_documents_are_each_cut_many_are_not() -> None:
    lines = [f"line {i:02}\n" for i in range(50)]
    train, held = TextGeneration.split_rows(rows("".join(lines), "one line", BOOK), None, 0)
    assert [row.values["text"] for row in train] == [
        "".join(lines[:45]),
        "one line",
        BOOK[: -len(held[1].values["text"])],
    ]
    assert (held[0].values["text"], held[0].file, held[0].line) == ("".join(lines[45:]), "0.txt", 46)
    assert len(held) == 2
    train, held = TextGeneration.split_rows(rows("".join(lines)), 0.5, 0)
    assert held[0].values["text"] == "".join(lines[25:])
    train, held = TextGeneration.split_rows(rows(*(f"{line}{line}" for line in lines)), None, 0)
    assert {row.values["text"] for row in (*train, *held)} == {f"{line}{line}" for line in lines}
    assert len(held) == 10
    with pytest.raises(HeedfulError, match=r"no text has two lines, in 0\.txt"):
        TextGeneration.split_rows(rows("all in one line", "and another\n"), None, 0)


@pytest.mark.parametrize("kind", ["character", "bpe"])
def test_a_stream_has_an_end_token_before_each_document(kind: str) -> None:
    task, _ = trained(kind)
    texts = [BOOK, "The bird", BOOK[:99]]
    expected = [token for ids in task.tokenizer.encode(texts) for token in [task.tokenizer.end, *ids]]
    encoded = task.encode(rows(*texts), CONTEXT)
    batch = task.collate(encoded.examples)
    assert batch["ids"].flatten()[: len(expected)].tolist() == expected
    assert batch["labels"].flatten().tolist() == expected[1:] + [-100] * (batch["labels"].numel() - len(expected) + 1)
    assert task.count(batch) == len(expected) - 1
    assert encoded.note == f"{len(expected):,} tokens in windows of 16"
    assert task.lengths(encoded.examples).tolist() == [[CONTEXT]] * len(encoded.examples)
    assert encoded.rows == rows(*texts)


def test_training_reads_elsewhere_each_time() -> None:
    task, _ = trained("character")
    examples = task.encode(rows(BOOK), CONTEXT).examples[:12]
    first, again, other = (task.collate(examples, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(first["ids"], again["ids"])
    assert not torch.equal(first["ids"], other["ids"])
    assert first["ids"].shape == first["labels"].shape == (12, CONTEXT)
    assert torch.equal(first["ids"][:, 1:], first["labels"][:, :-1])
    assert task.count(first) == first["labels"].numel()


def test_a_text_shorter_than_the_context_and_one_too_short() -> None:
    task, model = trained("character")
    encoded = task.encode(rows("bird"), CONTEXT)
    assert encoded.note == "5 tokens in windows of 4: the text is shorter than the context of 16"
    batch = task.collate(encoded.examples, np.random.default_rng(0))
    assert batch["ids"].shape == (1, 4)
    assert task.measure(model, encoded.examples, encoded.rows).details == {"tokens": 4, "bytes": 4}
    with pytest.raises(HeedfulError, match=r"fewer than two tokens of text, in 0\.txt:1, "):
        task.encode(rows("b"), CONTEXT)
    with pytest.raises(HeedfulError, match="fewer than two tokens of text, so "):
        task.encode(rows(), CONTEXT)
    with pytest.raises(HeedfulError, match="no text to train a tokenizer on"):
        TextGeneration.prepare(rows("\n \n"), settings())
    with pytest.raises(HeedfulError, match=r"--data\.max-length 17 is more than the 16 tokens"):
        task.encode(rows(BOOK), 17)


def test_unknown_characters_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    task, model = trained("character")
    assert task.encode(rows("The QQ birds"), CONTEXT).note.endswith("; 2 of them not in the vocabulary")
    answer = task.predict(model, ["QT", "The"], max_new_tokens=3, seed=0)[0]
    assert answer.output[:2] == "QT"
    assert len(answer.output) == 5
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "the vocabulary lacks characters of 'QT'; the model reads the unknown token there"
    ]


# ----------------------------------------------------------------------------------------------------------- the model


def test_settings_change_the_preset() -> None:
    task = TextGeneration.prepare(rows(BOOK), settings())
    config = task.config(settings(model=ModelSettings(dim=64, decoder_depth=3, heads=2, dropout=0.25, tied=False)))
    assert isinstance(config, DecoderConfig)
    assert config.decoder.window is None
    banded = task.config(settings(model=ModelSettings(window="0,16")))
    assert isinstance(banded, DecoderConfig)
    assert banded.decoder.windows == (None, 16, None, 16)
    assert (config.decoder.dim, config.decoder.depth, config.decoder.ff_dim) == (64, 3, 256)
    assert config.decoder.position == LearnedPosition(length=CONTEXT)
    assert config.decoder.dropout.residual == 0.25
    assert config.head == LanguageHead(tied=False)
    assert (task.tokenizer.pad, task.tokenizer.end) == (0, 2)
    assert config.special == SpecialTokens(pad=0, start=2, end=(2,))
    with pytest.raises(HeedfulError, match="preset 'bert-tiny' is of the encoder family; text-generation needs a dec"):
        task.config(settings(preset="bert-tiny"))


def test_settings_suggested_by_the_data() -> None:
    small, large = rows(BOOK), rows("x" * 3_000_000)
    asked = RunSettings(task="text-generation", train=("-",), out="-")
    made = TextGeneration.suggested_settings(small, asked)
    assert (made.preset, made.tokenizer.kind, made.data.max_length) == ("llama-micro", "character", 256)
    assert made.tokenizer.size == 4 + len(set(BOOK))
    assert TextGeneration.prepare(small, made).tokenizer.vocab_size == made.tokenizer.size
    assert TextGeneration.suggested_settings(large, asked).tokenizer.kind == "bpe"
    assert made.max_epochs == 40
    for length, tokens in ((None, 768), (16, 192), (64, 768), (256, 768), (512, 1536)):
        given = RunSettings(task="text-generation", train=("-",), out="-", data=DataSettings(max_length=length))
        assert TextGeneration.suggested_settings(small, given).training.batch_tokens == tokens
    ended = TextGeneration.suggested_settings(
        small, RunSettings(task="text-generation", train=("-",), out="-", max_steps=50)
    )
    assert ended.training.warmup == 6


def test_a_model_that_cannot_serve_is_refused() -> None:
    task, _ = trained("character")
    with pytest.raises(HeedfulError, match="needs a decoder with a language-model head; this model is of kind 'enc"):
        task.check_model(heedful.create("bert-tiny"))
    with pytest.raises(HeedfulError, match="its head of kind 'sequence'"):
        task.check_model(heedful.create("gpt-micro", head="sequence"))
    with pytest.raises(HeedfulError, match="do not belong together"):
        task.check_model(heedful.create(heedful.presets.gpt2(16, 1, 2, task.tokenizer.vocab_size - 1, 8)))
    task.check_model(heedful.create(heedful.presets.gpt2(16, 1, 2, task.tokenizer.vocab_size + 64, 8)))
    with pytest.raises(HeedfulError, match="no end token"):
        TextGeneration(Tokenizer(task.tokenizer.backend, {}), 8)


# ---------------------------------------------------------------------------------------------------------- the figures


@pytest.mark.parametrize("kind", ["character", "bpe"])
def test_the_figures_by_hand(kind: str) -> None:
    """Windows one after the other, a token at a time, in float64."""
    task, trained_model = trained(kind)
    model = heedful.create(task.config(settings(kind)), seed=1).double().eval()
    model.load_state_dict(trained_model.state_dict())
    texts = BOOK[:120], "«é 🙂»\n"
    tokens = [token for ids in task.tokenizer.encode(texts) for token in [task.tokenizer.end, *ids]]
    nats = 0.0
    for place in range(1, len(tokens)):
        first = (place - 1) // CONTEXT * CONTEXT
        nats -= model(torch.tensor([tokens[first:place]]))[0, -1].log_softmax(-1)[tokens[place]].item()
    size = len("".join(texts).encode())
    encoded = task.encode(rows(*texts), CONTEXT)
    measured = task.measure(model, encoded.examples, encoded.rows)
    again = task.measure(model, encoded.examples, encoded.rows, batch_tokens=20)
    assert again.metrics["loss"] == approx(measured.metrics["loss"], "gradient")
    with pytest.raises(HeedfulError, match="num_beams has no effect: a language model is scored without generating"):
        task.measure(model, encoded.examples, encoded.rows, num_beams=4)
    assert measured.details == {"tokens": len(tokens) - 1, "bytes": size}
    assert measured.metrics["loss"] == approx(nats / (len(tokens) - 1), "layer")
    assert measured.metrics["perplexity"] == approx(math.exp(nats / (len(tokens) - 1)), "layer")
    assert measured.metrics["bits_per_byte"] == approx(nats / math.log(2) / size, "layer")


def test_label_smoothing_by_hand() -> None:
    task, model = trained("character")
    batch = task.collate(task.encode(rows(BOOK[:40]), CONTEXT).examples)
    log_p = model(batch["ids"]).double().log_softmax(-1)
    real = batch["labels"] != -100
    right = log_p.gather(-1, batch["labels"].clamp(min=0)[..., None])[..., 0]
    expected = -(0.9 * right + 0.1 * log_p.mean(-1))[real].sum()
    assert task.objective(model, batch, 0.1).item() == approx(expected.item(), "gradient")


def test_it_learns() -> None:
    task, model = trained("character")
    fresh = heedful.create(task.config(settings()), seed=0).eval()
    encoded = task.encode(rows(BOOK), CONTEXT)
    before, after = (task.measure(m, encoded.examples, encoded.rows).metrics["loss"] for m in (fresh, model))
    assert before == pytest.approx(math.log(task.tokenizer.vocab_size), rel=0.1)
    assert after < before / 3


# -------------------------------------------------------------------------------------------------------------- answers


def test_answers_go_on_from_the_prompt_in_order() -> None:
    task, model = trained("character")
    prompts = ["The ten", "", "birds sang", "\n", "The ten"]
    together = task.predict(model, prompts, max_new_tokens=10, seed=3)
    assert [answer.input for answer in together] == prompts
    assert all(answer.output.startswith(answer.input) for answer in together)
    assert together[0].output != together[4].output  # the same prompt again is another draw
    for i in range(4):
        alone = task.predict(model, [prompts[i]], max_new_tokens=10, seed=3)[0]
        assert alone.output == together[i].output
        assert alone.score == approx(together[i].score)
    assert task.predict(model, []) == []


def test_a_seed_for_each_prompt() -> None:
    task, model = trained("character")
    prompts, seeds = ["The ten", "", "The two birds", "The ten", "s"], [9, 8, 7, 6, 9]
    options: dict[str, Any] = {"max_new_tokens": 10, "temperature": 2.0}
    for tokens in (None, 8):  # in one batch, and in several
        made = task.predict(model, prompts, seed=seeds, batch_tokens=tokens, **options)
        for prompt, seed, answer in zip(prompts, seeds, made, strict=True):
            assert task.predict(model, [prompt], seed=seed, **options)[0].output == answer.output
            assert "".join(task.stream(model, prompt, seed=[seed], **options)) == answer.output
        assert made[0].output != made[3].output
    with pytest.raises(HeedfulError, match="seed has 1 numbers, but there are 5 prompts"):
        task.predict(model, prompts, seed=[1], **options)


def test_the_score_is_the_mean_log_probability() -> None:
    task, model = trained("character")
    answer = task.predict(model, ["The two"], max_new_tokens=6, do_sample=False)[0]
    ids = torch.tensor(task.tokenizer.encode([answer.output]))
    log_p = model(ids).log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
    assert answer.score == approx(log_p[-6:].mean().item())


def test_an_empty_prompt_begins_a_document() -> None:
    task, model = trained("character")
    answer = task.predict(model, [""], max_new_tokens=5, do_sample=False)[0]
    ids = model.generate(torch.tensor([[task.tokenizer.end]]), max_new_tokens=5, do_sample=False)
    assert answer.output == task.tokenizer.decode(ids.tolist())[0] != ""


def test_longer_than_the_context_the_last_half_is_read_again() -> None:
    task, model = trained("character")
    answer = task.predict(model, ["The ten"], max_new_tokens=60, do_sample=False)[0]
    ids = task.tokenizer.encode(["The ten"])[0]
    read = list(ids)
    for _ in range(60):
        if len(read) > CONTEXT:
            read = read[-CONTEXT // 2 :]
        token = int(model(torch.tensor([read]))[0, -1].argmax())
        read.append(token)
        ids.append(token)
        if token == task.tokenizer.end:
            break
    assert answer.output == task.tokenizer.decode([ids])[0]
    assert len(answer.output) > 3 * CONTEXT
    long = "The six birds sang: " * 5
    assert task.predict(model, [long], max_new_tokens=4, seed=0)[0].output[: len(long)] == long
    assert len(task.predict(model, ["The"])[0].output) > 100  # 200 tokens, says the model


def test_a_search_fits_the_positions() -> None:
    task, model = trained("character")
    answer = task.predict(model, ["The ten"], num_beams=3)[0]
    assert len("The ten") < len(answer.output) <= CONTEXT + 1
    with pytest.raises(HeedfulError, match="16 learned positions"):
        task.predict(model, ["The ten"], num_beams=3, max_new_tokens=30)


@pytest.mark.parametrize("kind", ["character", "bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("prompt", ["", "The two birds sang: «é", "six birds sang, then flew, then sang, then flew "])
def test_the_stream_joined_is_the_answer(kind: str, prompt: str) -> None:
    task, model = trained(kind)
    assert isinstance(task, Streams)
    for options in ({"seed": 1}, {"do_sample": False}, {"top_k": 50, "temperature": 3.0, "seed": 2}):
        options |= {"max_new_tokens": 40, "min_new_tokens": 30}
        made = list(task.stream(model, prompt, **options))
        assert "".join(made) == task.predict(model, [prompt], **options)[0].output
        assert len(made) > 10
    with pytest.raises(HeedfulError, match="num_beams=2"):
        task.stream(model, prompt, num_beams=2)


@pytest.mark.parametrize("kind", ["character", "bpe", "unigram", "wordpiece"])
def test_an_answer_ends_right_after_a_stop_string(kind: str) -> None:
    task, model = trained(kind)
    prompts = ["The two birds sang: «é", "", "six birds"]
    options: dict[str, Any] = {"max_new_tokens": 40, "min_new_tokens": 40, "seed": 1}
    free = task.predict(model, prompts, **options)
    for strings in (["bir"], ["g: ", "ew."], "d", ["zzz"]):
        made = task.predict(model, prompts, stop_strings=strings, **options)
        for prompt, whole, answer in zip(prompts, free, made, strict=True):
            new = whole.output[len(prompt) :]
            ends = [
                new.find(one) + len(one) for one in ([strings] if isinstance(strings, str) else strings) if one in new
            ]
            assert answer.output == prompt + new[: min(ends, default=len(new))]
            streamed = "".join(task.stream(model, prompt, stop_strings=strings, **options))
            assert streamed == task.predict(model, [prompt], stop_strings=strings, **options)[0].output == answer.output
    assert task.predict(model, ["The"], stop_strings=["d"], num_beams=2)[0].output.count("d") <= 1


def test_a_folder_may_ask_for_stop_strings() -> None:
    task, trained_model = trained("character")
    model = heedful.create(trained_model.config, seed=0).eval()
    model.load_state_dict(trained_model.state_dict())
    model.generation = {"max_new_tokens": 60, "stop_strings": ["s"]}
    answer = task.predict(model, ["The ten bird"])[0].output
    assert answer.index("s", 12) == len(answer) - 1
    assert "".join(task.stream(model, "The ten bird")) == answer
    assert len(task.predict(model, ["The ten bird"], stop_strings=[])[0].output) > len(answer)


# ---------------------------------------------------------------------------------------------------------------- chats

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TALK = [{"role": "user", "content": "The two birds?"}]


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_messages_are_answered_as_by_transformers(file: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer.train([BOOK], 300, "bpe", template="none")
    tokenizer.backend.add_special_tokens(["<|user|>", "<|assistant|>", "<|end|>"])
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    theirs.save_pretrained(tmp_path, save_jinja_files=file.endswith("jinja"))
    assert (tmp_path / "chat_template.jinja").exists() is file.endswith("jinja")
    config = transformers.GPT2Config(
        vocab_size=len(theirs), n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(tmp_path)

    pipe = heedful.pipeline("text-generation", tmp_path, device="cpu")
    encoded = theirs.apply_chat_template(TALK, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert pipe.task.prompt_ids([TALK]) == encoded["input_ids"].tolist()
    made = model.generate(**encoded, max_new_tokens=20, do_sample=False, pad_token_id=0)[0]
    expected = theirs.decode(made[encoded["input_ids"].size(1) :], skip_special_tokens=True)
    answer = pipe(TALK, max_new_tokens=20, do_sample=False)
    assert answer["input"] is TALK
    assert answer["output"] == expected != ""
    assert "".join(pipe.stream(TALK, max_new_tokens=20, do_sample=False)) == expected
    string = expected[2:5]
    cut = expected[: expected.index(string) + 3]
    assert pipe(TALK, max_new_tokens=20, do_sample=False, stop_strings=string)["output"] == cut

    several = pipe([TALK, "The two", [*TALK, *TALK]], max_new_tokens=20, do_sample=False)
    assert several[0]["output"] == expected
    assert several[1]["output"] == pipe("The two", max_new_tokens=20, do_sample=False)["output"]
    assert several[1]["output"].startswith("The two")
    with pytest.raises(HeedfulError, match="refuses the messages: no system here"):
        pipe([{"role": "system", "content": "x"}, *TALK])

    task, _ = TextGeneration.for_fine_tuning(tmp_path, rows(BOOK), settings())
    task.save(tmp_path / "kept")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "kept")
    assert again.chat_template == TEMPLATE


def test_messages_without_a_template_or_for_another_task() -> None:
    task, model = trained("character")
    with pytest.raises(HeedfulError, match="the model has no chat template"):
        Pipeline(task, model)(TALK)
    with pytest.raises(HeedfulError, match="takes a text or a list of texts; got dict"):
        Pipeline(task, model)([{"text": "The"}])


# -------------------------------------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("kind", ["character", "bpe"])
def test_the_folder_opens_in_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    task, model = trained(kind)
    assert save(model, tmp_path, extra={"task": task.name}) == "gpt2"
    task.save(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = BOOK[:30]
    ids = task.tokenizer.encode([text])[0]
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    read = torch.tensor([ids[:CONTEXT]])
    assert_close(theirs(read).logits, model(read))
    end = task.tokenizer.end
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id, tokenizer.eos_token_id) == (end, end, end)
    assert tokenizer.model_max_length == CONTEXT
    own = theirs.generation_config
    assert (own.do_sample, own.temperature, own.top_k, own.max_new_tokens) == (True, 0.8, 0, 200)
    greedy = theirs.generate(read[:, :5], max_new_tokens=8, do_sample=False)
    assert task.predict(model, [tokenizer.decode(ids[:5])], max_new_tokens=8, do_sample=False)[
        0
    ].output == tokenizer.decode(greedy[0], skip_special_tokens=True)


def test_a_folder_there_and_back(tmp_path: Path) -> None:
    task, model = trained("bpe")
    save(model, tmp_path, extra={"task": task.name})
    task.save(tmp_path)
    back, loaded = TextGeneration.for_fine_tuning(tmp_path, rows(BOOK), settings())
    assert back.context == CONTEXT
    assert dict(loaded.generation) == dict(model.generation)
    ours, theirs = (Pipeline(t, m).predict(["The"], seed=5)[0].output for t, m in ((task, model), (back, loaded)))
    assert ours == theirs
    suggested = TextGeneration.suggested_settings(
        rows(BOOK), RunSettings(task="text-generation", train=("-",), out="-", start_from=str(tmp_path))
    )
    assert suggested.data.max_length == CONTEXT
    assert suggested.preset is None
    assert suggested.tokenizer == TokenizerSettings()


def test_a_folder_of_others(tmp_path: Path) -> None:
    """As published: no context in heedful's words, GPT-2's token, a generation config of its own."""
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer.train([BOOK], 300, "bpe", template="none")
    config = transformers.GPT2Config(
        vocab_size=tokenizer.vocab_size, n_embd=16, n_layer=1, n_head=2, n_positions=12, bos_token_id=2, eos_token_id=2
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, eos_token="</s>")
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] > 1e29
    task, model = TextGeneration.for_fine_tuning(tmp_path, rows(BOOK), settings())
    assert task.context == 12
    task.before_training(model, settings())
    assert len(task.encode(rows(BOOK)).examples) == -(-len(tokenizer.encode([BOOK])[0]) // 12)
    assert len(task.predict(load(tmp_path), ["The"], max_new_tokens=30, do_sample=False)[0].output) > 3
    assert task.predict(model, ["The"])[0].score is not None


def test_a_row_as_a_line() -> None:
    task, _ = trained("character")
    assert task.row_line(rows("\n\n  One\nday " + "x" * 500)[0]) == f"One day {'x' * 41}…"


@pytest.mark.parametrize("start", [False, True])
def test_a_resumed_run_ends_with_the_same_bits(start: bool, tmp_path: Path) -> None:
    """GPT-2's layout stores matrices turned: what is taken up must lie in memory as it did, optimiser and all."""
    (tmp_path / "book.txt").write_text("the cat sat on the mat, and the dog sat on the cat\n" * 40, encoding="utf-8")
    base = RunSettings(
        task="text-generation",
        train=(str(tmp_path / "book.txt"),),
        out=str(tmp_path / "base"),
        preset="gpt-micro",
        max_steps=2,
        device="cpu",
        data=DataSettings(max_length=16),
        model=ModelSettings(dim=32, heads=4, depth=2),
        training=TrainingSettings(batch_size=4, schedule="constant", warmup=0, optimiser="adamw"),
        averaging=AveragingSettings(polynomial=0.0),
    )

    def run(asked: RunSettings) -> dict[str, torch.Tensor]:
        train(asked, say=lambda line: None, quiet=True)
        return load_file(Path(asked.out) / "last" / "model.safetensors")

    run(base)
    begun = replace(base, preset=None, start_from=base.out, model=ModelSettings()) if start else base
    whole = run(replace(begun, out=str(tmp_path / "whole"), max_steps=8))
    cut = replace(begun, out=str(tmp_path / "cut"))
    run(replace(cut, max_steps=5))
    resumed = run(replace(cut, max_steps=8, resume=True))
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


# ------------------------------------------------------------------------------------------------- separate documents


POEMS = ("A cat sat.", "Two birds\nsang in a tree.", "Rain.", "The sea was calm and the moon rose over it, at last.")


def separate(kind: str = "character", context: int = CONTEXT) -> RunSettings:
    return settings(kind, data=DataSettings(max_length=context, document_mask=True))


@pytest.mark.parametrize("closed", [False, True], ids=["an end before each", "a start and an end"])
def test_separate_documents_are_scored_as_if_alone(closed: bool) -> None:
    """A window over everything gives each document the loss that it has in a window of its own."""
    task = TextGeneration.prepare(rows(*POEMS), separate(context=120))
    model = heedful.create(task.config(settings()), seed=0).double().eval().requires_grad_(False)
    if closed:
        task.begins, task.closes = [1], [task.end]
    (window,) = task.encode(rows(*POEMS)).examples
    batch = task.collate([window])
    expected, count = 0.0, 0
    for poem in POEMS:
        ids = [*task.begins, *task.tokenizer.encode([poem])[0], task.end]
        ids = ids if closed or poem is not POEMS[-1] else ids[:-1]  # nothing stands behind the last
        log_p = model(torch.tensor([ids[:-1]])).double().log_softmax(-1)[0]
        expected -= float(log_p[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].sum())
        count += len(ids) - 1
    assert task.count(batch) == count
    assert float(task.objective(model, batch)) == approx(expected, "gradient")
    task.separate = False
    assert float(task.objective(model, task.collate([window]))) != approx(expected, "gradient")


def test_windows_drawn_at_random_know_their_documents() -> None:
    task = TextGeneration.prepare(rows(*POEMS), separate())
    examples = task.encode(rows(*POEMS)).examples
    random, several = np.random.default_rng(0), 0
    for _ in range(20):
        batch = task.collate(list(examples), random)
        begins = batch["ids"] == task.end
        begins[:, 0] = True
        assert torch.equal(batch["texts"], begins.cumsum(1))
        several += int((batch["texts"].amax(1) > 1).sum())
    assert several > 20


def test_a_run_keeps_its_documents_apart(tmp_path: Path) -> None:
    (tmp_path / "poems.jsonl").write_text("\n".join(json.dumps({"text": poem}) for poem in POEMS * 8))
    asked = replace(
        separate(),
        train=(str(tmp_path / "poems.jsonl"),),
        out=str(tmp_path / "run"),
        max_steps=2,
        training=TrainingSettings(batch_tokens=64),
    )
    train(asked, say=str, quiet=True)
    task, model = TextGeneration.load(tmp_path / "run"), load(tmp_path / "run")
    assert task.separate
    apart = rows(*POEMS)
    found = task.measure(model, task.encode(apart).examples, apart).metrics["loss"]
    task.separate = False
    assert task.measure(model, task.encode(apart).examples, apart).metrics["loss"] != approx(found, "layer")


def test_separate_needs_documents() -> None:
    with pytest.raises(HeedfulError, match="the text is one document; leave the option out"):
        TextGeneration.prepare(rows(BOOK), separate())
    talks = Rows([Row({"prompt": "a", "completion": "b"}, "x", 1)] * 2)
    with pytest.raises(HeedfulError, match="each instruction is an example of its own; leave the option out"):
        TextGeneration.prepare(talks, separate("bpe"))
