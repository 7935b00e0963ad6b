"""Folders of GPT-2, RoBERTa, BART, BERT and DistilBERT without a tokenizer.json: the ids that `transformers` gives."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from odd_texts import LINES, ODD, here_and_saved

from heedful.errors import HeedfulError
from heedful.text import Tokenizer

Make = Callable[[Mapping[str, Any]], Path]
NAMES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
WITH_NAMES = [*ODD, "<|endoftext|>a <mask> b </s><s>", "[CLS] the [MASK] man [SEP]"]


@cache
def byte_level(*names: str) -> dict[str, Any]:
    """vocab.json and merges.txt of a small byte-level vocabulary that begins with these names."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, 400, special_tokens=list(names), show_progress=False)
    model = json.loads(trained.to_str())["model"]
    pairs = "".join(f"{left} {right}\n" for left, right in model["merges"])
    return {"vocab.json": model["vocab"], "merges.txt": "#version: 0.2\n" + pairs}


@cache
def word_pieces(lowercase: bool) -> dict[str, Any]:
    from tokenizers import BertWordPieceTokenizer

    trained = BertWordPieceTokenizer(lowercase=lowercase)
    trained.train_from_iterator([*LINES, "日 本"], 300, show_progress=False)
    vocabulary = trained.get_vocab()
    return {"vocab.txt": "".join(token + "\n" for token in sorted(vocabulary, key=vocabulary.__getitem__))}


def test_gpt2s_own_files(shared_data: Callable[[str], Path], folder: Make, tmp_path: Path) -> None:
    released = shared_data("gpt2_tokenizer")
    plain = {name: lzma.decompress((released / f"{name}.xz").read_bytes()) for name in ("encoder.json", "vocab.bpe")}
    own = Tokenizer.load(folder(plain))
    assert own.encode(["Hello world", " Hello world"]) == [[15496, 995], [18435, 995]]  # as in its documentation
    (tmp_path / "hub").mkdir()
    for name, what in zip(("vocab.json", "merges.txt"), plain.values(), strict=True):
        (tmp_path / "hub" / name).write_bytes(what)
    (tmp_path / "hub" / "config.json").write_text('{"model_type": "gpt2"}')
    ours = here_and_saved(tmp_path / "hub", tmp_path, WITH_NAMES)
    assert ours.encode(WITH_NAMES) == own.encode(WITH_NAMES)
    assert (ours.start, ours.end, ours.unknown, ours.pad, ours.mask) == (50256, 50256, None, None, None)


@pytest.mark.parametrize("told", [{"model_type": "roberta"}, {"model_type": "bart"}])
def test_roberta_and_bart(told: dict[str, Any], folder: Make, tmp_path: Path) -> None:
    from tokenizers import AddedToken

    files = folder(byte_level(*NAMES) | {"config.json": told})
    # The mask takes the space before it, as in the released tokenizer.json; the class of `transformers` 5 forgets it.
    ours = here_and_saved(files, tmp_path, WITH_NAMES, mask_token=AddedToken("<mask>", lstrip=True))
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (0, 2, 1, 3, 4)
    assert ours.encode(["the <mask>"])[0][-1] == 4
    assert ours.pieces(ours.encode(["a <mask>"])[0]) == ["a", "<mask>"]


@cache
def whole_words() -> dict[str, Any]:
    """vocab.json and merges.txt of a small vocabulary of GPT's kind, whose words end in ``</w>``."""
    from tokenizers import CharBPETokenizer

    trained = CharBPETokenizer(lowercase=True)
    trained.train_from_iterator(LINES, 300, show_progress=False)
    model = json.loads(trained.to_str())["model"]
    pairs = "".join(f"{left} {right}\n" for left, right in model["merges"])
    return {"vocab.json": model["vocab"], "merges.txt": "#version: 0.2\n" + pairs}


