"""Direct preference optimisation of a language model (Rafailov et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from heedful.config import DecoderConfig
from heedful.data import Row, Rows
from heedful.data.preferences import ANSWERS, turn_texts
from heedful.errors import HeedfulError, plural
from heedful.inspection.eval_mode import evaluating
from heedful.layers.attention import Attention
from heedful.metrics.example_scores import overall
from heedful.metrics.preference import preference_scores
from heedful.models import Decoder, Model
from heedful.pretrained import load, read_card
from heedful.pretrained.folder import HEEDFUL_JSON, find
from heedful.settings import PreferenceSettings, RunSettings
from heedful.tasks import defaults
from heedful.tasks.conversations import InstructionExample, collate_instructions, encode_answer
from heedful.tasks.inputs_and_targets import Side, next_token_side
from heedful.tasks.model_setup import model_of
from heedful.tasks.output_loss import token_losses
from heedful.tasks.preferences import (
    BETA,
    are_preferences,
    chance_baseline,
    check_smoothing,
    linear_baseline,
    of_pairs,
    preference_line,
    preference_loss,
)
from heedful.tasks.task import Baseline, Batch, Encoded, Measured, short
from heedful.tasks.text_generation import CONTEXT, TextGeneration
from heedful.tasks.token_batches import label_index, with_label_index
from heedful.text import Tokenizer
from heedful.util.values import fits

KEY = 16  # bytes of the digest of an answer


class PreferenceExample(NamedTuple):
    """Token ids of the chosen and of the rejected answer, each with its prompt."""

    chosen: InstructionExample
    rejected: InstructionExample

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Digests of the two answers with their prompts, by which the reference's log-probabilities are stored."""
        return tuple(blake2b(repr((a.ids, a.learned)).encode(), digest_size=KEY).digest() for a in self)


