"""Parts of one's own by name: those of the page train, reopen, generate and record; nothing is lost in silence."""

from __future__ import annotations

import copy
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fresh_process
import heedful
from heedful import cli, config, registration, tasks
from heedful.audit.audit import row_findings
from heedful.data import Row, Rows
from heedful.data.split import row_keys
from heedful.errors import HeedfulError
from heedful.export import export
from heedful.inspection import intervene
from heedful.inspection.logit_lens import logit_lens
from heedful.layers import attention as attention_module
from heedful.layers import feedforward, norm, position
from heedful.metrics import registry
from heedful.models import Model
from heedful.optimize_model import optimize
from heedful.pretrained.model_types import OWN
from heedful.settings import RunSettings, base
from heedful.tasks.task import Task
from heedful.text import Tokenizer
from heedful.training import optimisation
from heedful.training.schedule import SCHEDULES
from heedful.verify import verify
from tolerances import assert_close

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "own_parts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
DEFINITIONS, USE = "\n".join(BLOCKS[:-1]), BLOCKS[-1]
TABLE = re.findall(r"^\| \[(.*?)\]\(#([\w-]+)\) \| (\d+) \| (.*) \|$", PAGE, re.M)  # part, anchor, lines, use
PARTS = {"norm": "dyt", "attention": "sigmoid", "position": "kerple", "feed_forward": "experts", "block": "parallel"}
PARTS["head"] = "capped"
COMMAND = "from heedful.cli import command; command()"  # as the script ``heedful`` calls it
EACH: dict[str, dict[str, Any]] = {kind: {"model_settings": {kind: name}} for kind, name in PARTS.items()}
EACH |= {"optimizer": {"training": {"optimiser": "lion"}}, "schedule": {"training": {"schedule": "sawtooth"}}}
EACH["pooling"] = {"model_settings": {"head": "attention-pooling"}}
EACH |= {"objective": {"objective": "with_z_loss"}, "metric": {"metrics": "recall_of_red"}, "data set": {}}


@pytest.fixture(autouse=True, scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The page's parts, registered for this file alone."""
    import heedful.heads
    import heedful.layers.block

    tables: list[Any] = [norm.NORMS, position.SCHEMES, attention_module.ATTENTIONS, feedforward.FEED_FORWARDS]
    tables += [
        heedful.layers.block.BLOCKS,
        heedful.heads.HEADS,
        optimisation.OPTIMISERS,
        SCHEDULES,
        registry.REGISTERED,
        tasks.TASKS,
    ]
    tables += [config.REGISTERED, base.REGISTERED]
    before = [copy.deepcopy(table) if table in tables[-2:] else dict(table) for table in tables]
    file = tmp_path_factory.mktemp("page") / "parts_of_the_page.py"
    file.write_text(DEFINITIONS, encoding="utf-8")
    registration.import_file(str(file))
    yield vars(sys.modules["parts_of_the_page"])
    del sys.modules["parts_of_the_page"]
    for table, earlier in zip(tables, before, strict=True):
        table.clear()
        table.update(earlier)
    registry.registered.cache_clear()


def stack_of(name: str = "gpt-micro", **changes: Any) -> Any:
    """The configuration of a small model whose stack has these parts."""
    given = heedful.create(name, seed=0).config
    if "head" in changes:
        given = replace(given, head=replace(given.head, head=changes.pop("head")))
    field = "decoder" if hasattr(given, "decoder") else "encoder"
    stack = replace(getattr(given, field), dim=32, depth=2, heads=4, ff_dim=64, **changes)
    return replace(given, **{field: stack})


def model_of(name: str = "gpt-micro", **changes: Any) -> Model:
    return heedful.create(stack_of(name, **changes), seed=0).eval()


IDS = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(1))


def arguments(part: str, page: dict[str, Any], folder: Path) -> tuple[str, Any, dict[str, Any]]:
    """Task, data and arguments of a short run of a tiny model that has this part of the page alone."""
    given = {**EACH[part], "max_steps": 3, "quiet": True, "out": folder}
    given["model_settings"] = {"dim": 32, "depth": 2, "heads": 4, **given.get("model_settings", {})}
    texts = [f"{a} {b} ." for a in ("one", "two", "three") for b in ("red", "blue")] * 8
    rows = [{"text": text} for text in texts]
    if part == "objective":
        given["objective"] = page[given["objective"]]
    if part == "data set":
        (folder.parent / "texts").write_text("\n%\n".join(texts), encoding="utf-8")
        return "text-generation", page["fortunes"](folder.parent / "texts"), given
    if part == "metric":
        given["metrics"] = {given["metrics"]: page[given["metrics"]]}
    if part in ("metric", "pooling"):
        labelled = [{"text": f"{text} {n}", "label": text.split()[1]} for n, text in enumerate(texts)]
        return "text-classification", labelled, given
    return "text-generation", rows, given


def test_each_part_of_the_page_is_short() -> None:
    """The page's table is of its sections, with the number of lines of code that are not blank."""
    headings = re.findall(r"^## (.*)$", PAGE, re.M)
    anchors = [heading.lower().replace(" ", "-") for heading in headings]
    lines = [len([line for line in block.splitlines() if line]) for block in BLOCKS]
    counted = dict(zip(anchors, lines, strict=True))
    assert [(anchor, int(number)) for _, anchor, number, _ in TABLE] == list(counted.items())[: len(TABLE)]
    assert anchors[len(TABLE) :] == ["a-task", "a-new-task", "use-them"]
    assert len(TABLE) == len(EACH) == 12
    assert max(lines[: len(TABLE)]) <= 15
    assert counted["a-new-task"] <= 40


