from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from toy_run import assembled

from heedful.errors import HeedfulError
from heedful.training import Checkpoints, Limits, Loader, Log, Polynomial
from heedful.training.schedule import constant, inverse_sqrt
from tolerances import approx, assert_close

ROWS = [[3, 1, 4], [1, 5], [9, 2, 6, 5], [3], [5, 8, 9], [7, 9], [3, 2, 3, 8], [4, 6]]


class Given:
    """A loader of given steps: lists of lists of rows."""

    def __init__(self, steps):
        self.steps, self.at = steps, 0

    @property
    def epochs(self):
        return self.at / len(self.steps)

    def __next__(self):
        step = self.steps[self.at % len(self.steps)]
        self.at += 1
        return [batch(rows) for rows in step]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def batch(rows):
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    return {"ids": ids}


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10)

    def forward(self, ids):
        return self.head(self.embedding(ids))


def objective(model, batch):
    logits = model(batch["ids"])
    target = (batch["ids"] * 3 + 1) % 10
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return (losses * (batch["ids"] != 0).flatten()).sum()


def count(batch):
    return int((batch["ids"] != 0).sum())


def made(steps, dtype=torch.float32, lr=0.1, **options):
    torch.manual_seed(0)
    model = Tokens().to(dtype)
    settings = {
        "loader": Given(steps),
        "optimiser": torch.optim.SGD(model.parameters(), lr=lr),
        "schedule": constant(),
        "limits": Limits(max_steps=1),
        "clip": None,
    }
    return assembled(model=model, objective=objective, count=count, **{**settings, **options})


def gradient(loop):
    loop.fit()
    return torch.cat([p.grad.flatten() for p in loop.model.parameters()])


SPREADS = {
    "8": [ROWS],
    "4 twice": [ROWS[:4], ROWS[4:]],
    "2 four times": [ROWS[:2], ROWS[2:4], ROWS[4:6], ROWS[6:]],
    "ragged": [ROWS[:5], ROWS[5:6], ROWS[6:]],
}


@pytest.mark.parametrize("spread", SPREADS)
def test_accumulation_changes_nothing(spread):
    # The oracle is autograd over the mean of the single examples' losses, without the loop.
    torch.manual_seed(0)
    model = Tokens().double()
    (sum(objective(model, batch([row])) for row in ROWS) / sum(map(len, ROWS))).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    found = gradient(made([SPREADS[spread]], dtype=torch.float64))
    assert (found - expected).abs().max() <= 1e-12


def test_the_reported_loss_is_the_mean_over_tokens(tmp_path):
    losses = {}
    for name, steps in {"whole": [[ROWS]], "spread": [[ROWS[:1]], [ROWS[1:]]]}.items():
        path = tmp_path / f"{name}.jsonl"
        made(steps, torch.float64, lr=0.0, limits=Limits(max_epochs=1), log=Log(path, quiet=True)).fit()
        losses[name] = json.loads(path.read_text().splitlines()[-1])["loss"]
    assert losses["whole"] == approx(losses["spread"], "layer", dtype=torch.float64)


