"""Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in each block, of which a token has two of eight."""

from __future__ import annotations

from heedful.pretrained.config_keys import ConfigKey, TokenIdKey
from heedful.pretrained.model_type import Architecture, ModelType, rename_architectures
from heedful.pretrained.model_types.llama import ARCHITECTURES, CONFIG_KEYS, FIXED, OUR_BLOCK, RULES, SPAN, THEIR_LAYER
from heedful.pretrained.rules import Rename
from heedful.pretrained.special_config_keys import RotaryKeys

THEIR_EXPERTS, OUR_EXPERTS = THEIR_LAYER + ".block_sparse_moe", OUR_BLOCK + ".feed_forward"

MIXTRAL = ModelType(
    name="mixtral",
    prefix="model.",
    fixed={
        **FIXED,
        "decoder.ff_bias": False,
        "decoder.attention_bias": "none",
        "decoder.experts.kind": "experts",
        "decoder.experts.normalize": True,
        "decoder.experts.step": 1,
        "decoder.experts.capacity": 0,
        "decoder.experts.router_bias": False,
        "decoder.experts.z_loss": 0.0,
    },
    config_keys=(
        *CONFIG_KEYS,
        ConfigKey("rms_norm_eps", "decoder.norm_eps", 1e-5),
        RotaryKeys(default=1000000.0),
        ConfigKey("vocab_size", "embedding.vocab_size", 32000),
        ConfigKey("max_position_embeddings", "decoder.position.length", 131072),
        ConfigKey("intermediate_size", "decoder.ff_dim", 14336),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", 8, null=True),
        ConfigKey("head_dim", "decoder.head_dim", None),
        ConfigKey("sliding_window", "decoder.window", None, null=True),
        ConfigKey("num_local_experts", "decoder.experts.number", 8, fallback="num_experts"),
        ConfigKey("num_experts_per_tok", "decoder.experts.per_token", 2),
        ConfigKey("router_aux_loss_coef", "decoder.experts.balance", 0.001),
        ConfigKey("router_jitter_noise", "decoder.experts.jitter", 0.0),
        TokenIdKey("bos_token_id", "special.start", 1),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
    ),
    rules=(
        *RULES,
        Rename(THEIR_EXPERTS + ".gate.weight", OUR_EXPERTS + ".router.weight"),
        Rename(THEIR_EXPERTS + ".experts.{e}.w1.weight", OUR_EXPERTS + ".expert.{e}.gate.weight"),
        Rename(THEIR_EXPERTS + ".experts.{e}.w2.weight", OUR_EXPERTS + ".expert.{e}.down.weight"),
        Rename(THEIR_EXPERTS + ".experts.{e}.w3.weight", OUR_EXPERTS + ".expert.{e}.up.weight"),
    ),
    architectures=(
        *rename_architectures(ARCHITECTURES, "Llama", "Mixtral"),
        Architecture(name="MixtralForQuestionAnswering", fixed={"head.kind": "span"}, rules=SPAN),
    ),
)
