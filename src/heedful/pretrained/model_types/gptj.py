"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward in parallel after one norm, and no biases in attention.

The first ``rotary_dim`` features of a head are rotated, in neighbouring pairs, and the head has a bias.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, LabelKeys, TokenIdKey, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Drop, Rename, RotatedPairs
from heedful.pretrained.special_config_keys import RepeatedKey, RotaryDimKey

OUR_BLOCK = "decoder.block.{i}"

GPTJ = ModelType(
    name="gptj",
    prefix="transformer.",
    fixed={
        "kind": "decoder",
        "decoder.causal": True,
        "decoder.position.kind": "rotary",
        "decoder.position.base": 10000.0,
        "decoder.sublayers": "parallel-shared",
        "decoder.attention_bias": "none",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 50400),
        ConfigKey("n_positions", "decoder.position.length", 2048),
        ConfigKey("n_embd", "decoder.dim", 4096),
        ConfigKey("n_layer", "decoder.depth", 28),
        ConfigKey("n_head", "decoder.heads", 16),
        ConfigKey("n_inner", "decoder.ff_dim", None),
        RotaryDimKey(),
        ConfigKey("activation_function", "decoder.activation", "gelu_new", ACTIVATIONS),
        ConfigKey("layer_norm_epsilon", "decoder.norm_eps", 1e-5),
        ConfigKey("embd_pdrop", "decoder.dropout.embedding", 0.0),
        ConfigKey("attn_pdrop", "decoder.dropout.attention", 0.0),
        ConfigKey("resid_pdrop", "decoder.dropout.residual", 0.0),
        ConfigKey("initializer_range", "decoder.init_std", 0.02),
        TokenIdKey("bos_token_id", "special.start", 50256),
        TokenIdKey("eos_token_id", "special.end", 50256, several=True),
        TokenIdKey("pad_token_id", "special.pad", None),
        RepeatedKey("num_attention_heads", "decoder.heads"),
        *required_values(is_causal=True),
    ),
    rules=(
        Drop("h.{i}.attn.bias"),  # the mask
        Drop("h.{i}.attn.masked_bias"),
        Rename("wte.weight", "embedding.token.weight"),
        Rename("h.{i}.ln_1.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
        Rename("h.{i}.attn.q_proj.weight", OUR_BLOCK + ".attention.query.weight"),
        Rename("h.{i}.attn.k_proj.weight", OUR_BLOCK + ".attention.key.weight"),
        RotatedPairs(OUR_BLOCK + ".attention.query.weight", interleaved=True),
        RotatedPairs(OUR_BLOCK + ".attention.key.weight", interleaved=True),
        Rename("h.{i}.attn.v_proj.weight", OUR_BLOCK + ".attention.value.weight"),
        Rename("h.{i}.attn.out_proj.weight", OUR_BLOCK + ".attention.out.weight"),
        Rename("h.{i}.mlp.fc_in.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename("h.{i}.mlp.fc_out.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename("ln_f.{p}", "decoder.norm.{p}"),
    ),
    architectures=(
        Architecture(
            name="GPTJForCausalLM",
            fixed={"head.kind": "language-model", "head.bias": True},
            config_keys=(ConfigKey("tie_word_embeddings", "head.tied", False),),
            rules=(Rename("lm_head.{p}", "head.output.{p}"),),
        ),
        Architecture(name="GPTJModel", fixed={"head.kind": "no-head"}, prefix=""),
        Architecture(
            name="GPTJForSequenceClassification",
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
            name="GPTJForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
