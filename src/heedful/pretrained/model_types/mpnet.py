"""MPNet (Song et al. 2020): RoBERTa's body and heads, with relative positions beside the learned ones."""

from __future__ import annotations

from dataclasses import replace

from heedful.pretrained.config_keys import ConfigKey, LabelKeys, TokenIdKey, encoder_layer_keys, required_values
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.bert import BERT, LAYER_OUTPUT_RULES, OUR_BLOCK, THEIR_LAYER
from heedful.pretrained.model_types.roberta import ARCHITECTURES
from heedful.pretrained.rules import Drop, Rename, RenameUnlessZero
from heedful.pretrained.special_config_keys import PositionRowsKey

LABELS = LabelKeys("id2label", "head.labels", 2)
BODY, MASKED, SEQUENCE, TOKEN, SPAN = rename_architectures(ARCHITECTURES, "Roberta", "MPNet")

MPNET = ModelType(
    name="mpnet",
    prefix="mpnet.",
    fixed={**BERT.fixed, "encoder.position.buckets": 32},  # whatever the configuration says
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 30527),
        *encoder_layer_keys(768, 12, 12, 3072, 1e-12),
        TokenIdKey("bos_token_id", "special.start", 0),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", 1),
        PositionRowsKey(first=2),
        *required_values(relative_attention_num_buckets=32),  # another number changes the rows of the table alone
    ),
    rules=(
        Drop("embeddings.position_ids"),
        Rename("embeddings.word_embeddings.weight", "embedding.token.weight"),
        Rename("embeddings.position_embeddings.weight", "encoder.position.table.weight"),
        Rename("embeddings.LayerNorm.{p}", "encoder.embedding_norm.{p}"),
        Rename("encoder.relative_attention_bias.weight", "encoder.position.relative.table.weight"),
        Rename(THEIR_LAYER + ".attention.attn.q.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename(THEIR_LAYER + ".attention.attn.k.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".attention.attn.v.{p}", OUR_BLOCK + ".attention.value.{p}"),
        Rename(THEIR_LAYER + ".attention.attn.o.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename(THEIR_LAYER + ".attention.LayerNorm.{p}", OUR_BLOCK + ".attention_residual.after.{p}"),
        *LAYER_OUTPUT_RULES[2:],
        RenameUnlessZero("pooler.dense.{p}", "head.pooler.dense.{p}"),
    ),
    architectures=(
        BODY,
        MASKED,
        replace(
            SEQUENCE,
            config_keys=(LABELS, ConfigKey("hidden_dropout_prob", ("head.dropout", "head.pooler_dropout"), 0.1)),
        ),
        replace(TOKEN, config_keys=(LABELS, ConfigKey("hidden_dropout_prob", "head.dropout", 0.1))),
        SPAN,
    ),
)
