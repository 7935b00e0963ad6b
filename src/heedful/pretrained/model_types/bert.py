"""BERT (Devlin et al. 2019): post-norm, segments, a pooler, a masked language model tied to the embedding."""

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
from heedful.pretrained.rules import Drop, Rename, RenameUnlessZero, Tie

THEIR_LAYER, OUR_BLOCK = "encoder.layer.{i}", "encoder.block.{i}"
DROP_POOLER = Drop("pooler.dense.{p}")  # older files have one that the class does not use
DROP_NEXT_SENTENCE = Drop("cls.seq_relationship.{p}")
MASKED_HEAD = {"head.kind": "masked-language-model"}
MASKED_KEYS: tuple[AnyConfigKey, ...] = (
    *required_values(tie_word_embeddings=True),  # untied, the class has a bias that it does not use
    ConfigKey("hidden_act", "head.activation", "gelu", ACTIVATIONS),
    ConfigKey("layer_norm_eps", "head.norm_eps", 1e-12),
)
MASKED_RULES = (
    DROP_POOLER,
    DROP_NEXT_SENTENCE,
    Rename("cls.predictions.transform.dense.{p}", "head.dense.{p}"),
    Rename("cls.predictions.transform.LayerNorm.{p}", "head.norm.{p}"),
    Rename("cls.predictions.decoder.weight", "head.output.weight"),
    Tie(("cls.predictions.bias", "cls.predictions.decoder.bias"), "head.output.bias"),
)
LABEL_KEYS = (
    LabelKeys("id2label", "head.labels", 2),
    ConfigKey("classifier_dropout", "head.dropout", 0.1, fallback="hidden_dropout_prob"),
)

LAYER_OUTPUT_RULES = (
    Rename(THEIR_LAYER + ".attention.output.dense.{p}", OUR_BLOCK + ".attention.out.{p}"),
    Rename(THEIR_LAYER + ".attention.output.LayerNorm.{p}", OUR_BLOCK + ".attention_residual.after.{p}"),
    Rename(THEIR_LAYER + ".intermediate.dense.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
    Rename(THEIR_LAYER + ".output.dense.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
    Rename(THEIR_LAYER + ".output.LayerNorm.{p}", OUR_BLOCK + ".feed_forward_residual.after.{p}"),
)


BERT = ModelType(
    name="bert",
    prefix="bert.",
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    fixed={
        "kind": "encoder",
        "encoder.placement": "post",
        "encoder.embedding_norm": True,
        "encoder.position.kind": "learned",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 30522),
        ConfigKey("type_vocab_size", "embedding.segments", 2),
        ConfigKey("max_position_embeddings", "encoder.position.length", 512),
        *encoder_layer_keys(768, 12, 12, 3072, 1e-12),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        *required_values(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False),
    ),
    rules=(
        Drop("embeddings.position_ids"),  # 0, 1, 2, ...
        Drop("embeddings.token_type_ids"),
        Rename("embeddings.word_embeddings.weight", "embedding.token.weight"),
        Rename("embeddings.token_type_embeddings.weight", "embedding.segment.weight"),
        Rename("embeddings.position_embeddings.weight", "encoder.position.table.weight"),
        Rename("embeddings.LayerNorm.{p}", "encoder.embedding_norm.{p}"),
        Rename(THEIR_LAYER + ".attention.self.query.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename(THEIR_LAYER + ".attention.self.key.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".attention.self.value.{p}", OUR_BLOCK + ".attention.value.{p}"),
        *LAYER_OUTPUT_RULES,
        RenameUnlessZero("pooler.dense.{p}", "head.pooler.dense.{p}"),
    ),
    architectures=(
        Architecture(
            name="BertModel",
            fixed={"head.kind": "no-head"},
            config_keys=(StoredTensor("pooler.dense.weight", "head.pooler", False),),
            prefix="",
        ),
        Architecture(name="BertForMaskedLM", fixed=MASKED_HEAD, config_keys=MASKED_KEYS, rules=MASKED_RULES),
        Architecture(name="BertForPreTraining", fixed=MASKED_HEAD, config_keys=MASKED_KEYS, rules=MASKED_RULES),
        Architecture(
            name="BertForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooling": "first", "head.pooler": True, "head.bias": True},
            config_keys=LABEL_KEYS,
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="BertForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=LABEL_KEYS,
            rules=(DROP_POOLER, Rename("classifier.{p}", "head.output.{p}")),
        ),
        Architecture(
            name="BertForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(DROP_POOLER, Rename("qa_outputs.{p}", "head.output.{p}")),
        ),
    ),
)
