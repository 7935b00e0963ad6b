"""GPT-2 (Radford et al. 2019): linear maps stored as (in, out), query, key and value in one."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, Id, Key, Labels, only
from heedful.pretrained.model_type import Case, Family
from heedful.pretrained.rules import Drop, Rename, Split, Transpose
from heedful.pretrained.special_config_keys import Repeated

BLOCK = "decoder.block.{i}"

GPT2 = Family(
    name="gpt2",
    prefix="transformer.",
    fixed={
        "kind": "decoder",
        "decoder.causal": True,
        "decoder.position.kind": "learned",
        "decoder.init": "scaled",
    },
    facts=(
        Key("vocab_size", "embedding.vocab_size", 50257),
        Key("n_positions", "decoder.position.length", 1024),
        Key("n_embd", "decoder.dim", 768),
        Key("n_layer", "decoder.depth", 12),
        Key("n_head", "decoder.heads", 12),
        Key("n_inner", "decoder.ff_dim", None),
        Key("activation_function", "decoder.activation", "gelu_new", ACTIVATIONS),
        Key("layer_norm_epsilon", "decoder.norm_eps", 1e-5),
        Key("embd_pdrop", "decoder.dropout.embedding", 0.1),
        Key("attn_pdrop", "decoder.dropout.attention", 0.1),
        Key("resid_pdrop", "decoder.dropout.residual", 0.1),
        Key("initializer_range", "decoder.init_std", 0.02),
        Id("bos_token_id", "special.start", 50256),
        Id("eos_token_id", "special.end", 50256, several=True),
        Id("pad_token_id", "special.pad", None),
        Repeated("num_attention_heads", "decoder.heads"),
        *only(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False),
        *only(add_cross_attention=False, is_causal=True),
    ),
    rules=(
        Drop("h.{i}.attn.bias"),  # the causal mask
        Drop("h.{i}.attn.masked_bias"),
        Rename("wte.weight", "embedding.token.weight"),
        Rename("wpe.weight", "decoder.position.table.weight"),
        Rename("h.{i}.ln_1.{p}", BLOCK + ".attention_residual.before.{p}"),
        Split(
            "h.{i}.attn.c_attn.{p}",
            (BLOCK + ".attention.query.{p}", BLOCK + ".attention.key.{p}", BLOCK + ".attention.value.{p}"),
            transposed=True,
        ),
        Transpose("h.{i}.attn.c_proj.{p}", BLOCK + ".attention.out.{p}"),
        Rename("h.{i}.ln_2.{p}", BLOCK + ".feed_forward_residual.before.{p}"),
        Transpose("h.{i}.mlp.c_fc.{p}", BLOCK + ".feed_forward.up.{p}"),
        Transpose("h.{i}.mlp.c_proj.{p}", BLOCK + ".feed_forward.down.{p}"),
        Rename("ln_f.{p}", "decoder.norm.{p}"),
    ),
    cases=(
        Case(
            name="GPT2LMHeadModel",
            fixed={"head.kind": "language-model"},
            facts=(Key("tie_word_embeddings", "head.tied", True),),
            rules=(Rename("lm_head.weight", "head.output.weight"),),
        ),
        Case(name="GPT2Model", fixed={"head.kind": "no-head"}, prefix=""),
        Case(
            name="GPT2ForSequenceClassification",
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
            name="GPT2ForTokenClassification",
            fixed={"head.kind": "token"},
            facts=(
                Labels("id2label", "head.labels", 2),
                Key("classifier_dropout", "head.dropout", 0.1, otherwise="hidden_dropout"),
            ),
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Case(
            name="GPT2ForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
