from __future__ import annotations

import io
import json
import math
import re

import pytest

import fresh_process
from heedful.errors import HeedfulError
from heedful.training import Log
from heedful.training.log import remaining


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def written(path, steps, begin=0, **options):
    log = Log(path, quiet=True)
    log.begin(begin)
    with log:
        for step in steps:
            log.write({"step": step, "loss": 1 / step, **options})


def test_a_line_a_logged_step(path):
    written(path, [1, 2, 4])
    assert lines(path) == [{"step": step, "loss": 1 / step} for step in (1, 2, 4)]


def test_lines_after_the_checkpoint_are_dropped_on_resuming(path):
    written(path, [2, 4, 6, 8])
    written(path, [6, 8], begin=5, resumed=True)
    assert [line["step"] for line in lines(path)] == [2, 4, 6, 8]
    assert [line.get("resumed", False) for line in lines(path)] == [False, False, True, True]


def test_half_a_line_is_dropped(path):
    written(path, [2, 4])
    path.write_text(path.read_text() + '{"step": 6, "lo')
    written(path, [8], begin=7)
    assert [line["step"] for line in lines(path)] == [2, 4, 8]


def test_a_new_run_begins_a_new_file(path):
    written(path, [2, 4])
    written(path, [1])
    assert [line["step"] for line in lines(path)] == [1]


@pytest.mark.parametrize("resumed", [False, True])
def test_two_lines_of_a_step_are_one(path, resumed):
    log = Log(path, quiet=True)
    log.begin(0)
    with log:
        log.write({"step": 1, "loss": 5.0})
        log.write({"step": 2, "loss": 3.0})
        if not resumed:
            log.write({"step": 2, "valid_loss": 4.0})
            log.write({"step": 3, "loss": 2.0})
    if resumed:
        log.begin(2)
        with log:
            log.write({"step": 2, "valid_loss": 4.0})
            log.write({"step": 3, "loss": 2.0})
    assert lines(path) == [
        {"step": 1, "loss": 5.0},
        {"step": 2, "loss": 3.0, "valid_loss": 4.0},
        {"step": 3, "loss": 2.0},
    ]


def test_numbers_that_are_none_are_null(path):
    written(path, [1], valid_bleu=math.nan)
    assert lines(path)[0]["valid_bleu"] is None


LINE = {"step": 1200, "epoch": 1.5, "loss": 2.5, "lr": 0.00031, "tokens_per_second": 12345.6, "valid_bleu": 31.25}


def test_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    with Log(stream=stream) as log:
        log.tick(1, 0.1, 3.0)
        log.write(LINE, left=200.0)
    assert stream.getvalue() == (
        "step 1,200  epoch 1.50  loss 2.5000  lr 0.00031  12,346 tokens/s  valid_bleu 31.25  3:20 left\n"
    )


def test_the_first_sample_is_shown_and_all_are_kept(path):
    stream = io.StringIO()
    samples = [{"input": "a b", "output": "c\nd", "target": "e"}, {"input": "f", "output": "g"}]
    with Log(path, stream=stream) as log:
        log.begin(0)
        log.write({"step": 2, "target_tokens_per_second": 10.0, "valid_loss": 1.0, "samples": samples})
    assert stream.getvalue() == "step 2  10 target tokens/s  valid_loss 1\n           a b → c d\n"
    assert lines(path)[-1]["samples"] == samples


def test_one_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Log(stream=stream) as log:
        log.write({"step": 1, "loss": 3.0})
        log.tick(1201, 0.5, 100.0)
        log.write(LINE, left=90.0)
    shown = stream.getvalue()
    assert "step 1,201" in shown
    assert "1:40 left" in shown
    assert "loss 3.0000" in shown
    assert shown.count("valid_bleu 31.25  1:30 left\n") == 1, "an evaluation stays on the screen"
    assert "loss 3.0000\n" not in shown


LONG = {
    "step": 123400,
    "epoch": 123.45,
    "loss": 2.5,
    "lr": 0.00031,
    "target_tokens_per_second": 12345.6,
    "share_of_ceiling": 0.42,
    **{f"valid_{name}": 31.25 for name in ("loss", "bleu", "chrf", "exact_match", "macro_f1")},
}


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_the_bar_is_one_line_of_any_terminal(monkeypatch, width):
    """With the time left and, where there is room, the loss; all that is there in a wide one."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Log(stream=stream) as log:
        log.write(LONG)
        stream.seek(0)
        stream.truncate()
        log._drawn_at = 0.0
        log.tick(123_456, 0.5, 3725.0)
        log._bar.refresh()
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
        lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert all(len(line) <= width for line in lines)
    assert lines[-1].startswith("step 123,456")
    assert all(line.startswith("step") for line in lines), "none is the end of another"
    assert "1:02:05 left" in lines[-1]
    assert ("loss 2.5000" in lines[-1]) == (width >= 80)


def test_nothing_when_quiet(capfd):
    with Log(quiet=True) as log:
        log.write(LINE)
        log.note("a note")
        log.tick(1, None, None)
    assert capfd.readouterr() == ("", "")


def test_standard_output_is_left_alone(capfd):
    with Log() as log:
        log.write(LINE)
        log.note("a note")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith("a note\n")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HeedfulError, match=r"cannot write .*metrics\.jsonl"):
        Log(tmp_path / "file" / "metrics.jsonl").begin(0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (59.6, "  1:00 left"), (3725, "  1:02:05 left"), (-1, "  0:00 left")]
)
def test_time_left(seconds, text):
    assert remaining(seconds) == text


def test_rich_is_imported_for_a_terminal_only():
    code = "import sys; from heedful.training import Log\nwith Log(): pass\nsys.exit('rich' in sys.modules)"
    assert fresh_process.run(code).returncode == 0
