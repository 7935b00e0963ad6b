"""SentencePiece files of T5, Llama, XLM-RoBERTa and others: `sentencepiece` finds the same pieces."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from odd_texts import LINES, ODD, here_and_saved, sentencepiece

from heedful.errors import HeedfulError
from heedful.text import Tokenizer

package = pytest.importorskip("sentencepiece")
form = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")

Make = Callable[[Mapping[str, Any]], Path]
T5 = {"config.json": {"model_type": "t5"}}
LLAMA = {"config.json": {"model_type": "llama"}}
MARIAN = {"config.json": {"model_type": "marian"}}


@cache
def t5(**options: Any) -> bytes:
    return sentencepiece(vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **options)


@cache
def llama(**options: Any) -> bytes:
    """As Llama's: nothing is normalised, spaces are kept, what has no piece is spelled in bytes."""
    kept = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    return sentencepiece(vocab_size=500, model_type="bpe", allow_whitespace_only_pieces=True, **kept, **options)


def processor(model: bytes) -> Any:
    return package.SentencePieceProcessor(model_proto=model)


def known(rows: list[list[int]], unknown: int) -> list[list[int]]:
    """Without what `sentencepiece` writes as ⁇ and we leave out."""
    return [[one for one in row if one != unknown] for row in rows]


def test_t5(folder: Make, tmp_path: Path) -> None:
    theirs, made = processor(t5()), folder(T5 | {"spiece.model": t5()})
    spelled = [text for text in ODD if 2 not in theirs.encode(text)]  # beside an unknown, its spaces are decoded anew
    ours = here_and_saved(made, tmp_path, [*spelled, "the <extra_id_0> man</s> <extra_id_99>"])
    rows = ours.encode(ODD)
    assert rows == theirs.encode(ODD)
    assert ours.decode(rows) == [theirs.decode(row) for row in known(rows, 2)]
    assert ours.vocab_size == len(theirs) + 100
    assert ours.encode(["<extra_id_99><extra_id_0>"]) == [[len(theirs), len(theirs) + 99]]
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (None, 1, 0, 2, None)
    assert ours.template().join([7]) == ([7, 1], [0, 0])
    assert ours.template(pair=True).join([7], [8]) == ([7, 1, 8, 1], [0, 0, 0, 0])


def test_the_number_of_extra_ids_is_read(folder: Make) -> None:
    told = {"tokenizer_config.json": {"extra_ids": 2}}
    ours, size = Tokenizer.load(folder(T5 | told | {"spiece.model": t5()})), len(processor(t5()))
    assert ours.pieces(range(size, size + 3)) == ["<extra_id_1>", "<extra_id_0>", ""]


@pytest.mark.parametrize("number", [-1, 10**12])
def test_extra_ids_past_reason(number: int, folder: Make) -> None:
    told = {"tokenizer_config.json": {"extra_ids": number}}
    with pytest.raises(HeedfulError, match=rf"extra_ids in .* is {number}; set it to a number from 0 to 100000"):
        Tokenizer.load(folder(T5 | told | {"spiece.model": t5()}))


def test_a_released_model(shared_data: Callable[[str], Path], folder: Make) -> None:
    raw = (shared_data("sentencepiece_test") / "test_model.model").read_bytes()
    theirs = processor(raw)
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "pad_token": None}
    ours = Tokenizer.load(folder({"spiece.model": raw, "tokenizer_config.json": config}))
    book = (shared_data("sentencepiece_test") / "botchan.txt").read_text(encoding="utf-8-sig").splitlines()
    texts = [*ODD, *book]
    assert ours.encode(texts) == theirs.encode(texts)
    assert ours.encode(["Hello world. This is a test."]) == [[151, 88, 21, 887, 6, 284, 47, 11, 4, 15, 400, 6]]
    assert ours.pad is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
        {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True},
        {"user_defined_symbols": "man,the"},
        {"split_by_whitespace": False},
        {"model_type": "bpe"},
    ],
    ids=str,
)
def test_options_of_a_sentencepiece_model(options: dict[str, Any], folder: Make) -> None:
    theirs = processor(t5(**options))
    ours = Tokenizer.load(folder(T5 | {"spiece.model": t5(**options), "tokenizer_config.json": {"extra_ids": 0}}))
    rows = ours.encode(ODD)
    assert rows == theirs.encode(ODD)
    assert ours.decode(rows) == [theirs.decode(row) for row in known(rows, 2)]