def test_memory_is_handed_back_at_each_line_of_the_log(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("heedful.training.loop.FreeMemory.release_if_grown", lambda self: asked.append(1))
    log = tmp_path / "log.jsonl"
    made([[ROWS]] * 6, limits=Limits(max_steps=6), log_every=2, log=Log(log, quiet=True)).fit()
    assert len(asked) == len(log.read_text().splitlines()) == 3


def test_clipping_holds_the_global_norm():
    free, clipped = gradient(made([[ROWS]])), gradient(made([[ROWS]], clip=0.01))
    assert free.norm() > 0.1
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert_close(clipped / clipped.norm(), free / free.norm())


@pytest.mark.parametrize("share", [1e-7, 0.5, 0.9995, 1.0001, 1000.0])  # of the norm that is the limit
def test_gradients_are_not_multiplied_by_1(share, monkeypatch):
    free = made([[ROWS]])
    clip = share * gradient(free).norm().item()
    nn.utils.clip_grad_norm_(free.model.parameters(), clip)  # always multiplies
    called, clip_grads = [], nn.utils.clip_grads_with_norm_
    monkeypatch.setattr(nn.utils, "clip_grads_with_norm_", lambda *args: called.append(clip_grads(*args)))
    clipped = gradient(made([[ROWS]], clip=clip))
    assert torch.equal(clipped, torch.cat([p.grad.flatten() for p in free.model.parameters()]))
    assert len(called) == (share < 2)


def test_the_schedule_multiplies_each_groups_rate():
    torch.manual_seed(0)
    model = Tokens()
    groups = [{"params": model.embedding.parameters(), "lr": 0.4}, {"params": model.head.parameters(), "lr": 0.2}]
    rates = []

    class Recorded(torch.optim.SGD):
        def step(self, closure=None):
            rates.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    options = {"loader": Given([[ROWS]]), "schedule": inverse_sqrt(2), "limits": Limits(max_steps=4)}
    assembled(model=model, objective=objective, count=count, optimiser=Recorded(groups), **options).fit()
    factors = [0.5, 1.0, math.sqrt(2 / 3), math.sqrt(0.5)]
    assert_close(torch.tensor(rates), torch.tensor([[0.4 * f, 0.2 * f] for f in factors]))


def test_bf16_computes_in_bf16_and_keeps_weights_in_fp32():
    seen = []

    def watched(model, batch):
        loss = objective(model, batch)
        seen.append(model(batch["ids"]).dtype)
        return loss

    loop = made([[ROWS]], precision="bf16", limits=Limits(max_steps=3))
    loop.objective = replace(loop.objective, loss=watched)
    loop.fit()
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in loop.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("log_every", [1, 2, 50])
def test_a_loss_that_is_no_number_stops_the_run_and_leaves_the_last_good_checkpoint(tmp_path, log_every):
    def breaks(model, batch):
        return objective(model, batch) * (math.nan if loop.step == 6 else 1)

    loop = made(
        [[ROWS]],
        limits=Limits(max_steps=50),
        log_every=log_every,
        checkpoints=Checkpoints(tmp_path),
        save_every=5,
        evaluate=dict,
        evaluate_every=50,
    )
    loop.objective = replace(loop.objective, loss=breaks)
    with pytest.raises(
        HeedfulError,
        match=r"loss is nan at step 7, first in the loss function.*; the checkpoint of step 5 is in .*; lower the",
    ):
        loop.fit()
    state = Checkpoints(tmp_path).load()
    assert state["numbers"]["step"] == 5
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_gradient_that_is_no_number_stops_the_run_too(tmp_path):
    def breaks(model, batch):
        root = model.head.bias.sum() * 0
        return objective(model, batch) + (root * root).sqrt()  # 0, with a gradient of 0 / 0

    loop = made([[ROWS]], limits=Limits(max_steps=3), checkpoints=Checkpoints(tmp_path), save_every=1)
    loop.objective = replace(loop.objective, loss=breaks)
    with pytest.raises(HeedfulError, match="norm is nan at step 1"):
        loop.fit()
    assert Checkpoints(tmp_path).load() is None


@pytest.mark.parametrize(
    ("soon", "every", "evaluated", "saved"),
    [
        (60.0, None, None, [2, 8]),  # the first epoch's end, and the run's
        (0.0, None, None, [2, 4, 6, 8]),
        (60.0, None, 4, [2, 4, 8]),
        (60.0, 3, 4, [3, 6, 8]),
    ],
)
def test_short_epochs_do_not_save_each(tmp_path, monkeypatch, soon, every, evaluated, saved):
    monkeypatch.setattr("heedful.training.loop.MIN_SECONDS", soon)
    steps = []

    class Noted(Checkpoints):
        def save(self, state, *, wait=True):
            steps.append(state["numbers"]["step"])
            super().save(state, wait=wait)

    looked = {} if evaluated is None else {"evaluate": lambda: {"loss": 1.0}, "evaluate_every": evaluated}
    limits, checkpoints = Limits(max_steps=8), Noted(tmp_path)
    made([[ROWS[:4]], [ROWS[4:]]], limits=limits, checkpoints=checkpoints, save_every=every, **looked).fit()
    assert steps == saved


def test_a_step_without_a_token_is_refused():
    with pytest.raises(HeedfulError, match="step 1 has no target token or label; check that the targets"):
        made([[[[0, 0]]]]).fit()


def evaluated(values, **options):
    """A run whose evaluations give ``values``, one an epoch; and the steps at which a better one was found."""
    given, better = iter(values), []

    def on_better(metrics):
        better.append((loop.step, dict(metrics)))

    loop = made(
        [[ROWS[:4]], [ROWS[4:]]],
        evaluate=lambda: next(given),
        on_better=on_better,
        **{"limits": Limits(max_epochs=len(values)), **options},
    )
    return loop.fit(), better


def test_the_lowest_loss_is_the_best():
    outcome, better = evaluated([{"loss": 3.0}, {"loss": 2.0}, {"loss": math.nan}, {"loss": 2.5}])
    assert outcome.best == {"step": 4, "value": 2.0, "metrics": {"loss": 2.0}}
    assert [step for step, _ in better] == [2, 4]


def test_or_the_latest_is_the_best_and_patience_never_ends():
    given = [
        {"loss": loss, "accuracy": accuracy} for loss, accuracy in ((1.0, 90.0), (2.0, 80.0), (3.0, 85.0), (4.0, 70.0))
    ]
    outcome, better = evaluated(given, metric="accuracy", latest=True, patience=1)
    assert outcome.best == {"step": 8, "value": 70.0, "metrics": given[3]}
    assert [metrics for _, metrics in better] == given


def test_the_highest_of_any_other_metric_is_the_best():
    outcome, better = evaluated([{"bleu": 3.0}, {"bleu": 2.0}, {"bleu": 3.0}, {"bleu": 7.0}], metric="bleu")
    assert outcome.best["step"] == 8
    assert [step for step, _ in better] == [2, 8]


def test_patience_waits_while_the_loss_falls_and_of_equals_the_lower_loss_is_kept():
    accuracies = (0.5, 0.9, 0.8, 0.9, 0.9, 0.7, 0.6, 1.0)
    losses = (3.0, 2.0, 1.9, 1.5, 1.8, 1.6, 1.5, 0.1)
    given = [{"accuracy": a, "loss": b} for a, b in zip(accuracies, losses, strict=True)]
    outcome, _ = evaluated(given, patience=3, metric="accuracy")
    assert (outcome.stopped_because, outcome.best["metrics"]) == ("patience", given[3])
    assert outcome.steps == 2 * 7, "the last is not reached"


@pytest.mark.parametrize(
    ("accuracies", "losses", "kept", "highest"),
    [
        ((70.0, 71.0, 70.5, 70.1), (4.0, 3.0, 2.5, 2.0), 4, 2),  # the loss falls to the end: chance took the rest
        ((70.0, 71.0, 70.5, 69.8), (4.0, 3.0, 2.5, 2.0), 3, 2),  # less than chance explains, counted from the highest
        ((70.0, 71.0, 70.5, 70.9), (4.0, 3.0, 3.5, 3.1), 2, 2),  # the loss says nothing for the later ones
        ((70.0, 71.0, 72.0, 71.9), (2.0, 3.0, 4.0, 3.5), 4, 3),  # against the kept ones' loss, not the lowest of all
        ((70.0, 71.0, 70.5, 71.5), (4.0, 3.0, 2.0, 3.5), 4, 4),  # the highest is kept, whatever its loss
        ((70.0, 71.0, 70.5, 71.0), (4.0, 3.0, 2.0, 1.0), 4, 4),  # as high as the highest
    ],
)
def test_a_lower_loss_decides_where_chance_may_lie_between_two_metrics(accuracies, losses, kept, highest):
    given = [{"accuracy": a, "loss": b} for a, b in zip(accuracies, losses, strict=True)]
    outcome, better = evaluated(given, metric="accuracy", margin=lambda: 1.0)
    assert (outcome.best["step"], outcome.highest) == (2 * kept, 2 * highest)
    assert outcome.best["metrics"] == better[-1][1] == given[kept - 1]
    strict, _ = evaluated(given, metric="accuracy")
    assert strict.best["step"] == 2 * max(range(4), key=lambda i: (accuracies[i], -losses[i])) + 2


@pytest.mark.parametrize(
    ("scores", "losses", "examples", "kept"),
    [
        ((1.6, 0.9, 1.2, 1.3), (5.3, 4.8, 4.6, 4.5), (50, 500, 500, 500), 4),  # the first is of other examples
        ((1.6, 0.9, 1.2, 1.3), (5.3, 4.8, 4.6, 4.5), (500, 500, 500, 500), 1),
        ((1.6, 0.9, 0.8, 0.7), (5.3, 4.8, 4.9, 5.0), (50, 500, 500, 500), 2),
        ((1.6, 0.9, 1.2, 1.7), (5.3, 5.4, 5.5, 5.6), (50, 500, 500, 500), 4),  # higher though there are more
        ((1.6, 0.9, 0.8, 0.7), (5.3, 4.8, 4.7, 4.6), (500, 100, 50, 500), 1),  # fewer, since the time ended
    ],
)
def test_a_lower_loss_decides_where_a_metric_is_of_more_examples(scores, losses, examples, kept):
    given, counts = [{"bleu": b, "loss": c} for b, c in zip(scores, losses, strict=True)], iter(examples)
    outcome, _ = evaluated(given, metric="bleu", scored=lambda: next(counts))
    assert outcome.best["metrics"] == given[kept - 1]


def test_of_metrics_that_are_better_lower_chance_is_counted_the_other_way():
    given = [{"ter": t, "loss": b} for t, b in ((50.0, 4.0), (49.0, 3.0), (49.9, 2.0), (50.1, 1.0))]
    outcome, _ = evaluated(given, metric="ter", margin=lambda: 1.0)
    assert (outcome.best["step"], outcome.highest) == (6, 4)


def test_patience_ends_the_run():
    outcome, _ = evaluated([{"loss": v} for v in (3.0, 3.5, 2.0, 2.0, 2.5, 1.0)], patience=2)
    assert (outcome.steps, outcome.stopped_because, outcome.best["value"]) == (10, "patience", 2.0)


def test_an_unknown_metric_is_named():
    with pytest.raises(HeedfulError, match="no metric 'blue'; did you mean 'bleu'"):
        evaluated([{"bleu": 3.0}], metric="blue")


@pytest.mark.parametrize(
    ("limits", "steps", "reason"),
    [
        (Limits(max_steps=7, max_epochs=4), 7, "max_steps"),
        (Limits(max_steps=7, max_epochs=3), 6, "max_epochs"),
        (Limits(max_steps=10**6, max_minutes=1e-9), 1, "max_minutes"),
    ],
    ids=["steps", "epochs", "minutes"],
)
def test_the_first_limit_met_ends_the_run(limits, steps, reason):
    outcome = made([[ROWS[:4]], [ROWS[4:]]], limits=limits).fit()
    assert (outcome.steps, outcome.stopped_because) == (steps, reason)
    assert outcome.epochs == steps / 2
    assert outcome.tokens == sum(sum(map(len, (ROWS[:4], ROWS[4:])[i % 2])) for i in range(steps))


def test_the_last_step_is_evaluated_whatever_the_interval():
    seen = []
    evaluate = lambda: seen.append(loop.step) or {"loss": 1.0}  # noqa: E731
    loop = made([[ROWS]], limits=Limits(max_steps=7), evaluate=evaluate, evaluate_every=3)
    loop.fit()
    assert seen == [3, 6, 7]


def test_averaged_weights_are_evaluated_and_the_own_come_back():
    inside, around = [], []

    def evaluate():
        inside.append(all(torch.equal(p, loop.average.weights[n]) for n, p in loop.model.named_parameters()))
        assert not loop.model.training
        assert not torch.is_grad_enabled()
        return {"loss": 1.0}

    def forward(model, batch):
        around.append(any(torch.equal(p, loop.average.weights[n]) for n, p in model.named_parameters()))
        assert model.training
        return objective(model, batch)

    loop = made([[ROWS]], limits=Limits(max_steps=6), evaluate=evaluate, evaluate_every=2)
    loop.average, loop.objective = Polynomial(loop.model), replace(loop.objective, loss=forward)
    loop.fit()
    assert inside == [True] * 3
    assert not any(around[2:])  # after one update the average is the weights

    plain = made([[ROWS]], limits=Limits(max_steps=6))
    plain.fit()
    for one, other in zip(loop.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_without_an_end_is_refused():
    with pytest.raises(HeedfulError, match="no end"):
        made([[ROWS]], limits=Limits())


@pytest.mark.parametrize(("name", "value"), [("precision", "fp16"), ("log_every", 0), ("save_every", -1)])
def test_settings_out_of_range_are_refused(tmp_path, name, value):
    with pytest.raises(HeedfulError, match=name.replace("_", "-")):
        made([[ROWS]], checkpoints=Checkpoints(tmp_path), **{name: value})


def test_it_learns():
    lengths = np.array([len(row) for row in ROWS])
    loader = Loader(lengths, lambda indices, random: batch([ROWS[i] for i in indices]), tokens=12, accumulate=2)
    loop = made([[ROWS]], loader=loader, limits=Limits(max_epochs=100), lr=1.0)
    with torch.no_grad():
        before = objective(loop.model, batch(ROWS)).item()
    loop.fit()
    with torch.no_grad():
        assert objective(loop.model, batch(ROWS)).item() < 0.1 * before
