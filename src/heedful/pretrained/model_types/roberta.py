"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa: BERT's body with positions from row 2 on, and heads of their own."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, Fact, Id, Key, Stored, only
from heedful.pretrained.model_type import Case, Family, called
from heedful.pretrained.model_types.bert import BERT, LABEL_FACTS, NO_POOLER
from heedful.pretrained.rules import Drop, Rename, Tie
from heedful.pretrained.special_config_keys import Rows

FACTS: tuple[Fact, ...] = (
    Key("type_vocab_size", "embedding.segments", 2),
    Key("hidden_size", "encoder.dim", 768),
    Key("num_hidden_layers", "encoder.depth", 12),
    Key("num_attention_heads", "encoder.heads", 12),
    Key("intermediate_size", "encoder.ff_dim", 3072),
    Key("hidden_act", "encoder.activation", "gelu", ACTIVATIONS),
    Key("layer_norm_eps", "encoder.norm_eps", 1e-12),
    Key("hidden_dropout_prob", ("encoder.dropout.embedding", "encoder.dropout.residual"), 0.1),
    Key("attention_probs_dropout_prob", "encoder.dropout.attention", 0.1),
    Key("initializer_range", "encoder.init_std", 0.02),
    Id("bos_token_id", "special.start", 0),
    Id("eos_token_id", "special.end", 2, several=True),
    Id("pad_token_id", "special.pad", 1, needed=True),
    Rows(),
    *only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False),
)
CASES = (
    Case(
        name="RobertaModel",
        fixed={"head.kind": "no-head"},
        facts=(Stored("pooler.dense.weight", "head.pooler", False),),
        prefix="",
    ),
    Case(
        name="RobertaForMaskedLM",
        fixed={"head.kind": "masked-language-model", "head.activation": "gelu"},
        facts=(
            *only(tie_word_embeddings=True),  # untied, the class holds a bias that it does not use
            Key("layer_norm_eps", "head.norm_eps", 1e-12),
        ),
        rules=(
            NO_POOLER,
            Drop("lm_head.position_ids"),
            Rename("lm_head.dense.{p}", "head.dense.{p}"),
            Rename("lm_head.layer_norm.{p}", "head.norm.{p}"),
            Rename("lm_head.decoder.weight", "head.output.weight"),
            Tie(("lm_head.bias", "lm_head.decoder.bias"), "head.output.bias"),
        ),
    ),
    Case(
        name="RobertaForSequenceClassification",
        fixed={"head.kind": "sequence", "head.pooling": "first", "head.pooler": True, "head.bias": True},
        facts=LABEL_FACTS,
        rules=(
            NO_POOLER,
            Rename("classifier.dense.{p}", "head.pooler.dense.{p}"),
            Rename("classifier.out_proj.{p}", "head.output.{p}"),
        ),
    ),
    Case(
        name="RobertaForTokenClassification",
        fixed={"head.kind": "token"},
        facts=LABEL_FACTS,
        rules=(NO_POOLER, Rename("classifier.{p}", "head.output.{p}")),
    ),
    Case(
        name="RobertaForQuestionAnswering",
        fixed={"head.kind": "span"},
        rules=(NO_POOLER, Rename("qa_outputs.{p}", "head.output.{p}")),
    ),
)

ROBERTA = Family(
    name="roberta",
    prefix="roberta.",
    old_names=BERT.old_names,
    fixed=BERT.fixed,
    facts=(Key("vocab_size", "embedding.vocab_size", 50265), *FACTS),
    rules=BERT.rules,
    cases=CASES,
)
XLM_ROBERTA = Family(
    name="xlm-roberta",
    prefix="roberta.",
    fixed=BERT.fixed,
    facts=(Key("vocab_size", "embedding.vocab_size", 30522), *FACTS),
    rules=BERT.rules,
    cases=called(CASES, "Roberta", "XLMRoberta"),
)
