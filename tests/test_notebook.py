"""A notebook, executed by a kernel: it trains from a DataFrame, shows the curve, predicts, looks inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CELLS = [
    """
import pandas as pd, heedful
words = {"fruit": ["apple", "pear", "fig", "plum"], "tool": ["saw", "drill", "file", "hammer"]}
rows = [{"text": f"one {w} number {n}", "label": k} for k, ws in words.items() for w in ws for n in range(6)]
frame = pd.DataFrame(rows)
""",
    """
run = heedful.train("text-classification", frame, out="things", preset="bert-tiny", max_steps=30,
                    model_settings={"dim": 32, "heads": 2, "depth": 1}, tokenizer={"size": 200},
                    training={"log_every": 5, "evaluate_every": 10, "lr": 0.003, "warmup": 5})
run
""",
    'run.pipeline(["one pear", "one saw"])',
    'heedful.inspect("things", "one pear number 3")',
    'heedful.evaluate(run, frame, quiet=True)["accuracy"]',
    """
class Stop:
    def on_step(self, run):
        run.stop()
stopped = heedful.train("text-classification", frame, out="stopped", preset="bert-tiny", max_steps=30, quiet=True,
                        callbacks=[Stop()], model_settings={"dim": 32, "heads": 2, "depth": 1}, tokenizer={"size": 200})
stopped.step
""",
    'heedful.train("text-classification", frame, out="things")',
]


def shown(cell: Any, kind: str) -> list[str]:
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.full
def test_a_notebook_trains_shows_predicts_and_looks_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in CELLS])
    client = nbclient.NotebookClient(
        notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    _, trained, predicted, inspected, evaluated, stopped, refused = notebook.cells
    for cell in notebook.cells[:-1]:
        assert [output for output in cell.outputs if output["output_type"] == "error"] == []

    assert "<svg" in shown(trained, "text/html")[-1]
    assert "accuracy" in shown(trained, "text/html")[-1]
    streams = [output for output in trained.outputs if output["output_type"] == "stream"]
    text = "".join(output["text"] for output in streams if output["name"] == "stdout")
    assert "48 examples" not in text  # a part is held out
    assert "step 30" in text
    assert [output["text"] for output in streams if output["name"] == "stderr"] == []
    assert "<progress" not in "".join(shown(trained, "text/html"))  # the bar is gone at the end

    assert (
        "'output': 'fruit'" in shown(predicted, "text/plain")[0]
        or "'output': 'tool'" in shown(predicted, "text/plain")[0]
    )
    assert len(shown(inspected, "text/html")[0]) > 10_000
    assert 0 <= float(shown(evaluated, "text/plain")[0]) <= 100
    assert shown(stopped, "text/plain") == ["1"]
    (error,) = [output for output in refused.outputs if output["output_type"] == "error"]
    assert "is not empty; resume=True continues the run" in error["evalue"]