def test_llama(folder: Make, tmp_path: Path) -> None:
    theirs = processor(llama())
    made = folder(LLAMA | {"tokenizer.model": llama()})
    ours = Tokenizer.load(made)
    texts = [*ODD, " leading", "trailing ", "the  man"]
    rows = ours.encode(texts)
    assert rows == theirs.encode(texts)
    assert ours.decode(rows) == [theirs.decode(row) for row in rows]
    assert (ours.start, ours.end, ours.unknown, ours.pad) == (1, 2, 0, None)
    assert ours.vocab_size == len(theirs)
    assert ours.pieces(ours.encode(["\U0001f600"])[0]) == [" ", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert ours.pieces(ours.encode(["\n"])[0]) == [" ", "\n"]  # a byte, and a whole character
    transformers = pytest.importorskip("transformers")
    ours.save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again(texts)["input_ids"] == [[1, *row] for row in rows]
    assert Tokenizer.load(tmp_path / "saved").template() == ours.template()


@pytest.mark.parametrize(
    ("config", "single", "pair"),
    [
        ({}, [1, 7], ([1, 7, 1, 8], [0, 0, 1, 1])),
        ({"add_eos_token": True}, [1, 7, 2], ([1, 7, 2, 1, 8, 2], [0, 0, 0, 1, 1, 1])),
        ({"add_bos_token": False}, [7], ([7, 8], [0, 1])),
    ],
)
def test_special_tokens_around_a_text_for_llama(
    config: dict[str, Any], single: list[int], pair: Any, folder: Make
) -> None:
    transformers = pytest.importorskip("transformers")
    files = LLAMA | {"tokenizer.model": llama(), "tokenizer_config.json": config}
    ours = Tokenizer.load(folder(files))
    assert ours.template().join([7])[0] == single
    assert ours.template(pair=True).join([7], [8]) == pair
    files["tokenizer_config.json"] = {"add_bos_token": True, "tokenizer_class": "LlamaTokenizer"} | config
    theirs = transformers.AutoTokenizer.from_pretrained(folder(files))
    a, b = ours.encode(["the man", "a thesis"])
    assert theirs("the man")["input_ids"] == ours.template().join(a)[0]
    both = theirs("the man", "a thesis", return_token_type_ids=True)
    assert (both["input_ids"], both["token_type_ids"]) == ours.template(pair=True).join(a, b)


def test_a_space_after_a_special_token_is_llamas_older_way(folder: Make) -> None:
    files = LLAMA | {"tokenizer.model": llama()}
    older = Tokenizer.load(folder(files))
    newer = Tokenizer.load(folder(files | {"tokenizer_config.json": {"legacy": False}}))
    assert older.encode(LINES[:5]) == newer.encode(LINES[:5])
    assert older.pieces(older.encode(["a</s>a"])[0]) == [" a", "</s>", " a"]
    assert newer.pieces(newer.encode(["a</s>a"])[0]) == [" a", "</s>", "a"]


def test_xlm_roberta(folder: Make) -> None:
    raw = sentencepiece(vocab_size=300)
    theirs = processor(raw)
    files = {"sentencepiece.bpe.model": raw, "config.json": {"model_type": "xlm-roberta"}}
    ours = Tokenizer.load(folder(files))
    # fairseq's names take four ids where SentencePiece has three, its unknown being the fourth.
    assert ours.encode(ODD) == [[one + 1 if one else 3 for one in row] for row in theirs.encode(ODD)]
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (0, 2, 1, 3, len(theirs) + 1)
    assert ours.template(pair=True).join([7], [8]) == ([0, 7, 2, 2, 8, 2], [0] * 6)
    assert ours.pieces(ours.encode(["the man <mask>"])[0])[-1] == "<mask>"
    assert ours.pieces(ours.encode(["the man <mask>"])[0])[-2] != " "


def test_camembert(folder: Make) -> None:
    raw = sentencepiece(vocab_size=300)
    theirs = processor(raw)
    made = folder({"sentencepiece.bpe.model": raw, "config.json": {"model_type": "camembert"}})
    ours = Tokenizer.load(made)
    # five tokens stand before the file's pieces, of which its unknown token is left out
    assert ours.encode(ODD) == [[one + 4 if one else 3 for one in row] for row in theirs.encode(ODD)]
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (5, 6, 1, 3, len(theirs) + 4)
    assert ours.template(pair=True).join([7], [8]) == ([5, 7, 6, 6, 8, 6], [0] * 6)
    plain = pytest.importorskip("transformers").CamembertTokenizer.from_pretrained(made)
    words = ["the man is here .", "a thesis <mask>"]
    assert ours.encode(words) == plain(words, add_special_tokens=False)["input_ids"]


LANGUAGES = {
    "MBartTokenizer": ("mbart", "ro_RO", 25, True),
    "MBart50Tokenizer": ("mbart", "fr_XX", 52, False),
    "M2M100Tokenizer": ("m2m_100", "fr", 100, False),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_multilingual_translators(name: str, folder: Make, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model_type, language, count, after = LANGUAGES[name]
    listed = name == "M2M100Tokenizer"
    raw = sentencepiece(vocab_size=300, model_type="bpe" if listed else "unigram")
    theirs, config = processor(raw), {"tokenizer_class": name, "src_lang": language}
    files = {"sentencepiece.bpe.model": raw, "config.json": {"model_type": model_type}, "tokenizer_config.json": config}
    names = ["<s>", "<pad>", "</s>", "<unk>", *(theirs.id_to_piece(n) for n in range(3, len(theirs)))]
    if listed:
        files["vocab.json"] = {name: number for number, name in enumerate(names)}
    made = folder(files)
    ours = Tokenizer.load(made)
    ids = [[one + 1 if one else 3 for one in row] for row in theirs.encode(ODD)]
    assert ours.encode(ODD) == ids
    assert len(ours.languages) == count
    assert ours.languages[language] == len(names) + [*ours.languages].index(language)
    assert ours.vocab_size == len(names) + count + (not listed)
    own = ours.languages[language]
    assert ours.template().join([7])[0] == ([7, 2, own] if after else [own, 7, 2])
    words = ["the man is here .", "the man"]
    if name != "MBartTokenizer":  # theirs reads this file without its ids
        their_class = getattr(transformers, name).from_pretrained(made)
        rows = their_class(words)["input_ids"]
        assert [ours.template().join(row)[0] for row in ours.encode(words)] == rows
        assert listed or ours.decode(rows) == [their_class.decode(row, skip_special_tokens=True) for row in rows]
    ours.save(tmp_path)
    again, saved = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.languages == ours.languages
    assert again.template() == ours.template()
    assert saved(words)["input_ids"] == [ours.template().join(row)[0] for row in ours.encode(words)]


def test_languages_of_another_list_are_refused(folder: Make) -> None:
    files = {"sentencepiece.bpe.model": t5(), "vocab.json": {"<unk>": 0}, "config.json": {"model_type": "m2m_100"}}
    with pytest.raises(HeedfulError, match=r"language_codes 'wmt21' .* only 'm2m100' is supported"):
        Tokenizer.load(folder(files | {"tokenizer_config.json": {"language_codes": "wmt21"}}))


def test_pegasus(folder: Make, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    raw = sentencepiece(vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    theirs, made = processor(raw), folder({"spiece.model": raw, "config.json": {"model_type": "pegasus"}})
    ours = Tokenizer.load(made)
    assert ours.encode(ODD) == [[one + 103 for one in row] for row in theirs.encode(ODD)]
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (None, 1, 0, 105, 3)
    assert ours.encode(["<mask_1><mask_2><unk_2><unk_102>"]) == [[2, 3, 4, 104]]
    assert ours.vocab_size == len(theirs) + 103
    assert ours.template(pair=True).join([7], [8]) == ([7, 8, 1], [0, 0, 0])
    words = ["the man is here .", "the man"]
    rows = transformers.PegasusTokenizer.from_pretrained(made)(words)["input_ids"]
    assert [ours.template().join(row)[0] for row in ours.encode(words)] == rows
    ours.save(tmp_path)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(words)["input_ids"] == rows
    with pytest.raises(HeedfulError, match=r"offset in tokenizer_config.json of .* is 0; set it to 103"):
        Tokenizer.load(
            folder(
                {"spiece.model": raw, "config.json": {"model_type": "pegasus"}, "tokenizer_config.json": {"offset": 0}}
            )
        )


@pytest.mark.parametrize("lowercase", [False, True])
def test_deberta(lowercase: bool, folder: Make, tmp_path: Path) -> None:
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    raw = sentencepiece(vocab_size=300, pad_id=0, bos_id=1, eos_id=2, unk_id=3, **names)
    theirs = processor(raw)
    files = {"spm.model": raw, "config.json": {"model_type": "deberta-v2"}}
    files |= {"tokenizer_config.json": {"do_lower_case": lowercase, "vocab_type": "spm"}}
    texts = ["the man is here .", "The Man"]
    ours = here_and_saved(folder(files), tmp_path, texts)
    if lowercase:
        assert ours.encode(texts) == theirs.encode([text.lower() for text in texts])
        return
    assert ours.encode(ODD) == theirs.encode(ODD)
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (1, 2, 0, 3, len(theirs))
    assert ours.template(pair=True).join([7], [8]) == ([1, 7, 2, 8, 2], [0, 0, 0, 1, 1])
    assert ours.pieces(ours.encode(["the man[MASK]"])[0])[-1] == "[MASK]"


XLNET = {"<sep>": 4, "<cls>": 3, "<pad>": 5, "<mask>": 6}


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"keep_accents": True}], ids=str)
def test_xlnet(settings: dict[str, Any], folder: Make, tmp_path: Path) -> None:
    """Against `sentencepiece` after XLNet's own preparation of a text, and `transformers` without its settings."""
    names = ",".join(sorted(XLNET, key=XLNET.__getitem__))
    raw = sentencepiece(vocab_size=300, unk_id=0, bos_id=1, eos_id=2, control_symbols=names)
    theirs = processor(raw)
    files = {"spiece.model": raw, "config.json": {"model_type": "xlnet"}, "tokenizer_config.json": settings}
    texts = [*ODD, "``the man'' is here .", "Thé Mañ"]

    def prepared(text: str) -> str:
        text = text.replace("``", '"').replace("''", '"')
        if not settings.get("keep_accents"):
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if unicodedata.category(c) != "Mn")
        return text.lower() if settings.get("do_lower_case") else text

    ours = here_and_saved(folder(files), tmp_path, ["the man is here ."])
    assert ours.encode(texts) == theirs.encode([prepared(text) for text in texts])
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (1, 2, 5, 0, 6)
    assert ours.template().join([7]) == ([7, 4, 3], [0, 0, 2])
    assert ours.template(pair=True).join([7], [8]) == ([7, 4, 8, 4, 3], [0, 0, 1, 1, 2])
    assert ours.pieces(ours.encode(["the man <mask>"])[0])[-1] == "<mask>"
    transformers = pytest.importorskip("transformers")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    batch = saved([("the man", "is"), ("the man is here", "the")], padding=True)
    assert batch["input_ids"][0][0] == 5  # pads on the left, as the class token is the last
    assert batch["token_type_ids"][1] == ours.template(pair=True).join(*ours.encode(["the man is here", "the"]))[1]
    if not settings:
        plain = transformers.XLNetTokenizer.from_pretrained(folder(files))
        words = ["the man is here .", "``the man'' is", "Thé man"]
        assert ours.encode(words) == plain(words, add_special_tokens=False)["input_ids"]


ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "pad_piece": "<pad>", "bos_piece": "[CLS]"}


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"keep_accents": True}], ids=str)
def test_albert(settings: dict[str, Any], folder: Make, tmp_path: Path) -> None:
    raw = sentencepiece(vocab_size=300, eos_piece="[SEP]", control_symbols="[MASK]", **ALBERT)
    made = folder({"spiece.model": raw, "config.json": {"model_type": "albert"}, "tokenizer_config.json": settings})
    ours = here_and_saved(made, tmp_path, ["the man is here ."])
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (2, 3, 0, 1, 4)
    assert ours.template(pair=True).join([7], [8]) == ([2, 7, 3, 8, 3], [0, 0, 0, 1, 1])
    assert ours.pieces(ours.encode(["the man [MASK]"])[0])[-2:] == ["an", "[MASK]"]  # which takes the space before it
    words = ["the man is here .", "``The man'' is", "Thé Man"]
    plain = pytest.importorskip("transformers").AlbertTokenizer.from_pretrained(made)
    assert ours.encode(words) == plain(words, add_special_tokens=False)["input_ids"]


