"""Instructions and conversations: what is read, what is learned, as `transformers` tells it, and wrong files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.data import Row, Rows, read
from heedful.data.split import split
from heedful.errors import HeedfulError
from heedful.evaluation.evaluate import evaluate
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.conversations import InstructionExample
from heedful.tasks.text_generation import TextGeneration
from heedful.text import Tokenizer, chat_template
from heedful.training.run import train
from tolerances import approx

pytest.importorskip("jinja2")

PAIRS = [("Say moo: ", "moo moo"), ("Say hoo twice: ", "hoo hoo"), ("What says the cow? ", "Moo.")] * 4
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What says the cow?"},
    {"role": "assistant", "content": "Moo."},
    {"role": "user", "content": "And the owl?"},
    {"role": "assistant", "content": "Hoo, of course."},
]
TEXTS = [text for pair in PAIRS for text in pair] + [message["content"] for message in TALK]
CHATML = (
    "{% for message in messages %}<|{{ message.role }}|>\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content }}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
UNMARKED = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def settings(**given: Any) -> RunSettings:
    chosen: dict[str, Any] = {
        "preset": "gpt-micro",
        "data": DataSettings(max_length=64),
        "model": ModelSettings(dim=32, heads=2, depth=1),
        "tokenizer": TokenizerSettings(kind="bpe", size=320),
    }
    return RunSettings(task="text-generation", train=("-",), out="-", **(chosen | given))


def pairs(*texts: tuple[str, str]) -> Rows:
    rows = (Row({"prompt": a, "completion": b}, "pairs.tsv", i) for i, (a, b) in enumerate(texts, 1))
    return Rows(rows, 0, ("prompt", "completion"))


def talks(*each: Any) -> Rows:
    return Rows((Row({"messages": tuple(one)}, "talks.jsonl", i) for i, one in enumerate(each, 1)), 0, ("messages",))


def tokenizer(template: str | None = None) -> Tokenizer:
    made = Tokenizer.train(TEXTS, 320, template="none")
    if template:
        made.config |= {"chat_template": template, "split_special_tokens": False}
        made.backend.encode_special_tokens = False
    return made


# --------------------------------------------------------------------------------------------------------------- files


def test_files_tell_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("prompt\tcompletion\nSay moo\tmoo\n\nSay hoo\t \nSay\thoo\n")
    rows = read(tmp_path / "pairs.tsv", TextGeneration.columns)
    assert [(row.values, row.line) for row in rows] == [
        ({"prompt": "Say moo", "completion": "moo"}, 2),
        ({"prompt": "Say", "completion": "hoo"}, 5),
    ]
    assert (rows.skipped, rows.columns) == (2, ("prompt", "completion"))
    (tmp_path / "asked.csv").write_text('q,a,n\n"one, two",three,4\n')
    named = read(tmp_path / "asked.csv", TextGeneration.columns, names=["q", "a"])
    assert named[0].values == {"prompt": "one, two", "completion": "three"}
    lines = [{"messages": TALK, "id": 3}, {"messages": TALK[:3]}]
    (tmp_path / "talks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = read(tmp_path / "talks.jsonl", TextGeneration.columns)
    assert [row.values for row in found] == [{"messages": tuple(TALK)}, {"messages": tuple(TALK[:3])}]
    assert len(read(tmp_path / "talks.jsonl", TextGeneration.columns, limit=1)) == 1
    (tmp_path / "both.jsonl").write_text(json.dumps({"text": "a text", "prompt": "p", "completion": "c"}))
    assert read(tmp_path / "both.jsonl", TextGeneration.columns)[0].values == {"text": "a text"}
    (tmp_path / "body.tsv").write_text("body\nA text.\n")
    assert read(tmp_path / "body.tsv", TextGeneration.columns, names=["body"])[0].values == {"text": "A text."}


def test_two_names_are_a_prompts_and_a_completions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.\n")
    for names in (["a", "b"], ["a", "b", "c", "d"]):
        with pytest.raises(
            HeedfulError, match=r"names \(a,b.*\) for 1 columns; give --data\.columns one name for each of text"
        ):
            read(tmp_path / "a.txt", TextGeneration.columns, names=names)
    (tmp_path / "a.tsv").write_text("a\tb\nx\ty\n")
    with pytest.raises(HeedfulError, match=r"no column 'c' among 'a', 'b', in .*a\.tsv:1"):
        read(tmp_path / "a.tsv", TextGeneration.columns, names=["a", "c"])


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", '{"messages": "hello"}', r"messages are not a JSON list, in .*a\.jsonl:1; write \[\{"),
        ("a.jsonl", '{"messages": []}', r"the messages are not a list, or the list is empty, in .*a\.jsonl:1"),
        ("a.jsonl", '\n{"messages": [{"role": "user"}]}', r"message 1 of 'messages' needs the texts .*, in .*:2"),
        (
            "a.jsonl",
            '{"messages": [{"role": "user", "content": "Hi"}]}',
            r'no message has the role "assistant", in .*:1, so',
        ),
        ("a.jsonl", '{"prompt": "a", "completion": 3}', r"'completion' is 3, but text is expected, in .*a\.jsonl:1"),
        (
            "a.jsonl",
            '{"prompt": "a", "completion": "b"}\n{"prompt": "a"}',
            r"no column 'completion' among 'prompt'.*:2",
        ),
        ("a.tsv", "prompt\tcompletion\n\t\n", r"only blank rows \(1\) in .*a\.tsv; fill in prompts and completions"),
        ("a.tsv", "prompt\tcompletion\nonly one\n", r"1 column, but line 1 has 2, in .*a\.tsv:2"),
        (
            "a.jsonl",
            '{"prompt": "a", "answer": "b"}',
            r"'prompt' but no 'completion', in .*a\.jsonl:1; rename the other",
        ),
        (
            "a.csv",
            "\ncompletion,n\na,1\n",
            r"'completion' but no 'prompt', in .*a\.csv:3; .*--data\.columns completion$",
        ),
        ("a.tsv", "prompt\tcompletion\nà\tb\n".encode("latin-1"), r"a\.tsv:2"),
    ],
)
def test_wrong_files(name: str, content: str | bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HeedfulError, match=told):
        read(tmp_path / name, TextGeneration.columns)


def test_the_same_prompt_stays_on_one_side() -> None:
    rows = pairs(*PAIRS)
    train_rows, held = TextGeneration.split_rows(rows, 0.3, 0)
    sides = [{row.values["prompt"] for row in side} for side in (train_rows, held)]
    assert not sides[0] & sides[1]
    assert len(train_rows) + len(held) == len(rows)
    ours = [TALK, TALK, TALK[:3], TALK[1:3]]
    one, other = split(talks(*ours), 0.5, 0, by="messages")
    assert {len(one), len(other)} == {2}


# ---------------------------------------------------------------------------------------------------- what is learned


def test_of_a_prompt_and_its_completion_the_completion_is_learned() -> None:
    task = TextGeneration(tokenizer(), 64)
    encoded = task.encode(pairs(("Say moo: ", "moo moo"), ("Say ", "Moo.")), 64)
    batch = task.collate(encoded.examples, np.random.default_rng(0))
    for i, (asked, answered) in enumerate([("Say moo: ", "moo moo"), ("Say ", "Moo.")]):
        before, after = task.tokenizer.encode([asked, answered])
        ids = [*before, *after, task.end]
        labels = [-100] * (len(before) - 1) + [*after, task.end]
        assert batch["ids"][i, : len(ids) - 1].tolist() == ids[:-1]
        assert batch["labels"][i].tolist() == labels + [-100] * (batch["labels"].size(1) - len(labels))
    assert task.count(batch) == sum(len(ids) for ids in task.tokenizer.encode(["moo moo", "Moo."])) + 2
    assert encoded.note == f"{task.count(batch)} tokens of answers are learned, the tokens of prompts are not"
    assert task.lengths(encoded.examples).tolist() == [[len(talk.ids) - 1] for talk in encoded.examples]


@pytest.mark.parametrize("before", [[], [3]])
def test_prompts_of_training_are_those_of_prediction(before: list[int]) -> None:
    """Without a begin token (GPT-2), with one (Llama), and of messages."""
    told = tokenizer()
    chat_template.set_template(told, "plain")
    task = TextGeneration(told, 64)
    task.before = before
    [instruction] = task.encode(pairs(("Say moo: ", "moo moo")), 64).examples
    [talk] = task.encode(talks(TALK[:3]), 64).examples
    for example, prompt in ((instruction, "Say moo: "), (talk, TALK[:2])):
        [ids] = task.prompt_ids([prompt])
        assert example.ids[: example.learned.index(True)] == ids
    [empty] = task.encode(pairs(("", "moo")), 64).examples
    assert empty.ids[: empty.learned.index(True)] == task.prompt_ids([""])[0]


@pytest.mark.parametrize("template", [CHATML, chat_template.DEFAULT_TEMPLATE])
def test_the_learned_tokens_are_those_of_transformers(template: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made = tokenizer(template)
    made.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for messages in (TALK, TALK[1:3], [*TALK, {"role": "user", "content": "« Merci », é!"}]):
        told = theirs.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        task = TextGeneration(Tokenizer.load(tmp_path), 256)
        (talk,) = task.encode(talks(messages), 256).examples
        assert talk.ids == told["input_ids"]
        assert talk.learned == [bool(one) for one in told["assistant_masks"]]
        assert 0 < sum(talk.learned) < len(talk.learned)


def test_without_marks_what_comes_after_the_question_is_learned() -> None:
    marked, plain = (chat_template.render_conversation(tokenizer(template), TALK) for template in (CHATML, UNMARKED))
    said = [[text for text, is_said in parts if is_said] for parts in (marked, plain)]
    assert said == [["Moo.</s>", "Hoo, of course.</s>"], ["Moo.</s>", "Hoo, of course.</s>"]]
    assert "".join(text for text, _ in marked) == "".join(text for text, _ in plain)
    forgets = "{% for message in messages[-2:] %}{{ message.content }}{% endfor %}"
    with pytest.raises(HeedfulError, match="renders message 3 differently when later messages follow"):
        chat_template.render_conversation(tokenizer(forgets), TALK)
    with pytest.raises(HeedfulError, match="writes no text of the assistant"):
        chat_template.render_conversation(tokenizer("{{ messages[0].content }}"), TALK)


@pytest.mark.parametrize("kind", ["character", "bpe"])
def test_a_new_vocabulary_knows_the_templates_words(kind: Any) -> None:
    task = TextGeneration.prepare(
        talks(TALK), settings(tokenizer=TokenizerSettings(kind=kind, size=320), data=DataSettings(max_length=256))
    )
    (talk,) = task.encode(talks(TALK), 256).examples
    assert task.tokenizer.unknown not in talk.ids
    assert task.tokenizer.decode([talk.ids])[0].startswith("system:\nBe brief.\nuser:\nWhat says")


def test_prompts_are_the_same_in_training_and_in_use() -> None:
    task = TextGeneration(tokenizer(chat_template.DEFAULT_TEMPLATE), 256)
    (talk,) = task.encode(talks(TALK[:3]), 256).examples
    (prompt,) = task.prompt_ids([TALK[:2]])
    assert talk.ids[: len(prompt)] == prompt
    assert not any(talk.learned[: len(prompt)])
    assert talk.ids[len(prompt) :][: sum(talk.learned)][-1] == task.end


def test_long_conversations_are_left_out_and_never_split() -> None:
    task = TextGeneration(tokenizer(), 64)
    long = ("Say moo: ", "moo " * 100)
    encoded = task.encode(pairs(("Say ", "Moo."), long), 64)
    assert len(encoded.examples) == len(encoded.rows) == 1
    assert encoded.note.endswith("; 1 example longer than 64 tokens left out")
    with pytest.raises(HeedfulError, match=r"every example is longer than 64 tokens, in .+; raise --data\.max-length"):
        task.encode(pairs(long), 64)
    odd = Rows([*pairs(("a", "b")), Row({"text": "a document"}, "b.txt", 1)])
    with pytest.raises(HeedfulError, match=r"b\.txt:1: documents and instructions are mixed"):
        task.encode(odd, 64)


def test_the_figures_are_of_the_answers_alone() -> None:
    task = TextGeneration(tokenizer(), 64)
    model = heedful.create(task.config(settings()), seed=0).eval()
    rows = pairs(("Say moo: ", "moo moo"), ("Say ", "Moo, é"), ("What? ", "No"))
    encoded = task.encode(rows, 64)
    measured = task.measure(model, encoded.examples, encoded.rows, batch_tokens=16)
    total, count = 0.0, 0
    for row in rows:
        before, after = task.tokenizer.encode([row.values["prompt"], row.values["completion"]])
        ids = [*before, *after, task.end]
        with torch.no_grad():
            p = model(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
        for place in range(len(before) - 1, len(ids) - 1):
            total, count = total - float(p[place, ids[place + 1]]), count + 1
    size = sum(len(row.values["completion"].encode()) for row in rows)
    assert measured.details == {"tokens": count, "bytes": size}
    assert measured.metrics == approx(
        {"loss": total / count, "perplexity": math.exp(total / count), "bits_per_byte": total / math.log(2) / size},
        "gradient",
    )
    assert measured.example_scores is not None
    assert len(measured.example_scores) == 3
    batch = task.collate(encoded.examples)
    with torch.no_grad():
        assert float(task.objective(model, batch)) == approx(total, "gradient")
    with pytest.raises(HeedfulError, match="there is no baseline for prompts or messages; leave --baseline out"):
        task.baseline(rows, lambda: rows)


# ---------------------------------------------------------------------------------------------------------------- runs


def run(data: Path, out: Path, **given: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"max_steps": 150, "preset": "gpt-micro", "model": ModelSettings(dim=32, heads=2, depth=2)}
    asked |= {"train": (str(data),), "valid": (str(data),), "out": str(out)}
    return train(RunSettings(task="text-generation", **(asked | given)), say=lambda line: None, quiet=True)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of documents."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "book.txt").write_text("The cow says moo. The owl says hoo.\n" * 30)
    run(folder / "book.txt", folder / "run", max_steps=30)
    return folder / "run"


def test_a_model_learns_to_answer_and_transformers_asks_it_alike(tmp_path: Path) -> None:
    answers = {"What says the cow?": "Moo.", "What says the owl?": "Hoo!", "What says the hen?": "Cluck, cluck."}
    lines = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
        for asked, said in answers.items()
    ]
    (tmp_path / "talks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = run(tmp_path / "talks.jsonl", tmp_path / "run", max_steps=100, training=TrainingSettings(lr=5e-3))
    assert result["metrics"]["loss"] < 0.1
    pipe = heedful.pipeline("text-generation", tmp_path / "run", device="cpu")
    for asked, said in answers.items():
        assert pipe([{"role": "user", "content": asked}], do_sample=False)["output"] == said
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    ids = theirs.apply_chat_template(
        [{"role": "user", "content": "What says the owl?"}], add_generation_prompt=True, return_dict=False
    )
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    out = made.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)
    assert theirs.decode(out[0, len(ids) :], skip_special_tokens=True) == "Hoo!"


def test_a_model_of_documents_learns_instructions(reader: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("prompt\tcompletion\nThe cow says \tmoo.\nThe owl says \thoo.\n")
    before = evaluate(str(reader), [str(tmp_path / "pairs.tsv")], say=lambda line: None)["metrics"]
    begun = {"start_from": str(reader), "preset": None, "model": ModelSettings()}
    after = run(tmp_path / "pairs.tsv", tmp_path / "two", max_steps=30, **begun)["metrics"]
    assert after["perplexity"] < 0.9 * before["perplexity"]
    assert isinstance(
        TextGeneration.load(tmp_path / "two").encode(pairs(("The ", "cow"))).examples[0], InstructionExample
    )


def test_a_model_of_documents_learns_conversations(
    reader: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "chat_template" not in TextGeneration.load(reader).tokenizer.config
    asked = [{"role": "user", "content": "The cow says "}, {"role": "assistant", "content": "moo"}]
    (tmp_path / "talks.jsonl").write_text(json.dumps({"messages": asked}) + "\n")
    begun = {"start_from": str(reader), "preset": None, "model": ModelSettings()}
    run(tmp_path / "talks.jsonl", tmp_path / "two", training=TrainingSettings(lr=1e-2), max_steps=60, **begun)
    assert "the model has no chat template; messages are written with the default template" in caplog.text
    task = TextGeneration.load(tmp_path / "two")
    (talk,) = task.encode(talks(asked)).examples
    assert isinstance(talk, InstructionExample)
    told = task.tokenizer.decode([[one for one, said in zip(talk.ids, talk.learned, strict=True) if said]])
    assert told == ["moo"]
    assert talk.ids.count(task.end) == 2  # after what is asked and what is answered, as one token
    pipe = heedful.pipeline("text-generation", tmp_path / "two", device="cpu")
    assert pipe(asked[:1], do_sample=False)["output"] == "moo"


# ------------------------------------------------------------------------------------------------- published formats


@pytest.mark.parametrize(("name", "end"), [("llama2", "</s>"), ("llama3", "<|eot_id|>"), ("plain", "</s>")])
def test_a_model_learns_a_published_format(name: str, end: str, tmp_path: Path) -> None:
    """A new model has its tokens, its folder its template, and a generation ends with a message."""
    tokens: Any = {"kind": "bpe", "size": 320, "chat_template": name}
    given = settings(tokenizer=TokenizerSettings(**tokens), data=DataSettings(max_length=128))
    task = TextGeneration.prepare(talks(TALK, TALK), given)
    model = heedful.create(task.config(given), seed=0)
    assert task.tokenizer.config["eos_token"] == end
    assert model.config.special.end == (task.tokenizer.end,)
    assert model.config.embedding.vocab_size == task.tokenizer.vocab_size
    (example,) = task.encode(talks(TALK)).examples
    learned = [token for token, is_learned in zip(example.ids, example.learned, strict=True) if is_learned]
    assert learned.count(task.tokenizer.end) == 2
    model.save_pretrained(tmp_path)
    task.save(tmp_path)
    again = TextGeneration.load(tmp_path)
    prompt = chat_template.render_prompt(again.tokenizer, TALK[:2])
    assert prompt == chat_template.render_prompt(task.tokenizer, TALK[:2])
    assert again.encode(talks(TALK)).examples == [example]


def test_fine_tuning_with_a_published_format(tmp_path: Path) -> None:
    base = settings(tokenizer=TokenizerSettings(kind="bpe", size=320, chat_template="llama3"))
    task = TextGeneration.prepare(talks(TALK, TALK), base)
    task.tokenizer.config |= {"eos_token": "</s>"}  # as a base model of Llama 3 has another end token
    del task.tokenizer.config["chat_template"]
    task = TextGeneration(task.tokenizer, task.context)
    heedful.create(task.config(base), seed=0).save_pretrained(tmp_path)
    task.save(tmp_path)
    given = settings(preset=None, start_from=str(tmp_path), model=ModelSettings(), tokenizer=TokenizerSettings())
    tuned, model = TextGeneration.for_fine_tuning(tmp_path, talks(TALK), given)
    assert (tuned.tokenizer.config["chat_template"], model.config.special.end) == (chat_template.DEFAULT_TEMPLATE, (2,))
    chosen = TokenizerSettings(chat_template="llama3")
    tuned, model = TextGeneration.for_fine_tuning(tmp_path, talks(TALK), replace(given, tokenizer=chosen))
    assert tuned.end == tuned.tokenizer.backend.token_to_id("<|eot_id|>") == model.config.special.end[0]
    assert model.config.special.end[1] == 2
    assert chat_template.render_prompt(tuned.tokenizer, TALK[:2]).startswith("<|begin_of_text|><|start_header_id|>sys")
