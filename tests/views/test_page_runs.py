"""The page of ``heedful watch`` in a real browser, over a real server and folders that change meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.serving import server as serving
from heedful.serving.run_attention import RunAttention
from heedful.serving.runs import Runs, SavedModel
from heedful.serving.server import Server
from heedful.views.attention_data import AttentionMaps
from heedful.views.attention_html import attention_page
from heedful.views.page import asset
from heedful.views.page import page as page_of
from heedful.views.runs_html import runs_page


def line(step: int, **more: Any) -> str:
    loss = 8 / (1 + step / 100)
    numbers = {"step": step, "loss": loss, "lr": 0.001, "tokens_per_second": 1000.0, "seconds": step / 2}
    return json.dumps(numbers | more) + "\n"


def begun(folder: Path, lines: list[str], task: str = "translation") -> Path:
    folder.mkdir(parents=True)
    text = f'task = "{task}"\ntrain = ["a"]\nout = "{folder.name}"\npreset = "transformer-tiny"\nmax_steps = 1000\n'
    (folder / "run.toml").write_text(text, encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Server]]:
    """A server of the runs below ``tmp_path``, whose page asks ten times a second."""
    monkeypatch.setattr(serving, "runs_page", lambda folders, nonce: runs_page(folders, every=0.1, nonce=nonce))
    made: list[Server] = []

    def make() -> Server:
        made.append(Server(Runs([str(tmp_path)])))
        threading.Thread(target=made[-1].serve_forever, args=(0.05,)).start()
        return made[-1]

    yield make
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.fixture
def open_runs(served: Callable[[], Server], open_address: Callable[..., Any]) -> Callable[..., Any]:
    address = served().address

    def own(url: str) -> bool:
        return url.startswith((address, "blob:")) and ("/run/" not in url or "/attention?" in url)

    return lambda view="", **how: open_address(address + view, own, offline=False, **how)


def names(page: Any) -> list[str]:
    return page.locator("td.name").all_inner_texts()


def test_nothing_but_the_page_itself_is_asked(tmp_path: Path) -> None:
    html = runs_page([str(tmp_path / "<b>")])
    assert "<b>" not in html
    assert "http" not in html.replace("http-equiv", "")
    assert "connect-src 'self'" in html
    assert "connect-src" not in page_of("A page", "")


def test_a_page_of_nothing_says_what_to_do_until_there_is_something(
    tmp_path: Path, open_runs: Callable[..., Any], until: Callable[..., None]
) -> None:
    page = open_runs()
    page.locator(".none").wait_for()
    assert "heedful train translation" in page.locator(".none").inner_text()
    assert page.locator(".some").is_hidden()
    begun(tmp_path / "one", [])
    page.locator(".runs").wait_for()
    assert names(page) == ["one"]
    assert page.locator(".none").is_hidden()


def test_attention_of_a_run_is_drawn_on_demand_and_again_for_newer_weights(
    tmp_path: Path,
    served: Callable[[], Server],
    open_runs: Callable[..., Any],
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int, str]] = []

    def view(self: RunAttention, name: str, saved: SavedModel, example: int, view: str) -> dict[str, Any]:
        asked.append((saved.time // 1_000_000, example, view))
        if view == "lens":
            raise HeedfulError("the <text> is too long")
        maps = AttentionMaps.of("self-attention", ["a", f"b{len(asked)}"], ["a", "b"], [[[[1, 0], [0.25, 0.75]]]])
        page = attention_page([maps], title=f"{name}: <i>")
        return {
            "page": page,
            "view": view or "heads",
            "views": ["heads", "lens"],
            "example": example % 3,
            "examples": 3,
        }

    def save(time: int) -> None:
        (folder / "model.safetensors").write_bytes(b"")
        os.utime(folder / "model.safetensors", ns=(time * 1_000_000, time * 1_000_000))

    monkeypatch.setattr(RunAttention, "view", view)
    folder = begun(tmp_path / "en-fr", [line(100)])
    page = open_runs(expected="422")
    page.locator("td.name").wait_for()
    assert not page.locator(".opener").count()
    save(7)
    page.locator(".opener").wait_for()
    page.wait_for_timeout(300)
    assert not asked  # nothing is computed where nobody looks
    page.locator(".opener").click()
    status = page.locator(".look .busy")
    status.get_by_text("validation example 1 of 3").wait_for()
    assert page.locator(".look h2").inner_text().replace("\u2068", "").replace("\u2069", "") == "what en-fr looks at"
    frame = page.locator("iframe").element_handle().content_frame()
    frame.get_by_text("b1").first.wait_for()  # its own script runs
    assert frame.evaluate("origin") == "null"
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    page.locator(".another").click()
    status.get_by_text("validation example 2 of 3").wait_for()
    save(9)
    until(page, "document.querySelector('.look').ariaBusy === 'false'")
    page.wait_for_timeout(500)
    assert asked == [(7, 0, ""), (7, 1, "heads"), (9, 1, "heads")]
    page.locator(".look .view").select_option("lens")
    status.get_by_text("the <text> is too long").wait_for()
    assert page.locator("iframe").is_hidden()
    page.locator(".look .close").click()
    save(11)
    page.wait_for_timeout(500)
    assert page.locator(".look").is_hidden()
    assert len(asked) == 4


def test_the_verdict_of_a_run_is_shown(
    tmp_path: Path, open_runs: Callable[..., Any], until: Callable[..., None]
) -> None:
    begun(tmp_path / "early", [line(100)])
    verdict = {"kind": "chance", "text": "has not learned more than <b>: bleu 0.03 against 0.5", "useful": False}
    card = begun(tmp_path / "en-fr", [line(100)]) / "heedful.json"
    card.write_text(json.dumps({"verdict": verdict}), encoding="utf-8")
    page = open_runs()
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    cells = [" ".join(cell.split()) for cell in page.locator("td[data-what=verdict]").all_inner_texts()]
    assert sorted(cells) == ["", "has not learned more than <b> bleu 0.03 against 0.5"]
    assert page.locator(".verdict.useless").count() == 1


def test_it_follows_without_being_loaded_again(
    tmp_path: Path, open_runs: Callable[..., Any], until: Callable[..., None]
) -> None:
    folder = begun(tmp_path / "en-fr", [line(100), line(200, valid_loss=3.5, valid_bleu=20.25, share_of_ceiling=0.41)])
    (folder / "curve.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", encoding="utf-8")
    page = open_runs()
    page.locator("td.name").wait_for()
    row = page.locator("tbody tr").inner_text()
    for said in (
        "running",
        "translation",
        "transformer-tiny",
        "200 (20 %)",
        "7 min",
        "BLEU 20.25 at step 200",
        "1,000",
        "41 %",
    ):
        assert said in row, said
    assert page.get_by_role("link", name="curve.svg").get_attribute("href") == "run/0/curve.svg"
    page.evaluate("window.same = document.querySelector('tbody tr')")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write(line(300) + '{"step": 35')
    until(page, "document.querySelector('tbody tr').innerText.includes('300 (30 %)')")
    begun(tmp_path / "deep" / "er" / "de-en", [line(50)])
    until(page, "document.querySelectorAll('tbody tr').length === 2")
    assert names(page) == ["deep/er/de-en", "en-fr"]
    assert page.evaluate("document.querySelectorAll('tbody tr')[1] === window.same")
    assert page.title() == "2 running: Runs"
    (folder / "last").mkdir()
    (folder / "last" / "heedful.json").write_text("{}", encoding="utf-8")
    until(page, "document.querySelectorAll('tbody tr')[1].innerText.includes('done')")
    assert page.title() == "1 running: Runs"


def inked(page: Any) -> dict[str, int]:
    """Number of pixels of the loss curves in each run's full colour."""
    return page.evaluate(
        """() => { const canvas = document.querySelector(".loss canvas"), found = {};
        const style = getComputedStyle(document.documentElement);
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
        copy.drawImage(canvas, 0, 0);
        const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
        for (const run of runs.values()) {
          const hex = style.getPropertyValue(colour(run)).trim().slice(1);
          const rgb = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
          found[run.name] = 0;
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 120 && rgb.every((c, k) => Math.abs(data[i + k] - c) < 12)) found[run.name]++;
        }
        return found; }"""
    )