def test_xlnet_without_removing_spaces_is_refused(folder: Make) -> None:
    files = {"spiece.model": t5(), "config.json": {"model_type": "xlnet"}}
    with pytest.raises(HeedfulError, match="remove_space false"):
        Tokenizer.load(folder(files | {"tokenizer_config.json": {"remove_space": False}}))


def test_deberta_split_at_punctuation_is_refused(folder: Make) -> None:
    files = {"spm.model": t5(), "config.json": {"model_type": "deberta-v2"}}
    with pytest.raises(HeedfulError, match=r"split_by_punct .* save the folder's fast tokenizer"):
        Tokenizer.load(folder(files | {"tokenizer_config.json": {"split_by_punct": True}}))


def sides() -> tuple[bytes, bytes, dict[str, int]]:
    """A source and a target model and the vocabulary they share, in an order of its own, a language's name in it."""
    source = sentencepiece([line for line in LINES if "the" in line], vocab_size=120, character_coverage=1.0)
    target = sentencepiece([line for line in LINES if "the" not in line], vocab_size=110, character_coverage=1.0)
    texts = {one.id_to_piece(n) for one in map(processor, (source, target)) for n in range(len(one))}
    names = ["</s>", "<unk>", *sorted(texts - {"</s>", "<s>", "<unk>"}), ">>fra<<", "<pad>"]
    return source, target, {name: number for number, name in enumerate(names)}


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("separate", [False, True])
def test_marian(separate: bool, folder: Make, tmp_path: Path) -> None:
    source, target, ids = sides()
    files = {"source.spm": source, "target.spm": target, "vocab.json": ids} | MARIAN
    if separate:
        other = {name: len(ids) - 1 - number for name, number in ids.items()}
        files |= {"target_vocab.json": other, "tokenizer_config.json": {"separate_vocabs": True}}
    made = folder(files)
    ours, theirs_side = Tokenizer.load(made), Tokenizer.load(made, "tokenizer.target")
    for side, raw in ((ours, source), (theirs_side, target)):
        of_side, table = processor(raw), other if separate and raw is target else ids
        pieces = [of_side.encode(text, out_type=str) for text in ODD]
        expected = [[table.get(piece, table["<unk>"]) for piece in row] for row in pieces]
        assert side.encode(ODD) == expected
        spelled = [row for row in of_side.encode(ODD) if of_side.unk_id() not in row]
        told = [[table[of_side.id_to_piece(one)] for one in row] for row in spelled]
        assert side.decode(told) == [of_side.decode(row) for row in spelled]
        assert side.unknown == table["<unk>"]
    texts = [*ODD, ">>fra<< the man", "the man</s>", "naïve théâtre geöffnet"]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.MarianTokenizer.from_pretrained(made)
    assert [ours.template().join(row)[0] for row in ours.encode(texts)] == [theirs(text)["input_ids"] for text in texts]
    rows = [theirs_side.template().join(row)[0] for row in theirs_side.encode(LINES[:5])]
    if not separate:  # one vocabulary: either side decodes what the other has encoded
        assert theirs_side.decode(rows) == [theirs.decode(row, skip_special_tokens=True) for row in rows]
        assert ours.decode(rows) == theirs_side.decode(rows)
        assert "".join(ours.pieces(rows[-1][:-1])) == "".join(theirs_side.pieces(rows[-1][:-1]))
    end, unknown, pad = (theirs.convert_tokens_to_ids(name) for name in ("</s>", "<unk>", "<pad>"))
    assert (ours.end, ours.unknown, ours.pad, ours.start) == (end, unknown, pad, None)
    assert ours.config["model_max_length"] == 512

    ours.save(tmp_path / "saved")
    theirs_side.save(tmp_path / "saved", "tokenizer.target")
    for name, whole in (("tokenizer", ours), ("tokenizer.target", theirs_side)):
        again = Tokenizer.load(tmp_path / "saved", name)
        assert again.encode(texts) == whole.encode(texts)
        assert again.decode(rows) == whole.decode(rows)
        assert (again.end, again.pad, again.template()) == (whole.end, whole.pad, whole.template())
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert opened(texts)["input_ids"] == [ours.template().join(row)[0] for row in ours.encode(texts)]


