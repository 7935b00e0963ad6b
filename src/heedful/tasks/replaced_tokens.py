"""Replaced-token detection (ELECTRA, Clark et al. 2020), an objective of fill-mask for encoders. Column ``text``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import DenseConfig, EncoderConfig, Head, MaskedHead, ModelConfig, StackConfig, TokenHead
from heedful.data import Row, Rows
from heedful.data.batching import evaluation_batches
from heedful.data.token_stream import StreamWindow
from heedful.errors import HeedfulError
from heedful.heads import MaskedLanguageModel
from heedful.metrics.example_scores import Metrics, Sums, overall
from heedful.models import Encoder, Model
from heedful.models.create import create
from heedful.pretrained import load, save
from heedful.pretrained.folder import CONFIG, find
from heedful.settings import RunSettings
from heedful.tasks.fill_mask import FillMask, is_discriminator
from heedful.tasks.masked_windows import SEED, document_numbers
from heedful.tasks.model_setup import model_of
from heedful.tasks.task import (
    EVALUATED,
    SQUARE,
    Baseline,
    Batch,
    LoggedSample,
    Measured,
    Prediction,
    Task,
    check_texts,
)
from heedful.tasks.token_batches import IGNORED, label_index, padded_with_mask
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer
from heedful.util import sharding

WEIGHT = 50.0  # λ, of the discriminator's loss (Clark et al. 2020, appendix A)
GENERATOR_SHARE = 0.25  # width of the generator in widths of the discriminator (section 3.2: a quarter to a half)
GENERATOR = "generator"  # its folder, in that of the discriminator
LABELS = ("original", "replaced")
UNITS = 2**40  # parts in which a probability is counted: sums of integers are exact on every device


class ReplacedTokens(FillMask):
    r"""An encoder that learns which tokens of a text were replaced by samples of a small masked language model.

    The generator G, a narrow encoder that shares the token embedding, is trained beside the discriminator D to predict
    the masked tokens. Each masked token is replaced by a sample of p_G, through which no gradient flows, and D tells
    for each token x̂_t of the result whether it is the original x_t; a sample that equals it counts as original (Clark
    et al. 2020, section 2). For a window of n tokens, m of them masked, the loss is

    .. math:: \frac{1}{m} \sum_{t\ masked} -\log p_G(x_t) + \frac{λ}{n} \sum_t -\log p_D([\hat x_t = x_t]), \quad λ=50

    and that of a batch the mean over windows, weighted by m. The run's folder holds D, ``generator`` in it G.

    >>> from heedful.settings import MaskingSettings
    >>> data = Rows([Row({"text": "the cow says moo and the owl says hoo"}, "farm.txt", 1)])
    >>> masking = MaskingSettings(objective="replaced-token")
    >>> settings = RunSettings(task="fill-mask", train=("farm.txt",), out="farm", preset="bert-tiny", masking=masking)
    >>> task = FillMask.for_rows(data, settings).prepare(data, settings)
    >>> model = create(task.config(settings), seed=0).eval()
    >>> task.initialise(model, settings)
    >>> model.generator.config.encoder.dim, len(task.predict(model, ["the"])[0].output)
    (64, 1)
    """

    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["ReplacedTokens"]
    head_class: ClassVar[type[Head]] = TokenHead
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens"})

    def __init__(self, tokenizer: Tokenizer, window: int | None = None) -> None:
        super().__init__(tokenizer, window)
        self.folder: Path | None = None  # where the generator is, for a model without one
        self.masking = self.evaluation_masking

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns the default settings of a masked language model.

        Raises ``HeedfulError`` for options that need a single model: sharded weights, an adapter, a registered head.
        """
        refused = {
            "--training.shard": given.training.shard,
            "--lora.rank": given.lora.rank,
            "--model.head": given.model.head,
        }
        for flag, value in refused.items():
            if value:
                raise HeedfulError(
                    f"{flag} does not work with --masking.objective replaced-token; leave one of them out"
                )
        return super().suggested_settings(rows, given)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer and the window length; remembers the folder, which may hold a generator."""
        task = super().load(folder)
        task.folder = find(folder)
        return task

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task, discriminator and generator of a run's folder; raises ``HeedfulError`` if one is missing."""
        task = cls.load(folder)
        assert task.folder is not None
        model = cls.read_model(task.folder)
        task.check_model(model)
        return task, model

    @classmethod
    def read_model(cls, folder: Path) -> Model:
        """Returns the discriminator of a folder, with its generator as ``model.generator``."""
        model = load(folder, dtype="float32")
        if not is_discriminator(model.config):
            raise HeedfulError(
                f"{folder} holds no discriminator of replaced tokens; start from a run of --masking.objective "
                "replaced-token, or from a preset"
            )
        return joined(model_of(Encoder, model, cls.name), read_generator(folder))

    def write_model(self, model: Model, folder: Path, card: Mapping[str, Any]) -> None:
        """Writes the discriminator to a folder and the generator, with a tokenizer, to ``generator`` in it."""
        own = {name: value for name, value in card.items() if name != "metrics"}  # which are of both
        save(generator_of(model, self.folder), folder / GENERATOR, extra=own)
        self.tokenizer.save(folder / GENERATOR)
        save(discriminator_of(model), folder, extra=card)

    def initialise(self, model: Model, settings: RunSettings) -> None:
        """Adds a generator with random weights to a new model."""
        config = generator_config(model.config, settings.masking.generator or GENERATOR_SHARE)
        joined(model_of(Encoder, model, self.name), create(config, seed=(settings.seed or 0) + 1))

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Sets the probability of masking and its unit from the settings; every chosen token is masked."""
        super().before_training(model, settings)
        self.masking = replace(self.masking, masked=1.0, other=0.0)
        self.folder = Path(settings.out)
        if GENERATOR in model._modules:  # an audit has none
            stack = generator_of(model, None).main
            size = f"width {stack.dim} and depth {stack.depth}"
            self.model_notes = [f"beside a generator of {size}, which shares its embedding"]

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of ELECTRA's discriminator: a dense layer and one logit for each token."""
        return TokenHead(labels=1, dropout=0.0, dense=DenseConfig(activation=stack.activation, norm=False))

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has one logit for each token."""
        if not is_discriminator(model.config):
            raise HeedfulError(
                f"replaced-token detection needs a token head with one label; this model's head is of kind "
                f"{model.config.head.kind!r}; choose another model"
            )

    def recorded(self, model: Model) -> tuple[Task, Model]:
        """Returns the task and the discriminator alone."""
        return self, discriminator_of(model)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def collate(self, examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch of ``FillMask.collate`` with ``draws`` (B, T), integers by which tokens are sampled.

        In evaluation they are always the same.
        """
        batch = super().collate(examples, random)
        draws = torch.zeros_like(batch["ids"])
        for row, window in zip(draws.numpy(), examples, strict=True):
            generator = random or np.random.default_rng([SEED + 1, window.number])
            row[:] = generator.integers(UNITS, size=len(row))
        return {**batch, "draws": draws}

    # --------------------------------------------------------------------------------------------------------- training

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over windows of m times that of the class's equation.

        Label smoothing applies to the generator.
        """
        logits, truth = self._guesses(generator_of(model, self.folder), batch)
        ids, is_replaced = self.replaced(batch, logits.detach(), truth)
        mask = batch["mask"]
        losses = detection_losses(model_of(Encoder, model, self.name)(ids, mask), is_replaced) * mask
        masked = (batch["labels"] != IGNORED).sum(1)
        detection = (losses.sum(1) * masked / mask.sum(1)).sum()
        guessing = F.cross_entropy(logits, truth, reduction="sum", label_smoothing=label_smoothing)
        return guessing + WEIGHT * detection

    def _guesses(self, generator: Encoder, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the generator's logits (M, V) for the M masked tokens of a batch, in float32, and their ids (M,)."""
        hidden, truth = self._chosen(generator, batch)
        return generator.head(hidden).float(), truth

    def replaced(self, batch: Batch, logits: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the ids (B, T) of a batch with samples in place of the masks, and True where they are not the
        original tokens.

        The samples are from softmax(``logits``) (M, V); ``truth`` (M,) are the original tokens.
        """
        index, ids = label_index(batch), batch["ids"]
        drawn = sampled(logits, batch["draws"].flatten().index_select(0, index))
        is_replaced = torch.zeros_like(ids, dtype=torch.bool).flatten().index_copy(0, index, drawn != truth)
        return ids.flatten().index_copy(0, index, drawn).view_as(ids), is_replaced.view_as(ids)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self,
        model: Model,
        examples: Sequence[StreamWindow],
        rows: Rows,
        *,
        most: int | None = None,
        batch_tokens: int | None = None,
        **options: Any,
    ) -> Measured:
        """Returns ``accuracy`` and ``f1`` (percent) of replaced tokens, ``generator_loss``, and training's ``loss``.

        The masked tokens of each window are always the same, and so is the sample that a generator gives for them. All
        windows are read; ``most`` has no effect.

        Raises:
            HeedfulError: ``options`` has an option, or neither the model nor its folder has a generator.
        """
        for name in options:
            raise HeedfulError(f"{name} has no effect on evaluation; leave the option out")
        stream, before = examples[0].stream, len(self.input_template.before)
        row_sums, window_sums = np.zeros((len(rows), 8)), np.zeros((stream.windows, 8))
        encoder, generator = model_of(Encoder, model, self.name), generator_of(model, self.folder)

        def read(batch: Batch) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
            logits, truth = self._guesses(generator, batch)
            ids, is_replaced = self.replaced(batch, logits, truth)
            output, is_masked = encoder(ids, batch["mask"]), batch["labels"] != IGNORED
            guessing = F.cross_entropy(logits, truth, reduction="none")
            guessing = torch.zeros(ids.numel(), device=ids.device).index_copy(0, label_index(batch), guessing)
            said = output[..., 0] > 0
            columns = [guessing.view_as(ids), is_masked, detection_losses(output, is_replaced), torch.ones_like(ids)]
            columns += [said == is_replaced, said & is_replaced, said & ~is_replaced, ~said & is_replaced]
            sums = torch.stack([column.float() for column in columns], -1).cpu().double().numpy()
            places = np.nonzero(batch["mask"].cpu().numpy())
            return sums[places], (places[0], places[1])

        for indices, (sums, (window, position)) in self.map_batches(model, examples, read, batch_tokens):
            windows = np.array([examples[i].number for i in indices])[window]
            places = (windows * stream.context - before + position).clip(0, len(stream.tokens) - 1)
            np.add.at(row_sums, document_numbers(stream, places), sums)
            np.add.at(window_sums, windows, sums)
        scored, total = Sums(row_sums, detection_metrics), row_sums.sum(axis=0)
        details = {"tokens": int(total[3]), "masked": int(total[1]), "replaced": int(total[5] + total[7])}
        return Measured(overall(scored), details, scored, window_scores=Sums(window_sums, detection_metrics))

    def quick_baseline(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline:
        """Scores n-grams in the generator's place, and in the discriminator's the share of replaced tokens."""
        return self._without_detection(super().quick_baseline(examples, rows, learned), examples)

    def guess(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores the tokens' frequencies in the generator's place, and the share of replaced tokens."""
        guess = super().guess(examples, rows, learned)
        assert guess is not None
        return self._without_detection(guess, examples)

    def _without_detection(self, guessing: Baseline, examples: Sequence[StreamWindow]) -> Baseline:
        """Returns a baseline that guesses the masked tokens as ``guessing``, and no token to be replaced.

        Each token has the same probability of it: the share of tokens that the generator of the folder replaces.
        """
        generator = read_generator(self.folder).eval()
        counts = np.zeros((examples[0].stream.windows, 2))

        def read(batch: Batch) -> np.ndarray:
            _, is_replaced = self.replaced(batch, *self._guesses(generator, batch))
            return torch.stack([batch["mask"].sum(1), is_replaced.sum(1)], 1).cpu().double().numpy()

        for indices, part in self.map_batches(generator, examples, read):
            counts[[examples[i].number for i in indices]] = part
        tokens, replaced = counts.T
        share = (replaced.sum() + 0.5) / (tokens.sum() + 1)
        losses = -replaced * np.log(share) - (tokens - replaced) * np.log1p(-share)
        assert isinstance(guessing.example_scores, Sums)
        nats, _, masked, *_ = guessing.example_scores.statistics.T
        nothing = np.zeros_like(tokens)
        sums = [nats, masked, losses, tokens, tokens - replaced, nothing, nothing, replaced]
        scored = Sums(np.stack(sums, 1), detection_metrics)
        return Baseline(f"{guessing.name}; no token replaced", overall(scored), scored)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns for each text a list with ``{"text", "label", "score"}`` of each token.

        The label is "replaced" or "original", the score its probability. Tokens after the ``longest`` are not read.
        """
        encoder, budget = model_of(Encoder, model, self.name), options.get("batch_tokens") or EVALUATED
        check_texts(self.name, inputs)
        texts, template = self.input_ids(inputs) if inputs else [], self.input_template
        outputs: list[list[dict[str, Any]]] = [[] for _ in inputs]

        @torch.no_grad()
        def probabilities(batch: np.ndarray) -> list[list[float]]:
            ids, mask = padded_with_mask([texts[i] for i in batch], self.padding)
            p = encoder(ids.to(encoder.device), mask.to(encoder.device))[..., 0].float().sigmoid().tolist()
            return [row[: len(texts[i])] for row, i in zip(p, batch, strict=True)]

        batches = evaluation_batches([len(ids) for ids in texts], budget, pairs=budget * SQUARE) if texts else []
        for batch, rows in sharding.each(batches, probabilities):
            for i, p in zip(batch, rows, strict=True):
                end = len(texts[i]) - len(template.after)
                for token, own in list(zip(texts[i], p, strict=True))[len(template.before) : end]:
                    text = self.tokenizer.backend.decode([token], skip_special_tokens=False).strip()
                    outputs[i].append({"text": text, "label": LABELS[own > 0.5], "score": max(own, 1 - own)})
        return [Prediction(text, output, None) for text, output in zip(inputs, outputs, strict=True)]

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns no samples: a text of which no token was replaced shows little."""
        return []

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Returns the texts themselves."""
        return list(texts)


def generator_config(config: ModelConfig, share: float) -> EncoderConfig:
    """Returns the configuration of the generator for a discriminator: ``share`` times as wide, with the same embedding.

    The heads keep their width, so that there are fewer; their number is rounded, to at least one.

    >>> from heedful import presets
    >>> stack = generator_config(presets.get("electra-base"), 1 / 3).encoder
    >>> stack.dim, stack.heads, stack.ff_dim, stack.embedding_dim
    (256, 4, 1024, 768)
    """
    assert isinstance(config, EncoderConfig)
    stack = config.encoder
    heads = max(1, round(share * stack.heads))
    dim = heads * stack.dim // stack.heads
    stack = replace(
        stack,
        dim=dim,
        heads=heads,
        kv_heads=None,
        ff_dim=(stack.ff_dim or 4 * stack.dim) * heads // stack.heads,
        embedding_dim=None if stack.width == dim else stack.width,
    )
    return replace(config, encoder=stack, head=MaskedHead(activation=stack.activation, norm_eps=stack.norm_eps))


def joined(model: Encoder, generator: Model) -> Encoder:
    """Returns the discriminator with the generator as ``model.generator``; both have the discriminator's embedding."""
    head = generator.head
    assert isinstance(head, MaskedLanguageModel)
    generator.embedding = model.embedding
    head.output.weight = model.embedding.token.weight
    model.generator = generator
    return model


def discriminator_of(model: Model) -> Model:
    """Returns the discriminator without its generator, as a model that shares its weights."""
    if GENERATOR not in model._modules:
        return model
    alone = copy(model)
    alone.__dict__["_modules"] = {name: part for name, part in model._modules.items() if name != GENERATOR}
    alone.__dict__["beside"] = (model.generator,)  # in a tuple it is no part of the model
    return alone


def generator_of(model: Model, folder: Path | None) -> Encoder:
    """Returns the generator of a discriminator: its own, or that beside its weights in ``folder``."""
    (own,) = vars(model).get("beside", (model._modules.get(GENERATOR),))
    if own is None:
        own = read_generator(folder).to(model.device).train(model.training)
    assert isinstance(own, Encoder)
    return own


def read_generator(folder: Path | None) -> Encoder:
    """Loads the generator in the folder of a discriminator; raises ``HeedfulError`` if there is none."""
    path = Path(folder or "") / GENERATOR
    if not (path / CONFIG).is_file():
        raise HeedfulError(
            f"{folder or 'the model'} has no folder {GENERATOR!r}, a model whose samples replace tokens; give a run of "
            "--masking.objective replaced-token"
        )
    generator = load(path, dtype="float32")
    assert isinstance(generator, Encoder)
    return generator


def sampled(logits: Tensor, draws: Tensor) -> Tensor:
    """Returns a sample (M,) of each of the distributions softmax(``logits``) (M, V).

    ``draws`` (M,) are uniform integers from 0 to 2⁴⁰ − 1: equal ones give equal samples. A sample is the first token at
    which 2⁴⁰ times the cumulative probability is above its draw.

    >>> sampled(torch.tensor([[0.0, 0.0, -50.0]] * 2), torch.tensor([2**39 - 1, 2**39])).tolist()
    [0, 1]
    """
    ends = (logits.softmax(-1) * UNITS).long().cumsum(-1)
    within = draws[:, None].minimum(ends[:, -1:] - 1)  # the sum is 1 but for rounding
    return torch.searchsorted(ends, within, right=True)[:, 0]


def detection_losses(output: Tensor, is_replaced: Tensor) -> Tensor:
    """Returns the binary cross-entropy (B, T) of the discriminator's ``output`` (B, T, 1), in float32."""
    return F.binary_cross_entropy_with_logits(output[..., 0].float(), is_replaced.float(), reduction="none")


def detection_metrics(sums: np.ndarray) -> Metrics:
    """Returns ``loss``, ``generator_loss``, ``accuracy`` and ``f1`` of replaced tokens (in percent).

    ``sums`` has eight sums: Σ −log p_G and the number of masked tokens; of all tokens Σ −log p_D, their number and that
    of right predictions; and the numbers of true positives, false positives and false negatives. ``loss`` is
    ``generator_loss`` + λ times the mean of −log p_D.
    """
    nats, masked, losses, tokens, right, found, wrong, missed = map(float, sums)
    guessing, decided = nats / masked if masked else float("nan"), 2 * found + wrong + missed
    return {
        "loss": guessing + WEIGHT * losses / max(1.0, tokens),
        "generator_loss": guessing,
        "accuracy": 100 * right / max(1.0, tokens),
        "f1": 100 * 2 * found / decided if decided else 0.0,
    }
