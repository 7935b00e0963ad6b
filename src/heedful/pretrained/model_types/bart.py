"""BART (Lewis et al. 2020): post-norm encoder and decoder, a norm after the embedding, positions from table row 2."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, LabelKeys, StoredTensor, TokenIdKey, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.marian import LAYER_RULES
from heedful.pretrained.rules import Drop, Rename, SqueezeUnlessZero, Tie
from heedful.pretrained.special_config_keys import RepeatedKey

BART = ModelType(
    name="bart",
    prefix="model.",
    fixed={
        "kind": "encoder-decoder",
        "source.kind": "embedding",
        "target": None,
        "encoder.placement": "post",
        "encoder.embedding_norm": True,
        "encoder.position.kind": "learned",
        "encoder.position.offset": 2,
        "decoder.placement": "post",
        "decoder.embedding_norm": True,
        "decoder.position.kind": "learned",
        "decoder.position.offset": 2,
        "decoder.causal": True,
        "decoder.cross": True,
    },
    config_keys=(
        ConfigKey("vocab_size", "source.vocab_size", 50265),
        ConfigKey("max_position_embeddings", ("encoder.position.length", "decoder.position.length"), 1024),
        ConfigKey("d_model", ("encoder.dim", "decoder.dim"), 1024),
        ConfigKey("encoder_layers", "encoder.depth", 12),
        ConfigKey("encoder_attention_heads", "encoder.heads", 16),
        ConfigKey("encoder_ffn_dim", "encoder.ff_dim", 4096),
        ConfigKey("decoder_layers", "decoder.depth", 12),
        ConfigKey("decoder_attention_heads", "decoder.heads", 16),
        ConfigKey("decoder_ffn_dim", "decoder.ff_dim", 4096),
        ConfigKey("activation_function", ("encoder.activation", "decoder.activation"), "gelu", ACTIVATIONS),
        ConfigKey(
            "dropout",
            (
                "encoder.dropout.embedding",
                "encoder.dropout.residual",
                "decoder.dropout.embedding",
                "decoder.dropout.residual",
            ),
            0.1,
        ),
        ConfigKey("attention_dropout", ("encoder.dropout.attention", "decoder.dropout.attention"), 0.0),
        ConfigKey("activation_dropout", ("encoder.dropout.hidden", "decoder.dropout.hidden"), 0.0),
        ConfigKey("init_std", ("encoder.init_std", "decoder.init_std"), 0.02),
        ConfigKey("scale_embedding", "source.scale", False, {True: "sqrt", False: "none"}),
        TokenIdKey("decoder_start_token_id", "special.start", 2, required=True),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", 1),
        RepeatedKey("num_attention_heads", "encoder.heads"),
        *required_values(
            is_causal=True,
            is_decoder=False,
            is_encoder_decoder=True,
            tie_word_embeddings=True,
            normalize_before=False,  # mBART's and Pegasus' variants
            normalize_embedding=True,
            add_final_layer_norm=False,
            static_position_embeddings=False,
        ),
    ),
    rules=(
        Tie(("shared.weight", "encoder.embed_tokens.weight"), "embedding.token.weight"),
        Rename("decoder.embed_tokens.weight", "target_embedding.token.weight"),
        Rename("encoder.embed_positions.weight", "encoder.position.table.weight"),
        Rename("decoder.embed_positions.weight", "decoder.position.table.weight"),
        Rename("encoder.layernorm_embedding.{p}", "encoder.embedding_norm.{p}"),
        Rename("decoder.layernorm_embedding.{p}", "decoder.embedding_norm.{p}"),
        *LAYER_RULES,
    ),
    architectures=(
        Architecture(
            name="BartForConditionalGeneration",
            fixed={"head.kind": "language-model"},
            config_keys=(StoredTensor("final_logits_bias", "head.bias", False),),
            rules=(
                SqueezeUnlessZero("final_logits_bias", "head.output.bias"),
                Rename("lm_head.weight", "head.output.weight"),
            ),
        ),
        Architecture(name="BartModel", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
        Architecture(
            name="BartForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooling": "last", "head.pooler": True, "head.bias": True},
            config_keys=(LabelKeys("id2label", "head.labels", 3), ConfigKey("classifier_dropout", "head.dropout", 0.0)),
            rules=(
                Drop("final_logits_bias"),  # of the pre-training class, in published files
                Rename("classification_head.dense.{p}", "head.pooler.dense.{p}"),
                Rename("classification_head.out_proj.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="BartForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Drop("final_logits_bias"), Rename("qa_outputs.{p}", "head.output.{p}")),
        ),
    ),
)