def test_the_page_is_true(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trains with all parts; another process knows them by --import alone, and the folder without them is refused."""
    monkeypatch.chdir(tmp_path)
    names = dict(page)
    exec(USE, names)
    assert "torch.Size([1, 2, 4, 4])\n" in capsys.readouterr().out
    assert names["colours"].model.config.encoder.norm == "dyt"
    assert 0 <= names["colours"].metrics["recall_of_red"] <= 100
    assert "with_z_loss" in (tmp_path / "runs" / "own" / "heedful.json").read_text()
    stored = json.loads((tmp_path / "runs" / "own" / "config.json").read_text())["decoder"]
    assert {kind: stored[kind] for kind in ("norm", "attention", "feed_forward", "block")} == {
        kind: PARTS[kind] for kind in ("norm", "attention", "feed_forward", "block")
    }
    assert stored["position"] == {"kind": "custom", "scheme": "kerple"}

    Path("mine.py").write_text(DEFINITIONS, encoding="utf-8")
    command = ["predict", "runs/own", "one red", "--max-new-tokens=3", "--do-sample=false", "--json"]
    known = fresh_process.run(COMMAND, *command, "--import", "mine.py")
    assert known.returncode == 0, known.stderr
    expected = names["run"].pipeline("one red", max_new_tokens=3, do_sample=False)["output"]
    assert json.loads(known.stdout)["output"] == expected
    unknown = fresh_process.run(COMMAND, *command)
    assert unknown.returncode == 2
    (line,) = unknown.stderr.splitlines()
    assert re.search(r"config.json: stack.\w+ is '\w+'.*heedful.register\('\w+', '\w+', ...\), or --import", line) or (
        re.search("the position scheme 'kerple' is unknown; .*register it first", line)
    )


@pytest.fixture(scope="module")
def trained(page: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The run of three steps of a part of the page, and of a fourth after it was resumed."""
    parent = tmp_path_factory.mktemp("parts")

    @cache
    def run_of(part: str) -> Any:
        (parent / part).mkdir()
        task, data, given = arguments(part, page, parent / part / "run")
        assert heedful.train(task, data, **given).step == 3
        return heedful.train(task, **given | {"max_steps": 4}, resume=True)

    return run_of


@pytest.mark.parametrize("part", EACH)
def test_a_part_trains_resumes_generates_and_is_recorded(part: str, trained: Callable[[str], Any]) -> None:
    run = trained(part)
    assert run.step == 4
    model = run.model
    if part in PARTS:
        described = model.config.head if part == "head" else model.config.decoder
        assert getattr(described, part) in (PARTS[part], config.CustomPosition(scheme="kerple"))
    if part == "metric":
        assert 0 <= run.metrics["recall_of_red"] <= 100
        assert registry.label_of("recall_of_red") == "recall of red, %"
    if part == "data set":
        assert len((run.folder / "data" / "train.jsonl").read_text().splitlines()) == 48
    fresh = heedful.create(model.config, seed=0)
    assert {n for n, p in model.named_parameters()} == {n for n, p in fresh.named_parameters()}
    plain = model(IDS % 15)
    with heedful.record(model, "pattern") as recorded:
        assert torch.equal(model(IDS % 15), plain)
    assert len(recorded) == 2
    if isinstance(model, heedful.Decoder):
        tokens = model.generate(IDS % 15, max_new_tokens=4, do_sample=False)
        whole = model(tokens[:, :-1])  # with the cache as without it
        new = tokens[:, IDS.size(1) :]
        assert torch.equal(whole[:, IDS.size(1) - 1 :].argmax(-1)[new != 0], new[new != 0])  # 0: after the end
    copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for other in (copied, unpickled):  # the same weights; products may round by where these lie in memory
        weights = other.state_dict()
        assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
        assert_close(other(IDS % 15), plain, "forward")
    assert_close(optimize(copied)(IDS % 15), plain, "forward")


REOPEN = """
import json, sys, torch, heedful
heedful.registration.import_file("mine.py")
ids = torch.tensor(json.loads(sys.argv[1]))
for folder in sys.argv[2:]:
    model, prediction = heedful.from_pretrained(folder), heedful.pipeline(None, folder)
    with heedful.record(model, "pattern") as recorded:
        output = model(ids)
    options = {"max_new_tokens": 3, "do_sample": False} if isinstance(model, heedful.Decoder) else {}
    shapes = {name: list(pattern.shape) for name, pattern in recorded.items()}
    print(json.dumps([output.tolist(), shapes, prediction("one red", **options)["output"]]))
"""


def test_each_part_reopens_generates_and_is_recorded_in_a_new_process(
    trained: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(DEFINITIONS, encoding="utf-8")
    ids, expected = IDS[:, :5] % 15, []
    folders = [str(trained(part).folder) for part in EACH]
    for run in map(trained, EACH):
        options = {"max_new_tokens": 3, "do_sample": False} if isinstance(run.model, heedful.Decoder) else {}
        expected.append((run.model(ids), run.pipeline("one red", **options)["output"]))
    done = fresh_process.run(REOPEN, json.dumps(ids.tolist()), *folders, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for part, line, (output, predicted) in zip(EACH, lines, expected, strict=True):
        found, shapes, prediction = json.loads(line)
        assert_close(torch.tensor(found), output, "forward")
        assert list(shapes.values()) == [[2, 4, 5, 5]] * 2, part
        assert prediction == predicted, part


def test_the_objective_of_the_page_is_cross_entropy_and_z_loss(page: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 7, (2, 5), generator=generator)
    labels[0, 3:] = -100
    real = labels != -100
    expected = nn.functional.cross_entropy(logits[real], labels[real], reduction="sum")
    expected += 1e-4 * (logits[real].exp().sum(-1).log() ** 2).sum()
    loss = page["with_z_loss"](lambda ids, mask: logits, {"ids": labels, "labels": labels})
    assert_close(loss, expected.float(), "forward")


@pytest.mark.parametrize(("kind", "name"), PARTS.items())
def test_padding_on_either_side_changes_nothing(kind: str, name: str) -> None:
    model = model_of(**{kind: name})
    row = IDS[:1, :6]
    expected = model(row)
    for padding in ((3, 0), (0, 3)):
        ids = nn.functional.pad(row, padding)
        mask = nn.functional.pad(torch.ones_like(row), padding).bool()
        for changed in (model, optimize(copy.deepcopy(model))):
            assert_close(changed(ids, mask)[mask], expected[0], "forward")


def test_attention_shows_the_weights_it_used() -> None:
    """Recorded were softmax weights where something else ran; the identity, as an intervention, changed the output."""
    model = model_of(attention="sigmoid")
    plain = model(IDS)
    with heedful.record(model, "pattern", layers=[0]) as recorded:
        model(IDS)
    (pattern,) = recorded.values()
    assert bool((pattern >= 0).all())
    assert not torch.allclose(pattern.sum(-1), torch.ones(()))  # sigmoids need not sum to 1
    attention = model.decoder.block[0].attention
    x = model.decoder.block[0].attention_residual.before(
        model.decoder.position.embed(model.embedding(IDS), torch.arange(9)[None], 9), None
    )
    q, k = (attention.split(linear(x)) for linear in (attention.query, attention.key))
    bias = torch.full((9, 9), float("-inf")).triu(1)
    assert_close(pattern, torch.sigmoid(attention.scale * q @ k.mT + bias - 3), "forward")
    with intervene(model, "pattern", lambda weights: weights):
        assert_close(model(IDS), plain, "forward")
    with intervene(model, "pattern", torch.zeros_like):
        assert not torch.allclose(model(IDS), plain)
    with pytest.raises(HeedfulError, match="does not use softmax"), heedful.record(model, "scores"):
        model(IDS)


class Attentive(nn.Module):
    """A head of sequences and of pooling that weighs the tokens by a learned query."""

    def __init__(self, config: Any, dim: int, token: nn.Embedding) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.output = nn.Linear(dim, getattr(config, "labels", dim))

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        scores = hidden @ self.query
        if real is not None:
            scores = scores.masked_fill(~real.bool(), float("-inf"))
        return self.output((scores.softmax(-1)[..., None] * hidden).sum(1))


def test_the_pooling_of_the_page_leaves_padding_out(page: dict[str, Any]) -> None:
    """Compared with the weighted mean of each text alone, written out."""
    torch.manual_seed(0)
    head = page["AttentionPooling"](config.SequenceHead(labels=3), 8, None)
    hidden, real = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [False, True, True, True, False]])
    for row in (0, 1):
        x = hidden[row, real[row]]
        weights = (x @ head.query.weight[0] + head.query.bias).exp()
        mean = sum(w * v for w, v in zip(weights, x, strict=True)) / weights.sum()
        assert_close(head(hidden, real)[row], head.output.weight @ mean + head.output.bias, "forward")
    assert_close(head(hidden)[0], head(hidden, real)[0], "forward")


def test_a_head_of_labels_trains_reopens_and_takes_other_labels(tmp_path: Path) -> None:
    heedful.register("head", "attentive", Attentive)
    rows = [{"text": f"{w} number {n}", "label": w[0]} for w in ("apple", "anise", "saw", "spade") for n in range(8)]
    sizes = {"head": "attentive", "dim": 32, "depth": 1, "heads": 2}
    run = heedful.train(
        "text-classification", rows, out=tmp_path / "run", max_steps=30, quiet=True, model_settings=sizes
    )
    assert type(run.model.head) is Attentive
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == "heedful"
    assert run.pipeline("a spade")["output"] == "s"
    lens = logit_lens(run.model.eval(), torch.tensor([[1, 2, 3]]), top=2)
    assert lens.ids.shape == (2, 1, 2)  # embedding and block, by our own head
    finer = [row | {"label": row["text"][:2]} for row in rows]
    other = heedful.train("text-classification", finer, out=tmp_path / "other", model=run, max_steps=2, quiet=True)
    assert type(other.model.head) is Attentive
    assert len(other.model.labels) == 4


def test_a_trained_body_takes_a_registered_head(tmp_path: Path) -> None:
    """Also one that shares the embedding's weights, which stay as they were."""

    class Shared(nn.Module):
        def __init__(self, config: Any, dim: int, token: nn.Embedding) -> None:
            super().__init__()
            self.words = nn.Linear(dim, token.num_embeddings, bias=False)
            self.words.weight = token.weight
            self.output = nn.Linear(token.num_embeddings, config.labels)

        def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
            return self.output(self.words(hidden[:, 0]))

    heedful.register("head", "shared", Shared)
    heedful.register("head", "attentive", Attentive)
    rows = [{"text": f"{word} number {n}", "label": word[0]} for word in ("apple", "saw") for n in range(10)]
    small: dict[str, Any] = {"max_steps": 1, "quiet": True}
    sizes = {"dim": 16, "depth": 1, "heads": 2}
    base = heedful.train("text-classification", rows, out=tmp_path / "base", model_settings=sizes, **small)
    for name in ("attentive", "shared"):
        settings: dict[str, Any] = {"training": {"lr": 1e-12, "weight_decay": 0.0}, "model_settings": {"head": name}}
        run = heedful.train("text-classification", rows, out=tmp_path / name, model=base, **small, **settings)
        assert run.model.config.head.head == name
        assert type(run.model.head).__name__ == name.title()
        assert_close(run.model.embedding.token.weight, base.model.embedding.token.weight)
        assert run.pipeline("apple")["output"] in ("a", "s")
        resumed = heedful.train("text-classification", out=tmp_path / name, resume=True, **{**small, "max_steps": 2})
        assert resumed.model.config.head.head == name


def test_a_registered_head_pools_and_is_refused_by_name_elsewhere(tmp_path: Path) -> None:
    heedful.register("head", "attentive", Attentive)
    given = heedful.create("bert-tiny", seed=0).config
    model = heedful.create(replace(given, head=config.PooledHead(head="attentive")), seed=0).eval()
    model.save_pretrained(tmp_path / "own")
    assert not (tmp_path / "own" / "modules.json").exists()  # another program would pool in another way
    ids = torch.tensor([[5, 6, 7]])
    assert_close(heedful.from_pretrained(tmp_path / "own")(ids), model(ids), "forward")
    with pytest.raises(HeedfulError, match=r"sequence.head is 'absent'.*heedful.register\('head', 'absent', ...\)"):
        config.SequenceHead(head="absent")  # type: ignore[arg-type]
    with pytest.raises(HeedfulError, match=r"encoder.head is 'attentive'"):
        replace(given, head="attentive")


@pytest.mark.parametrize(
    ("task", "forward", "words"),
    [
        (
            "text-classification",
            lambda y: y,
            r"\(8, \d+, 2\), not \(8, 2\): a head of kind 'sequence' returns \(batch, labels\)",
        ),
        ("text-classification", lambda y: y[:, 0, :1], r"\(8, 1\), not \(8, 2\)"),
        ("text-classification", lambda y: None, r"NoneType, not \(8, 2\)"),
        (
            "token-classification",
            lambda y: y[:, 0],
            r"\(8, 3\), not \(8, \d+, 3\): .* returns \(batch, tokens, labels\)",
        ),
        (
            "text-generation",
            lambda y: y[..., 1:],
            r"\(\d+, 20\), not \(\d+, 21\): .*'language-model' returns \(tokens, vocabulary\)",
        ),
    ],
)
def test_a_wrong_shape_of_a_head_is_named(task: str, forward: Any, words: str, tmp_path: Path) -> None:
    """The loss ended in a RuntimeError of PyTorch."""

    class Faulty(nn.Module):
        def __init__(self, config: Any, dim: int, token: nn.Embedding) -> None:
            super().__init__()
            self.output = nn.Linear(dim, getattr(config, "labels", token.num_embeddings))

        def forward(self, hidden: Tensor, real: Tensor | None = None) -> Any:
            return forward(self.output(hidden))

    heedful.register("head", "faulty", Faulty)
    rows: list[dict[str, Any]] = [{"text": f"{word} {n}", "label": word} for n in range(20) for word in ("red", "blue")]
    if task == "token-classification":
        rows = [{"words": ["a", "b", str(n)], "tags": ["X", "Y", "Z"]} for n in range(40)]
    if task == "text-generation":
        rows = [{"text": row["text"]} for row in rows]
    with pytest.raises(HeedfulError, match=r"the head 'faulty' returned .*" + words) as error:
        heedful.train(
            task,
            rows,
            out=tmp_path / "run",
            max_steps=1,
            quiet=True,
            model_settings={"head": "faulty", "dim": 32, "depth": 1, "heads": 2},
            training={"batch_size": 8, "accumulate": 1},
        )
    assert "correct its forward" in str(error.value)


def test_a_head_of_the_right_shape_passes_in_any_batch() -> None:
    model = model_of(head="capped")
    for shape in ((1, 1), (2, 9)):
        assert model(IDS[:1, :1].expand(shape)).shape == (*shape, model.embedding.token.num_embeddings)
    model.head.output = nn.Linear(32, 7)
    with pytest.raises(HeedfulError, match=r"the head 'capped' returned \(2, 9, 7\), not \(2, 9, \d+\)"):
        model(IDS)


def test_regression_needs_the_linear_map_of_a_head(tmp_path: Path) -> None:
    class NoOutput(nn.Module):
        def __init__(self, config: Any, dim: int, token: nn.Embedding) -> None:
            super().__init__()
            self.last = nn.Linear(dim, config.labels)

        def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
            return self.last(hidden[:, 0])

    heedful.register("head", "no-output", NoOutput)
    rows = [{"text": f"{n} is a number", "label": n / 2} for n in range(40)]
    with pytest.raises(HeedfulError, match="NoOutput has no linear map called output"):
        heedful.train(
            "text-classification",
            rows,
            out=tmp_path / "run",
            max_steps=2,
            quiet=True,
            model_settings={"head": "no-output"},
            data_settings={"label_kind": "number"},
        )
    liked = [{"prompt": f"{n} is ", "chosen": "a number", "rejected": "no number"} for n in range(40)]
    run = heedful.train(
        "text-classification",
        liked,
        out=tmp_path / "reward",
        max_steps=1,
        quiet=True,
        preset="bert-tiny",
        model_settings={"head": "no-output", "dim": 16, "depth": 1, "heads": 2},
    )
    assert isinstance(run.model.head, NoOutput), "a reward has no unit, so nothing is rescaled"


def nameless(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float = 0.0) -> Tensor:
    return v.repeat_interleave(q.size(1) // v.size(1), 1)[:, :, -q.size(2) :]


def with_nameless() -> Model:
    model = model_of()
    for block in model.decoder.block:
        block.attention.attend = nameless
    return model


def test_a_function_without_weights_is_not_shown_as_another() -> None:
    for model in (with_nameless(), model_of(attention="silent")):
        for ways in (heedful.record(model, "pattern"), intervene(model, "pattern", lambda p: p)):
            with pytest.raises(HeedfulError, match="weights"), ways:
                model(IDS)


@pytest.fixture(autouse=True, scope="module")
def silent(page: dict[str, Any]) -> None:
    def silent_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, dropout: float) -> Tensor:
        return v

    heedful.register("attention", "silent", silent_attention)


def shapes(
    output: int | None = None, weights: int | None = None, factor: float = 1.0
) -> Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Tensor]:
    """An attention function whose output or weights lack rows, or whose weights are others than it uses."""

    def uniform(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, dropout: float) -> Tensor:
        return (bias.exp().expand(*q.shape[:3], k.size(2)) @ v)[:, :output]

    uniform.weights = lambda q, k, bias, scale: factor * bias.exp().expand(*q.shape[:3], k.size(2))[:, :weights]  # type: ignore[attr-defined]
    return uniform


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": 1}, r"'faulty' returned output of shape \(2, 1, 9, 8\), not \(2, 4, 9, 8\); correct the function"),
        ({"weights": 1}, r"'faulty' returned weights of shape \(2, 1, 9, 9\), not \(2, 4, 9, 9\); .*function.weights"),
        ({"factor": 0.5}, "the weights of the attention 'faulty' do not give its output: weights @ v differs"),
    ],
)
def test_weights_and_output_of_an_attention_are_checked(options: dict[str, Any], words: str) -> None:
    """Shapes that broadcast, and weights that are not those in use, were shown without a word."""
    heedful.register("attention", "faulty", shapes(**options))
    model = model_of(attention="faulty")
    for context in (heedful.record(model, "pattern"), intervene(model, "pattern", lambda weights: weights)):
        with pytest.raises(HeedfulError, match=words), context:
            model(IDS)
    heedful.register("attention", "right", shapes())
    model = model_of(attention="right")
    plain = model(IDS)
    with intervene(model, "pattern", lambda weights: weights):
        assert_close(model(IDS), plain, "forward")