@pytest.mark.parametrize("dark", [False, True])
def test_curves_lie_over_each_other_and_chosen_ones_stand_out(
    tmp_path: Path, open_runs: Callable[..., Any], dark: bool
) -> None:
    begun(tmp_path / "a, b", [line(step, valid_loss=5.0) for step in range(10, 500, 10)])
    begun(tmp_path / "other", [line(step, loss=2.0, lr=0.002) for step in range(10, 800, 10)])
    page = open_runs(dark=dark)
    page.locator("td.name").first.wait_for()
    before = inked(page)
    assert min(before.values()) > 300
    assert page.evaluate("frames.get('').lines.map(({ points }) => points.length)") == [79, 49]
    page.locator(".legend button", has_text="a, b").click()
    assert page.locator(".legend button[aria-pressed=true]").inner_text() == "a, b"
    assert page.locator("td.name button[aria-pressed=true]").inner_text() == "a, b"
    after = inked(page)
    assert after["a, b"] > 1.2 * before["a, b"]
    assert after["other"] < 0.2 * before["other"]
    address = page.url
    again = open_runs(address.partition("/#")[2] and "#" + address.partition("#")[2], dark=dark)
    again.locator("td.name").first.wait_for()
    assert again.locator("td.name button[aria-pressed=true]").inner_text() == "a, b"
    page.keyboard.press("Escape")
    assert page.locator("[aria-pressed=true].pick").count() == 0
    assert inked(page) == before