def test_of_the_other_side_only_what_no_piece_spells_comes_out(folder: Make) -> None:
    """Not even where a text has such a piece in full, and it would be the better cut."""
    source, target, ids = sides()
    made = folder({"source.spm": source, "target.spm": target, "vocab.json": ids} | MARIAN)
    assert Tokenizer.has_files(made, "tokenizer.target")
    for side, raw in (("tokenizer", source), ("tokenizer.target", target)):
        of_side, tokenizer = processor(raw), Tokenizer.load(made, side)
        own = {of_side.id_to_piece(n) for n in range(len(of_side))}
        foreign = {name: number for name, number in ids.items() if name not in own | {">>fra<<", "<pad>"}}
        apart = {number for name, number in foreign.items() if not own.intersection(name)}
        assert apart
        assert len(foreign) > len(apart)
        texts = [
            f"{before}{name}{after}".replace("▁", " ")
            for name in foreign
            for before in ("", "a")
            for after in ("", "e\uffff")
        ]
        found = {one for row in tokenizer.encode(texts) for one in row}
        assert found.intersection(foreign.values()) == apart
        joined = "".join(name for name, number in foreign.items() if number in apart)  # no piece of its own
        assert tokenizer.encode([joined])[0][-1] == tokenizer.unknown or len(apart) == 1


