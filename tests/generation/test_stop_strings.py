"""Stop strings: rows end with the token that completes one, as transformers' do, wherever tokens begin and end."""

from __future__ import annotations

import lzma
import random
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode, generate, stream
from heedful.generation.stopping import StopStrings, cut_at_stop, until
from heedful.text import Tokenizer

DATA = Path(__file__).parents[2].parent / "shared" / "data"
TEXT = "The naïve cat — 日本語 🙂👍🏽 — isn't here.\n\nIt sat there; then it ran on the mat, and on.\n" * 2
PAD = 3


@cache
def small(kind: str = "bpe") -> Tokenizer:
    return Tokenizer.train([TEXT, "the other cats and rats"], 330, kind, template="none")  # type: ignore[arg-type]


@cache
def released() -> Tokenizer:
    folder = DATA / "gpt2_tokenizer"
    if not folder.is_dir():
        pytest.skip(f"GPT-2's tokenizer is not at {folder}")
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        for name, other in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
            (Path(made) / other).write_bytes(lzma.decompress((folder / f"{name}.xz").read_bytes()))
        (Path(made) / "config.json").write_text('{"model_type": "gpt2"}', "utf-8")
        return Tokenizer.load(made)


def theirs_of(tokenizer: Tokenizer):
    transformers = pytest.importorskip("transformers")
    backend = Backend.from_str(tokenizer.backend.to_str())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def new_text(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    before, text = tokenizer.decode([prompt, [*prompt, *new]])
    return text[len(before.rstrip("�")) :]


def first(tokenizer: Tokenizer, prompt: list[int], new: list[int], strings: list[str]) -> int:
    """The tokens up to the one that completes a stop string, read anew each time."""
    for count in range(1, len(new) + 1):
        if any(string in new_text(tokenizer, prompt, new[:count]) for string in strings):
            return count
    return len(new)


def spanning(tokenizer: Tokenizer, prompt: list[int], new: list[int], seed: int) -> str:
    """A part of the text that begins within one token and ends within another."""
    draw, text = random.Random(seed), new_text(tokenizer, prompt, new)
    parts = [text[begin : begin + draw.randrange(1, 9)] for begin in draw.choices(range(len(text)), k=99)]
    return next((part for part in parts if "�" not in part), "cat")


# -------------------------------------------------------------------------------------------------- against brute force


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "seed": 1, "temperature": 0.9}], ids=["greedy", "sampling"]
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_ends_with_the_first_token_that_completes_one(pairs, prompts, side, options):
    tokenizer = small()
    ended = 0
    for seed in range(4):
        pair = pairs["gpt2"](seed, tokenizer.vocab_size)
        ids, mask = prompts([7, 2, 5, 1], side, seed)
        most = {"max_new_tokens": 40, **options}
        free = decode(pair.ours, ids, mask, **most)
        rows = [(p[m].tolist(), r[int(m.sum()) : n].tolist()) for p, m, r, n in zip(ids, mask, *free[:2], strict=True)]
        strings = [spanning(tokenizer, *row, seed) for row in rows]
        made = decode(pair.ours, ids, mask, stop_strings=strings, tokenizer=tokenizer, **most)
        for (prompt, new), ids_, n in zip(rows, made.ids.tolist(), made.lengths.tolist(), strict=True):
            count = first(tokenizer, prompt, new, strings)
            assert ids_[len(prompt) : n] == new[:count]
            ended += count < len(new)
        assert torch.equal(generate(pair.ours, ids, mask, stop_strings=strings, tokenizer=tokenizer, **most), made.ids)
        steps = stream(pair.ours, ids, mask, stop_strings=strings, tokenizer=tokenizer, **most)
        streamed = torch.stack(list(steps), 1)
        for row, (prompt, _), ids_, n in zip(streamed, rows, made.ids.tolist(), made.lengths.tolist(), strict=True):
            assert row[row >= 0].tolist() == ids_[len(prompt) : n]
    assert ended >= 10


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "word", "character"])
def test_the_end_of_a_row_says_what_the_whole_row_says(kind):
    """Token by token, on long rows of random tokens, far beyond what is decoded at a time."""
    tokenizer, draw = small(kind), random.Random(0)
    for _ in range(25):
        whole = tokenizer.encode([TEXT])[0]
        row = whole if draw.random() < 0.4 else [draw.randrange(4, tokenizer.vocab_size) for _ in range(120)]
        width = draw.randrange(1, 40)
        if "�" in tokenizer.decode([row[:width]])[0]:
            continue
        strings = [spanning(tokenizer, row[:width], row[width:], draw.randrange(10**6)) for _ in range(2)]
        stops = StopStrings(strings, tokenizer, width)
        count = first(tokenizer, row[:width], row[width:], strings)
        said = [bool(stops.ended(torch.tensor([row[: width + n]]))) for n in range(1, count + 1)]
        assert said == [False] * (count - 1) + [True]


