"""Tiny random ``transformers`` models of every family and head, and what theirs and ours make of the same input.

python tests/pretrained/tiny_models.py    # the table of docs/checkpoints.md: seconds, about 1e-15 and 1e-6
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from transformers.models.bloom import modeling_bloom
from transformers.models.deberta import modeling_deberta
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_neo import modeling_gpt_neo
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.m2m_100 import modeling_m2m_100
from transformers.models.mixtral import modeling_mixtral
from transformers.models.modernbert import modeling_modernbert
from transformers.models.switch_transformers import modeling_switch_transformers
from transformers.models.xlnet import modeling_xlnet

import heedful.models
from heedful.config import patches_of
from heedful.layers import Alibi
from heedful.pretrained import load

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()
THEIR_SLOPES = modeling_bloom._get_alibi_slopes

END = 2  # one in each row, at its end: classifiers of encoder-decoders read that place
GPT2 = {
    "vocab_size": 23,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 12,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
GPT2 |= {"pad_token_id": 0, "resid_pdrop": 0.2, "attn_pdrop": 0.3, "embd_pdrop": 0.4, "layer_norm_epsilon": 1e-4}
GPT = GPT2  # the same names of keys
GPT_NEO = {"vocab_size": 23, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 12}
GPT_NEO |= {"attention_types": [[["global", "local"], 1]], "window_size": 3, "bos_token_id": 1, "eos_token_id": 2}
GPT_NEO |= {"pad_token_id": 0, "resid_dropout": 0.2, "attention_dropout": 0.3, "layer_norm_epsilon": 1e-4}
OPT = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24}
OPT |= {"max_position_embeddings": 12, "dropout": 0.2, "attention_dropout": 0.3, "eos_token_id": [2, 3]}
OPT |= {"pad_token_id": 0, "bos_token_id": 1}
GPT_NEOX = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT_NEOX |= {"intermediate_size": 24, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 2}
GPT_NEOX |= {"pad_token_id": 0, "hidden_dropout": 0.2, "attention_dropout": 0.3, "layer_norm_eps": 1e-4}
GPTJ = {"vocab_size": 23, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 12, "rotary_dim": 4}
GPTJ |= {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "layer_norm_epsilon": 1e-4}
GPTJ |= {"resid_pdrop": 0.2, "attn_pdrop": 0.3, "embd_pdrop": 0.4}
PHI3 = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
PHI3 |= {"max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0}
PHI3 |= {"resid_pdrop": 0.2, "attention_dropout": 0.3, "rms_norm_eps": 1e-4}
BLOOM = {"vocab_size": 23, "hidden_size": 16, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": [2, 3]}
BLOOM |= {"pad_token_id": 0, "hidden_dropout": 0.2, "attention_dropout": 0.3, "layer_norm_epsilon": 1e-4}
BERT = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BERT |= {"max_position_embeddings": 12, "type_vocab_size": 3, "hidden_dropout_prob": 0.2}
MODERN = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
MODERN |= {"max_position_embeddings": 12, "local_attention": 3, "pad_token_id": 0, "norm_eps": 1e-4}
MODERN |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "mlp_dropout": 0.2}
BIASED = {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
BASES = {"full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0}}
BASES["full_attention"] |= {"original_max_position_embeddings": 4, "beta_fast": 32.0, "beta_slow": 1.0}
BASES |= {"sliding_attention": {"rope_type": "default", "rope_theta": 30.0}}
MARIAN = {"vocab_size": 23, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4}
MARIAN |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 40, "max_position_embeddings": 12}
MARIAN |= {"pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 1, "attention_dropout": 0.3}
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "patch_size": 4}
VIT |= {"image_size": [8, 12], "num_channels": 2}
NAMED = {"id2label": {0: "no", 1: "yes", 2: "what"}, "label2id": {"no": 0, "yes": 1, "what": 2}}
LLAMA = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
LLAMA |= {"max_position_embeddings": 12, "rms_norm_eps": 1e-4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
MIXTRAL = {**GROUPED, "num_local_experts": 3, "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.1}
GEMMA2 = {**GROUPED, "head_dim": 6, "query_pre_attn_scalar": 10, "sliding_window": 3}
GEMMA2 |= {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
LLAMA3 |= {"original_max_position_embeddings": 6, "rope_theta": 50.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "rope_theta": 100.0}
ROBERTA = {**BERT, "type_vocab_size": 1, "max_position_embeddings": 14, "pad_token_id": 1}
DISTIL = {"vocab_size": 23, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 12}
DISTIL |= {"dropout": 0.2, "attention_dropout": 0.3}
DEBERTA = {**BERT, "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False}
DEBERTA |= {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"}
DEBERTA |= {"position_buckets": 4, "layer_norm_eps": 1e-7}
ELECTRA = {**BERT, "embedding_size": 8}
ALBERT = {**ELECTRA, "num_hidden_layers": 3, "classifier_dropout_prob": 0.2}
DEBERTA_V1 = {**BERT, "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False}
DEBERTA_V1 |= {"pos_att_type": ["p2c", "c2p"], "layer_norm_eps": 1e-7}
MPNET = {key: value for key, value in ROBERTA.items() if key != "type_vocab_size"}
XLNET = {"vocab_size": 23, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24, "dropout": 0.2, "pad_token_id": 0}
T5 = {"vocab_size": 23, "d_model": 16, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "d_kv": 6, "d_ff": 24}
T5 |= {
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
}
SWITCH = {**T5, "num_experts": 3, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 3, "pad_token_id": 0}
SWITCH |= {"router_aux_loss_coef": 0.02, "router_jitter_noise": 0.1, "router_z_loss_coef": 0.03}
BART = {"vocab_size": 23, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 40, "max_position_embeddings": 12}
MBART = {**BART, "decoder_start_token_id": END, "scale_embedding": True}
M2M = {**BART, "decoder_start_token_id": END, "attention_dropout": 0.2}
DEIT = {**VIT, "image_size": 12}
DINOV2 = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2, "patch_size": 4}
DINOV2 |= {"image_size": 12, "num_channels": 2, "hidden_dropout_prob": 0.2, "layer_norm_eps": 1e-4}

CAPTIONER_DECODER = {**GPT2, "model_type": "gpt2", "n_embd": 24, "is_decoder": True, "add_cross_attention": True}
CAPTIONER = {"encoder": {**VIT, "model_type": "vit"}, "decoder": CAPTIONER_DECODER, "pad_token_id": 0}
CAPTIONER |= {"decoder_start_token_id": 1, "eos_token_id": [2, 3]}

# name: (class, settings)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (hf.GPT2LMHeadModel, GPT2),
    "gpt2 untied": (hf.GPT2LMHeadModel, {**GPT2, "tie_word_embeddings": False, "n_inner": 24}),
    "gpt2 relu": (hf.GPT2LMHeadModel, {**GPT2, "activation_function": "relu"}),
    "gpt2 body": (hf.GPT2Model, {**GPT2, "activation_function": "silu"}),
    "gpt2 sequence": (hf.GPT2ForSequenceClassification, {**GPT2, **NAMED}),
    "gpt2 token": (hf.GPT2ForTokenClassification, {**GPT2, **NAMED}),
    "gpt2 span": (hf.GPT2ForQuestionAnswering, GPT2),
    "openai-gpt": (hf.OpenAIGPTLMHeadModel, GPT),
    "openai-gpt untied": (hf.OpenAIGPTLMHeadModel, {**GPT, "tie_word_embeddings": False, "afn": "silu"}),
    "openai-gpt body": (hf.OpenAIGPTModel, {**GPT, "afn": "relu"}),
    "openai-gpt sequence": (hf.OpenAIGPTForSequenceClassification, {**GPT, **NAMED}),
    "opt": (hf.OPTForCausalLM, OPT),
    "opt post-norm": (hf.OPTForCausalLM, {**OPT, "do_layer_norm_before": False, "activation_function": "gelu"}),
    "opt untied no bias": (hf.OPTForCausalLM, {**OPT, "tie_word_embeddings": False, "enable_bias": False}),
    "opt body": (hf.OPTModel, {**OPT, "activation_function": "silu"}),
    "opt body post-norm": (hf.OPTModel, {**OPT, "do_layer_norm_before": False}),
    "opt sequence": (hf.OPTForSequenceClassification, {**OPT, **NAMED}),
    "opt sequence post-norm": (hf.OPTForSequenceClassification, {**OPT, **NAMED, "do_layer_norm_before": False}),
    "opt span": (hf.OPTForQuestionAnswering, OPT),
    "bloom": (hf.BloomForCausalLM, BLOOM),
    "bloom untied": (hf.BloomForCausalLM, {**BLOOM, "tie_word_embeddings": False, "n_head": 1}),
    "bloom six heads": (hf.BloomForCausalLM, {**BLOOM, "hidden_size": 24, "n_head": 6}),
    "bloom twelve heads": (hf.BloomForCausalLM, {**BLOOM, "hidden_size": 24, "n_head": 12}),
    "bloom body": (hf.BloomModel, BLOOM),
    "bloom sequence": (hf.BloomForSequenceClassification, {**BLOOM, **NAMED}),
    "bloom token": (hf.BloomForTokenClassification, {**BLOOM, **NAMED}),
    "bloom span": (hf.BloomForQuestionAnswering, BLOOM),
    "gpt_neo": (hf.GPTNeoForCausalLM, GPT_NEO),
    "gpt_neo untied": (
        hf.GPTNeoForCausalLM,
        {**GPT_NEO, "num_layers": 3, "attention_types": [[["local", "global"], 1], [["local"], 1]]}
        | {"tie_word_embeddings": False, "intermediate_size": 24, "activation_function": "relu"},
    ),
    "gpt_neo body": (hf.GPTNeoModel, {**GPT_NEO, "attention_types": [[["global"], 2]], "window_size": 256}),
    "gpt_neo sequence": (hf.GPTNeoForSequenceClassification, {**GPT_NEO, **NAMED}),
    "gpt_neo token": (hf.GPTNeoForTokenClassification, {**GPT_NEO, **NAMED}),
    "gpt_neo span": (hf.GPTNeoForQuestionAnswering, GPT_NEO),
    "gpt_neox": (hf.GPTNeoXForCausalLM, GPT_NEOX),
    "gpt_neox sequential": (
        hf.GPTNeoXForCausalLM,
        {**GPT_NEOX, "use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
    ),
    "gpt_neox tied yarn": (
        hf.GPTNeoXForCausalLM,
        {**GPT_NEOX, "tie_word_embeddings": True, "rope_parameters": {**YARN, "partial_rotary_factor": 0.75}},
    ),
    "gpt_neox body": (
        hf.GPTNeoXModel,
        {**GPT_NEOX, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0}},
    ),
    "gpt_neox sequence": (hf.GPTNeoXForSequenceClassification, {**GPT_NEOX, **NAMED}),
    "gpt_neox token": (hf.GPTNeoXForTokenClassification, {**GPT_NEOX, **NAMED, "classifier_dropout": 0.4}),
    "gpt_neox span": (hf.GPTNeoXForQuestionAnswering, {**GPT_NEOX, "hidden_act": "gelu_fast"}),
    "gptj": (hf.GPTJForCausalLM, GPTJ),
    "gptj tied": (
        hf.GPTJForCausalLM,
        {**GPTJ, "tie_word_embeddings": True, "rotary_dim": 8, "n_inner": 24, "activation_function": "silu"},
    ),
    "gptj body": (hf.GPTJModel, {**GPTJ, "rotary_dim": 2}),
    "gptj sequence": (hf.GPTJForSequenceClassification, {**GPTJ, **NAMED}),
    "gptj span": (hf.GPTJForQuestionAnswering, GPTJ),
    "llama": (hf.LlamaForCausalLM, LLAMA),
    "llama grouped tied": (hf.LlamaForCausalLM, {**GROUPED, "tie_word_embeddings": True}),
    "llama biases head": (hf.LlamaForCausalLM, {**LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "llama linear": (hf.LlamaForCausalLM, {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    "llama llama3": (hf.LlamaForCausalLM, {**LLAMA, "rope_parameters": LLAMA3}),
    "llama yarn": (hf.LlamaForCausalLM, {**GROUPED, "rope_parameters": YARN}),
    "llama yarn said": (
        hf.LlamaForCausalLM,
        {**LLAMA, "rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 0.5}},
    ),
    "llama body": (hf.LlamaModel, {**LLAMA, "hidden_act": "gelu"}),
    "llama sequence": (hf.LlamaForSequenceClassification, {**LLAMA, **NAMED}),
    "llama token": (hf.LlamaForTokenClassification, {**GROUPED, **NAMED}),
    "llama span": (hf.LlamaForQuestionAnswering, LLAMA),
    "mistral": (hf.MistralForCausalLM, {**GROUPED, "sliding_window": 3}),
    "mistral whole": (hf.MistralForCausalLM, {**LLAMA, "num_key_value_heads": 1, "sliding_window": None}),
    "mistral sequence": (hf.MistralForSequenceClassification, {**GROUPED, **NAMED, "sliding_window": 2}),
    "mistral token": (hf.MistralForTokenClassification, {**GROUPED, **NAMED}),
    "mistral body": (hf.MistralModel, {**GROUPED, "sliding_window": 4}),
    "mistral span": (hf.MistralForQuestionAnswering, {**GROUPED, "sliding_window": 2}),
    "mixtral": (hf.MixtralForCausalLM, MIXTRAL),
    "mixtral one of eight": (
        hf.MixtralForCausalLM,
        {**LLAMA, "num_experts_per_tok": 1, "num_key_value_heads": 1, "sliding_window": 3, "hidden_act": "gelu"},
    ),
    "mixtral tied": (
        hf.MixtralForCausalLM,
        {**MIXTRAL, "head_dim": 6, "num_experts_per_tok": 3, "tie_word_embeddings": True},
    ),
    "mixtral body": (hf.MixtralModel, {**MIXTRAL, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    "mixtral sequence": (hf.MixtralForSequenceClassification, {**MIXTRAL, **NAMED}),
    "mixtral token": (hf.MixtralForTokenClassification, {**MIXTRAL, **NAMED}),
    "mixtral span": (hf.MixtralForQuestionAnswering, MIXTRAL),
    "qwen2": (hf.Qwen2ForCausalLM, {**GROUPED, "tie_word_embeddings": True}),
    "qwen2 window": (
        hf.Qwen2ForCausalLM,
        {**GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    ),
    "qwen2 upper window": (  # the lower layer is dense
        hf.Qwen2ForCausalLM,
        {**GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "qwen2 body": (hf.Qwen2Model, GROUPED),
    "qwen2 sequence": (hf.Qwen2ForSequenceClassification, {**GROUPED, **NAMED}),
    "qwen2 token": (hf.Qwen2ForTokenClassification, {**GROUPED, **NAMED}),
    "qwen2 span": (hf.Qwen2ForQuestionAnswering, GROUPED),
    "qwen3": (hf.Qwen3ForCausalLM, {**GROUPED, "head_dim": 8}),
    "qwen3 bias tied": (
        hf.Qwen3ForCausalLM,
        {**GROUPED, "head_dim": 6, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen3 body": (hf.Qwen3Model, {**GROUPED, "head_dim": 4}),
    "qwen3 token": (hf.Qwen3ForTokenClassification, {**GROUPED, **NAMED, "head_dim": 4}),
    "qwen3 span": (hf.Qwen3ForQuestionAnswering, {**GROUPED, "head_dim": 4}),
    "qwen3 window": (
        hf.Qwen3ForSequenceClassification,
        {**GROUPED, **NAMED, "use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0},
    ),
    "qwen3 windows": (
        hf.Qwen3ForCausalLM,
        {**GROUPED, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 2, "layer_types": MIXED},
    ),
    "phi3": (hf.Phi3ForCausalLM, PHI3),
    "phi3 window": (
        hf.Phi3ForCausalLM,
        {**PHI3, "num_key_value_heads": 2, "sliding_window": 3, "tie_word_embeddings": True, "hidden_act": "gelu"}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75}},
    ),
    "phi3 body": (hf.Phi3Model, {**PHI3, "num_key_value_heads": 1}),
    "phi3 sequence": (hf.Phi3ForSequenceClassification, {**PHI3, **NAMED}),
    "phi3 token": (hf.Phi3ForTokenClassification, {**PHI3, **NAMED}),
    "olmo2": (hf.Olmo2ForCausalLM, GROUPED),
    "olmo2 bias tied": (
        hf.Olmo2ForCausalLM,
        {**LLAMA, "attention_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu", "rope_parameters": YARN},
    ),
    "olmo2 body": (hf.Olmo2Model, {**GROUPED, "head_dim": 6}),
    "olmo2 sequence": (hf.Olmo2ForSequenceClassification, {**GROUPED, **NAMED}),
    "gemma2": (hf.Gemma2ForCausalLM, GEMMA2),
    "gemma2 untied": (
        hf.Gemma2ForCausalLM,
        {**GEMMA2, "tie_word_embeddings": False, "attention_bias": True, "hidden_activation": "silu"}
        | {"layer_types": MIXED, "num_hidden_layers": 3, "final_logit_softcapping": None},
    ),
    "gemma2 body": (hf.Gemma2Model, {**GEMMA2, "attn_logit_softcapping": None, "query_pre_attn_scalar": 6}),
    "gemma2 sequence": (hf.Gemma2ForSequenceClassification, {**GEMMA2, **NAMED}),
    "gemma2 token": (hf.Gemma2ForTokenClassification, {**GEMMA2, **NAMED, "attention_dropout": 0.2}),
    "bert": (hf.BertModel, BERT),
    "bert masked": (hf.BertForMaskedLM, {**BERT, "hidden_act": "relu"}),
    "bert sequence": (hf.BertForSequenceClassification, {**BERT, **NAMED}),
    "bert token": (hf.BertForTokenClassification, {**BERT, **NAMED, "classifier_dropout": 0.4}),
    "bert span": (hf.BertForQuestionAnswering, BERT),
    "roberta": (hf.RobertaModel, ROBERTA),
    "roberta masked": (hf.RobertaForMaskedLM, {**ROBERTA, "layer_norm_eps": 1e-3}),
    "roberta sequence": (hf.RobertaForSequenceClassification, {**ROBERTA, **NAMED}),
    "roberta token": (hf.RobertaForTokenClassification, {**ROBERTA, **NAMED, "type_vocab_size": 2}),
    "roberta span": (hf.RobertaForQuestionAnswering, {**ROBERTA, "hidden_act": "relu"}),
    "xlm-roberta": (hf.XLMRobertaForMaskedLM, ROBERTA),
    "xlm-roberta sequence": (hf.XLMRobertaForSequenceClassification, {**ROBERTA, **NAMED}),
    "xlm-roberta token": (hf.XLMRobertaForTokenClassification, {**ROBERTA, **NAMED}),
    "xlm-roberta span": (hf.XLMRobertaForQuestionAnswering, ROBERTA),
    "xlm-roberta other pad": (hf.XLMRobertaModel, {**ROBERTA, "pad_token_id": 3}),
    "camembert": (hf.CamembertModel, ROBERTA),
    "camembert masked": (hf.CamembertForMaskedLM, {**ROBERTA, "layer_norm_eps": 1e-5}),
    "camembert sequence": (hf.CamembertForSequenceClassification, {**ROBERTA, **NAMED, "classifier_dropout": 0.4}),
    "camembert token": (hf.CamembertForTokenClassification, {**ROBERTA, **NAMED}),
    "camembert span": (hf.CamembertForQuestionAnswering, {**ROBERTA, "hidden_act": "relu"}),
    "distilbert": (hf.DistilBertModel, DISTIL),
    "distilbert masked": (hf.DistilBertForMaskedLM, {**DISTIL, "activation": "relu"}),
    "distilbert untied": (hf.DistilBertForMaskedLM, {**DISTIL, "tie_word_embeddings": False}),
    "distilbert sequence": (hf.DistilBertForSequenceClassification, {**DISTIL, **NAMED}),
    "distilbert token": (hf.DistilBertForTokenClassification, {**DISTIL, **NAMED}),
    "distilbert span": (hf.DistilBertForQuestionAnswering, {**DISTIL, "sinusoidal_pos_embds": True}),
    "deberta-v2": (hf.DebertaV2Model, DEBERTA),
    "deberta-v2 own projections": (
        hf.DebertaV2Model,
        {**DEBERTA, "share_att_key": False, "norm_rel_ebd": "none", "position_buckets": -1, "type_vocab_size": 2}
        | {"max_relative_positions": 3},
    ),
    "deberta-v2 convolution": (hf.DebertaV2Model, {**DEBERTA, "conv_kernel_size": 3, "conv_act": "gelu"}),
    "deberta-v2 masked": (hf.DebertaV2ForMaskedLM, {**DEBERTA, "hidden_act": "relu", "pos_att_type": ["c2p"]}),
    "deberta-v2 masked new": (
        hf.DebertaV2ForMaskedLM,
        {**DEBERTA, "legacy": False, "pos_att_type": ["p2c"], "share_att_key": False},
    ),
    "deberta-v2 sequence": (
        hf.DebertaV2ForSequenceClassification,
        {**DEBERTA, **NAMED, "cls_dropout": 0.4, "pooler_dropout": 0.3, "pooler_hidden_act": "tanh"},
    ),
    "deberta-v2 token": (hf.DebertaV2ForTokenClassification, {**DEBERTA, **NAMED, "max_relative_positions": 7}),
    "deberta-v2 span": (hf.DebertaV2ForQuestionAnswering, {**DEBERTA, "pos_att_type": [], "position_buckets": 5}),
    "electra": (hf.ElectraModel, ELECTRA),
    "electra same width": (hf.ElectraModel, {**ELECTRA, "embedding_size": 16, "layer_norm_eps": 1e-3}),
    "electra masked": (hf.ElectraForMaskedLM, {**ELECTRA, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "electra untied": (hf.ElectraForMaskedLM, {**ELECTRA, "tie_word_embeddings": False}),
    "electra sequence": (hf.ElectraForSequenceClassification, {**ELECTRA, **NAMED, "classifier_dropout": 0.4}),
    "electra token": (hf.ElectraForTokenClassification, {**ELECTRA, **NAMED, "embedding_size": 24}),
    "electra discriminator": (hf.ElectraForPreTraining, {**ELECTRA, "hidden_act": "silu"}),
    "electra span": (hf.ElectraForQuestionAnswering, ELECTRA),
    "albert": (hf.AlbertModel, ALBERT),
    "albert apart": (hf.AlbertModel, {**ALBERT, "num_hidden_groups": 3, "embedding_size": 16}),
    "albert masked": (hf.AlbertForMaskedLM, {**ALBERT, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "albert sequence": (hf.AlbertForSequenceClassification, {**ALBERT, **NAMED, "hidden_act": "gelu"}),
    "albert token": (hf.AlbertForTokenClassification, {**ALBERT, **NAMED, "num_hidden_layers": 1}),
    "albert span": (hf.AlbertForQuestionAnswering, {**ALBERT, "bos_token_id": None}),
    "mpnet": (hf.MPNetModel, MPNET),
    "mpnet masked": (hf.MPNetForMaskedLM, {**MPNET, "layer_norm_eps": 1e-3}),
    "mpnet sequence": (hf.MPNetForSequenceClassification, {**MPNET, **NAMED}),
    "mpnet token": (hf.MPNetForTokenClassification, {**MPNET, **NAMED, "hidden_act": "relu"}),
    "mpnet span": (hf.MPNetForQuestionAnswering, MPNET),
    "deberta": (hf.DebertaModel, DEBERTA_V1),
    "deberta masked": (hf.DebertaForMaskedLM, {**DEBERTA_V1, "hidden_act": "relu", "pos_att_type": ["c2p"]}),
    "deberta masked new": (hf.DebertaForMaskedLM, {**DEBERTA_V1, "legacy": False, "pos_att_type": ["p2c"]}),
    "deberta sequence": (hf.DebertaForSequenceClassification, {**DEBERTA_V1, **NAMED, "cls_dropout": 0.4}),
    "deberta token": (hf.DebertaForTokenClassification, {**DEBERTA_V1, **NAMED, "max_relative_positions": 3}),
    "deberta span": (hf.DebertaForQuestionAnswering, {**DEBERTA_V1, "type_vocab_size": 2, "pos_att_type": []}),
    "xlnet": (hf.XLNetModel, {**XLNET, "clamp_len": 2, "mem_len": None}),
    "xlnet language-model": (hf.XLNetLMHeadModel, {**XLNET, "ff_activation": "relu", "eos_token_id": [2, 3]}),
    "xlnet untied": (hf.XLNetLMHeadModel, {**XLNET, "tie_word_embeddings": False, "layer_norm_eps": 1e-3}),
    "xlnet sequence": (hf.XLNetForSequenceClassification, {**XLNET, **NAMED, "summary_last_dropout": 0.3}),
    "xlnet sequence gelu": (
        hf.XLNetForSequenceClassification,
        {**XLNET, **NAMED, "summary_activation": "gelu", "ff_activation": "silu"},
    ),
    "xlnet token": (hf.XLNetForTokenClassification, {**XLNET, **NAMED, "initializer_range": 0.1}),
    "xlnet span": (hf.XLNetForQuestionAnsweringSimple, {**XLNET, "clamp_len": 3}),
    "modernbert": (hf.ModernBertModel, MODERN),
    "modernbert biases": (hf.ModernBertModel, {**BIASED, "hidden_activation": "relu", "embedding_dropout": 0.3}),
    "modernbert masked": (hf.ModernBertForMaskedLM, MODERN),
    "modernbert masked biases": (
        hf.ModernBertForMaskedLM,
        {**BIASED, "decoder_bias": False, "tie_word_embeddings": False, "classifier_activation": "relu"}
        | {"rope_parameters": BASES, "layer_types": [*MIXED, "full_attention"], "local_attention": 2},
    ),
    "modernbert sequence": (hf.ModernBertForSequenceClassification, {**MODERN, **NAMED, "classifier_dropout": 0.3}),
    "modernbert sequence mean": (
        hf.ModernBertForSequenceClassification,
        {**BIASED, **NAMED, "classifier_pooling": "mean", "classifier_activation": "silu"},
    ),
    "modernbert token": (hf.ModernBertForTokenClassification, {**MODERN, **NAMED}),
    "modernbert span": (hf.ModernBertForQuestionAnswering, {**BIASED, "classifier_dropout": 0.3}),
    "marian": (hf.MarianMTModel, {**MARIAN, "scale_embedding": True}),
    "marian unscaled": (hf.MarianMTModel, {**MARIAN, "activation_function": "swish"}),
    "marian apart": (hf.MarianMTModel, {**MARIAN, **APART}),
    "marian apart untied": (hf.MarianMTModel, {**MARIAN, **APART, "tie_word_embeddings": False}),
    "t5": (hf.T5ForConditionalGeneration, T5),
    "t5 gated": (
        hf.T5ForConditionalGeneration,
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5 gated silu": (
        hf.T5ForConditionalGeneration,
        {**T5, "feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-3},
    ),
    "t5 body": (hf.T5Model, {**T5, "feed_forward_proj": "gelu_new"}),
    "t5 sequence": (hf.T5ForSequenceClassification, {**T5, **NAMED, "classifier_dropout": 0.3}),
    "t5 span": (hf.T5ForQuestionAnswering, {**T5, "feed_forward_proj": "gated-relu"}),
    "mt5": (hf.MT5ForConditionalGeneration, {**T5, "feed_forward_proj": "gated-gelu"}),
    "mt5 relu": (hf.MT5ForConditionalGeneration, {**T5, "feed_forward_proj": "relu", "layer_norm_epsilon": 1e-3}),
    "mt5 body": (hf.MT5Model, {**T5, "feed_forward_proj": "gated-silu"}),
    "mt5 sequence": (hf.MT5ForSequenceClassification, {**T5, **NAMED, "classifier_dropout": 0.3}),
    "mt5 span": (hf.MT5ForQuestionAnswering, T5),
    "switch_transformers": (hf.SwitchTransformersForConditionalGeneration, SWITCH),
    "switch_transformers bias": (
        hf.SwitchTransformersForConditionalGeneration,
        {**SWITCH, "router_bias": True, "dense_act_fn": "gelu_new", "num_layers": 3, "router_jitter_noise": 0.0},
    ),
    "switch_transformers full": (
        hf.SwitchTransformersForConditionalGeneration,
        {**SWITCH, "expert_capacity": 1, "num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 1},
    ),
    "switch_transformers body": (hf.SwitchTransformersModel, {**SWITCH, "expert_capacity": 2}),
    "bart": (hf.BartForConditionalGeneration, {**BART, "scale_embedding": True}),
    "bart relu": (hf.BartForConditionalGeneration, {**BART, "activation_function": "relu", "dropout": 0.3}),
    "bart body": (hf.BartModel, BART),
    "bart sequence": (hf.BartForSequenceClassification, {**BART, **NAMED, "classifier_dropout": 0.3}),
    "bart span": (hf.BartForQuestionAnswering, BART),
    "mbart": (hf.MBartForConditionalGeneration, MBART),
    "mbart relu": (hf.MBartForConditionalGeneration, {**BART, "activation_function": "relu", "dropout": 0.3}),
    "mbart body": (hf.MBartModel, MBART),
    "mbart sequence": (
        hf.MBartForSequenceClassification,
        {**MBART, **NAMED, "pad_token_id": 0, "classifier_dropout": 0.3},
    ),
    "mbart span": (hf.MBartForQuestionAnswering, BART),
    "m2m_100": (hf.M2M100ForConditionalGeneration, M2M),
    "m2m_100 silu": (
        hf.M2M100ForConditionalGeneration,
        {**M2M, "activation_function": "silu", "pad_token_id": 3, "scale_embedding": False, "dropout": 0.3},
    ),
    "m2m_100 body": (hf.M2M100Model, M2M),
    "pegasus": (hf.PegasusForConditionalGeneration, {**BART, "scale_embedding": True}),
    "pegasus relu": (hf.PegasusForConditionalGeneration, {**BART, "activation_function": "relu", "dropout": 0.3}),
    "pegasus body": (hf.PegasusModel, BART),
    "vit": (hf.ViTModel, VIT),
    "vit image": (hf.ViTForImageClassification, {**VIT, **NAMED, "image_size": 12, "qkv_bias": False}),
    "vit relu": (hf.ViTForImageClassification, {**VIT, **NAMED, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "deit": (hf.DeiTModel, VIT),
    "deit image": (hf.DeiTForImageClassification, {**DEIT, **NAMED}),
    "deit teacher": (hf.DeiTForImageClassificationWithTeacher, {**DEIT, **NAMED, "qkv_bias": False}),
    "vision-encoder-decoder": (hf.VisionEncoderDecoderModel, CAPTIONER),
    "vision-encoder-decoder same width": (
        hf.VisionEncoderDecoderModel,
        {**CAPTIONER, "decoder": {**CAPTIONER_DECODER, "n_embd": 16, "activation_function": "relu", "n_inner": 24}},
    ),
    "vision-encoder-decoder deit": (
        hf.VisionEncoderDecoderModel,
        {
            **CAPTIONER,
            "encoder": {**DEIT, "model_type": "deit", "qkv_bias": False},
            "decoder": {**CAPTIONER_DECODER, "tie_word_embeddings": False},
        },
    ),
    "dinov2": (hf.Dinov2Model, DINOV2),
    "dinov2 gated": (hf.Dinov2ForImageClassification, {**DINOV2, **NAMED, "use_swiglu_ffn": True, "mlp_ratio": 3}),
    "dinov2 image": (
        hf.Dinov2ForImageClassification,
        {**DINOV2, **NAMED, "qkv_bias": False, "hidden_act": "relu", "use_mask_token": False, "layerscale_value": 0.3},
    ),
    "ijepa": (hf.IJepaModel, VIT),
    "ijepa relu": (hf.IJepaForImageClassification, {**VIT, **NAMED, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "ijepa image": (hf.IJepaForImageClassification, {**VIT, **NAMED, "image_size": 12, "qkv_bias": False}),
}

IDS = torch.tensor([[5, 7, 9, 11, END], [6, 8, 10, 12, END]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
TARGET = torch.tensor([[22, 4, 5, 6], [22, 7, 8, 9]])
SINUSOIDAL = ("Marian", "M2M100", "Pegasus")  # their tables are computed, not learned
DECODERS = (
    "mixtral",
    "gpt2",
    "gpt_neo",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "openai-gpt",
    "opt",
    "gpt_neox",
    "gptj",
    "phi3",
    "bloom",
    "olmo2",
    "gemma2",
)


@functools.cache
def reference(case: str) -> Any:
    """A model with every parameter and stored buffer random: biases and norm weights too."""
    made, settings = CASES[case]
    model = made(made.config_class(**settings))
    generator, stored = torch.Generator().manual_seed(0), model.state_dict().keys()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            is_table = "embed_positions" in name and made.__name__.startswith(SINUSOIDAL)
            computed = name not in stored or is_table
            if tensor.is_floating_point() and not computed:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3 + ("norm" in name.lower()))
    return model.eval()


@functools.cache
def _files(case: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        reference(case).float().save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def write(case: str, folder: Path) -> None:
    """Writes the folder of a case as transformers does, which is asked once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _files(case).items():
        (folder / name).write_bytes(content)