def test_marian_with_one_model_and_pieces_that_the_vocabulary_lacks(folder: Make) -> None:
    source, _, ids = sides()
    del ids["▁the"]
    ids = {name: number for number, name in enumerate(ids)}
    made = folder({"source.spm": source, "vocab.json": ids} | MARIAN)
    assert not Tokenizer.has_files(made, "tokenizer.target")
    with pytest.raises(HeedfulError, match=r"no tokenizer\.target\.json in "):
        Tokenizer.load(made, "tokenizer.target")
    ours = Tokenizer.load(made)
    assert ours.decode(ours.encode(["the man"])) == ["the man"]


def told(folder: Path) -> list[list[int]] | str:
    """The ids of the odd texts, or else the error."""
    try:
        return Tokenizer.load(folder).encode(ODD)
    except HeedfulError as error:
        return str(error)


def test_every_cut_of_a_model_is_an_error_or_the_model(folder: Make) -> None:
    whole = t5()
    made = folder(T5 | {"spiece.model": whole})
    expected, refused = told(made), 0
    assert len(expected) == len(ODD)
    for length in [*range(0, 200, 9), *range(200, len(whole), len(whole) // 40)]:
        (made / "spiece.model").write_bytes(whole[:length])
        found = told(made)
        refused += isinstance(found, str)
        assert found == expected or re.fullmatch(r".*spiece\.model (is not|\().+", str(found))
    assert refused > 55


def _changed(raw: bytes, change: Callable[[Any], None]) -> bytes:
    model = form.ModelProto()
    model.ParseFromString(raw)
    change(model)
    return bytes(model.SerializeToString())


def _set(path: str, value: Any) -> Callable[[Any], None]:
    part, _, name = path.partition(".")
    return lambda model: setattr(getattr(model, part), name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _set("trainer_spec.model_type", 3),
            r"spiece\.model has the algorithm 'word', which is not supported; use a model with unigram or bpe",
        ),
        (_set("trainer_spec.treat_whitespace_as_suffix", True), r"does not mark the space before a word by ▁"),
        (_set("normalizer_spec.escape_whitespaces", False), r"does not mark the space before a word by ▁"),
        (
            _set("normalizer_spec.precompiled_charsmap", b"\0" * 3),
            r"cannot build a tokenizer from spiece\.model \(.*charsmap",
        ),
        (
            _set("normalizer_spec.precompiled_charsmap", b"\xff" * 9),
            r"spiece\.model: precompiled_charsmap has 9 bytes, but says that its table has 4,294,967,295; save",
        ),
        (
            lambda model: setattr(model.pieces[9], "piece", "a" * 5000),
            r"spiece\.model: a piece of vocab has 5,000 characters; at most 4,096 are supported",
        ),
        (lambda model: model.pieces.__delitem__(2), r"the vocabulary has no unknown token"),
    ],
)
def test_models_that_are_not_read(change: Callable[[Any], None], message: str, folder: Make) -> None:
    with pytest.raises(HeedfulError, match=message) as caught:
        Tokenizer.load(folder(T5 | {"spiece.model": _changed(t5(), change)}))
    assert "\n" not in str(caught.value)


