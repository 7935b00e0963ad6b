"""Table of published tokenizer types: files, special tokens and templates. Data only.

The names are those of the released models (Radford et al. 2018; Radford et al. 2019; Liu et al. 2019; Lewis et al.
2020; Devlin et al. 2019; Sanh et al. 2019; Raffel et al. 2020; Touvron et al. 2023; Conneau et al. 2020; Martin et al.
2020; Junczys-Dowmunt et al. 2018; He et al. 2021; Yang et al. 2019; Lan et al. 2020; Song et al. 2020; Zhang et al.
2022; Liu et al. 2020; Tang et al. 2020; Fan et al. 2021; Zhang et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Layout = Literal[
    "byte-level",
    "words",
    "wordpiece",
    "pieces",
    "cased-pieces",
    "unaccented-pieces",
    "shifted-pieces",
    "fairseq",
    "fairseq-beside",
    "two-sided",
    "listed",
]
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, kw_only=True)
class TokenizerType:
    """Tokenizer of a published model type: its older files, special tokens and templates.

    - ``files``: the older files, alternatives in order of preference; all files of an alternative are needed
    - ``layout``: the reader of these files (``READERS`` in ``legacy_files.py``)
    - ``special``: role → name of the special tokens
    - ``single``, ``pair``: templates of a text and a pair, with roles for special tokens
    - ``defaults``: entries of ``tokenizer_config.json`` that apply if the file lacks them
    """

    files: tuple[tuple[str, ...], ...]
    layout: Layout
    special: Mapping[str, Any]
    single: str = "$A"
    pair: str = "$A $B:1"
    defaults: Mapping[str, Any]


TEXT = ["input_ids", "attention_mask"]
SEGMENTS = ["input_ids", "token_type_ids", "attention_mask"]

_GPT2 = TokenizerType(
    files=(("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")),
    layout="byte-level",
    special={"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    defaults={"model_input_names": TEXT, "add_bos_token": False, "add_eos_token": False},
)
_GPT = TokenizerType(
    files=(("vocab.json", "merges.txt"),),
    layout="words",
    special={"unk_token": "<unk>"},
    defaults={"model_input_names": TEXT},
)
_FAIRSEQ_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": {"content": "<mask>", "lstrip": True},  # the space before it is part of it
}
_ROBERTA = TokenizerType(
    files=(("vocab.json", "merges.txt"),),
    layout="byte-level",
    special=_FAIRSEQ_NAMES,
    single="{cls_token} $A {sep_token}",
    pair="{cls_token} $A {sep_token} {sep_token} $B {sep_token}",
    defaults={"model_input_names": TEXT, "trim_offsets": True},
)
_XLM_ROBERTA = TokenizerType(
    files=(("sentencepiece.bpe.model",),),
    layout="fairseq",
    special=_FAIRSEQ_NAMES,
    single=_ROBERTA.single,
    pair=_ROBERTA.pair,
    defaults={"model_input_names": TEXT},
)
_CAMEMBERT = replace(_XLM_ROBERTA, layout="fairseq-beside")


def _bert(inputs: list[str]) -> TokenizerType:
    return TokenizerType(
        files=(("vocab.txt",),),
        layout="wordpiece",
        special={
            "unk_token": "[UNK]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
        },
        single="{cls_token} $A {sep_token}",
        pair="{cls_token} $A {sep_token} $B:1 {sep_token}:1",
        defaults={
            "model_input_names": inputs,
            "do_lower_case": True,
            "tokenize_chinese_chars": True,
            "strip_accents": None,
        },
    )


_MPNET = replace(
    _bert(TEXT),
    special={**_FAIRSEQ_NAMES, "unk_token": "[UNK]"},
    single=_ROBERTA.single,
    pair=_ROBERTA.pair,
)
_DEBERTA = TokenizerType(
    files=(("spm.model",),),
    layout="cased-pieces",
    special={**_bert(SEGMENTS).special, "bos_token": "[CLS]", "eos_token": "[SEP]"},
    single=_bert(SEGMENTS).single,
    pair=_bert(SEGMENTS).pair,
    defaults={"model_input_names": SEGMENTS, "do_lower_case": False, "split_by_punct": False},
)
_DEBERTA_V1 = replace(
    _DEBERTA,
    files=_ROBERTA.files,
    layout="byte-level",
    special={**_DEBERTA.special, "mask_token": {"content": "[MASK]", "lstrip": True}},
    defaults={"model_input_names": SEGMENTS},
)
_XLNET = TokenizerType(
    files=(("spiece.model",),),
    layout="unaccented-pieces",
    special={
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "<sep>",
        "pad_token": "<pad>",
        "cls_token": "<cls>",
        "mask_token": {"content": "<mask>", "lstrip": True},
    },
    single="$A {sep_token} {cls_token}:2",
    pair="$A {sep_token} $B:1 {sep_token}:1 {cls_token}:2",
    defaults={
        "model_input_names": SEGMENTS,
        "padding_side": "left",
        "do_lower_case": False,
        "remove_space": True,
        "keep_accents": False,
    },
)
_ALBERT = TokenizerType(
    files=_XLNET.files,
    layout=_XLNET.layout,
    special={
        **_DEBERTA.special,
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": {"content": "[MASK]", "lstrip": True},
    },
    single=_DEBERTA.single,
    pair=_DEBERTA.pair,
    defaults={"model_input_names": SEGMENTS, "do_lower_case": True, "remove_space": True, "keep_accents": False},
)
_T5 = TokenizerType(
    files=(("spiece.model",),),
    layout="pieces",
    special={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    single="$A {eos_token}",
    pair="$A {eos_token} $B {eos_token}",
    defaults={"model_input_names": TEXT, "extra_ids": 100},
)
_LLAMA = TokenizerType(
    files=(("tokenizer.model",),),
    layout="pieces",
    special={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    defaults={"model_input_names": TEXT, "add_bos_token": True, "add_eos_token": False, "legacy": True},
)
_MARIAN = TokenizerType(
    files=(("source.spm", "vocab.json"),),
    layout="two-sided",
    special={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    single="$A {eos_token}",
    pair="$A $B {eos_token}",
    defaults={"model_input_names": TEXT, "model_max_length": 512, "separate_vocabs": False},
)

_MBART_25 = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP "
    "nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN "
)
_MORE_OF_MBART_50 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE "
    "ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI "
)
_M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht "
    "hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
    "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu "
)


def _multilingual(base: TokenizerType, name: str, languages: Sequence[str], **changes: Any) -> TokenizerType:
    """Returns the type of the class ``name``, whose template names a language (``heedful.text.languages``)."""
    single, defaults = "$A", {**base.defaults, "languages": languages, "language_class": name}
    return replace(base, single=single, defaults=defaults, **changes)


_PEGASUS = TokenizerType(
    files=(("spiece.model",),),
    layout="shifted-pieces",
    special={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask_2>"},
    single="$A {eos_token}",
    pair="$A $B {eos_token}",
    defaults={"model_input_names": TEXT, "offset": 103, "mask_token_sent": "<mask_1>"},
)

# By the `model_type` of config.json.
TOKENIZER_TYPES = {
    "gpt2": _GPT2,
    "openai-gpt": _GPT,
    "opt": _GPT2,
    "roberta": _ROBERTA,
    "bart": _ROBERTA,
    "bert": _bert(SEGMENTS),
    "distilbert": _bert(TEXT),
    "electra": _bert(SEGMENTS),
    "mpnet": _MPNET,
    "t5": _T5,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "marian": _MARIAN,
    "xlm-roberta": _XLM_ROBERTA,
    "camembert": _CAMEMBERT,
    "deberta": _DEBERTA_V1,
    "deberta-v2": _DEBERTA,
    "xlnet": _XLNET,
    "albert": _ALBERT,
    "mbart": _multilingual(_XLM_ROBERTA, "MBartTokenizer", _MBART_25.split()),
    "mbart50": _multilingual(_XLM_ROBERTA, "MBart50Tokenizer", [*_MBART_25.split(), *_MORE_OF_MBART_50.split()]),
    "m2m_100": _multilingual(
        _XLM_ROBERTA,
        "M2M100Tokenizer",
        [f"__{code}__" for code in _M2M_100.split()],
        files=(("vocab.json", "sentencepiece.bpe.model"),),
        layout="listed",
        special={role: name for role, name in _FAIRSEQ_NAMES.items() if role not in ("cls_token", "mask_token")},
    ),
    "pegasus": _PEGASUS,
    "mt5": _T5,
}
# By the `tokenizer_class` of either file, with or without "Fast". It takes precedence over the model type.
CLASSES = {
    "GPT2Tokenizer": "gpt2",
    "OpenAIGPTTokenizer": "openai-gpt",
    "RobertaTokenizer": "roberta",
    "BartTokenizer": "bart",
    "BertTokenizer": "bert",
    "DistilBertTokenizer": "distilbert",
    "ElectraTokenizer": "electra",
    "MPNetTokenizer": "mpnet",
    "T5Tokenizer": "t5",
    "LlamaTokenizer": "llama",
    "MarianTokenizer": "marian",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "DebertaTokenizer": "deberta",
    "DebertaV2Tokenizer": "deberta-v2",
    "XLNetTokenizer": "xlnet",
    "AlbertTokenizer": "albert",
    "MBartTokenizer": "mbart",
    "MBart50Tokenizer": "mbart50",
    "M2M100Tokenizer": "m2m_100",
    "PegasusTokenizer": "pegasus",
    "MT5Tokenizer": "mt5",
}
# Classes that name no type.
GENERIC_CLASSES = {"PreTrainedTokenizer", "PythonBackend", "TokenizersBackend", "SentencePieceBackend"}
# By files that only one type has, for folders with neither.
TYPES_OF_FILES = {
    "encoder.json": "gpt2",
    "vocab.txt": "bert",
    "spiece.model": "t5",
    "tokenizer.model": "llama",
    "source.spm": "marian",
    "sentencepiece.bpe.model": "xlm-roberta",
    "spm.model": "deberta-v2",
}