def test_a_replaced_attend_is_not_lost_on_saving(tmp_path: Path) -> None:
    model = with_nameless()
    with pytest.raises(HeedfulError, match=r"decoder.block.0.attention.attend is the function 'nameless'.*register"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    registered = model_of(attention="sigmoid")
    assert registered.save_pretrained(tmp_path / "own") is None
    assert json.loads((tmp_path / "own" / "config.json").read_text())["model_type"] == "heedful"
    assert torch.equal(heedful.from_pretrained(tmp_path / "own")(IDS), registered(IDS))


class Flipped(heedful.Block):
    """A block with the parameters of ours and another output, which the final norm does not undo."""

    def forward(self, x: Tensor, real: Any = None, **context: Any) -> Tensor:
        return super().forward(x, real, **context).flip(-1)


def with_flipped() -> Model:
    model = model_of()
    for number in (0, 1):
        block = Flipped(model.config.decoder)
        block.load_state_dict(model.decoder.block[number].state_dict())
        model.decoder.block[number] = block
    return model.eval()


def test_a_replaced_block_is_not_saved_as_another_model(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"decoder.block.0 was replaced \(Flipped\)"):
        with_flipped().save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    wrapped = model_of()
    wrapped.decoder.block[0].forward = lambda x, *given, **context: x  # type: ignore[method-assign]
    with pytest.raises(HeedfulError, match=r"decoder\.block\.0 was replaced"):
        wrapped.save_pretrained(tmp_path / "out")


def test_verify_does_not_call_a_registered_block_another(tmp_path: Path) -> None:
    model_of(block="parallel").save_pretrained(tmp_path / "own")
    report = verify(tmp_path / "own")
    skipped = {check.name for check in report.checks if check.verdict == "skipped"}
    assert {name for name in skipped if name.startswith("logits")}  # transformers has no such model
    assert report.ok


@pytest.mark.parametrize("last", [True, False])
def test_inference_runs_a_replaced_block(last: bool) -> None:
    """A head that reads one token lets inference compute the last block for that token alone, by our block's parts."""
    model = heedful.create("bert-tiny", head="sequence", num_labels=3, seed=0).eval()
    assert isinstance(model, heedful.Encoder)
    for number in [-1] if last else range(len(model.encoder.block)):
        block = Flipped(model.config.encoder)
        block.load_state_dict(model.encoder.block[number].state_dict())
        model.encoder.block[number] = block.eval()
    mask = torch.tensor([[True] * 6 + [False] * 3, [True] * 9])
    expected = model(IDS, mask)
    assert_close(optimize(copy.deepcopy(model))(IDS, mask), expected, "forward")


def test_the_graph_of_onnx_has_the_registered_attention(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = model_of(attention="sigmoid")
    model.save_pretrained(tmp_path / "model")
    Tokenizer.train(["some words"] * 3, size=20, kind="character").save(tmp_path / "model")
    export(tmp_path / "model", "onnx", tmp_path / "out")
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    mask = torch.ones_like(IDS)
    (logits,) = session.run(None, {"input_ids": IDS.numpy(), "attention_mask": mask.numpy()})
    assert_close(torch.tensor(logits), model(IDS), "forward")
    assert not torch.allclose(torch.tensor(logits), model_of()(IDS))


def test_optimizer_and_schedule_are_settings(tmp_path: Path, page: dict[str, Any]) -> None:
    rows = [{"text": f"{a} {b} ."} for a in ("one", "two", "three") for b in ("red", "blue")] * 8
    run = heedful.train(
        *("text-generation", rows),
        out=tmp_path / "run",
        max_steps=3,
        quiet=True,
        model_settings={"dim": 32, "depth": 1, "heads": 4},
        training={"optimiser": "lion", "schedule": "sawtooth", "lr": 1e-3, "log_every": 1},
    )
    assert [line["lr"] for line in run.history] == pytest.approx([1e-3 * (1 - step / 10) for step in (1, 2, 3)])
    assert 'optimiser = "lion"' in (run.folder / "run.toml").read_text()
    before = load_file(run.folder / "last" / "model.safetensors")
    assert before


def test_a_metric_has_its_label_and_direction() -> None:
    heedful.register("metric", "my_error", registry.Metric("my_error", "my error, %", lower_is_better=True))
    assert registry.lower_is_better("my_error")
    assert registry.label_of("my_error") == "my error, %"
    with pytest.raises(HeedfulError, match="is called 'other'"):
        heedful.register("metric", "my_error", registry.Metric("other", "x"))


def test_a_task_reads_its_rows_in_another_way(page: dict[str, Any], tmp_path: Path) -> None:
    """Training, validation, evaluation, the baseline and other processes call ``read_rows`` of the page's task."""
    words = {"good": 5, "fair": 3, "bad": 1}
    rows = [
        {"title": f"film {n}", "body": f"it is {word}", "stars": stars}
        for n in range(12)
        for word, stars in words.items()
    ]
    folder = tmp_path / "run"
    run = heedful.train("reviews", rows, valid=rows[:12], out=folder, max_steps=2, quiet=True)
    assert list(run.model.labels) == ["1", "3", "5"]
    task = page["Reviews"].load(folder)
    assert list(task.columns) == ["text", "label"]
    assert heedful.train("reviews", out=folder, max_steps=3, resume=True, quiet=True).step == 3
    scores = heedful.evaluate(folder, rows, baseline=True, quiet=True)
    assert scores["examples"] == len(rows)
    assert scores["baseline"]["metrics"]["accuracy"] == 100
    read = page["Reviews"].read_rows([str(folder / "data" / "train.jsonl")], task.columns, split="train")
    assert read[0].values == {"text": "film 0: it is good", "label": "5"}

    (tmp_path / "mine.py").write_text(DEFINITIONS, encoding="utf-8")
    command = ["evaluate", "run", "--data=run/data/train.jsonl", "--json", "--import=mine.py"]
    done = fresh_process.run(COMMAND, *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["accuracy"] == scores["accuracy"]


def reviews(name: str = "reviews") -> list[dict[str, str]]:
    """Rows of the page's task, whose label is in the body alone."""
    words = {"good": "5", "fair": "3", "bad": "1"}
    return [
        {"title": f"{name} {n}", "body": f"it is {word}", "stars": stars}
        for n in range(12)
        for word, stars in words.items()
    ]


def test_a_task_that_reads_its_rows_predicts_on_what_it_was_trained_on(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the two columns was guessed, and alone became the input."""
    monkeypatch.chdir(tmp_path)
    run = heedful.train("reviews", reviews("film"), out="run", max_steps=2, quiet=True)
    inputs = [{"title": "film", "body": "it is good"}, {"title": "it is", "body": "bad"}]
    texts = ["film: it is good", "it is: bad"]
    expected = run.pipeline(texts)
    assert [prediction["input"] for prediction in expected] == texts
    assert run.pipeline(inputs) == expected
    assert run.pipeline(inputs[0]) == pytest.approx(expected[0])  # another batch
    lines = [f"{row['title']},{row['body']}" for row in inputs]
    Path("two.csv").write_text("\n".join(["title,body", lines[0], ",", lines[1]]) + "\n", encoding="utf-8")
    assert cli.main(["predict", "run", "--in=two.csv", "--out=out.jsonl"]) == 0
    capsys.readouterr()
    first, blank, last = map(json.loads, Path("out.jsonl").read_text(encoding="utf-8").splitlines())
    kept = [row | {name: one[name] for name in ("output", "score")} for row, one in zip(inputs, expected, strict=True)]
    assert [first, last] == [pytest.approx(row) for row in kept]
    assert (blank["output"], blank["score"]) == ("", None)


class OwnFormat(tasks.get("text-classification")):  # type: ignore[misc]
    """A task that changes rows, and says nothing of inputs."""

    name = "own-format"

    @classmethod
    def read_rows(cls, source: Any, columns: Any, **options: Any) -> Any:
        read = {"title": "text", "body": "text", "stars": "label"}
        rows = super().read_rows(source, read, **options)
        for number, row in enumerate(rows):
            text = f"{row.values['title']} {row.values['body']}"
            rows[number] = replace(row, values={"text": text, "label": row.values["stars"]})
        return rows


def test_inputs_are_not_read_in_another_way_than_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    heedful.register("task", "own-format", OwnFormat)
    run = heedful.train("own-format", reviews(), out="run", max_steps=1, quiet=True)
    Path("two.csv").write_text("title,body\nfilm,it is good\n", encoding="utf-8")

    def refused() -> bool:
        assert cli.main(["predict", "run", "--in=two.csv"]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        return "own-format makes its columns in read_rows" in line and "set input_names" in line and "predict" in line

    assert refused()
    with pytest.raises(HeedfulError, match=r"own-format makes its columns in read_rows.*override predict"):
        run.pipeline({"title": "film", "body": "it is good"})
    assert run.pipeline("film it is good")["output"] in {"1", "3", "5"}
    monkeypatch.setattr(OwnFormat, "input_names", ("title", "body"))
    assert refused()  # predict would be given a mapping
    monkeypatch.setattr(OwnFormat, "input_names", ("text",))  # as files of inputs are read
    Path("texts.csv").write_text("text\nfilm it is good\n", encoding="utf-8")
    assert cli.main(["predict", "run", "--in=texts.csv"]) == 0
    assert capsys.readouterr().out.strip() in {"1", "3", "5"}


def test_columns_of_inputs_do_not_change_which_rows_are_alike(page: dict[str, Any]) -> None:
    """Rows with one text and two labels contradict each other, though a file of inputs has other columns."""
    rows = Rows(Row({"text": "film: fair", "label": label}, "rows", n) for n, label in enumerate("53", 1))
    task = page["Reviews"](Tokenizer.train(["film"], size=300), ["3", "5"])
    assert task.input_columns == {"title": "text", "body": "text"}
    (first, second) = row_keys(rows, task.columns, task.model_columns)
    assert first.model_input == second.model_input
    assert first.row != second.row
    findings = {finding.name for finding in row_findings(task, rows, Rows())}
    assert "contradictions" in findings


def test_a_new_task_learns_and_is_read_again(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the methods that ``EncoderTask`` has for it, with a batch without segments; loss and outputs by hand."""
    monkeypatch.chdir(tmp_path)
    words = {"awful": 1, "poor": 2, "fair": 3, "good": 4, "superb": 5}
    rows = [{"text": f"film {n} is {word}", "rating": rating} for n in range(20) for word, rating in words.items()]
    small = {"dim": 32, "depth": 1, "heads": 2}
    run = heedful.train(
        "ratings", rows, out="run", max_epochs=25, quiet=True, model_settings=small, training={"lr": 5e-3}
    )
    assert run.metrics["spearman"] > 80
    texts = ["a superb film", "film", "this film is awful"]
    outputs = [prediction["output"] for prediction in run.pipeline(texts)]
    assert outputs[0] > outputs[2] + 2
    assert run.pipeline([]) == []

    task = heedful.pipeline("ratings", "run").task
    assert {"name": "ratings", "summary": "A rating from 1 to 5 for a text."} in tasks.names()
    assert [len(ids) for ids in task.input_ids(texts, 4)] == [4, 3, 4]  # with the two special tokens
    examples = task.encode(Rows(Row({"text": text, "rating": 2.0}, "rows", 1) for text in texts)).examples
    batch = task.collate(examples)
    with torch.no_grad():
        loss = float(task.objective(run.model, batch))
        logits = run.model(batch["ids"], batch["mask"]).double()
    targets = torch.tensor([1.0, 0, 0, 0]).double().expand_as(logits)  # 2 is above 1 alone
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    assert loss == pytest.approx(float(expected), rel=1e-5)
    assert task.count(batch) == 3
    assert (1 + logits.sigmoid().sum(1)).tolist() == pytest.approx(outputs, rel=1e-5)

    Path("mine.py").write_text(DEFINITIONS, encoding="utf-8")
    lines = [f"{row['text']}\t{row['rating']}" for row in rows]
    Path("ratings.tsv").write_text("\n".join(["text\trating", *lines]) + "\n", encoding="utf-8")
    trained = ["train", "ratings", "--train=ratings.tsv", "--out=again", "--max-steps=1", "--model.dim=16", "--json"]
    done = fresh_process.run(COMMAND, *trained, "--import", "mine.py")
    assert done.returncode == 0, done.stderr
    command = json.loads(done.stdout)["next"]
    assert command[-2:] == ["--import", "mine.py"]
    assert fresh_process.run(COMMAND, *command).returncode == 0
    done = fresh_process.run(COMMAND, "predict", "run", texts[0], "--json", "--import", "mine.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == pytest.approx(outputs[0], rel=1e-5)


def test_a_subclass_of_classifiers_learns_no_numbers(tmp_path: Path) -> None:
    """Its rows became those of the built-in regression, whose folder names another task."""
    rows = [{"title": f"film {n}", "body": "it is long", "stars": n / 7} for n in range(40)]
    with pytest.raises(HeedfulError, match="reviews learns classes, not numbers"):
        heedful.train("reviews", rows, out=tmp_path / "run", quiet=True, data_settings={"label_kind": "number"})


class OtherColumns(tasks.get("text-classification")):  # type: ignore[misc]
    """A task that renames the columns of its base class."""

    name = "other-columns"
    columns: ClassVar[dict[str, str]] = {"review": "text", "stars": "label"}


class Incomplete(Task):
    """A task without most of its parts."""

    name = "incomplete"


class Sorting(tasks.get("translation")):  # type: ignore[misc]
    """A source text with its words in another order."""

    name = "sorting"


def test_a_task_is_known_to_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    heedful.register("task", "sorting", Sorting)
    assert tasks.get("sorting") is Sorting
    assert cli.main(["tasks", "--json"]) == 0
    listed = {task["name"]: task["summary"] for task in json.loads(capsys.readouterr().out)}
    assert listed["sorting"] == "A source text with its words in another order."


@pytest.mark.parametrize(
    ("kind", "name", "thing", "words"),
    [
        ("norms", "x", nn.Identity, "unknown kind of part 'norms'; did you mean 'norm'"),
        ("norm", "layer", nn.Identity, "norm 'layer' is built in"),
        ("optimizer", "adamw", print, "optimizer 'adamw' is built in"),
        ("task", "translation", Sorting, "task 'translation' is built in"),
        ("norm", "", nn.Identity, "the name '' is not valid"),
        ("norm", "a b", nn.Identity, "the name 'a b' is not valid"),
        ("position", "rotary", nn.Identity, "position 'rotary' is built in"),
        ("attention", "x", nn.Identity, "attention 'x' is a class"),
        ("task", "other", Sorting, "the task is called 'sorting', not 'other'"),
        ("norm", "x", 3, "norm 'x' is of type int, which cannot be called"),
        ("task", "x", nn.Identity, "is no subclass of heedful.tasks.Task"),
        ("task", "other-columns", OtherColumns, "TextClassification uses 'text' and 'label'; keep its columns, and ov"),
        (
            "task",
            "incomplete",
            Incomplete,
            "task 'incomplete' lacks columns, main_metric, check_model, collate, config",
        ),
        ("metric", "x", print, "give a heedful.metrics.registry.Metric"),
        ("model_type", "x", 3, "give a ModelType"),
        ("model_type", "bart", OWN, "model_type 'bart' is built in"),
        ("model_type", "heedful", OWN, "model_type 'heedful' is built in"),
        ("metric", "bleu", registry.Metric("bleu", "BLEU of my own"), "metric 'bleu' is built in"),
    ],
)
def test_wrong_parts_are_errors_of_one_line(kind: str, name: str, thing: Any, words: str) -> None:
    with pytest.raises(HeedfulError) as error:
        heedful.register(kind, name, thing)
    assert words in str(error.value)


def test_unknown_names_are_refused_with_the_remedy() -> None:
    for changes, words in (
        ({"norm": "lyer"}, "did you mean 'layer'.*; or register it first: heedful.register('norm', 'lyer', ...)"),
        ({"attention": "linear"}, "register it first: heedful.register('attention', 'linear', ...), or --import"),
        ({"position": "xpos"}, "the position scheme 'xpos' is unknown; .*; or register it first"),
        ({"position": "kerpel"}, "the position scheme 'kerpel' is unknown; did you mean 'kerple'?; or register"),
        ({"head": "caped"}, "language-model.head is 'caped'; did you mean 'capped'?; or register it first"),
        ({"norm": "dty"}, "did you mean 'dyt'"),
        ({"attention": "sigmoidal"}, "did you mean 'sigmoid'"),
        ({"feed_forward": "expert"}, "did you mean 'experts'"),
        ({"block": "paralel"}, "did you mean 'parallel'"),
    ):
        with pytest.raises(HeedfulError) as error:
            stack_of(**changes)
        first, _, rest = words.partition(".*")
        assert first in str(error.value)
        assert rest in str(error.value)
    given = {"task": "text-generation", "train": ("x",), "out": "o", "training": {"optimiser": "adam"}}
    with pytest.raises(HeedfulError, match=r"unknown --training\.optimiser 'adam'; did you mean 'adamw'"):
        RunSettings.from_dict(given)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "--import mine.py: there is no such file"),
        ("import heedful\nx = 1 / 0\n", "--import mine.py:2: ZeroDivisionError: division by zero"),
        ("import heedful\nheedful.register('norm', 'rms', print)\n", "--import mine.py: norm 'rms' is built in"),
        ("def broken(:\n", "--import mine.py: SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line(
    content: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    if content is not None:
        Path("mine.py").write_text(content, encoding="utf-8")
    assert cli.main(["tasks", "--import", "mine.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert "mine" not in sys.modules or content is not None
    sys.modules.pop("mine", None)


def test_a_link_may_lead_to_a_file_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the Hub's cache has them: ``mine.py`` is a link to a file that is named by its digest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("5f1d").write_text("WIDTH = 8\n", encoding="utf-8")
    Path("mine.py").symlink_to("5f1d")
    registration.import_file("mine.py")
    assert sys.modules["mine"].WIDTH == 8
    assert sys.modules["mine"].__file__ == str(tmp_path.resolve() / "5f1d")
    monkeypatch.delitem(sys.modules, "mine")
    Path("5f1d").write_text("\nx = 1 / 0\n", encoding="utf-8")
    assert cli.main(["tasks", "--import", "mine.py"]) == 2
    assert "--import mine.py:2: ZeroDivisionError" in capsys.readouterr().err
    sys.modules.pop("mine", None)


def test_import_without_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks", "--import"]) == 2
    assert "--import names no file" in capsys.readouterr().err


NORM = """import heedful, torch
class Twice(torch.nn.Module):
    def __init__(self, dim, eps):
        super().__init__()

    def forward(self, x, real=None):
        return 2 * x
heedful.register("norm", "twice", Twice)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a file of parts and a table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(NORM, encoding="utf-8")
    rows = [f"{word} {n}\t{word[0]}" for n in range(20) for word in ("apple", "saw")]
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path
    sys.modules.pop("mine", None)
    config.REGISTERED["norm"].discard("twice")


TRAIN = ["train", "text-classification", "--train=rows.tsv", "--out=run", "--max-steps=1", "--preset=bert-tiny"]


@pytest.mark.parametrize("file", ['import = ["mine.py"]\n', 'import = "mine.py"\n'])
def test_a_settings_file_names_the_files_to_import(file: str, mine: Path) -> None:
    (mine / "own.toml").write_text(file + '[model]\nnorm = "twice"\n', encoding="utf-8")
    assert cli.main([*TRAIN, "--config=own.toml"]) == 0
    assert heedful.from_pretrained("run").config.encoder.norm == "twice"
    assert "import" not in (mine / "run" / "run.toml").read_text(encoding="utf-8")


def test_a_variable_names_the_file_to_import(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_IMPORT", "mine.py")
    assert cli.main([*TRAIN, "--model.norm=twice"]) == 0


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("import = 3\n", "own.toml: import is 3; give a file"),
        ("import = [3]\n", "own.toml: import is [3]; give a file"),
        ('import = "absent.py"\n', "own.toml: import absent.py: there is no such file"),
        ('[model]\nimport = "mine.py"\n', "own.toml:2: import is in a table; move it to the file's head"),
    ],
)
def test_a_wrong_import_in_a_settings_file_is_one_line(
    file: str, words: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine / "own.toml").write_text(file, encoding="utf-8")
    assert cli.main([*TRAIN, "--config=own.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_an_import_beside_the_settings_file_is_found(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "own.toml").write_text('import = "mine.py"\n[model]\nnorm = "twice"\n', encoding="utf-8")
    (mine / "sub").mkdir()
    monkeypatch.chdir(mine / "sub")
    train = [token.replace("rows.tsv", "../rows.tsv") for token in TRAIN]
    assert cli.main([*train, "--config=../own.toml"]) == 0


@pytest.mark.parametrize("place", ["model/run.toml", "model/sub/deep/run.toml", "link.toml", "linked/run.toml"])
def test_the_settings_of_a_model_folder_import_nothing(
    mine: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    folder = mine / "model" / "sub" / "deep"
    folder.mkdir(parents=True)
    (mine / "model" / "config.json").write_text("{}", encoding="utf-8")
    for file in (mine / "model" / "run.toml", folder / "run.toml"):
        file.write_text('import = "mine.py"\n', encoding="utf-8")
    (mine / "link.toml").symlink_to(folder / "run.toml")
    (mine / "linked").symlink_to(folder)
    assert cli.main([*TRAIN, f"--config={place}"]) == 2
    assert "import has no effect in a model's folder" in capsys.readouterr().err
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("forward(self, x, real=None)", "forward(self, x)", "Twice, in mine.py: TypeError: Twice.forward() takes 2"),
        ("2 * x", "x + torch.ones(3, 7)", "mine.py:7: RuntimeError: The size of tensor a"),
    ],
)
def test_an_error_in_a_part_names_its_place(
    old: str, new: str, words: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine / "mine.py").write_text(NORM.replace(old, new), encoding="utf-8")
    assert cli.main([*TRAIN, "--model.norm=twice", "--import=mine.py"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert words in line
    assert "correct the file" in line
    assert "a bug in heedful" not in line


def test_every_kind_has_its_protocol() -> None:
    documented = registration.register.__doc__ or ""
    for kind in registration.KINDS:
        assert f'"{kind}"' in documented


@pytest.mark.parametrize(
    ("kind", "thing", "words"),
    [
        ("norm", lambda dim: nn.Identity(), r"the norm 'faulty' is made by faulty\(dim, eps\), which failed"),
        ("norm", lambda dim, eps: None, "the norm 'faulty' made NoneType"),
        ("feed_forward", nn.Linear, r"the feed_forward 'faulty' is made by faulty\(config\), which failed"),
        ("position", lambda config: nn.Identity(), "the position 'faulty' lacks embed and prepare"),
    ],
)
def test_a_faulty_factory_is_named(kind: str, thing: Any, words: str) -> None:
    heedful.register(kind, "faulty", thing)
    with pytest.raises(HeedfulError, match=words):
        model_of(**{kind: "faulty"})


@pytest.mark.parametrize(
    ("encode", "words"),
    [
        (lambda bias: bias, "position 'faulty' returned Tensor from prepare; return a PositionEncoding, such as Pos"),
        (lambda bias: None, "position 'faulty' returned NoneType from prepare"),
        (lambda bias: position.PositionBias(bias[0]), r"of shape \(1, 9, 9\) has 3 dimensions; give four: \(B or 1, h"),
        (lambda bias: position.PositionBias(bias[None]), "has 5 dimensions; give four"),
    ],
)
def test_a_faulty_position_encoding_is_named(encode: Callable[[Tensor], Any], words: str) -> None:
    """A tensor ended in an AttributeError; three dimensions were taken for those of heads, queries and keys."""

    class Faulty(position.PositionScheme):
        def __init__(self, config: Any) -> None:
            super().__init__()

        def prepare(self, queries: Tensor, keys: Tensor) -> Any:
            return encode(-(queries[:, None, :, None] - keys[:, None, None, :]).abs().float())

    heedful.register("position", "faulty", Faulty)
    model = model_of(position="faulty")
    for each in (model, optimize(copy.deepcopy(model))):
        with pytest.raises(HeedfulError, match=words):
            each(IDS)


def test_a_part_of_ours_with_other_options_is_not_lost(tmp_path: Path) -> None:
    def activation(model: Model) -> None:
        model.decoder.block[0].feed_forward.activation = torch.relu

    def scale(model: Model) -> None:
        model.decoder.block[0].attention.scale = 1.0

    def other_norm(model: Model) -> None:
        model.decoder.block[0].attention_residual.before = norm.RMSNorm(32)

    for change in (activation, scale, other_norm):
        model = model_of()
        change(model)
        with pytest.raises(HeedfulError, match="was replaced"):
            model.save_pretrained(tmp_path / "out")
    model_of().save_pretrained(tmp_path / "out")


def test_a_cell_that_is_run_again_leaves_older_models_whole(tmp_path: Path) -> None:
    def again() -> Any:
        def mean(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, dropout: float) -> Tensor:
            return bias.exp() @ v

        class Half(nn.Module):
            def __init__(self, dim: int, eps: float) -> None:
                super().__init__()

            def forward(self, x: Tensor, real: Any = None) -> Tensor:
                return x / 2

        heedful.register("attention", "mean", mean)
        heedful.register("norm", "half", Half)

    again()
    model = model_of(attention="mean", norm="half")
    again()
    model.save_pretrained(tmp_path / "out")
    assert torch.equal(heedful.from_pretrained(tmp_path / "out")(IDS), model(IDS))


def test_tensors_that_need_no_weights_are_recorded() -> None:
    model = model_of(attention="silent")
    plain = model(IDS)
    with heedful.record(model, ["query", "mixed"]) as recorded:
        assert torch.equal(model(IDS), plain)
    assert len(recorded) == 4
