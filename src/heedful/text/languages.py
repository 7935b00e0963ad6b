"""Language tokens of multilingual translators: mBART (Liu et al. 2020), M2M-100 (Fan et al. 2021), NLLB-200.

Such a tokenizer puts the token of the text's language before the text, as mBART-50, M2M-100 and NLLB do, or after its
end token, as mBART-25 and NLLB's first tokenizers do. Its template says which: it holds the token of one language,
which another language's replaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heedful.text.post_processor import InputTemplate

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# "fr_XX" of mBART, "fra_Latn" of NLLB, "__fr__" of M2M-100, whose code is "fr"
TOKEN = re.compile(r"[a-z]{2}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__")


@dataclass(frozen=True)
class LanguageClass:
    """Class of tokenizers whose template follows from its settings, whatever its files say.

    ``source`` is the default source language; with ``after``, its token stands after the end token.
    """

    source: str
    after: bool = False


CLASSES = {
    "MBartTokenizer": LanguageClass("en_XX", after=True),
    "MBart50Tokenizer": LanguageClass("en_XX"),
    "M2M100Tokenizer": LanguageClass("en"),
    "NllbTokenizer": LanguageClass("eng_Latn"),
}


def language_ids(backend: Backend) -> dict[str, int]:
    """Returns code → id of the special tokens that name a language, such as "fr_XX", in the order of their ids."""
    tokens = sorted(backend.get_added_tokens_decoder().items())
    return {
        token.content.strip("_"): number for number, token in tokens if token.special and TOKEN.fullmatch(token.content)
    }


def in_language(template: InputTemplate, ids: Mapping[str, int], code: str) -> InputTemplate:
    """Returns a template with the token of the language ``code`` in the place of another's."""
    languages, own = set(ids.values()), ids[code]

    def changed(part: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(own if number in languages else number for number in part)

    return replace(template, before=changed(template.before), after=changed(template.after))


def without_language(template: InputTemplate, ids: Mapping[str, int]) -> InputTemplate:
    """Returns a template without language tokens; its segments are not for use."""
    languages = set(ids.values())

    def kept(part: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number for number in part if number not in languages)

    return replace(template, before=kept(template.before), after=kept(template.after))


def set_template(backend: Backend, token: str, end: str, after: bool) -> None:
    """Gives a tokenizer the template of a text in the language of ``token``, before the text or after its ``end``."""
    from tokenizers import processors

    single = ["$A", end, token] if after else [token, "$A", end]
    numbers = {name: backend.token_to_id(name) for name in (token, end)}
    special = [(name, number) for name, number in numbers.items() if number is not None]
    pair = [part for name in single for part in ([name, "$B"] if name == "$A" else [name])]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def apply_settings(backend: Backend, config: Mapping[str, Any]) -> None:
    """Sets the template that the settings of a multilingual class require, as ``transformers`` does at loading."""
    kind = CLASSES.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
    ids, end = language_ids(backend), config.get("eos_token")
    if kind is None or not ids or not isinstance(end, str) or backend.token_to_id(end) is None:
        return
    source = config.get("src_lang") if config.get("src_lang") in ids else kind.source
    if source in ids:
        after = kind.after or bool(config.get("legacy_behaviour"))
        set_template(backend, str(backend.id_to_token(ids[source])), end, after)