def test_only_generated_text_counts():
    tokenizer = small("character")
    ids = torch.tensor(tokenizer.encode(["on the mat"]))

    def ended(string: str, width: int, end: int) -> bool:
        return bool(StopStrings([string], tokenizer, width).ended(ids[:, :end]))

    assert [ended("ma", 7, end) for end in (8, 9)] == [False, True]
    assert not ended("ma", 8, 9)  # its "m" is the prompt's
    assert not ended("ma", 9, 10)
    assert ended("t", 9, 10)


def test_a_character_of_several_tokens():
    tokenizer = small()
    ids = tokenizer.encode(["the 𝄞 sign"])[0]
    place = next(n for n in range(len(ids) + 1) if "𝄞" in tokenizer.decode([ids[:n]])[0])
    stops = StopStrings(["𝄞"], tokenizer, 1)
    assert "�" in tokenizer.decode([ids[: place - 1]])[0]
    assert [bool(stops.ended(torch.tensor([ids[:n]]))) for n in (place - 2, place - 1, place)] == [False, False, True]


def test_bytes_of_byte_fallback_are_text_where_they_are_utf_8():
    tokens = ["<unk>", "</s>", "▁", "a", "▁b", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE({token: place for place, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    backend = Backend(model)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens(["</s>"])
    tokenizer = Tokenizer(backend, {"eos_token": "</s>", "unk_token": "<unk>"})
    bytes_ = lambda text: [5 + byte for byte in text.encode()]  # noqa: E731

    def ended(string: str, row: list[int], width: int = 1) -> bool:
        return bool(StopStrings([string], tokenizer, width).ended(torch.tensor([row])))

    assert ended("\n", [3, *bytes_("\n")])
    assert ended("a\n", [3, 3, *bytes_("\n")])
    assert not ended("a\n", [3, *bytes_("\n")])  # the "a" is the prompt's
    assert ended("é\n", [3, 4, *bytes_("é\n")])
    assert ended("語語", [3, *bytes_("語" * 2)])
    assert not ended("語語", [3, *bytes_("語" * 2)[:-1]])
    assert not ended("\n", [3, *bytes_("é")[:1], *bytes_("\n")])  # as the tokenizer shows it: "a��"
    assert ended("語\n", [*bytes_("語" * 30), *bytes_("語\n")], 90)  # a run that begins in the prompt is read as one
    assert not ended("語語\n", [*bytes_("語" * 30), *bytes_("語\n")], 90)


def test_many_tokens_without_text_are_looked_over():
    tokenizer = Tokenizer.train([TEXT], 300)
    end = tokenizer.end
    there, mat = tokenizer.encode(["re;", " it"])
    row = [*there, *[end] * 200, *mat]
    assert bool(StopStrings(["re;  it"], tokenizer, 0).ended(torch.tensor([row])))
    assert bool(StopStrings(["re;  it"], tokenizer, 0).ended(torch.tensor([row, row])).all())
    assert not bool(StopStrings(["here;  it"], tokenizer, 0).ended(torch.tensor([row])))


def test_a_special_token_is_met_by_its_name():
    tokenizer = Tokenizer.train([TEXT], 300)
    row = tokenizer.encode(["the cat"])[0]
    stops = StopStrings(["<unk>", "zz"], tokenizer, 0)
    assert not bool(stops.ended(torch.tensor([row])))
    assert bool(stops.ended(torch.tensor([[*row, tokenizer.unknown]])))


def test_any_object_that_decodes_serves():
    class Letters:
        def decode(self, rows):
            return ["".join(chr(97 + one) for one in row) for row in rows]

    model = heedful.create("gpt-micro", seed=0)
    ids = torch.tensor([[1, 2, 3]])
    free = generate(model, ids, max_new_tokens=12)[0].tolist()
    string = Letters().decode([free[5:7]])[0]
    made = generate(model, ids, max_new_tokens=12, stop_strings=string, tokenizer=Letters())[0].tolist()
    assert made == free[: 3 + next(n for n in range(1, 13) if string in Letters().decode([free[3 : 3 + n]])[0])]


# ------------------------------------------------------------------------------------------------- against transformers


def compared(pair, tokenizer, ids, strings, **options):
    """Ours and transformers' rows, without padding at the end."""
    made = decode(pair.ours, ids, stop_strings=strings, tokenizer=tokenizer, **options)
    out = pair.hub_name.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        stop_strings=strings,
        tokenizer=theirs_of(tokenizer),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    for ours, n, theirs in zip(made.ids.tolist(), made.lengths.tolist(), out.sequences.tolist(), strict=True):
        while len(theirs) > n and theirs[-1] == PAD:
            theirs.pop()
        assert ours[:n] == theirs
    if "num_beams" in options:
        assert (made.scores - out.sequences_scores).abs().max() < 1e-5  # theirs are float32
    return made


BEAMS = [{"num_beams": 3, "num_return_sequences": 3}, {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True}]


@pytest.mark.parametrize("options", [{}, *BEAMS], ids=["greedy", "beams", "eager beams"])
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_as_transformers_on_byte_level_pieces(pairs, prompts, family, options):
    tokenizer, stopped = small(), 0
    for seed in range(4):
        pair = pairs[family](seed, tokenizer.vocab_size)
        ids, _ = prompts([6] * 3, seed=seed)
        free = decode(pair.ours, ids, max_new_tokens=16, **options)
        width = ids.size(1) if family == "gpt2" else 1
        parts = zip(free.ids.tolist(), free.lengths.tolist(), strict=True)
        strings = [spanning(tokenizer, [], row[width:n], seed + 7) for row, n in parts if n > width]
        made = compared(pair, tokenizer, ids, strings[:3], max_new_tokens=16, **options)
        stopped += not torch.equal(made.ids, free.ids)
    assert stopped >= 3


@pytest.mark.parametrize("options", [{}, BEAMS[0]], ids=["greedy", "beams"])
def test_as_transformers_with_gpt_2_s_own_tokenizer(pairs, options):
    tokenizer = released()
    pair = pairs["gpt2"](0, tokenizer.vocab_size)
    ids = torch.tensor([tokenizer.encode(["The quick brown fox"])[0]])
    free = generate(pair.ours, ids, max_new_tokens=12, **options)[0].tolist()
    for seed in range(2):
        strings = [spanning(tokenizer, free[:4], free[4:12], seed), "\n\n"]
        made = compared(pair, tokenizer, ids, strings, max_new_tokens=12, **options)
        assert made.ids[0].tolist() != free


@cache
def stories():
    transformers = pytest.importorskip("transformers")
    folder = DATA / "weights" / "stories15M"
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"the weights of stories15M are not at {folder}")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    pipe = heedful.pipeline(None, folder, device="cpu", dtype="float64")
    return pipe, theirs, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("strings", [["\n\n"], [". S"], ["y was ", "happy"], ["her mom", "\n"], ["."]], ids=str)
@pytest.mark.full(keep=2)
def test_as_transformers_on_published_weights(strings, options):
    """Stories of a Llama with SentencePiece's pieces, where a new line is a byte."""
    pipe, theirs, tokenizer = stories()
    prompt = "Once upon a time, a girl"
    ids = torch.tensor(pipe.task.prompt_ids([prompt]))
    most = {"max_new_tokens": 40, "do_sample": False, **options}
    expected = theirs.generate(ids, tokenizer=tokenizer, stop_strings=strings, pad_token_id=0, **most)[0].tolist()
    made = generate(pipe.model, ids, stop_strings=strings, tokenizer=pipe.task.tokenizer, **most)[0].tolist()
    assert made == expected
    answer = pipe(prompt, stop_strings=strings, **most)["output"]
    text = new_text(pipe.task.tokenizer, ids[0].tolist(), made[ids.size(1) :])
    assert answer == prompt + cut_at_stop(text, strings)
    if any(string in text for string in strings):
        assert answer.endswith(tuple(strings))
        assert ids.size(1) < len(made) < 70
    if not options:
        assert "".join(pipe.stream(prompt, stop_strings=strings, **most)) == answer


# ------------------------------------------------------------------------------------------------------ options, errors


def test_without_a_tokenizer_it_is_one_line():
    model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3]])
    with pytest.raises(HeedfulError, match=r"stop_strings=\['x'\] need a tokenizer.*tokenizer=") as caught:
        generate(model, ids, stop_strings="x")
    assert "\n" not in str(caught.value)
    with pytest.raises(HeedfulError, match=r"stop_strings=\['\\n'\] need a tokenizer"):
        generate(model, ids, defaults={"stop_strings": ["\n"]})
    with pytest.raises(HeedfulError, match="need a tokenizer"):
        list(stream(model, ids, stop_strings=["x"]))
    free = generate(model, ids, max_new_tokens=4)
    assert torch.equal(generate(model, ids, defaults={"stop_strings": ["\n"]}, stop_strings=[], max_new_tokens=4), free)