@pytest.mark.parametrize(
    "told",
    [
        {"config.json": {"model_type": "openai-gpt"}},
        {
            "config.json": {"model_type": "openai-gpt"},
            "tokenizer_config.json": {"tokenizer_class": "OpenAIGPTTokenizer"},
        },
    ],
)
def test_gpt(told: dict[str, Any], folder: Make, tmp_path: Path) -> None:
    ours = here_and_saved(folder(whole_words() | told), tmp_path, WITH_NAMES)
    assert (ours.start, ours.end, ours.pad, ours.mask) == (None, None, None, None)
    assert ours.unknown == whole_words()["vocab.json"]["<unk>"]
    (row,) = ours.encode(["The man, théâtre"])
    assert ours.decode([row]) == ["the man , theatre"]
    assert "".join(ours.pieces(row)) == "the man , theatre "


@pytest.mark.parametrize("named", [{}, {"tokenizer_class": "GPT2Tokenizer"}])
def test_opt(named: dict[str, str], folder: Make, tmp_path: Path) -> None:
    """GPT-2's files, with BART's tokens, of which the end token stands before a text."""
    end = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True, "rstrip": False}
    roles = {"unk_token": end, "bos_token": end, "eos_token": end, "pad_token": end | {"content": "<pad>"}}
    told = {"add_bos_token": True, "add_prefix_space": False, "errors": "replace", **roles, **named}
    files = byte_level(*NAMES) | {"config.json": {"model_type": "opt"}, "tokenizer_config.json": told}
    ours = here_and_saved(folder(files), tmp_path, WITH_NAMES)
    assert (ours.start, ours.end, ours.pad, ours.unknown) == (2, 2, 1, None)
    assert ours.template().before == (2,)


@pytest.mark.parametrize("model", ["bert", "distilbert", "electra"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
        {"do_lower_case": False, "strip_accents": True, "model_max_length": int(1e30)},
    ],
)
def test_bert_and_distilbert(model: str, config: dict[str, Any], folder: Make, tmp_path: Path) -> None:
    files = word_pieces(config.get("do_lower_case", True))
    files |= {"config.json": {"model_type": model}, "tokenizer_config.json": config}
    ours = here_and_saved(folder(files), tmp_path, WITH_NAMES)
    names = [ours.pieces([one])[0] for one in (ours.start, ours.end, ours.pad, ours.unknown, ours.mask)]
    assert names == ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"]
    assert "model_max_length" not in ours.config
    assert ("token_type_ids" in ours.config["model_input_names"]) == (model != "distilbert")


def test_deberta(folder: Make, tmp_path: Path) -> None:
    """As the released model's: the class of `transformers` 5 puts two [SEP] between texts, all of one segment."""
    names = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
    files = folder(byte_level(*names) | {"config.json": {"model_type": "deberta"}})
    ours = Tokenizer.load(files)
    ours.save(tmp_path)
    transformers = pytest.importorskip("transformers")
    plain = [line for line in WITH_NAMES if "[MASK]" not in line]
    theirs = transformers.DebertaTokenizer.from_pretrained(files)(plain)["input_ids"]
    assert [ours.template().join(row)[0] for row in ours.encode(plain)] == theirs
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)("a", "b")
    assert (again["input_ids"], again["token_type_ids"]) == ours.template(pair=True).join(*ours.encode(["a", "b"]))
    assert ours.pieces(ours.encode(["a [MASK]"])[0]) == ["a", "[MASK]"]
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (0, 2, 1, 3, 4)
    assert ours.template(pair=True).join([7], [8]) == ([0, 7, 2, 8, 2], [0, 0, 0, 1, 1])


def test_mpnet(folder: Make, tmp_path: Path) -> None:
    names = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<mask>": "[MASK]"}
    vocabulary = word_pieces(True)["vocab.txt"]
    for new, old in names.items():
        vocabulary = vocabulary.replace(old, new)
    from tokenizers import AddedToken

    files = folder({"vocab.txt": vocabulary, "config.json": {"model_type": "mpnet"}})
    ours = here_and_saved(files, tmp_path, WITH_NAMES, mask_token=AddedToken("<mask>", lstrip=True))
    pieces = [ours.pieces([one])[0] for one in (ours.start, ours.end, ours.pad, ours.unknown, ours.mask)]
    assert pieces == ["<s>", "</s>", "<pad>", "[UNK]", "<mask>"]
    assert ours.template(pair=True).join([7], [8])[1] == [0] * 6