def test_it_is_used_by_keys_and_pointer(tmp_path: Path, open_runs: Callable[..., Any]) -> None:
    begun(tmp_path / "first", [line(100), line(200, valid_loss=3.0), line(300)])
    begun(tmp_path / "second", [line(100, loss=0.1), line(200, loss=0.05)])
    page = open_runs()
    page.locator("td.name").first.wait_for()
    text = lambda: page.locator(".status").inner_text().replace("\u2068", "").replace("\u2069", "")  # noqa: E731
    page.locator(".loss canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert text() == "step 200: second 0.05, first 2.667 (validation 3)"
    page.keyboard.press("ArrowRight")
    assert text() == "step 300: first 2"
    assert page.locator(".scale[aria-pressed=true]").count() == 1  # the largest is 80 times the least
    page.keyboard.press("x")
    assert page.locator(".scale[aria-pressed=false]").count() == 1
    assert "scale=linear" in page.url
    spot = page.evaluate("[frames.get('translation').x(200), frames.get('translation').y(3)]")
    box = page.locator(".loss canvas").bounding_box()
    page.mouse.move(box["x"] + spot[0] + 2, box["y"] + spot[1] - 2)
    assert page.locator(".tip").inner_text() == "first: validation 3 at step 200"
    page.mouse.click(box["x"] + spot[0] + 2, box["y"] + spot[1] - 2)
    assert page.locator("td.name button[aria-pressed=true]").inner_text() == "first"
    page.keyboard.press("/")
    page.keyboard.type("sec")
    assert [row.is_visible() for row in page.locator("tbody tr").all()] == [True, False]
    page.keyboard.press("Escape")
    assert page.locator("tbody tr:visible").count() == 2


def test_it_fits_a_narrow_screen(tmp_path: Path, open_runs: Callable[..., Any]) -> None:
    folder = begun(tmp_path / ("a-name-" * 12), [line(100, valid_bleu=3.5)])
    for name in ("curve.svg", "watch.html", "a-rather-long-name-of-a-page.html"):
        (folder / name).write_text("", encoding="utf-8")
    page = open_runs(width=360)
    page.locator("td.name").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_it_says_when_nobody_answers_and_goes_on(
    tmp_path: Path, served: Callable[[], Server], browser: Any, until: Callable[..., None]
) -> None:
    begun(tmp_path / "one", [line(100)])
    server = served()
    page = browser.new_page()
    page.goto(server.address)
    page.locator("td.name").wait_for()
    page.route("**/runs.json*", lambda route: route.abort())
    until(page, "document.querySelector('.fresh').textContent.startsWith('No connection')")
    assert names(page) == ["one"]
    server.runs.mark = "another"  # as of a server begun anew
    page.unroute("**/runs.json*")
    until(page, "document.querySelector('.fresh').textContent === ''")
    assert names(page) == ["one"]
    page.close()


LOOKS = "Object.fromEntries([...runs.values()].map((run) => [run.name, [colour(run), shape(run)].join()]))"


def test_a_look_belongs_to_a_name_whatever_else_there_is(
    tmp_path: Path, open_runs: Callable[..., Any], until: Callable[..., None]
) -> None:
    """The same after a filter, beside newer runs, without older ones of other looks, and from another server."""
    for i in range(12):
        os.utime(begun(tmp_path / f"run{i}", [line(100)]) / "run.toml", (1000 + i, 1000 + i))
    page = open_runs()
    page.locator("td.name").first.wait_for()
    before = page.evaluate(LOOKS)
    assert len(set(before.values())) == 12
    page.locator(".only").fill("run3")
    assert page.evaluate(LOOKS) == before
    page.locator(".only").fill("")
    for i in range(30):
        os.utime(begun(tmp_path / f"newer{i}", [line(100)]) / "run.toml", (2000 + i, 2000 + i))
    until(page, "runs.size === 42")
    after = page.evaluate(LOOKS)
    assert len(set(after.values())) == 42
    assert {name: after[name] for name in before} == before
    again = open_runs()
    again.locator("td.name").first.wait_for()
    assert again.evaluate(LOOKS) == after
    for name in ("run0", "run5", "newer7"):  # of a name alone, as long as no older run has the same hash
        shutil.rmtree(tmp_path / name)
    until(page, "runs.size === 39")
    assert {name: look for name, look in after.items() if name in page.evaluate(LOOKS)} == page.evaluate(LOOKS)


def _linear(hexes: list[str]) -> NDArray[np.float64]:
    c = np.array([[int(one[i : i + 2], 16) for i in (1, 3, 5)] for one in hexes]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _lab(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x = linear.clip(0, 1) @ np.array(to_xyz).T / [0.95047, 1, 1.08883]
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], -1)


VISION = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.mark.parametrize("kind", VISION)
def test_colours_differ_for_every_kind_of_sight_and_from_the_ground(kind: str) -> None:
    styles = re.findall(r":root \{ --run0:.*?\}", asset("runs.css"))
    assert len(styles) == 2
    for style, ground in zip(styles, ("#fbfaf7", "#16171b"), strict=True):
        colours = re.findall(r"#[0-9a-f]{6}", style)
        assert len(colours) == 8
        linear = _linear([ground, *colours])
        low, high = np.sort(
            np.stack(np.broadcast_arrays(*(linear[i] @ [0.2126, 0.7152, 0.0722] for i in ([0], slice(1, None))))), 0
        )
        assert ((high + 0.05) / (low + 0.05)).min() > 3  # WCAG 2.2, 1.4.11
        lab = _lab(linear[1:] @ np.array(VISION[kind]).T)
        apart = np.linalg.norm(lab[:, None] - lab, axis=-1)[~np.eye(8, dtype=bool)]
        assert apart.min() > 20


@pytest.mark.parametrize("width", [1280, 390])
def test_runs_of_each_task_have_a_chart_of_their_own(tmp_path: Path, open_runs: Callable[..., Any], width: int) -> None:
    begun(tmp_path / "one", [line(100, loss=8.0), line(200, loss=6.0)])
    begun(tmp_path / "two", [line(100, loss=0.5), line(200, loss=0.25)], task="text-classification")
    begun(tmp_path / "three", [line(100, loss=0.4, valid_accuracy=50.0)], task="text-classification")
    page = open_runs(width=width)
    page.locator("td.name").first.wait_for()
    heads = page.locator(".charts .chart:visible h2")
    assert sorted(heads.all_inner_texts()) == ["text-classification: loss", "translation: loss"]
    runs_of = "(task) => frames.get(task).lines.map(({ run }) => run.name).sort()"
    assert page.evaluate(runs_of, "translation") == ["one"]
    assert page.evaluate(runs_of, "text-classification") == ["three", "two"]
    span = "(task) => [0, 6].map((value) => frames.get(task).y(value)).reduce((a, b) => a - b)"  # pixels of 6 of loss
    assert page.evaluate(span, "text-classification") > 5 * page.evaluate(span, "translation") > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".chart:visible", has_text="translation").locator("canvas").press("ArrowRight")
    assert page.locator(".status").inner_text() == "step 100: \u2068one\u2069 8"
    page.locator(".metric").select_option("valid_accuracy")
    assert heads.all_inner_texts() == ["text-classification: valid accuracy"]
    page.locator(".only").fill("one")
    assert heads.all_inner_texts() == ["translation: valid accuracy"]


