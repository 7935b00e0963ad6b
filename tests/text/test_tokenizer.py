"""Tokenizers: nothing is lost, published folders open, and `transformers` reads ours to the same ids."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.text.tokenizer_json import MAX_PIECE

SHARED = Path(__file__).parents[3] / "shared" / "data"
TEXTS = [
    "The old man met the other man in 1997.",
    "L'homme âgé a rencontré l'autre homme à 15:05.",
    "the theatre, the thesis and the thermos: 3:05\u202fPM",
    "<s> stands in the text, and so does </s>",
] * 3
KINDS = ("bpe", "unigram", "wordpiece", "word", "character")


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(TEXTS, 400, request.param)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train(TEXTS, 400)


def test_special_tokens_have_their_ids_in_every_kind(trained: Tokenizer) -> None:
    assert (trained.pad, trained.start, trained.end, trained.unknown) == (0, 1, 2, 3)
    assert 4 < trained.vocab_size <= 400


def test_no_text_makes_a_special_token(trained: Tokenizer) -> None:
    for ids in trained.encode(["</s>", "<pad> <s> </s>", "the man</s>"]):
        assert not {0, 1, 2} & set(ids)


def test_bpe_loses_nothing(bpe: Tokenizer) -> None:
    draw = random.Random(0)
    pools = [range(0xD800), range(0xE000, 0x110000), range(128), [0x20, 0x0A, 0x0D, 0x85, 0x2028, 0x202F, 0x2581, 0x31]]
    texts = ["".join(chr(draw.choice(draw.choice(pools))) for _ in range(draw.randrange(15))) for _ in range(2000)]
    texts += ["", " ", "  two", "two  ", "\n", "</s>", "<s> a", " <unk> "]
    assert bpe.decode(bpe.encode(texts)) == texts


def test_a_word_is_the_same_token_at_the_start_and_later(bpe: Tokenizer) -> None:
    first, later = bpe.encode(["the man", "man the"])
    assert sorted(first) == sorted(later)


@pytest.mark.parametrize("kind", KINDS)
def test_digits_stand_alone(kind: str) -> None:
    tokenizer = Tokenizer.train(["in 1997 and 1998 and 1999"] * 50, 400, kind)  # often enough to be merged
    digits = [piece for piece in tokenizer.pieces(tokenizer.encode(["in 1997"])[0]) if piece.strip().isdigit()]
    assert [piece.strip() for piece in digits] == (["1997"] if kind in ("wordpiece", "word") else ["1", "9", "9", "7"])


def test_pieces_read_as_text(bpe: Tokenizer) -> None:
    ids = bpe.encode(["the homme âgé"])[0]
    pieces = bpe.pieces([bpe.start, *ids, bpe.end])
    assert pieces[0] == "<s>"
    assert pieces[-1] == "</s>"
    assert pieces[1].startswith(" ")
    assert "".join(pieces[1:-1]) == " the homme âgé"


def test_pieces_of_a_broken_character_show_its_bytes(bpe: Tokenizer) -> None:
    assert bpe.pieces(bpe.encode(["語"])[0]) == [" ", "<0xE8>", "<0xAA>", "<0x9E>"]


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_pieces_of_the_others_mark_words_by_a_space(kind: str) -> None:
    tokenizer = Tokenizer.train(TEXTS, 60, kind)  # too few for whole words
    pieces = tokenizer.pieces(tokenizer.encode(["theatre man"])[0])
    assert len(pieces) > 2
    assert "".join(pieces) == " theatre man"


def test_of_words_the_most_frequent_are_whole_tokens() -> None:
    tokenizer = Tokenizer.train(["Play, play! The player", "play the saw"], 8, "word", lowercase=True)
    assert tokenizer.pieces(range(4, tokenizer.vocab_size)) == [" play", " the", " !", " ,"]
    ids = tokenizer.encode(["The player, play!"])[0]
    assert tokenizer.pieces(ids) == [" the", "<unk>", " ,", " play", " !"]


def test_decoding_leaves_special_tokens_and_spare_rows_out(bpe: Tokenizer) -> None:
    ids = bpe.encode(["the man"])[0]
    assert bpe.decode([[bpe.start, *ids, bpe.end, bpe.pad, bpe.vocab_size + 7], []]) == ["the man", ""]


def test_decoding_ignored_labels_is_refused(bpe: Tokenizer) -> None:
    with pytest.raises(HeedfulError, match=r"^-100 is not a token id"):
        bpe.decode([[5, 6], [5, -100]])


@pytest.mark.parametrize("method", ["encode", "encode_with_offsets"])
def test_encoding_a_text_without_a_list_is_refused(bpe: Tokenizer, method: str) -> None:
    """It would be encoded letter by letter."""
    with pytest.raises(HeedfulError, match=r"^got the text 'the man' alone; give a list of texts"):
        getattr(bpe, method)("the man")


def test_lowercase_folds_case() -> None:
    tokenizer = Tokenizer.train(TEXTS, 400, lowercase=True)
    assert tokenizer.decode(tokenizer.encode(["THE Man ÂGÉ"])) == ["the man âgé"]


def test_saved_loaded_and_opened_by_transformers(trained: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    texts = [*TEXTS, "the </s> man", "unseen Ω 語 words  here"]
    ids = trained.encode(texts)
    again = Tokenizer.load(tmp_path)
    assert again.encode(texts) == ids
    assert again.decode(ids) == trained.decode(ids)
    assert (again.pad, again.end, again.vocab_size) == (0, 2, trained.vocab_size)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(texts)["input_ids"] == [[*row, 2] for row in ids]
    assert set(theirs(texts)) == {"input_ids", "attention_mask"}
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id) == (0, 1, 2, 3)
    assert theirs.decode(ids[0], skip_special_tokens=True) == trained.decode(ids[:1])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("template", "single", "pair"),
    [("end", "A 2", "A 2 B 2"), ("both", "1 A 2", "1 A 2 B 2"), ("none", "A", "A B")],
)
def test_special_tokens_around_a_text_as_by_transformers(
    kind: str, template: str, single: str, pair: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer.train(TEXTS, 400, kind, template=template)
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).encode(TEXTS[:1]) == tokenizer.encode(TEXTS[:1])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    sides = dict(zip("AB", tokenizer.encode(["the old man", "L'homme </s>"]), strict=True))

    def ids(form: str) -> list[int]:
        return [one for part in form.split() for one in sides.get(part) or [int(part)]]

    assert theirs("the old man")["input_ids"] == ids(single)
    both = theirs("the old man", "L'homme </s>", return_token_type_ids=True)
    assert both["input_ids"] == ids(pair)
    if template == "both":
        first = len(sides["A"]) + 2
        assert both["token_type_ids"] == [0] * first + [1] * (len(sides["B"]) + 1)
        assert set(theirs("the old man")) == {"input_ids", "token_type_ids", "attention_mask"}
        assert (theirs.cls_token_id, theirs.sep_token_id) == (1, 2)


def test_a_second_tokenizer_beside_the_first(tmp_path: Path) -> None:
    source, target = Tokenizer.train(TEXTS[:1], 300), Tokenizer.train(TEXTS[1:2], 300)
    source.save(tmp_path)
    target.save(tmp_path, "tokenizer.target")
    again = Tokenizer.load(tmp_path, "tokenizer.target")
    assert again.encode(TEXTS) == target.encode(TEXTS)
    assert again.pad == 0
    assert not list(tmp_path.glob("*.partial"))


def test_a_published_tokenizer_neither_pads_nor_cuts() -> None:
    folder = SHARED / "weights" / "minilm-l6"
    if not folder.is_dir():
        pytest.skip("the published all-MiniLM-L6-v2 is not there")
    tokenizer = Tokenizer.load(folder)
    expected = json.loads((folder / "expected.json").read_text())["tokenizer"]
    assert "padding" in (folder / "tokenizer.json").read_text()
    short, long = tokenizer.encode(["hello", "hello " * 300])
    assert (len(short), len(long)) == (1, 300)
    assert (tokenizer.start, tokenizer.end, tokenizer.pad) == (101, 102, 0)
    assert expected
    for case in expected:
        assert [101, *tokenizer.encode([case["text"]])[0], 102] == case["ids"]


@pytest.mark.parametrize(
    ("texts", "size", "kind", "message"),
    [
        (["a"], 400, "word-piece", r"unknown tokenizer kind 'word-piece'; did you mean 'wordpiece'\?"),
        (["a"], 100, "bpe", r"a bpe vocabulary of 100 tokens is too small; choose 260 or more"),
        ([], 400, "bpe", r"no text to train a tokenizer on"),
        (["", " \n"], 400, "unigram", r"no text to train a tokenizer on"),
        (TEXTS, 8, "unigram", r"cannot train a unigram vocabulary of 8 tokens on this text"),
    ],
)
def test_training_says_what_it_cannot_do(texts: list[str], size: int, kind: str, message: str) -> None:
    with pytest.raises(HeedfulError, match=message) as caught:
        Tokenizer.train(texts, size, kind)
    assert "\n" not in str(caught.value)


def test_an_unknown_template() -> None:
    with pytest.raises(HeedfulError, match=r"unknown tokenizer template 'bothh'; did you mean 'both'\?"):
        Tokenizer.train(["a"], 400, template="bothh")


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_text_gives_a_small_vocabulary(kind: str) -> None:
    assert Tokenizer.train(["a b"], 8000, kind).vocab_size < 300


def test_missing_and_broken_files(tmp_path: Path, bpe: Tokenizer) -> None:
    with pytest.raises(HeedfulError, match=r"no tokenizer\.json in .*; give a model folder"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model":')
    with pytest.raises(HeedfulError, match=r"tokenizer\.json is not a tokenizer \(.*\); save") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)
    panics = json.loads(bpe.backend.to_str())
    panics["model"] |= {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["ab", "ab"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(panics))
    with pytest.raises(HeedfulError, match=r"tokenizer\.json is not a tokenizer \(.*\); save"):
        Tokenizer.load(tmp_path)
    bpe.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(HeedfulError, match=r"broken JSON in .*tokenizer_config\.json"):
        Tokenizer.load(tmp_path)
    with pytest.raises(
        HeedfulError, match=r"cannot write .*tokenizer.json: .+; free disk space, or choose another file"
    ):
        bpe.save(tmp_path / "tokenizer.json")


def charsmap(table: int, size: int = 300) -> str:
    """A compiled normaliser that announces a table of some bytes, in base64."""
    return base64.b64encode(table.to_bytes(4, "little").ljust(size, b"\0")).decode()


@pytest.mark.parametrize("table", [297, 2**32 - 1])
@pytest.mark.parametrize("form", ["plain", "nested", "escaped", "repeated"])
def test_a_normaliser_whose_table_is_larger_than_itself(tmp_path: Path, bpe: Tokenizer, table: int, form: str) -> None:
    step = {"type": "Precompiled", "precompiled_charsmap": charsmap(table)}
    normalizer = {"type": "Sequence", "normalizers": [step]} if form == "nested" else step
    content = json.dumps({**json.loads(bpe.backend.to_str()), "normalizer": normalizer})
    if form == "escaped":
        content = content.replace('"precompiled', r'"\u0070recompiled')
    if form == "repeated":
        content = content[:-1] + ', "normalizer": null}'
    (tmp_path / "tokenizer.json").write_text(content)
    said = rf"tokenizer\.json: precompiled_charsmap has 300 bytes, but says that its table has {table:,}; save"
    with pytest.raises(HeedfulError, match=said):
        Tokenizer.load(tmp_path)


def test_a_piece_of_a_unigram_model_that_is_too_long(tmp_path: Path) -> None:
    trained = Tokenizer.train(TEXTS, 400, "unigram")
    content = json.loads(trained.backend.to_str())
    content["model"]["vocab"].append(["a" * MAX_PIECE, -9.0])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer.load(tmp_path).vocab_size == trained.vocab_size + 1
    content["model"]["vocab"].append(["é" * MAX_PIECE + "é", -9.0])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        HeedfulError, match=r"tokenizer\.json: a piece of vocab has 4,097 characters; at most 4,096 are"
    ):
        Tokenizer.load(tmp_path)


def _python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_importing_the_room_is_cheap() -> None:
    done = _python("import sys, heedful.text; print('tokenizers' in sys.modules, 'torch' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_child_encodes_without_a_warning() -> None:
    done = _python(
        "import os\nfrom heedful.text import Tokenizer\n"
        "tokenizer = Tokenizer.train(['a text'] * 100, 300); tokenizer.encode(['a text'] * 100)\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0)\n"
        "else:\n"
        "    print(len(tokenizer.encode(['a text'] * 100)), os.environ['TOKENIZERS_PARALLELISM'], flush=True)\n"
        "    os._exit(0)"
    )
    assert done.stdout.split() == ["100", "false"], done.stderr
    assert "parallelism" not in done.stderr.lower()  # the library's warning; Python 3.12 has one of its own at fork


def test_a_text_at_which_the_library_panics() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    backend.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex("(a+)+$"), "")
    tokenizer = Tokenizer(backend, {})
    assert tokenizer.encode(["ba"]) == [[0]]
    for encode in (tokenizer.encode, tokenizer.encode_with_offsets):
        with pytest.raises(HeedfulError, match=r"tokenizer.json does not fit the text \(.*retry-limit"):
            encode(["a" * 40 + "b"])


def test_a_vocabulary_without_the_unknown_token() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="b"))
    with pytest.raises(HeedfulError, match=r"tokenizer.json does not fit the text .*use the model's own"):
        Tokenizer(backend, {}).encode(["c"])