def exactly(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """The norm of their model in the precision of ``x``: theirs rounds to float32, whatever comes in."""
    if hasattr(norm, "bias"):  # DeBERTa's layer norm
        return torch.nn.functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.variance_epsilon)
    return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()


def routed(router: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mixtral's router in the precision of ``x``: theirs rounds to float32, whatever comes in."""
    logits = torch.nn.functional.linear(x.reshape(-1, router.hidden_dim), router.weight)
    weights, choice = logits.softmax(-1).topk(router.top_k)
    return logits, weights / weights.sum(-1, keepdim=True), choice


def exactly_offset(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """The same of Gemma 2's."""
    return (1 + norm.weight) * x * (x.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt()


def sinusoids(positions: torch.Tensor, frequencies: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """XLNet's sinusoids with frequencies rounded from float64: theirs are powers in float32, 1e-7 beside them."""
    dim = 2 * len(frequencies)
    exact = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = positions[:, None] * exact.float()
    return torch.cat((angle.sin(), angle.cos()), -1)[:, None].expand(-1, rows or 1, -1)


def exact_table(rows: int, dim: int, padding: int | None = None) -> torch.Tensor:
    """M2M-100's sinusoids rounded from float64: theirs are powers in float32, 1e-7 beside them."""
    half = torch.arange(dim // 2, dtype=torch.float64)
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * 10000.0 ** (-half / (dim // 2 - 1))
    table = torch.cat((angle.sin(), angle.cos()), -1)
    table[padding] = 0
    return table.float()


their_table = modeling_m2m_100.M2M100SinusoidalPositionalEmbedding.get_embedding
modeling_m2m_100.M2M100SinusoidalPositionalEmbedding.get_embedding = staticmethod(exact_table)


class Exact:
    """PyTorch, whose float32 is float64."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, "float64" if name == "float32" else name)


def their_output(model: Any, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    model = model.to(dtype)
    for part in model.modules():
        if dtype == torch.float64 and hasattr(part, "variance_epsilon"):
            part.forward = functools.partial(exactly, part)
        if dtype == torch.float64 and isinstance(part, modeling_gemma2.Gemma2RMSNorm):
            part.forward = functools.partial(exactly_offset, part)
        if dtype == torch.float64 and isinstance(part, modeling_mixtral.MixtralTopKRouter):
            part.forward = functools.partial(routed, part)
            model.set_experts_implementation("eager")  # their grouped products have no float64
        if isinstance(part, modeling_switch_transformers.SwitchTransformersTop1Router):
            part.dtype = dtype  # theirs is float32, whatever the model is
    modeling_deberta.scaled_size_sqrt = lambda q, terms: torch.tensor(q.size(-1) * terms, dtype=dtype).sqrt()
    modeling_deberta_v2.scaled_size_sqrt = lambda q, terms: torch.tensor(q.size(-1) * terms, dtype=dtype).sqrt()
    modeling_modernbert.apply_rotary_pos_emb = modeling_llama.apply_rotary_pos_emb  # theirs rotates in float32
    modeling_xlnet.XLNetModel.positional_embedding = staticmethod(sinusoids)
    for module in (
        modeling_gpt_neo,
        modeling_gptj,
        modeling_bloom,
        modeling_gemma2,
    ):  # whose scores are float32 otherwise
        module.torch = Exact() if dtype == torch.float64 else torch
    modeling_bloom._get_alibi_slopes = lambda heads, _: torch.tensor(Alibi(heads).slopes).to(dtype)
    modeling_bloom.bloom_gelu_forward = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    kind, given = model.config.model_type, {} if mask is None else {"attention_mask": mask.long()}
    ids = IDS if mask is None else IDS.masked_fill(~mask, model.config.pad_token_id or 0)
    if kind in ("vit", "deit", "dinov2", "ijepa"):
        out = model(pixels(model).to(dtype))
    elif kind == "vision-encoder-decoder":
        out = model(pixel_values=pixels(model).to(dtype), decoder_input_ids=TARGET)
    elif model.config.is_encoder_decoder:
        inner = type(model).__name__.endswith("SequenceClassification")  # it makes the decoder's input itself
        target = {} if inner else {"decoder_input_ids": TARGET}
        out = model(input_ids=closed(mask) if inner else IDS, **target, **given)
    elif kind in DECODERS:
        positions = {} if mask is None else {"position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0)}
        out = model(input_ids=ids, **given, **positions)
    else:
        kinds = 3 if kind == "xlnet" else getattr(model.config, "type_vocab_size", 0)
        segments = {"token_type_ids": segments_of(kinds)} if kinds else {}
        out = model(input_ids=ids, **segments, **given)
    if hasattr(out, "start_logits"):
        return torch.stack((out.start_logits, out.end_logits), -1)
    if isinstance(model, hf.ElectraForPreTraining):  # one logit for each token, without an axis
        return out.logits[..., None]
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def segments_of(kinds: int) -> torch.Tensor:
    return IDS % kinds


def closed(mask: torch.Tensor | None) -> torch.Tensor:
    """The ids, the last real one of each row being the end token."""
    if mask is None:
        return IDS
    ids = IDS.masked_fill(IDS == END, 3)
    return ids.scatter(1, mask.sum(1, keepdim=True) - 1, END).masked_fill(~mask, 0)


def our_output(model: Any, mask: torch.Tensor | None) -> torch.Tensor:
    config = model.config
    if config.kind == "vision":
        return model(pixels(model).to(model.dtype))
    if patches_of(config) is not None:
        return model(pixels(model).to(model.dtype), TARGET)
    if config.kind == "encoder-decoder" and config.head.kind == "sequence":
        ids = closed(mask)
        start = torch.full((len(ids), 1), config.special.start)
        return model(ids, torch.cat((start, ids[:, :-1]), 1), mask, mask)
    if config.kind == "encoder-decoder":
        return model(IDS, TARGET, mask)
    if config.kind == "encoder" and config.segments:
        return model(IDS, mask, segments_of(config.segments))
    return model(IDS, mask)


def pixels(model: Any) -> torch.Tensor:
    if isinstance(model, heedful.models.Model):
        size = patches_of(model.config).image_size
    else:
        config = model.config if hasattr(model.config, "image_size") else model.config.encoder
        size = (8, 12) if config.image_size == [8, 12] else None
    return torch.randn(2, 2, *(size or (12, 12)), generator=torch.Generator().manual_seed(1))


def masks(case: str) -> dict[str, torch.Tensor | None]:
    if case.startswith(("vi", "deit", "dinov2", "ijepa")):
        return {"none": None}
    if case.startswith("xlnet sequence"):  # theirs reads the last column, be it padding
        return {"none": None, "left": MASK.flip(1)}
    left = {"left": MASK.flip(1)} if case.startswith((*DECODERS, "xlnet")) else {}
    return {"none": None, "right": MASK} | left


def distance(a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor | None) -> float:
    """The largest difference at real tokens, of the largest value."""
    if mask is not None and a.dim() == 3 and a.shape[:2] == mask.shape:
        a, b = a[mask], b[mask]
    return float((a - b).abs().max() / b.abs().max())


def table() -> list[str]:
    """The rows of the table: a class, how many configurations of it, the largest differences of all of them."""
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for case, (made, _) in CASES.items():
        found = []
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            reference(case).float().save_pretrained(folder)
            for dtype in (torch.float64, torch.float32):
                ours = load(folder, dtype=dtype)
                pairs = [
                    (our_output(ours, m), their_output(reference(case), m, dtype), m) for m in masks(case).values()
                ]
                found.append(max(distance(a, b, mask) for a, b, mask in pairs))
        rows.setdefault((case.split()[0], made.__name__), []).append((found[0], found[1]))
    lines = ["| layout | class | configurations | float64 | float32 |", "|---|---|---|---|---|"]
    for (family, name), pairs in rows.items():
        exact, single = (max(column) for column in zip(*pairs, strict=True))
        lines.append(f"| {family} | {name} | {len(pairs)} | {exact:.1e} | {single:.1e} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