@pytest.mark.parametrize("width", [1280, 390])
def test_columns_are_explained_and_no_run_reaches_more_than_the_ceiling(
    tmp_path: Path, open_runs: Callable[..., Any], width: int
) -> None:
    begun(tmp_path / "fast", [line(100, share_of_ceiling=1.82)])
    done = begun(tmp_path / "done", [line(200, share_of_ceiling=0.5)])
    (done / "last").mkdir()
    (done / "last" / "heedful.json").write_text("{}", encoding="utf-8")
    page = open_runs(width=width)
    page.locator("td.name").first.wait_for()
    cells = {
        row.locator("td.name").inner_text(): {
            cell.get_attribute("data-what"): cell.inner_text() for cell in row.locator("td").all()
        }
        for row in page.locator("tbody tr").all()
    }
    assert (cells["fast"]["ceiling"], cells["done"]["ceiling"]) == ("", "50 %")
    assert cells["done"]["time"] == "took 2 min"
    assert cells["fast"]["time"].endswith(" min left")
    explained = dict(zip(*(page.locator(f".terms {kind}").all_inner_texts() for kind in ("dt", "dd")), strict=True))
    assert {"state", "time", "best", "ceiling", "speed"} <= explained.keys() <= cells["done"].keys()
    assert page.locator(".terms").is_visible()  # no pointer that hovers is needed
    titles = page.locator(".runs th abbr").evaluate_all("all => all.map((one) => [one.textContent, one.title])")
    assert dict(titles) == explained
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_seventeen_runs_are_distinguishable_and_not_clipped(tmp_path: Path, open_runs: Callable[..., Any]) -> None:
    for i in range(17):
        folder = begun(
            tmp_path / f"text-classification-bert-small-seed{i}", [line(step) for step in range(10, 300, 10)]
        )
        for name in ("curve.svg", "mistakes.html", "watch.html"):
            (folder / name).write_text("", encoding="utf-8")
    page = open_runs(width=1280)
    page.locator("td.name").first.wait_for()
    looks = page.evaluate(
        """() => [...runs.values()].map((run) => {
          const style = getComputedStyle(document.documentElement).getPropertyValue(colour(run)).trim();
          return [style, shape(run)].join();
        })"""
    )
    assert len(set(looks)) == 17
    assert len({look.split(",")[0] for look in looks}) > 4  # colours
    assert page.locator(".legend button svg").count() == 17
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
    assert (
        page.evaluate(
            "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('.scroll'))"
        )
        == 0
    )


