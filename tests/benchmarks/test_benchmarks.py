"""The benchmark program works: its short form measures, compares answers and writes. No time is judged here."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.kernels.few_rows import compiler

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.speed import bounds, results, works  # noqa: E402
from benchmarks.speed.rounds import Times  # noqa: E402

INSTALLED = {
    "ours": ("heedful",),
    "nested": ("torch",),
    "nn_transformer": ("torch",),
    "openvino": ("openvino", "nncf"),
    "llama_cpp": ("xllamacpp", "gguf"),
    **{name: (name,) for name in ("transformers", "ctranslate2", "onnxruntime", "x_transformers", "timm")},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of one short run with all programs that are installed, and what it printed."""
    folder = tmp_path_factory.mktemp("bench")
    # two threads: with one, OpenVINO 2026.4 ends the process at a small Llama in bfloat16, on a processor with AMX
    command = [sys.executable, "-m", "benchmarks.speed", "--short", "--threads", "2", "--folder", str(folder)]
    command += ["--out", str(folder / "out.json"), "--docs", str(folder / "docs" / "benchmarks.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder, done.stdout


def read(written: tuple[Path, str]) -> dict[str, Any]:
    return json.loads((written[0] / "out.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ["generation", "context", "encoder", "train-characters"])
def test_ours_does_its_work(row: str, tmp_path: Path) -> None:
    """The short suite notices where the package has changed under the benchmark; the full one runs all programs."""
    from benchmarks.speed import weights
    from benchmarks.speed.programs import Setting, ours

    work = works.works(row, short=True)[0]
    weights.make(tmp_path, work.model, "folder")
    folder = weights.place(tmp_path, work.model, "folder")
    setting = Setting(model=folder, precision="float32", way="", threads=1, device="cpu")
    result = getattr(ours, works.action(row))(setting)(work)()
    assert result.isfinite().all()
    assert len(result) == (work.steps or work.batch)


@pytest.mark.parametrize(("way", "kernels"), [("", "cpu-compiled"), ("uncompiled", "cpu-inference"), ("plain", "auto")])
def test_ours_without_a_way_has_compiled_kernels(way: str, kernels: str, tmp_path: Path) -> None:
    from benchmarks.speed import weights
    from benchmarks.speed.programs import Setting, ours

    if compiler() is None:
        pytest.skip("no C++ compiler (g++ on Linux)")
    weights.make(tmp_path, "gpt2-tiny", "folder")
    setting = Setting(model=tmp_path / "gpt2-tiny", precision="float32", way=way, threads=1, device="cpu")
    assert ours.opened(setting).kernels == kernels


@pytest.mark.parametrize("form", ["openvino", "openvino-int4", "gguf-int8"])
def test_a_form_without_its_package_is_a_line(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.speed import weights

    package = form.partition("-")[0]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == package else found(name, *more)
    )
    weights.main(str(tmp_path), f"gpt2-tiny/{form}")
    told = json.loads(capsys.readouterr().out)
    assert told == {f"gpt2-tiny/{form}": f"{package} is not installed (pip install {package})"}
    assert not weights.place(tmp_path, "gpt2-tiny", form).exists()


def test_the_decoder_for_openvino_continues_its_cache_as_ours(tmp_path: Path) -> None:
    """The plain PyTorch model that is converted; the converted one is judged where OpenVINO is installed."""
    from benchmarks.speed import weights
    from benchmarks.speed.to_openvino import Decoder

    work = works.works("generation", short=True)[1]
    weights.make(tmp_path, work.model, "folder")
    ids, model = torch.from_numpy(work.ids()), Decoder(tmp_path / work.model)
    positions, rows = torch.arange(work.longest).expand_as(ids), torch.arange(work.batch)
    empty = torch.zeros(work.batch, model.heads, 0, model.head_size)
    _, *cache = model(ids[:, :-2], positions[:, :-2], rows, *[empty] * (2 * model.depth))
    logits, *cache = model(ids[:, -2:], positions[:, -2:], rows.flip(0), *[part.flip(0) for part in cache])
    right = heedful.from_pretrained(tmp_path / work.model)(ids)[:, -1]
    torch.testing.assert_close(logits, right)
    assert cache[0].shape == (work.batch, model.heads, work.longest, model.head_size)


def test_busy_rows_are_the_works_of_batch_1_beside_a_process(tmp_path: Path) -> None:
    from benchmarks.speed.rounds import Plan, busy

    for row in ("generation", "beam", "encoder", "vit"):
        (work,) = works.works(f"busy-{row}", short=False)
        alone = works.works(row, short=False)[0]
        assert work.is_busy
        assert not alone.is_busy
        assert work == replace(alone, row=work.row, name=f"{alone.name}, cores busy")
        assert works.COMPETITORS[work.row] == works.COMPETITORS[row]
        assert (work.action, work.units, work.unit) == (row, alone.units, alone.unit)
        assert works.title(work.row) == f"{works.title(row)}, while another process keeps all cores busy"
    plan = Plan(folder=tmp_path, rounds=1, short=True, threads=1, device="cpu")
    with open(tmp_path / "log.txt", "w", encoding="utf-8") as log, busy(plan, log) as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_a_process_that_died_is_a_line_and_the_next_model_has_a_new_one(tmp_path: Path) -> None:
    from benchmarks.speed import weights
    from benchmarks.speed.rounds import Plan, Row, Workers

    (ours,) = [each for each in works.COMPETITORS["encoder"] if each.name == "ours float32"]
    work = works.works("encoder", short=True)[0]
    weights.make(tmp_path, work.model, "folder")
    plan = Plan(folder=tmp_path, rounds=1, short=True, threads=1, device="cpu")
    with open(tmp_path / "log.txt", "w", encoding="utf-8") as log, Workers(plan, log) as workers:
        row = Row("encoder", work.model, [ours], plan, workers)
        workers.of(ours).process.kill()
        workers.of(ours).process.wait()
        assert row.measure(work).seconds == {}
        assert row.left_out == {ours.name: "the process ended with -9"}
        again = Row("encoder", work.model, [ours], plan, workers)
        assert list(again.measure(work).seconds) == [ours]
        workers.of(ours).process.kill()
        workers.of(ours).process.wait()
        again.measure(work)


@pytest.mark.full
def test_every_installed_program_does_every_work(written: tuple[Path, str]) -> None:
    told = read(written)
    assert [work["work"]["row"] for work in told["works"]] == [
        work.row for row in works.ROWS for work in works.works(row, short=True)
    ]
    for work in told["works"]:
        row = work["work"]["row"]
        wanted = {each.name for each in works.COMPETITORS[row] if installed(each.program)}
        unable = {name for name, why in told["left_out"][row].items() if "this CPU" in why}  # no such kernels here
        assert {one["name"] for one in work["results"]} >= wanted - unable
        for one in work["results"]:
            assert len(one["rounds_ms"]) == told["runs"][0]["settings"]["rounds"] == 1
            assert math.isfinite(one["ms"])
            assert one["ms"] > 0
            assert one["share"] is None or one["share"] > 0


def installed(program: str) -> bool:
    return program in INSTALLED and all(importlib.util.find_spec(package) for package in INSTALLED[program])


@pytest.mark.full
def test_programs_give_the_same_answers(written: tuple[Path, str]) -> None:
    for work in read(written)["works"]:
        for one in work["results"]:
            if one["program"] == "x_transformers" or work["work"]["row"] == "train-dropout":  # each has its own numbers
                assert one["agrees"] is None
            elif one["precision"] == "float32":
                assert one["apart"] <= min(results.TOLERANCE["float32"], results.LOSSES["float32"]), (
                    work["work"]["name"],
                    one,
                )
            else:
                assert one["agrees"] is not False, (work["work"]["name"], one)


@pytest.mark.full
def test_missing_programs_are_a_line(written: tuple[Path, str]) -> None:
    told = read(written)
    assert "give its folder with --nanogpt" in told["left_out"]["generation"]["nanogpt float32"]
    for reasons in told["left_out"].values():
        for name, why in reasons.items():
            assert f"not measured: {name}: {why}" in written[1]
            assert not installed(name.split()[0]) or "this CPU" in why, (name, why)


@pytest.mark.full
def test_the_page_says_what_the_json_says(written: tuple[Path, str]) -> None:
    told, page = read(written), (written[0] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert page.startswith("# Speed\n")
    assert "none of these times means anything" in page
    (run,) = told["runs"]
    assert run["machine"]["processor"] in page
    for word in ("read", "copy", "float32", "bfloat16"):
        assert f"| {word} | {run['ceilings'][word]['median']:.1f} | {run['ceilings'][word]['best']:.1f} |" in page
    for work in told["works"]:
        for one in work["results"]:
            assert f"\n| {one['name']} | " in page
    drawn = [each for each in told["works"] if results.fastest(each, "float32")]
    picture = written[0] / "docs" / "benchmarks.svg"
    assert picture.exists() == bool(drawn) == ("](benchmarks.svg)" in page)


@pytest.mark.full
def test_a_page_says_how_its_kinds_of_work_are_measured(written: tuple[Path, str], tmp_path: Path) -> None:
    from benchmarks.speed import page

    told = read(written)
    for kind, there, not_there in (
        ("train-", "A step of training is", "Generations are greedy"),
        ("", "Generations are greedy", "A step of training is"),
    ):
        works_of = [each for each in told["works"] if each["work"]["row"].startswith("train-") == bool(kind)]
        folder = tmp_path / (kind or "answers")
        page.add({**told, "works": works_of}, folder / "some.md")
        text = (folder / "some.md").read_text(encoding="utf-8")
        rows = ",".join(dict.fromkeys(each["work"]["row"] for each in works_of))
        assert there in text
        assert not_there not in text
        assert f"    python -m benchmarks.speed --rows {rows} --docs docs/some.md\n" in text


def one_result(work: works.Work, ours: float, theirs: float, **run: Any) -> dict[str, Any]:
    """The results of a run of one work by two programs, in milliseconds a unit."""
    mine, other = (
        next(each for each in works.COMPETITORS[work.row] if each.name == name)
        for name in ("ours float32", "transformers float32")
    )
    seconds = {mine: [ours * work.units / 1e3], other: [theirs * work.units / 1e3]}
    figures = results.figures(work, Times(seconds, [{"read": 1e9, "float32": 1e9}]), {mine: 0.0, other: 0.0})
    machine = {
        "processor": "P",
        "cores": 2,
        "memory_gb": 1,
        "system": "S",
        "python": "3",
        "versions": {},
        "waiting": {},
    }
    told = {"date": "2026-01-01", "machine": machine, "settings": {"rounds": 1, "threads": 2, "device": "cpu"}}
    told["settings"] |= {"short": False}
    told |= {"ceilings": {"read": {"median": 1.0, "best": 2.0}}, "minutes": 1.0, **run}
    return {"format": results.FORMAT, "runs": [told], "works": [figures], "left_out": {work.row: {}}}


def test_runs_are_joined_work_by_work() -> None:
    generation, encoder = (works.works(row, short=False)[0] for row in ("generation", "encoder"))
    first = results.joined(one_result(encoder, 1, 2), one_result(generation, 1, 2))
    assert [each["work"]["row"] for each in first["works"]] == ["generation", "encoder"]
    assert [each["run"] for each in first["works"]] == [1, 0]
    again = results.joined(first, one_result(encoder, 1, 5, date="2026-02-02"))
    assert [run["date"] for run in again["runs"]] == ["2026-01-01", "2026-02-02"]
    assert [each["run"] for each in again["works"]] == [0, 1]
    assert again["works"][1]["results"][1]["ours_faster"] == 5
    assert again["left_out"] == {"generation": {}, "encoder": {}}


def test_pages_quote_the_figures_and_are_written_again(tmp_path: Path) -> None:
    from benchmarks.speed import page

    docs, work = tmp_path / "docs", works.works("generation", short=False)[0]
    docs.mkdir()
    (tmp_path / "README.md").write_text("A\n<!-- speed: summary -->\nold\n<!-- speed end -->\nB\n")
    (docs / "other.md").write_text("<!-- speed: generation: ours, transformers -->\n<!-- speed end -->\n")
    (docs / "none.md").write_text("nothing\n")
    page.add(one_result(work, 2.0, 5.0), docs / "benchmarks.md")
    assert "in 1 of 1 comparisons" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "README.md").read_text().startswith("A\n<!-- speed: summary -->\nOn 2 CPU threads")
    assert (
        "| GPT-2, batch 1, float32, ms a token | 2.00 (2.50 ×) | 5.00 |\n\n2026-01-01, P, 2 threads.\n<!-- speed end"
        in (docs / "other.md").read_text()
    )
    text = (docs / "benchmarks.md").read_text()
    assert "| GPT-2, batch 1, ms a token | 2.00 | float32 | 5.00 | transformers float32 | 2.50 × |" in text
    assert "2026-01-01, generation: P, 2 threads, 2 cores" in text
    assert page.write(docs / "benchmarks.md") == []
    page.add(one_result(work, 2.0, 6.0), docs / "benchmarks.md")
    assert "2.00 (3.00 ×)" in (docs / "other.md").read_text()


def test_the_pages_say_what_the_json_says() -> None:
    """docs/benchmarks.md, its picture, and every figure that another page quotes."""
    from benchmarks.speed import page

    found = page.texts(ROOT / "docs" / "benchmarks.md")
    assert {path.name for path in found} >= {"benchmarks.md", "benchmarks.svg", "README.md", "decoding.md"}
    for path, text in found.items():
        assert path.read_text(encoding="utf-8") == text, f"python -m benchmarks.speed.page docs/benchmarks.md: {path}"


def test_another_answer_is_found_and_struck_out(tmp_path: Path) -> None:
    from benchmarks.speed import judge, page, weights

    work = works.works("generation", short=True)[1]
    weights.make(tmp_path, work.model, "folder")
    random = np.random.default_rng(0)
    wrong = random.integers(0, work.vocab, (work.batch, work.new))
    short = wrong[:, :-1]
    found = judge.numbers(tmp_path / work.model, work, [wrong, short])
    assert found[0] > 1
    assert found[1] == math.inf
    one = next(each for each in works.COMPETITORS["generation"] if each.is_ours)
    figures = results.figures(work, Times({one: [1.0]}, [{"read": 1e9, "float32": 1e9}]), {one: found[0]})
    assert figures["results"][0]["agrees"] is False
    assert results.disagreeing({"works": [figures]})[0].startswith(f"{work.name}: {one.name} ")
    assert "~~" in page.cell(figures["results"][0])


def test_bounds_by_hand() -> None:
    whole = {row: works.works(row, short=False) for row in works.ROWS}
    speeds = {"read": 30e9, "float32": 200e9, "int8": 800e9}
    # GPT-2, one row: 123,532,032 weights of 4 bytes at 30 GB/s, and keys and values of 12 layers of 768
    weights = 12 * 12 * 768**2 + 50257 * 768
    kept = [2 * 12 * 768 * (32 + made) for made in range(1, 64)]
    prompt = max(4 * weights / 30e9, 2 * (32 * 12 * 12 * 768**2 + 50257 * 768 + 12 * 768 * 32**2) / 200e9)
    seconds = prompt + sum(4 * (weights + numbers) / 30e9 for numbers in kept)
    assert bounds.milliseconds(whole["generation"][0], "float32", speeds) == pytest.approx(1e3 * seconds / 64)
    # BERT, one sentence of 128: products alone, in float32
    products = 12 * (24 * 128 * 768**2 + 4 * 128**2 * 768)
    assert bounds.milliseconds(whole["encoder"][0], "float32", speeds) == pytest.approx(1e3 * products / 200e9)
    assert bounds.milliseconds(whole["encoder"][0], "bfloat16", speeds) is None
    # mixed lengths: real tokens alone
    lengths = whole["encoder"][1].lengths
    assert (lengths.min(), lengths.max(), len(lengths)) == (16, 128, 32)
    products = sum(12 * (24 * int(t) * 768**2 + 4 * int(t) ** 2 * 768) for t in lengths)
    assert bounds.milliseconds(whole["encoder"][1], "int8", speeds) == pytest.approx(1e3 * products / 800e9)


def test_bounds_of_training_by_hand() -> None:
    whole = {row: works.works(row, short=False)[0] for row in works.ROWS}
    speeds = {"read": 30e9, "copy": 28e9, "float32": 200e9}
    # GPT-2: 2 windows of 512, 6 N + 12 L d T a token; then 28 bytes of each weight
    weights = 12 * 12 * 768**2 + 50257 * 768
    seconds = 2 * 512 * (6 * weights + 12 * 12 * 768 * 512) / 200e9 + weights / 1e9
    assert bounds.milliseconds(whole["train-gpt2"], "float32", speeds) == pytest.approx(1e3 * seconds)
    assert bounds.milliseconds(whole["train-gpt2"], "bfloat16", speeds) is None
    # ViT: 196 patches and the class token; the projection of patches once each, the head once an image
    once, head, body = 3 * 16**2 * 768, 1000 * 768, 12 * 12 * 768**2
    image = 197 * (6 * body + 12 * 12 * 768 * 197) + 6 * (196 * once + head)
    seconds = 4 * image / 200e9 + (body + once + head) / 1e9
    assert bounds.milliseconds(whole["train-vit"], "float32", speeds) == pytest.approx(1e3 * seconds)
    # BERT: real tokens alone, a pooler and ten classes for each text
    lengths = whole["train-bert"].lengths
    tokens = sum(int(t) * (6 * body + 12 * 12 * 768 * int(t)) for t in lengths)
    classes = 768**2 + 10 * 768
    seconds = (tokens + 8 * 6 * classes) / 200e9 + (body + classes + 30522 * 768) / 1e9
    assert bounds.milliseconds(whole["train-bert"], "float32", speeds) == pytest.approx(1e3 * seconds)
    # pairs: 12 d² a layer in the encoder, 16 d² in the decoder, three attentions, one table for all
    lengths = whole["train-pair"].lengths
    assert (lengths.min(), lengths.max(), round(lengths.mean())) == (5, 45, 20)
    matrices = 6 * 28 * 512**2 + 32000 * 512
    tokens = sum(int(t) * (6 * matrices + 3 * 12 * 6 * 512 * int(t)) for t in lengths)
    seconds = tokens / 200e9 + matrices / 1e9
    assert bounds.milliseconds(whole["train-pair"], "float32", speeds) == pytest.approx(1e3 * seconds)


def test_inputs_are_functions_of_the_work() -> None:
    for row in works.ROWS:
        for work in works.works(row, short=True):
            again = works.Work.told(json.loads(json.dumps(works.data(work))))
            assert again == work
            if work.steps:
                assert all((again.examples()[name] == part).all() for name, part in work.examples().items())
            if work.image:
                assert (again.pixels() == work.pixels()).all()
            else:
                assert (again.ids() == work.ids()).all()
                assert ((work.ids() > 0) == work.mask()).all()
                assert (work.mask().sum(1) == work.lengths).all()


def test_ratios_are_taken_within_rounds() -> None:
    assert results.ratio([2.0, 30.0, 4.0], [1.0, 10.0, 1.0]) == 3.0
    assert results.ratio([None], [1.0]) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--rows", "generation,beams"],
            "there is no 'beams'; choose of generation,small,context,beam,loading,encoder,deberta,vit",
        ),
        (["--rounds", "0"], "whole numbers from 1"),
    ],
)
def test_wrong_options_are_errors_of_one_line(given: list[str], said: str) -> None:
    command = [sys.executable, "-m", "benchmarks.speed", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory is read from /proc")
@pytest.mark.full
def test_the_memory_of_a_large_text_is_measured(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one two three four five six " * 20, encoding="utf-8")
    command = [sys.executable, str(ROOT / "benchmarks" / "large_text.py"), "words.txt", "--folder", "."]
    command += ["--gigabytes", "0.0001", "--steps", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["bytes"] > 100_000
    assert 50_000 < told["anonymous_kib"] < 2_000_000
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]
