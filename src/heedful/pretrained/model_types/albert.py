"""ALBERT (Lan et al. 2020): a BERT whose layers share their weights, with a narrower embedding."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    ACTIVATIONS,
    AnyConfigKey,
    ConfigKey,
    LabelKeys,
    StoredTensor,
    TokenIdKey,
    encoder_layer_keys,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.bert import BERT, MASKED_HEAD, OUR_BLOCK
from heedful.pretrained.rules import Drop, Rename, RenameUnlessZero, Tie
from heedful.pretrained.special_config_keys import GroupsKey

ACTIVATION = "gelu_new"
THEIR_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"  # of a group; with one group all blocks are the first
DROP_POOLER = Drop("pooler.{p}")
LABEL_KEYS = (
    LabelKeys("id2label", "head.labels", 2),
    ConfigKey("classifier_dropout_prob", "head.dropout", 0.1),
)
MASKED_KEYS: tuple[AnyConfigKey, ...] = (
    *required_values(tie_word_embeddings=True),  # untied, the class has a bias that it does not use
    ConfigKey("hidden_act", "head.activation", ACTIVATION, ACTIVATIONS),
    ConfigKey("layer_norm_eps", "head.norm_eps", 1e-12),
)
MASKED_RULES = (
    DROP_POOLER,
    Drop("sop_classifier.classifier.{p}"),  # whether two texts are in their order
    Rename("predictions.dense.{p}", "head.dense.{p}"),
    Rename("predictions.LayerNorm.{p}", "head.norm.{p}"),
    Rename("predictions.decoder.weight", "head.output.weight"),
    Tie(("predictions.bias", "predictions.decoder.bias"), "head.output.bias"),
)

ALBERT = ModelType(
    name="albert",
    prefix="albert.",
    fixed=BERT.fixed,
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 30000),
        ConfigKey("type_vocab_size", "embedding.segments", 2),
        ConfigKey("max_position_embeddings", "encoder.position.length", 512),
        *encoder_layer_keys(4096, 12, 64, 16384, 1e-12, ACTIVATION, 0.0),
        ConfigKey("embedding_size", "encoder.embedding_dim", 128),
        GroupsKey(),
        TokenIdKey("bos_token_id", "special.start", 2),
        TokenIdKey("eos_token_id", "special.end", 3, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        *required_values(inner_group_num=1, position_embedding_type="absolute"),
    ),
    rules=(
        *BERT.rules[:6],  # of the embedding
        Rename("encoder.embedding_hidden_mapping_in.{p}", "encoder.projection.{p}"),
        Rename(THEIR_LAYER + ".attention.query.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename(THEIR_LAYER + ".attention.key.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".attention.value.{p}", OUR_BLOCK + ".attention.value.{p}"),
        Rename(THEIR_LAYER + ".attention.dense.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename(THEIR_LAYER + ".attention.LayerNorm.{p}", OUR_BLOCK + ".attention_residual.after.{p}"),
        Rename(THEIR_LAYER + ".ffn.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename(THEIR_LAYER + ".ffn_output.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename(THEIR_LAYER + ".full_layer_layer_norm.{p}", OUR_BLOCK + ".feed_forward_residual.after.{p}"),
        RenameUnlessZero("pooler.{p}", "head.pooler.dense.{p}"),
    ),
    architectures=(
        Architecture(
            name="AlbertModel",
            fixed={"head.kind": "no-head"},
            config_keys=(StoredTensor("pooler.weight", "head.pooler", False),),
            prefix="",
        ),
        Architecture(name="AlbertForMaskedLM", fixed=MASKED_HEAD, config_keys=MASKED_KEYS, rules=MASKED_RULES),
        Architecture(name="AlbertForPreTraining", fixed=MASKED_HEAD, config_keys=MASKED_KEYS, rules=MASKED_RULES),
        Architecture(
            name="AlbertForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooling": "first", "head.pooler": True, "head.bias": True},
            config_keys=LABEL_KEYS,
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="AlbertForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=LABEL_KEYS,
            rules=(DROP_POOLER, Rename("classifier.{p}", "head.output.{p}")),
        ),
        Architecture(
            name="AlbertForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(DROP_POOLER, Rename("qa_outputs.{p}", "head.output.{p}")),
        ),
    ),
)
