"""RoBERTa (Liu et al. 2019), XLM-RoBERTa and CamemBERT: BERT's body, positions from row 2 on, and other heads."""

from __future__ import annotations

from dataclasses import replace

from heedful.pretrained.config_keys import (
    AnyConfigKey,
    ConfigKey,
    StoredTensor,
    TokenIdKey,
    encoder_layer_keys,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType, rename_architectures
from heedful.pretrained.model_types.bert import BERT, DROP_POOLER, LABEL_KEYS
from heedful.pretrained.rules import Drop, Rename, Tie
from heedful.pretrained.special_config_keys import PositionRowsKey

CONFIG_KEYS: tuple[AnyConfigKey, ...] = (
    ConfigKey("type_vocab_size", "embedding.segments", 2),
    *encoder_layer_keys(768, 12, 12, 3072, 1e-12),
    TokenIdKey("bos_token_id", "special.start", 0),
    TokenIdKey("eos_token_id", "special.end", 2, several=True),
    TokenIdKey("pad_token_id", "special.pad", 1, required=True),
    PositionRowsKey(),
    *required_values(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False),
)
ARCHITECTURES = (
    Architecture(
        name="RobertaModel",
        fixed={"head.kind": "no-head"},
        config_keys=(StoredTensor("pooler.dense.weight", "head.pooler", False),),
        prefix="",
    ),
    Architecture(
        name="RobertaForMaskedLM",
        fixed={"head.kind": "masked-language-model", "head.activation": "gelu"},
        config_keys=(
            *required_values(tie_word_embeddings=True),  # untied, the class has a bias that it does not use
            ConfigKey("layer_norm_eps", "head.norm_eps", 1e-12),
        ),
        rules=(
            DROP_POOLER,
            Drop("lm_head.position_ids"),
            Rename("lm_head.dense.{p}", "head.dense.{p}"),
            Rename("lm_head.layer_norm.{p}", "head.norm.{p}"),
            Rename("lm_head.decoder.weight", "head.output.weight"),
            Tie(("lm_head.bias", "lm_head.decoder.bias"), "head.output.bias"),
        ),
    ),
    Architecture(
        name="RobertaForSequenceClassification",
        fixed={"head.kind": "sequence", "head.pooling": "first", "head.pooler": True, "head.bias": True},
        config_keys=LABEL_KEYS,
        rules=(
            DROP_POOLER,
            Rename("classifier.dense.{p}", "head.pooler.dense.{p}"),
            Rename("classifier.out_proj.{p}", "head.output.{p}"),
        ),
    ),
    Architecture(
        name="RobertaForTokenClassification",
        fixed={"head.kind": "token"},
        config_keys=LABEL_KEYS,
        rules=(DROP_POOLER, Rename("classifier.{p}", "head.output.{p}")),
    ),
    Architecture(
        name="RobertaForQuestionAnswering",
        fixed={"head.kind": "span"},
        rules=(DROP_POOLER, Rename("qa_outputs.{p}", "head.output.{p}")),
    ),
)

ROBERTA = ModelType(
    name="roberta",
    prefix="roberta.",
    old_names=BERT.old_names,
    fixed=BERT.fixed,
    config_keys=(ConfigKey("vocab_size", "embedding.vocab_size", 50265), *CONFIG_KEYS),
    rules=BERT.rules,
    architectures=ARCHITECTURES,
)
XLM_ROBERTA = ModelType(
    name="xlm-roberta",
    prefix="roberta.",
    fixed=BERT.fixed,
    config_keys=(ConfigKey("vocab_size", "embedding.vocab_size", 30522), *CONFIG_KEYS),
    rules=BERT.rules,
    architectures=rename_architectures(ARCHITECTURES, "Roberta", "XLMRoberta"),
)
CAMEMBERT = replace(  # Martin et al. 2020
    XLM_ROBERTA, name="camembert", architectures=rename_architectures(ARCHITECTURES, "Roberta", "Camembert")
)