def _lack(ids: dict[str, int], *names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(name for name in ids if name not in names)}


def test_marian_files_that_do_not_fit(folder: Make) -> None:
    source, target, ids = sides()
    files: dict[str, Any] = {"source.spm": source, "target.spm": target, "vocab.json": ids} | MARIAN
    for changed, side, message in [
        ({"vocab.json": _lack(ids, "<unk>")}, "tokenizer", r"vocab\.json lacks the unknown token"),
        ({"vocab.json": _lack(ids, "</s>")}, "tokenizer", r"has no eos_token in its vocabulary"),
        ({"vocab.json": ids | {"x": 9999}}, "tokenizer", r"vocab\.json has \d+ tokens, but the id 9999"),
        ({"source.spm": b"{}"}, "tokenizer", r"source\.spm is not a SentencePiece model"),
        ({"target.spm": b""}, "tokenizer.target", r"target\.spm is not a complete SentencePiece model"),
        (
            {"tokenizer_config.json": {"separate_vocabs": True}},
            "tokenizer.target",
            r"cannot read .*target_vocab\.json: No such file",
        ),
    ]:
        with pytest.raises(HeedfulError, match=message) as caught:
            Tokenizer.load(folder(files | changed), side)
        assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(HeedfulError, match=r"pip install 'heedful\[sentencepiece\]'$") as caught:
        Tokenizer.load(folder(T5 | {"spiece.model": b""}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'runtime_version' from 'google.protobuf'"),  # protobuf 4
        RuntimeError("Detected mismatched Protobuf versions:\ngencode 7.36.1 runtime 5.29.5"),  # 5 and 6
    ],
    ids=["no runtime version", "mismatch"],
)
def test_packages_that_do_not_fit_each_other_are_named(
    error: Exception, folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sentencepiece does not tell pip which protobuf its generated code needs, and each protobuf refuses otherwise."""

    def refuse(name: str) -> None:
        raise error

    monkeypatch.setattr("heedful.text.sentencepiece.import_module", refuse)
    with pytest.raises(HeedfulError, match=r"pip install --upgrade sentencepiece protobuf$") as caught:
        Tokenizer.load(folder(T5 | {"spiece.model": b""}))
    assert "\n" not in str(caught.value)
