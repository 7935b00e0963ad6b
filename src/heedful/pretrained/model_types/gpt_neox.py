"""GPT-NeoX (Black et al. 2022), also of Pythia (Biderman et al. 2023): parallel sublayers, partly rotated heads.

Query, key and value are stored as one, head by head. A quarter of the features of a head is rotated, the first ones.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, LabelKeys, TokenIdKey, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Drop, Rename, RotatedPairs, SplitProjections, Tie
from heedful.pretrained.special_config_keys import RotaryKeys

THEIR_LAYER, OUR_BLOCK = "layers.{i}", "decoder.block.{i}"

GPT_NEOX = ModelType(
    name="gpt_neox",
    prefix="gpt_neox.",
    fixed={"kind": "decoder", "decoder.causal": True, "decoder.position.kind": "rotary"},
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 50432),
        ConfigKey("max_position_embeddings", "decoder.position.length", 2048),
        ConfigKey("hidden_size", "decoder.dim", 6144),
        ConfigKey("num_hidden_layers", "decoder.depth", 44),
        ConfigKey("num_attention_heads", "decoder.heads", 64),
        ConfigKey("intermediate_size", "decoder.ff_dim", 24576),
        ConfigKey("hidden_act", "decoder.activation", "gelu", ACTIVATIONS),
        ConfigKey("layer_norm_eps", "decoder.norm_eps", 1e-5),
        ConfigKey("hidden_dropout", ("decoder.dropout.embedding", "decoder.dropout.residual"), 0.0),
        ConfigKey("attention_dropout", "decoder.dropout.attention", 0.0),
        ConfigKey("attention_bias", "decoder.attention_bias", True, {True: "all", False: "none"}),
        ConfigKey("use_parallel_residual", "decoder.sublayers", True, {True: "parallel", False: "sequential"}),
        ConfigKey("initializer_range", "decoder.init_std", 0.02),
        RotaryKeys(share=0.25, names=("rotary_emb_base", "rotary_pct")),
        TokenIdKey("bos_token_id", "special.start", 0),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", None),
        *required_values(is_causal=True, head_dim=None),
    ),
    rules=(
        Drop(THEIR_LAYER + ".attention.bias"),  # the mask
        Drop(THEIR_LAYER + ".attention.masked_bias"),
        Drop(THEIR_LAYER + ".attention.rotary_emb.inv_freq"),
        Rename("embed_in.weight", "embedding.token.weight"),
        Rename(THEIR_LAYER + ".input_layernorm.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
        SplitProjections(
            THEIR_LAYER + ".attention.query_key_value.{p}",
            (OUR_BLOCK + ".attention.query.{p}", OUR_BLOCK + ".attention.key.{p}", OUR_BLOCK + ".attention.value.{p}"),
            by_group=True,
        ),
        RotatedPairs(OUR_BLOCK + ".attention.query.{p}"),
        RotatedPairs(OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".attention.dense.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename(THEIR_LAYER + ".post_attention_layernorm.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
        Rename(THEIR_LAYER + ".mlp.dense_h_to_4h.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename(THEIR_LAYER + ".mlp.dense_4h_to_h.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename("final_layer_norm.{p}", "decoder.norm.{p}"),
    ),
    architectures=(
        Architecture(
            name="GPTNeoXForCausalLM",
            fixed={"head.kind": "language-model"},
            config_keys=(ConfigKey("tie_word_embeddings", "head.tied", False),),
            rules=(Tie(("embed_out.weight", "lm_head.weight"), "head.output.weight"),),
        ),
        Architecture(name="GPTNeoXModel", fixed={"head.kind": "no-head"}, prefix=""),
        Architecture(
            name="GPTNeoXForSequenceClassification",
            fixed={
                "head.kind": "sequence",
                "head.pooling": "last",
                "head.pooler": False,
                "head.bias": False,
                "head.dropout": 0.0,
            },
            config_keys=(LabelKeys("id2label", "head.labels", 2),),
            rules=(Rename("score.weight", "head.output.weight"),),
        ),
        Architecture(
            name="GPTNeoXForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=(
                LabelKeys("id2label", "head.labels", 2),
                ConfigKey("classifier_dropout", "head.dropout", 0.1),
            ),
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="GPTNeoXForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