class PreferenceTuning(TextGeneration):
    """Variant of text generation that learns which of two answers is preferred, by direct preference optimisation.

    The implicit reward of an answer y to a prompt x is r(x, y) = β (log π(y|x) − log π_ref(y|x)), where π is the model,
    and the reference π_ref is the model from which the run starts. The loss of a pair with the chosen answer y_w and
    the rejected y_l is −log σ(r(x, y_w) − r(x, y_l)) (equation 7). log π(y|x) is summed over the tokens of the answer,
    the end token included. The reference's log-probabilities are computed once, before the first step, and stored in
    the run's folder; the reference itself is not in memory during training. The dropout of the model is switched off in
    training, since it would be noise in the difference to the reference.

    The folder is that of a text generation model; in evaluation it scores pairs by the same reference, which is then
    loaded from the folder that the run started from.

    Attributes:
        beta: β.
        reference: the folder of the reference model, an absolute path, or its name on the Hub; for evaluation.
        card: the ``heedful.json`` that names the reference.
        reference_log_p: log π_ref(y|x) of answers, by ``PreferenceExample.keys``.
    """

    name: ClassVar[str] = "text-generation"
    main_metric: str = "accuracy"

    def __init__(
        self, tokenizer: Tokenizer, context: int | None, ends: Sequence[int] = (), separate: bool = False
    ) -> None:
        super().__init__(tokenizer, context, ends, separate)
        self.beta, self.reference, self.card = BETA, "", Path(HEEDFUL_JSON)
        self.reference_log_p: dict[bytes, float] = {}

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default settings for tuning the model of ``--from``; raises ``HeedfulError`` without one."""
        if given.start_from is None:
            raise HeedfulError(
                f"{rows[0].file} has chosen and rejected answers, which tune a model that gives answers already; name "
                "it with --from MODEL (heedful train text-generation with prompts and completions trains one)"
            )
        check_smoothing(given)
        if find(given.start_from).resolve().is_relative_to(Path(given.out).resolve()):
            raise HeedfulError(
                f"--out {given.out} holds {given.start_from}, against which answers are scored; choose another --out"
            )
        context = given.data.max_length or cls.load(given.start_from).context or CONTEXT
        suggested = defaults.preference_tuning(len(rows), given, given.start_from, context)
        return replace(suggested, preference=PreferenceSettings(beta=BETA))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads what ``TextGeneration.load`` loads, β and the path of the reference."""
        task, folder = super().load(folder), find(folder)
        task.beta, task.reference = _stored_preference(folder)
        task.card = folder / HEEDFUL_JSON
        return task

    def card_entries(self) -> dict[str, Any]:
        """Returns the entry ``preference`` for ``heedful.json``: β, and the folder of the reference."""
        return {"preference": {"beta": self.beta, "reference": self.reference}}

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores β and the path of the reference, and switches the model's dropout off; an adapter keeps its own."""
        super().before_training(model, settings)
        self.beta, start = settings.preference.beta or BETA, settings.start_from or ""
        self.reference = str(Path(start).resolve()) if Path(start).is_dir() else start
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif isinstance(module, Attention):
                module.dropout = 0.0

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes each pair of answers as one example; pairs of more than ``max_length`` tokens are left out.

        Other rows are encoded as for text generation.
        """
        if not are_preferences(rows):
            return super().encode(rows, max_length)
        self.unit, most = "pairs", self.checked_length(max_length)
        fitting, left_out, examples = Rows([], rows.skipped, rows.columns), Rows(), []
        for row in rows:
            prompt, *answers = (row.values[name] for name in ("prompt", *ANSWERS))
            example = PreferenceExample(
                *(encode_answer(self.tokenizer, row, prompt, answer, self.before, self.end) for answer in answers)
            )
            if max(len(answer.ids) - 1 for answer in example) <= most:
                fitting.append(row)
                examples.append(example)
            else:
                left_out.append(row)
        if not examples:
            raise HeedfulError(
                f"every pair has an answer of more than {plural(most, 'token')} with its prompt, in {rows[0].file}; "
                "give shorter examples, or raise --data.max-length"
            )
        note = f"chosen and rejected answers, preference.beta {self.beta:g} (DPO)"
        note += f"; {plural(len(left_out))} longer than {most} tokens left out" if left_out else ""
        return Encoded(examples, fitting, note, len(left_out), left_out)

    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the numbers of tokens of the two answers of each pair with their prompts, an array (N, 2)."""
        if not isinstance(examples[0], PreferenceExample):
            return super().lengths(examples)
        return np.array([[len(answer.ids) - 1 for answer in example] for example in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch of pairs: ``ids`` and ``labels`` (B, 2, T), and ``reference`` (B, 2), log π_ref.

        The chosen answer of a pair is the first one. ``reference`` is absent as long as it was not computed.
        """
        if not isinstance(examples[0], PreferenceExample):
            return super().collate(examples, random)
        answers = [answer for example in examples for answer in example]
        batch = collate_instructions(answers, self.tokenizer.pad or 0)
        batch = {name: tensor.unflatten(0, (-1, 2)) for name, tensor in batch.items()}
        if self.reference_log_p:
            try:
                known = [[self.reference_log_p[key] for key in example.keys] for example in examples]
            except KeyError:
                raise HeedfulError(
                    "the reference has no log-probability of an answer, so the data or --data.max-length is not that "
                    "with which the run started; start a new run, or resume it with the same data"
                ) from None
            batch["reference"] = torch.tensor(known, dtype=torch.float32)
        return batch

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the token sequences of the two answers of a pair, with the next token as the target."""
        if batch["ids"].ndim < 3:
            return super().sides(batch, row)
        return [
            next_token_side(name, batch["ids"][row, i], batch["labels"][row, i], self.tokenizer)
            for i, name in enumerate(ANSWERS)
        ]

    # --------------------------------------------------------------------------------------------------------- training

    def starting_tensors(self, model: Model, parts: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
        """Returns ``keys`` (N, 16), the digests of all answers, and ``log_p`` (N,), their log π_ref, in float64."""
        examples = [example for part in parts for example in part if isinstance(part[0], PreferenceExample)]
        if len(examples) < sum(map(len, parts)):
            raise HeedfulError("the validation data has no chosen and rejected answers; give such data with --valid")
        self._add_reference(model, examples)
        keys = [torch.frombuffer(bytearray(key), dtype=torch.uint8) for key in self.reference_log_p]
        log_p = torch.tensor(list(self.reference_log_p.values()), dtype=torch.float64)
        return {"keys": torch.stack(keys), "log_p": log_p}

    def use_starting_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the log-probabilities of the reference."""
        for key, log_p in zip(tensors["keys"], tensors["log_p"].tolist(), strict=True):
            self.reference_log_p[key.numpy().tobytes()] = log_p

    def _add_reference(self, model: Model, examples: Sequence[PreferenceExample]) -> None:
        """Computes log π_ref of examples with the reference ``model``."""
        self.reference_log_p.clear()  # examples are collated without it meanwhile
        with evaluating(model):
            log_p = of_pairs(self, model, examples, answer_log_p)
        for example, values in zip(examples, log_p.tolist(), strict=True):
            self.reference_log_p |= dict(zip(example.keys, values, strict=True))

    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch: its pairs."""
        return len(batch["ids"]) if batch["ids"].ndim > 2 else super().count(batch)

    def complete(self, batch: Batch) -> Batch:
        """Adds the indices of the answers' tokens, for which alone logits are computed."""
        return with_label_index(batch) if batch["ids"].ndim > 2 else super().complete(batch)

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over pairs of −log σ(r_w − r_l).

        With label smoothing ε it is that of conservative DPO, (1 − ε)(−log σ(r_w − r_l)) + ε(−log σ(r_l − r_w)).
        """
        if batch["ids"].ndim < 3:
            return super().objective(model, batch, label_smoothing)
        rewards = self.rewards(model, batch)
        return preference_loss(rewards[:, 0] - rewards[:, 1], label_smoothing)

    def rewards(self, model: Model, batch: Batch) -> Tensor:
        """Returns the implicit rewards β (log π − log π_ref) of the answers in a batch, (B, 2)."""
        return self.beta * (answer_log_p(model, batch) - batch["reference"])

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def measure(
        self,
        model: Model,
        examples: Sequence[Any],
        rows: Rows,
        *,
        most: int | None = None,
        batch_tokens: int | None = None,
        **options: Any,
    ) -> Measured:
        """Returns ``accuracy``, the percentage of pairs whose chosen answer has the higher reward, with ``loss`` and
        ``margin``, and the mean rewards of both answers (``heedful.metrics.preference``).

        For other rows, the metrics are those of text generation. All pairs are scored; ``most`` has no effect.
        """
        if not isinstance(examples[0], PreferenceExample):
            return super().measure(model, examples, rows, most=most, batch_tokens=batch_tokens, **options)
        for name in options:
            raise HeedfulError(f"{name} has no effect: pairs are scored without generating; leave the option out")
        self._add_unknown_reference(model, examples)
        scores = preference_scores(of_pairs(self, model, examples, self.rewards, batch_tokens))
        return Measured(overall(scores), {"beta": self.beta}, scores)

    def _add_unknown_reference(self, model: Model, examples: Sequence[PreferenceExample]) -> None:
        """Computes log π_ref of examples that the training data did not have, by the folder of the reference."""
        if all(key in self.reference_log_p for example in examples for key in example.keys):
            return
        remedy = f"put it back, or write its new path into {self.card} (preference.reference)"
        scored = f"pairs are scored against the model that the run started from, {self.reference}"
        try:
            reference = load(find(self.reference), dtype="float32", device=model.device)
        except HeedfulError as error:
            raise HeedfulError(f"{scored}, which cannot be loaded ({error}); {remedy}") from None
        hub, own = reference.config, model_of(Decoder, model, self.name).config
        if not isinstance(hub, DecoderConfig) or hub.embedding != own.embedding or hub.head != own.head:
            raise HeedfulError(f"{scored}, but there is another model now; {remedy}")
        self._add_reference(reference, examples)

    def baseline(self, rows: Rows, learned: Any) -> Baseline:
        """Scores a baseline: a linear reward of words, character n-grams and length (``baselines.linear_rewards``)."""
        return linear_baseline(rows, learned()) if are_preferences(rows) else super().baseline(rows, learned)

    def quick_baseline(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores the same baseline as ``baseline``."""
        return linear_baseline(rows, learned)

    def guess(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores the reference, which has the reward 0 for all answers."""
        return chance_baseline(rows)

    def input_and_target(self, row: Row) -> tuple[Any, Any]:
        """Returns (prompt, chosen answer) of a row, the last message of each."""
        if not are_preferences([row]):
            return super().input_and_target(row)
        return turn_texts(row.values["prompt"])[-1], turn_texts(row.values["chosen"])[-1]

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``prompt → chosen, not rejected``."""
        return preference_line(row) if are_preferences([row]) else super().row_line(row)


def _stored_preference(folder: Path) -> tuple[float, str]:
    """Returns β and the reference from the ``heedful.json`` of a folder; raises ``HeedfulError`` for wrong values.

    A folder without the entry has the default β and no reference. A relative path is one from the folder, or from the
    current folder.
    """
    card = read_card(folder)
    if "preference" not in card:
        return BETA, ""
    stored = card["preference"]
    values: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
    beta, reference = values.get("beta"), values.get("reference")
    is_scale = isinstance(beta, int | float) and fits(beta, float) and 0 < beta < math.inf
    if not is_scale or not isinstance(reference, str) or not reference:
        raise HeedfulError(
            f"{folder / HEEDFUL_JSON}: preference is {short(repr(stored))}; write "
            '{"beta": a number above 0, "reference": the model that the run started from}'
        )
    return float(values["beta"]), str(folder / reference) if (folder / reference).is_dir() else reference


def answer_log_p(model: nn.Module, batch: Batch) -> Tensor:
    """Returns log π(y|x) of each answer, Σ over its tokens of log p(token | earlier tokens), in float32 or wider.

    ``ids`` and ``labels`` of the batch are (..., T), and the result (...). Only labelled tokens get logits.
    """
    decoder = model_of(Decoder, model, PreferenceTuning.name)
    ids, labels, index = batch["ids"], batch["labels"], label_index(batch)
    hidden = decoder.hidden(ids.flatten(0, -2)).flatten(0, 1)
    losses = token_losses(decoder.head, hidden[index], labels.flatten()[index])
    return losses.new_zeros(labels.numel()).index_put((index,), -losses).view(labels.shape).sum(-1)
