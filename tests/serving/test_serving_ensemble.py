"""An ensemble behind the server: the answers of the pipeline, and the attention of its first member."""

from __future__ import annotations

from pathlib import Path

from running_server import Running

import heedful
from heedful.data import Row, Rows
from heedful.serving.admission import ServiceLimits
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.classifier_ensemble import ClassifierEnsemble
from heedful.training.run_folder import save_task_and_model
from tolerances import approx

TEXTS = ["a pear and a saw", "the saw", "one pear ?"]


def test_the_server_answers_as_the_pipeline_does(tmp_path: Path) -> None:
    data = Rows(Row({"text": text, "label": "xy"[number % 2]}, "set.tsv", number) for number, text in enumerate(TEXTS))
    sizes = {"model": ModelSettings(members=3, dim=16), "tokenizer": TokenizerSettings(size=40)}
    asked = RunSettings(task="text-classification", train=("-",), out="-", **sizes)
    task = ClassifierEnsemble.prepare(data, asked)
    model = heedful.create(task.model_config(asked), seed=0)
    task.before_training(model, asked)
    save_task_and_model(model, task, tmp_path / "model", {"task": task.name, "columns": dict(task.columns)})
    pipe = heedful.pipeline(None, tmp_path / "model", device="cpu")
    with Running(pipe, ServiceLimits()) as server:
        answers = server.post("/predict", inputs=TEXTS)
        seen = server.post("/v1/attention", input=TEXTS[1])
    alone = [(one["output"], approx(one["score"])) for one in pipe(TEXTS)]
    assert [(one["output"], one["score"]) for one in answers] == alone
    assert "member-0" in seen["title"]