def test_older_files_of_a_model_are_its_tokenizer_json(shared_data: Callable[[str], Path], folder: Make) -> None:
    released = shared_data("weights/minilm-l6")
    names = ("vocab.txt", "tokenizer_config.json", "config.json", "special_tokens_map.json")
    ours = Tokenizer.load(folder({name: (released / name).read_bytes() for name in names}))
    theirs = Tokenizer.load(released)
    assert ours.encode(WITH_NAMES) == theirs.encode(WITH_NAMES)
    assert ours.template(pair=True) == theirs.template(pair=True)
    assert (ours.start, ours.mask, ours.vocab_size) == (theirs.start, theirs.mask, theirs.vocab_size)
    assert ours.config["model_max_length"] == 512


def test_the_tokenizers_class_goes_before_the_models_type(folder: Make) -> None:
    files = byte_level(*NAMES) | {"config.json": {"model_type": "gpt2"}}
    assert Tokenizer.load(folder(files)).template().added == 0
    told = {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizerFast"}}
    assert Tokenizer.load(folder(files | told)).template().added == 2
    told = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}
    assert Tokenizer.load(folder(files | told)).template().added == 0


def test_a_space_before_and_a_start_where_the_configuration_says_so(folder: Make, tmp_path: Path) -> None:
    config = {"add_prefix_space": True, "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    files = byte_level(*NAMES) | {"config.json": {"model_type": "gpt2"}, "tokenizer_config.json": config}
    ours = here_and_saved(folder(files), tmp_path, ODD)
    assert ours.template().before == (0,)
    assert ours.encode(["the man"]) == ours.encode([" the man"])


def test_added_tokens_and_other_special_names(folder: Make, tmp_path: Path) -> None:
    """As a fine-tuned GPT-2 is saved: padding and words of its own after the vocabulary, in either form."""
    files = byte_level("<|endoftext|>") | {"config.json": {"model_type": "gpt2"}}
    size = len(files["vocab.json"])
    names = {"pad_token": "[PAD]", "bos_token": {"content": "<|endoftext|>"}}
    older = {
        "added_tokens.json": {"[PAD]": size, "<word>": size + 1},
        "special_tokens_map.json": names,
    }
    token = {"lstrip": False, "rstrip": True, "single_word": False, "normalized": False, "special": True}
    decoder = {str(size): token | {"content": "[PAD]"}, str(size + 1): token | {"content": "<word>", "special": False}}
    newer = {"tokenizer_config.json": {"pad_token": "[PAD]", "added_tokens_decoder": decoder}}
    for told in (older, newer):
        made = folder(files | told)
        ours = here_and_saved(made, tmp_path, [*ODD, "a [PAD] b <word> c"])
        assert (ours.pad, ours.vocab_size, ours.end) == (size, size + 2, 0)
        assert ours.decode([[size, size + 1]]) == ["<word>"]
        for name in told:
            (made / name).unlink()


def test_additional_special_tokens_in_either_form(folder: Make) -> None:
    files = byte_level("<|endoftext|>") | {"config.json": {"model_type": "gpt2"}}
    size = len(files["vocab.json"])
    told: dict[str, Any]
    for told in (
        {"special_tokens_map.json": {"additional_special_tokens": [{"content": "<other>", "lstrip": True}]}},
        {"tokenizer_config.json": {"extra_special_tokens": {"other_token": "<other>"}}},
    ):
        ours = Tokenizer.load(folder(files | told))
        assert ours.encode(["<other>"]) == [[size]]
        assert ours.decode([[size]]) == [""]
        (folder({}) / next(iter(told))).unlink()


def test_a_name_for_which_no_token_was_told_is_added_as_transformers_does(folder: Make) -> None:
    files = byte_level("<|endoftext|>") | {"config.json": {"model_type": "gpt2"}}
    ours = Tokenizer.load(folder(files | {"tokenizer_config.json": {"pad_token": "[PAD]"}}))
    assert ours.pad == len(files["vocab.json"])


def test_a_tokenizer_json_without_names_of_special_tokens(folder: Make, tmp_path: Path) -> None:
    """As GPT-2, BERT and T5 were released: the special names are the family's."""
    Tokenizer.load(folder(byte_level(*NAMES) | {"config.json": {"model_type": "roberta"}})).save(tmp_path / "new")
    (tmp_path / "new" / "tokenizer_config.json").write_text('{"model_max_length": 512, "pad_token": null}')
    bare = Tokenizer.load(tmp_path / "new")
    assert (bare.start, bare.end, bare.mask) == (None, None, None)
    (tmp_path / "new" / "config.json").write_text('{"model_type": "roberta"}')
    ours = Tokenizer.load(tmp_path / "new")
    assert (ours.start, ours.end, ours.unknown, ours.mask) == (0, 2, 3, 4)
    assert ours.pad is None  # the folder says that there is none
    (tmp_path / "new" / "config.json").write_text('{"model_type": "gpt2"}')
    assert Tokenizer.load(tmp_path / "new").start is None  # the vocabulary has no <|endoftext|>


def test_a_folder_that_is_read_and_written_keeps_its_keys(folder: Make, tmp_path: Path) -> None:
    """Roles without a token, an endless length, unknown keys; a length that is set since replaces the endless one."""
    Tokenizer.load(folder(byte_level(*NAMES) | {"config.json": {"model_type": "roberta"}})).save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    told = json.loads(path.read_text()) | {"pad_token": None, "model_max_length": int(1e30), "my_key": [1, None]}
    path.write_text(json.dumps(told | {"padding_side": "left", "strip_accents": None}))
    ours = Tokenizer.load(tmp_path)
    assert ours.pad is None
    ours.save(tmp_path / "out")
    back = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert back == json.loads(path.read_text())
    ours.config["model_max_length"] = 8
    ours.save(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 8


@pytest.mark.parametrize("length", [-5, 0, 0.5, True, None, "512", float("nan"), int(1e30), 1e30])
def test_a_maximum_length_that_is_none_is_absent(folder: Make, length: object) -> None:
    files = byte_level(*NAMES) | {"config.json": {"model_type": "roberta"}}
    ours = Tokenizer.load(folder(files | {"tokenizer_config.json": {"model_max_length": length}}))
    assert "model_max_length" not in ours.config
    assert "model_max_length" in ours.unset_entries


def test_where_files_lie(folder: Make, tmp_path: Path) -> None:
    made = folder(word_pieces(True))
    assert Tokenizer.has_files(made)
    assert not Tokenizer.has_files(made, "tokenizer.target")
    assert not Tokenizer.has_files(tmp_path)
    Tokenizer.load(made).save(tmp_path, "tokenizer.target")
    assert Tokenizer.has_files(tmp_path, "tokenizer.target")
    assert not Tokenizer.has_files(tmp_path)


def _without(files: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: what for name, what in files.items() if name not in names}


GPT2 = {"config.json": {"model_type": "gpt2"}}
BYTES = {"vocab.json": {"a": 0, "b": 1, "ab": 2}, "merges.txt": "#version: 0.2\na b\n"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            BYTES,
            r"holds vocab\.json but no model type; add a config\.json with its model_type \(gpt2",
        ),
        (
            BYTES | {"config.json": {"model_type": "qwen2"}},
            r"older tokenizer files of 'qwen2' are not read; known types: ",
        ),
        (
            {"vocab.txt": "a\n", "tokenizer_config.json": {"tokenizer_class": "BertJapaneseTokenizer"}},
            r"files of 'BertJapaneseTokenizer' are not read",
        ),
        (
            BYTES | {"config.json": {"model_type": "bert"}},
            r"of the type 'bert' but holds vocab\.json and merges\.txt",
        ),
        (_without(BYTES, "merges.txt") | GPT2, r"holds vocab\.json but no merges\.txt; download merges\.txt too"),
        (_without(BYTES, "vocab.json") | GPT2, r"holds merges\.txt but no vocab\.json; download vocab\.json too"),
        (_without(BYTES, "vocab.json"), r"holds merges\.txt but no vocab\.json; download vocab\.json too"),
        (
            BYTES | GPT2 | {"merges.txt": "a b\nb a\n"},
            r"merges\.txt, line 2: 'ba' is not in the vocabulary of the same folder",
        ),
        (BYTES | GPT2 | {"merges.txt": "a c\n"}, r"merges\.txt, line 1: 'c' is not in the vocabulary"),
        (BYTES | GPT2 | {"merges.txt": "a b c\n"}, r"merges\.txt, line 1: 'a b c' is not a pair of tokens"),
        (BYTES | GPT2 | {"merges.txt": b"\xff\xfe"}, r"merges\.txt is not UTF-8 text \(byte 0\)"),
        (BYTES | GPT2 | {"vocab.json": {"a": "b"}}, r"vocab\.json is not a vocabulary: 'a' has the id 'b'; download"),
        (BYTES | GPT2 | {"vocab.json": {"a": True}}, r"vocab\.json is not a vocabulary: 'a' has the id 'True'"),
        (BYTES | GPT2 | {"vocab.json": {"a": -1}}, r"vocab\.json is not a vocabulary: 'a' has the id '-1'"),
        (BYTES | GPT2 | {"vocab.json": {}}, r"vocab\.json is not a vocabulary: it is empty"),
        (BYTES | GPT2 | {"vocab.json": ["a"]}, r"vocab\.json holds a list, not an object"),
        (BYTES | GPT2 | {"vocab.json": '{"a": 0,'}, r"broken JSON in .*vocab\.json:1: .*; save or download"),
        (BYTES | GPT2 | {"vocab.json": "[" * 100_000}, r"vocab\.json: .*nested more than 100 levels"),
        (BYTES | GPT2 | {"vocab.json": {"a": 0, "b": 0}}, r"vocab\.json gives 'a' and 'b' the same id, 0"),
        (
            BYTES | GPT2 | {"added_tokens.json": {"<x>": 9}},
            r"gives the added token '<x>' the id 9, .* its id is 3",
        ),
        (BYTES | GPT2 | {"added_tokens.json": {"<x>": "y"}}, r"added tokens of .* unknown form .*; save or download"),
        (BYTES | {"config.json": {"model_type": "roberta"}}, r"has no sep_token in its vocabulary"),
        (
            {"vocab.txt": "a", "tokenizer_config.json": {"cls_token": 5}},
            r"cls_token of .* is not a name: '5'; write it as",
        ),
        (
            {"vocab.txt": "a", "special_tokens_map.json": {"pad_token": {"lstrip": True}}},
            r"pad_token of .* is not a name: '0'",
        ),
        (
            {"vocab.txt": "a", "tokenizer_config.json": {"additional_special_tokens": [["<x>"]]}},
            r"a name among the additional_special_tokens of .* is not a name: ",
        ),
        ({"vocab.txt": "[CLS]\n"}, r"vocab\.txt lacks the unknown token '\[UNK\]'"),
        (
            BYTES | {"config.json": {"model_type": "openai-gpt"}},
            r"vocab\.json lacks the unknown token '<unk>'; download it again",
        ),
        ({"vocab.txt": ""}, r"vocab\.txt is empty; download it again"),
        (
            {"vocab.txt": "[UNK]\n", "tokenizer_config.json": {"do_lower_case": "x"}},
            r"cannot build a tokenizer from vocab\.txt",
        ),
    ],
)
def test_broken_tokenizers_are_errors_of_one_line(files: dict[str, Any], message: str, folder: Make) -> None:
    with pytest.raises(HeedfulError, match=message) as caught:
        Tokenizer.load(folder(files))
    assert "\n" not in str(caught.value)


def test_a_line_of_hashes_is_a_merge(folder: Make) -> None:
    files = {"vocab.json": {"#": 0, "##": 1}, "merges.txt": "# #\r\n"}
    assert Tokenizer.load(folder(files | GPT2)).encode(["##"]) == [[1]]


def test_odd_separators_are_tokens(folder: Make) -> None:
    words = folder({"vocab.txt": "[UNK]\r\n[CLS]\r\n[SEP]\r\n\u2028\r\nman"})
    assert Tokenizer.load(words).encode(["man"]) == [[4]]