@pytest.mark.parametrize("value", ["", [""], ["a", 3], 7, [["a"]]])
def test_a_stop_string_is_a_text(value):
    with pytest.raises(HeedfulError, match=r"stop_strings is .*; give a text or texts, none empty"):
        generate(heedful.create("gpt-micro", seed=0), torch.tensor([[1]]), stop_strings=value, tokenizer=small())


# --------------------------------------------------------------------------------------------------------------- pieces


def test_pieces_joined_are_the_text_cut():
    draw = random.Random(0)
    for _ in range(500):
        text = "".join(draw.choice("abc ") for _ in range(draw.randrange(30)))
        strings = ["".join(draw.choice("abc ") for _ in range(draw.randrange(1, 5))) for _ in range(draw.randrange(3))]
        places = sorted(draw.randrange(len(text) + 1) for _ in range(8))
        given = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        made = list(until(given, strings))
        assert "".join(made) == cut_at_stop(text, strings)
        hits = [n for n in range(len(text) + 1) if any(text[:n].endswith(one) for one in strings)]
        assert cut_at_stop(text, strings) == text[: min(hits, default=len(text))]
        assert all(made)


def test_nothing_is_held_back_and_no_piece_is_asked_for_after_the_end():
    def given():
        yield from ("a", "\n", "\nb")
        raise AssertionError("asked for more")

    made = until(given(), ["\n\n"])
    assert [next(made), next(made), next(made)] == ["a", "\n", "\n"]
    assert list(made) == []
