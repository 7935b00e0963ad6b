"""Hugging Face's ``transformers``, eager: fused attention, its default cache or the static one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.speed.programs import Call, Ready, Setting, need
from benchmarks.speed.steps import adamw, bare, tensors
from benchmarks.speed.works import TEXTS, Work


def opened(at: Setting, kind: str) -> Any:
    """The model by one of their automatic classes."""
    need("transformers")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = getattr(transformers, kind).from_pretrained(at.model, dtype=getattr(torch, at.precision))
    return model.eval().to(at.device)


def _generating(at: Setting, kind: str) -> Ready:
    model = opened(at, kind)
    static = {"cache_implementation": "static", "disable_compile": True} if at.way == "static cache" else {}

    def ready(work: Work) -> Call:
        ids = torch.from_numpy(work.ids()).to(at.device)
        options = {"max_new_tokens": work.new, "min_new_tokens": work.new, "num_beams": work.beams, **static}
        options |= {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
        return lambda: model.generate(ids, **options)[:, -work.new :]

    return ready


def generation(at: Setting) -> Ready:
    """Greedy tokens."""
    return _generating(at, "AutoModelForCausalLM")


def beam(at: Setting) -> Ready:
    """The best beam."""
    return _generating(at, "AutoModelForSeq2SeqLM")


def encoder(at: Setting) -> Ready:
    """The last hidden states."""
    model = opened(at, "AutoModel")

    def ready(work: Work) -> Call:
        ids, mask = (torch.from_numpy(part).to(at.device) for part in (work.ids(), work.mask()))
        return torch.inference_mode()(lambda: model(ids, mask.long()).last_hidden_state)

    return ready


def vit(at: Setting) -> Ready:
    """The logits."""
    model = opened(at, "AutoModelForImageClassification")

    def ready(work: Work) -> Call:
        pixels = torch.from_numpy(work.pixels()).to(at.device, model.dtype)
        return torch.inference_mode()(lambda: model(pixels).logits)

    return ready


KINDS = {
    "gpt2": "AutoModelForCausalLM",
    "pair": "AutoModelForSeq2SeqLM",
    "bert": "AutoModelForSequenceClassification",
    "deberta": "AutoModelForSequenceClassification",
    "vit": "AutoModelForImageClassification",
}


def training(at: Setting) -> Ready:
    """The losses of the first steps in a bare loop."""
    model = opened(replace(at, precision="float32"), KINDS[at.model.name.partition("-")[0]]).train()
    optimiser = adamw(model)

    def ready(work: Work) -> Call:
        batch = tensors(work, at.device)

        def loss() -> Tensor:
            labels = batch["labels"]
            if work.family == "gpt2":  # given labels it would predict each token from itself on, one less
                return F.cross_entropy(model(batch["ids"]).logits.flatten(0, 1).float(), labels.flatten())
            if work.family == "pair":
                source, mask = batch["source"], batch["source_mask"].long()
                return model(source, mask, decoder_input_ids=batch["target"], labels=labels).loss
            if work.family in TEXTS:
                return model(batch["ids"], batch["mask"].long(), labels=labels).loss
            return model(batch["pixels"], labels=labels).loss

        return bare(model, optimiser, loss, at.precision, at.device, work.steps)

    return ready
