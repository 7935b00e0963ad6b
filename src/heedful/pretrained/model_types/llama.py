"""Llama (Touvron et al. 2023) and its kin: RMS pre-norm, rotary positions, gated SiLU.

Mistral (Jiang et al. 2023) has a sliding window, Qwen2 (Yang et al. 2024) biases on queries, keys and values, Qwen3
(Yang et al. 2025) a norm on queries and keys and a head size of its own.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, Fact, Id, Key, Labels, only
from heedful.pretrained.model_type import Case, Family, called
from heedful.pretrained.rules import Drop, Rename, Rule
from heedful.pretrained.special_config_keys import Rotary, Window

LAYER, BLOCK = "layers.{i}", "decoder.block.{i}"
FIXED = {
    "kind": "decoder",
    "decoder.causal": True,
    "decoder.norm": "rms",
    "decoder.gated": True,
    "decoder.position.kind": "rotary",
}
FACTS: tuple[Fact, ...] = (
    Key("hidden_size", "decoder.dim", 4096),
    Key("num_hidden_layers", "decoder.depth", 32),
    Key("num_attention_heads", "decoder.heads", 32),
    Key("hidden_act", "decoder.activation", "silu", ACTIVATIONS),
    Key("rms_norm_eps", "decoder.norm_eps", 1e-6),
    Key("attention_dropout", "decoder.dropout.attention", 0.0),
    Key("initializer_range", "decoder.init_std", 0.02),
    Rotary(),
    Id("pad_token_id", "special.pad", None),
    *only(is_causal=True),  # embedding models made of a decoder that sees both ways say false
)
RULES: tuple[Rule, ...] = (
    Drop(LAYER + ".self_attn.rotary_emb.inv_freq"),  # computed
    Rename("embed_tokens.weight", "embedding.token.weight"),
    Rename(LAYER + ".input_layernorm.{p}", BLOCK + ".attention_residual.before.{p}"),
    Rename(LAYER + ".self_attn.q_proj.{p}", BLOCK + ".attention.query.{p}"),
    Rename(LAYER + ".self_attn.k_proj.{p}", BLOCK + ".attention.key.{p}"),
    Rename(LAYER + ".self_attn.v_proj.{p}", BLOCK + ".attention.value.{p}"),
    Rename(LAYER + ".self_attn.o_proj.{p}", BLOCK + ".attention.out.{p}"),
    Rename(LAYER + ".self_attn.q_norm.weight", BLOCK + ".attention.query_norm.weight"),
    Rename(LAYER + ".self_attn.k_norm.weight", BLOCK + ".attention.key_norm.weight"),
    Rename(LAYER + ".post_attention_layernorm.{p}", BLOCK + ".feed_forward_residual.before.{p}"),
    Rename(LAYER + ".mlp.gate_proj.{p}", BLOCK + ".feed_forward.gate.{p}"),
    Rename(LAYER + ".mlp.up_proj.{p}", BLOCK + ".feed_forward.up.{p}"),
    Rename(LAYER + ".mlp.down_proj.{p}", BLOCK + ".feed_forward.down.{p}"),
    Rename("norm.{p}", "decoder.norm.{p}"),
)
SPAN = (Rename("qa_outputs.{p}", "head.output.{p}"),)
CASES = (
    Case(
        name="LlamaForCausalLM",
        fixed={"head.kind": "language-model"},
        facts=(Key("tie_word_embeddings", "head.tied", False),),
        rules=(Rename("lm_head.weight", "head.output.weight"),),
    ),
    Case(name="LlamaModel", fixed={"head.kind": "no-head"}, prefix=""),
    Case(
        name="LlamaForSequenceClassification",
        fixed={
            "head.kind": "sequence",
            "head.pooling": "last",
            "head.pooler": False,
            "head.bias": False,
            "head.dropout": 0.0,
        },
        facts=(Labels("id2label", "head.labels", 2),),
        rules=(Rename("score.weight", "head.output.weight"),),
    ),
    Case(
        name="LlamaForTokenClassification",
        fixed={"head.kind": "token"},
        facts=(
            Labels("id2label", "head.labels", 2),
            Key("classifier_dropout", "head.dropout", 0.1, otherwise="hidden_dropout"),
            *only(token_classification_bias=True),
        ),
        rules=(Rename("score.{p}", "head.output.{p}"),),
    ),
)
LLAMA_SPAN = Case(name="LlamaForQuestionAnswering", fixed={"head.kind": "span"}, rules=SPAN, prefix="transformer.")

LLAMA = Family(
    name="llama",
    prefix="model.",
    fixed=FIXED,
    facts=(
        *FACTS,
        Key("vocab_size", "embedding.vocab_size", 32000),
        Key("max_position_embeddings", "decoder.position.length", 2048),
        Key("intermediate_size", "decoder.ff_dim", 11008),
        Key("num_key_value_heads", "decoder.kv_heads", None),
        Key("head_dim", "decoder.head_dim", None),
        Key("attention_bias", "decoder.attention_bias", False, {True: "all", False: "none"}),
        Key("mlp_bias", "decoder.ff_bias", False),
        Id("bos_token_id", "special.start", 1),
        Id("eos_token_id", "special.end", 2, several=True),
    ),
    rules=RULES,
    cases=(*CASES, LLAMA_SPAN),
)

MISTRAL = Family(
    name="mistral",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.attention_bias": "none"},
    facts=(
        *FACTS,
        Key("vocab_size", "embedding.vocab_size", 32000),
        Key("max_position_embeddings", "decoder.position.length", 131072),
        Key("intermediate_size", "decoder.ff_dim", 14336),
        Key("num_key_value_heads", "decoder.kv_heads", 8, null=True),
        Key("head_dim", "decoder.head_dim", None),
        Key("sliding_window", "decoder.window", 4096, null=True),
        Id("bos_token_id", "special.start", 1),
        Id("eos_token_id", "special.end", 2, several=True),
    ),
    rules=RULES,
    cases=(
        *called(CASES, "Llama", "Mistral"),
        Case(name="MistralForQuestionAnswering", fixed={"head.kind": "span"}, rules=SPAN),
    ),
)

QWEN2 = Family(
    name="qwen2",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.attention_bias": "qkv"},
    facts=(
        *FACTS,
        Key("vocab_size", "embedding.vocab_size", 151936),
        Key("max_position_embeddings", "decoder.position.length", 32768),
        Key("intermediate_size", "decoder.ff_dim", 22016),
        Key("num_key_value_heads", "decoder.kv_heads", 32, null=True),
        Key("head_dim", "decoder.head_dim", None),
        Window(),
        Id("bos_token_id", "special.start", None),
        Id("eos_token_id", "special.end", None, several=True),
    ),
    rules=RULES,
    cases=called((*CASES, LLAMA_SPAN), "Llama", "Qwen2"),
)

QWEN3 = Family(
    name="qwen3",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.qk_norm": "head"},
    facts=(
        *FACTS,
        Key("vocab_size", "embedding.vocab_size", 151936),
        Key("max_position_embeddings", "decoder.position.length", 32768),
        Key("intermediate_size", "decoder.ff_dim", 22016),
        Key("num_key_value_heads", "decoder.kv_heads", 32, null=True),
        Key("head_dim", "decoder.head_dim", 128, null=True),
        Key("attention_bias", "decoder.attention_bias", False, {True: "all", False: "none"}),
        Window(),
        Id("bos_token_id", "special.start", None),
        Id("eos_token_id", "special.end", None, several=True),
    ),
    rules=RULES,
    cases=called((*CASES, LLAMA_SPAN), "Llama", "Qwen3"),
)
