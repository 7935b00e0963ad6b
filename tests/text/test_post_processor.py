"""Tokens around a text: those that the library itself puts there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from heedful.errors import HeedfulError
from heedful.text import InputTemplate, Tokenizer
from heedful.text.post_processor import read_input_template

WORDS = {"<s>": 0, "</s>": 1, "<x>": 2, "one": 3, "two": 4, "three": 5}
START, END = ("<s>", 0), ("</s>", 1)


def tokenizer(post_processor: Any) -> Tokenizer:
    backend = Backend(models.WordLevel(WORDS, unk_token="<x>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if post_processor is not None:
        backend.post_processor = post_processor
    return Tokenizer(backend, {"bos_token": "<s>", "mask_token": "<x>"})


def template(single: str, pair: str) -> Any:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[START, END, ("<x>", 2)])


@pytest.mark.parametrize(
    "post_processor",
    [
        None,
        processors.ByteLevel(trim_offsets=False),
        processors.BertProcessing(END, START),
        processors.RobertaProcessing(END, START),
        template("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
        template("$A </s>", "$A $B </s>"),
        template("<s> $A", "<s> $A <s>:1 $B:1"),
        template("<s>:3 <x> $A:2 </s>:1 </s>", "<x>:1 $A:2 </s> </s>:1 $B <x>:4"),
        template("$0", "$A $B:1"),
        processors.Sequence([processors.ByteLevel(), template("<s> $A </s>", "<s> $A </s> </s> $B </s>")]),
        processors.Sequence([processors.ByteLevel()]),
        processors.TemplateProcessing(
            single="both $A",
            pair="both $A both:1 $B:1",
            special_tokens=[{"id": "both", "ids": [0, 2], "tokens": ["<s>", "<x>"]}],
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_as_the_library_puts_them(post_processor: Any) -> None:
    ours = tokenizer(post_processor)
    for first, second in [("one", "two three"), ("one two three", "one"), ("", "one"), ("two", "")]:
        a, b = ours.encode([first, second])
        alone, pair = ours.backend.encode(first), ours.backend.encode(first, second)
        assert ours.template().join(a) == (alone.ids, alone.type_ids)
        assert ours.template(pair=True).join(a, b) == (pair.ids, pair.type_ids)
        assert ours.template().added == len(alone.ids) - len(a)
        assert ours.template(pair=True).added == len(pair.ids) - len(a) - len(b)


def test_the_template_of_a_trained_tokenizer() -> None:
    trained = Tokenizer.train(["a text", "its pair"], 300, template="both")
    assert trained.template() == InputTemplate((1,), (), (2,), ((0,), 0, (), 0, (0,)))
    assert trained.template(pair=True) == InputTemplate((1,), (2,), (2,), ((0,), 0, (0,), 1, (1,)))
    assert Tokenizer.train(["a text"], 300, template="none").template().added == 0
    assert (trained.mask, tokenizer(None).mask, tokenizer(None).start) == (None, 2, 0)


@pytest.mark.parametrize(
    ("post_processor", "message"),
    [
        (template("$A", "$B $A"), r"'BA', not A or AB; change the template"),
        (template("$A", "$A $A $B"), r"'AAB', not A or AB"),
        (
            processors.Sequence([processors.BertProcessing(END, START)] * 2),
            r"has 2 templates in sequence; write a single template in tokenizer.json",
        ),
    ],
)
def test_unclear_templates_are_refused(post_processor: Any, message: str) -> None:
    with pytest.raises(HeedfulError, match=message) as caught:
        tokenizer(post_processor).template(pair=True)
    assert "\n" not in str(caught.value)


def test_published_ones(shared_data: Any) -> None:
    bert = Tokenizer.load(shared_data("weights/minilm-l6"))
    assert bert.template(pair=True).join([7], [8, 9]) == ([101, 7, 102, 8, 9, 102], [0, 0, 0, 1, 1, 1])
    assert Tokenizer.load(shared_data("weights/stories15M")).template() == InputTemplate(
        (1,), (), (), ((0,), 0, (), 0, ())
    )


def test_a_template_that_names_an_absent_token_is_one_line() -> None:
    class Processor:
        def __getstate__(self) -> bytes:
            piece = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
            part = {"type": "TemplateProcessing", "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}]}
            return json.dumps(part | {"pair": [], "special_tokens": {}}).encode()

    with pytest.raises(HeedfulError, match=r"tokenizer\.json names the token '\[CLS\]'"):
        read_input_template(Processor(), pair=False)


@pytest.mark.parametrize(("told", "encoded"), [(None, False), (True, True)])
def test_special_tokens_split_by_null_and_by_words(told: Any, encoded: bool) -> None:
    backend = Tokenizer.train(["some text"], size=300).backend
    assert Tokenizer(backend, {"split_special_tokens": told}).backend.encode_special_tokens is encoded
    with pytest.raises(HeedfulError, match=r"split_special_tokens of tokenizer_config.json is 'yes'"):
        Tokenizer(backend, {"split_special_tokens": "yes"})