def test_every_number_of_the_log_can_be_shown_over_steps_or_time(tmp_path: Path, open_runs: Callable[..., Any]) -> None:
    begun(tmp_path / "one", [line(step, valid_bleu=float(step), gradient_norm=2.0) for step in range(10, 100, 10)])
    begun(tmp_path / "two", [line(10)])
    page = open_runs()
    page.locator("td.name").first.wait_for()
    names = page.locator(".metric option").evaluate_all("options => options.map((option) => option.value)")
    assert names == ["loss", "gradient_norm", "tokens_per_second", "valid_bleu"]
    page.locator(".metric").select_option("valid_bleu")
    read = "frames.get('translation').lines.map(({ run, points }) => [run.name, points.map(([x, y]) => [x, y])])"
    assert page.evaluate(read) == [["one", [[step, step] for step in range(10, 100, 10)]]]
    page.locator(".over").select_option("time")
    [[_, points]] = page.evaluate(read)
    assert points == [[pytest.approx(step / 2 / 60), step] for step in range(10, 100, 10)]  # seconds are half the steps
    assert "metric=valid_bleu" in page.url
    assert "over=time" in page.url
    again = open_runs("#" + page.url.partition("#")[2])
    again.locator("td.name").first.wait_for()
    assert again.locator(".metric").input_value() == "valid_bleu"
    assert again.evaluate(read) == [["one", points]]
    again.locator(".loss canvas").focus()
    again.keyboard.press("ArrowRight")
    assert again.locator(".status").inner_text().startswith("minute 0.08")
