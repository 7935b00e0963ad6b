"""The page of a server in a real browser: each form used as a person would, and the attention behind a word."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from running_server import Running, slow

import heedful
from answering_folders import saved
from heedful.serving.service import Service
from heedful.views.inspect.inspect import inspect
from heedful.views.page import asset
from heedful.views.serve_html import serving_page

Open = Callable[..., Any]
SERVED = {
    "text-classification": "one fig 1",
    "token-classification": "take the apple or the saw",
    "fill-mask": "the <mask> fell on the <mask>",
    "feature-extraction": "the fig",
    "translation": "the fig",
    "question-answering": "What hangs?",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of random weights, by task; "chat" is a language model with a chat template, "languages" a translator
    into two languages.
    """
    made: dict[str, Path] = {}
    place = tmp_path_factory.mktemp("served")

    def folder(name: str) -> Path:
        if name not in made:
            task = "text-generation" if name == "chat" else name
            task = "translation" if name == "languages" else task
            length = 200 if task == "text-generation" else 64
            made[name] = saved(task, place / name, length=length, tagged=name == "languages")
            if name == "chat":
                template = "{% for m in messages %}{{ m.role[0] }} {{ m.content }} {% endfor %}a "
                (made[name] / "chat_template.jinja").write_text(template, encoding="utf-8")
        return made[name]

    return folder


@pytest.fixture(scope="module")
def server_of(serving: Callable[..., Running], folders: Callable[[str], Path]) -> Callable[[str], Running]:
    """The server of a folder, one for all tests."""
    return cache(lambda name: serving(heedful.pipeline(None, folders(name))))


@pytest.fixture
def opened(
    serving: Callable[..., Running],
    server_of: Callable[[str], Running],
    folders: Callable[[str], Path],
    open_address: Open,
) -> Open:
    """Opens the page of a server of a task; returns the page, the server and the folder. ``before`` changes the
    service of a server of its own.
    """

    def open_it(name: str, before: Any = None, **how: Any) -> tuple[Any, Running, Path]:
        server = serving(heedful.pipeline(None, folders(name)), before=before) if before else server_of(name)
        page = open_address(server.address, lambda url: url.startswith((server.address, "blob:")), offline=False, **how)
        return page, server, folders(name)

    return open_it


def answered(page: Any) -> None:
    """Waits for the end of a request."""
    page.locator(".busy", has_text=re.compile(r"\d m?s")).wait_for()


def facts_of(html: str) -> Any:
    """The data of a page of views."""
    return json.loads(unescape(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1]))  # type: ignore[index]


def look_of(page: Any) -> Any:
    """The frame of attention, once it shows something."""
    page.locator(".look[aria-busy=false]").wait_for()
    frame = page.locator("iframe").element_handle().content_frame()
    frame.wait_for_load_state()
    frame.wait_for_selector("#data", state="attached")
    return frame


def data_of(frame: Any) -> Any:
    return json.loads(frame.locator("#data").text_content())


def png(size: int, channels: int) -> bytes:
    """A file of an image of noise."""
    pixels, file = np.random.default_rng(0).integers(0, 255, (size, size, channels), dtype=np.uint8), io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(file, "PNG")
    return file.getvalue()


def drop(page: Any, file: bytes) -> None:
    """Drops an image file on the form."""
    page.evaluate(
        """bytes => { const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
        const event = new DragEvent("drop", { dataTransfer: files, bubbles: true });
        document.querySelector(".drop").dispatchEvent(event); }""",
        list(file),
    )
    page.locator(".drop", has_text="dropped.png").wait_for()


def word(page: Any, where: str, text: str, nth: int = 0) -> Any:
    return page.locator(f"{where} .word", has_text=re.compile(f"^{re.escape(text)}$")).nth(nth)


# -------------------------------------------------------------------------------------------------------------- writing


def test_a_text_is_continued_and_stopped(opened: Open, until: Callable[..., None]) -> None:
    page, server, folder = opened("text-generation")
    assert page.title() == "tiny"
    page.locator("textarea[name=text]").fill("the apple")
    page.locator("summary", has_text="options").click()
    for name, value in {"max_new_tokens": "12", "seed": "3", "do_sample": "true"}.items():
        page.locator(f"input[name={name}]").fill(value)
    page.locator("textarea[name=text]").press("Control+Enter")
    answered(page)
    options = {"max_new_tokens": 12, "seed": 3, "do_sample": True}
    written = heedful.pipeline(None, folder)("the apple", **options)["output"]
    assert page.locator(".result .text").text_content() == written
    command = page.locator(".sent code").text_content()
    assert command.startswith(f"curl -sN {server.address}/v1/completions -H 'Content-Type: application/json' -d '")
    assert json.loads(command.split(" -d ")[1].strip("'")) == {"prompt": "the apple", "stream": True, **options}

    target = written.removeprefix("the apple")
    word(page, ".result .given", "apple").click()
    assert "what “apple” attends to" in page.locator(".look h2").text_content()
    frame = look_of(page)
    theirs = inspect((server.service.pipe.model, folder), "the apple", target=target)
    assert data_of(frame) == facts_of(theirs.html())
    pieces = theirs.data["maps"][0]["queries"]
    frame.locator(".word.chosen").first.wait_for()
    assert "".join(pieces).index("apple") == int(re.search(r"token=(\d+)", frame.url)[1])  # type: ignore[index]

    last = page.locator(".result .text > span:last-child .word").last
    last.click()
    assert (
        page.locator(".look h2").text_content() == f"what the model looked at before it wrote “{last.text_content()}”"
    )
    until(page, "document.querySelector('iframe').src.includes('step=')")
    frame = look_of(page)
    steps = inspect((server.service.pipe.model, folder), "the apple", target=target, view="steps")
    assert data_of(frame) == facts_of(steps.html())
    step = int(re.search(r"step=(\d+)", frame.url)[1])  # type: ignore[index]
    assert "".join(steps.data["generated"][step:]).startswith(last.text_content())
    page.keyboard.press("Escape")
    assert page.locator(".look").is_hidden()


def test_escape_and_the_button_stop_an_answer(opened: Open) -> None:
    held: list[Any] = []

    def before(service: Service) -> None:
        held.append(slow(service, 0.05))
        held[0].__enter__()

    page, server, _ = opened("text-generation", before)
    page.locator("textarea[name=text]").fill("the apple")
    page.locator("summary", has_text="options").click()
    for name in ("max_new_tokens", "min_new_tokens"):
        page.locator(f"input[name={name}]").fill("150")
    for stop in (lambda: page.keyboard.press("Escape"), lambda: page.locator(".stop").click()):
        page.locator(".go").click()
        page.locator(".caret").wait_for()
        page.wait_for_timeout(400)
        stop()
        page.locator(".busy", has_text="stopped after").wait_for()
        assert 9 < len(page.locator(".result .text").text_content()) < 150
        server.until(lambda: server.service.is_idle, 5)
    assert page.locator(".error").is_hidden()


def test_a_conversation(opened: Open) -> None:
    page, server, folder = opened("chat")
    message = page.locator("textarea[name=message]")
    page.locator("summary", has_text="options").click()
    page.locator("textarea[name=system]").fill("plum")
    page.locator("input[name=max_new_tokens]").fill("8")
    page.locator("input[name=do_sample]").fill("false")
    talk: list[dict[str, str]] = [{"role": "system", "content": "plum"}]
    pipe = heedful.pipeline(None, folder)
    for text in ("the pear", "a plum"):
        message.fill(text)
        message.press("Enter")
        answered(page)
        page.locator(".go:enabled").wait_for()
        talk.append({"role": "user", "content": text})
        talk.append({"role": "assistant", "content": pipe(talk, max_new_tokens=8, do_sample=False)["output"]})
        assert page.locator(".talk li").all_text_contents() == [one["content"] for one in talk[1:]]
        assert message.input_value() == ""
        page.locator(".busy").evaluate("line => { line.textContent = ''; }")
    page.locator(".talk li").nth(3).locator(".word").first.click()
    frame = look_of(page)
    steps = inspect(
        (server.service.pipe.model, folder),
        talk[:-1],
        target=talk[-1]["content"],
        view="steps",  # type: ignore[arg-type]
    )
    assert data_of(frame) == facts_of(steps.html())
    page.locator(".new").click()
    assert page.locator(".talk").is_hidden()
    message.fill("a plum")
    page.locator(".go").click()
    answered(page)
    assert page.locator(".talk li").count() == 2


def test_a_conversation_longer_than_the_context(opened: Open) -> None:
    page, _, folder = opened("chat")
    page.locator("summary", has_text="options").click()
    page.locator("textarea[name=system]").fill("plum")
    page.locator("input[name=max_new_tokens]").fill("8")
    page.locator("input[name=do_sample]").fill("false")
    message, talk = page.locator("textarea[name=message]"), list[dict[str, str]]()
    pipe, limit = heedful.pipeline(None, folder), 200
    for number in range(5):
        message.fill(f"{number} " + "a pear " * 8)
        message.press("Enter")
        answered(page)
        page.locator(".go:enabled").wait_for()
        talk.append({"role": "user", "content": f"{number} " + "a pear " * 8})
        read = [{"role": "system", "content": "plum"}, *talk]
        while len(pipe.task.prompt_ids([read])[0]) + 8 > limit:
            del read[1:3]
        talk.append({"role": "assistant", "content": pipe(read, max_new_tokens=8, do_sample=False)["output"]})
        assert page.locator(".talk li").all_text_contents() == [one["content"] for one in talk]
        gone, line = len(talk) - len(read), page.locator(".left-out")  # with the answer, without the system message
        assert line.is_visible() == (gone > 0)
        if gone:
            assert line.text_content() == (
                f"The model no longer reads the first {gone} messages: the conversation is longer than its context."
            )
        page.locator(".busy").evaluate("line => { line.textContent = ''; }")
    assert gone > 2
    page.locator(".talk li").last.locator(".word").first.click()
    steps = inspect((pipe.model, folder), read, target=talk[-1]["content"], view="steps")  # type: ignore[arg-type]
    assert data_of(look_of(page)) == facts_of(steps.html())
    page.locator(".new").click()
    assert page.locator(".left-out").is_hidden()


def test_a_translation_stands_beside_its_source(opened: Open) -> None:
    page, server, folder = opened("translation")
    page.locator("textarea[name=source]").fill("the plum is a tool")
    page.locator("textarea[name=source]").press("Control+Enter")
    answered(page)
    output = heedful.pipeline(None, folder)("the plum is a tool")["output"]
    assert page.locator(".sides .text").all_text_contents() == ["the plum is a tool", output]
    word(page, ".sides", "plum").click()
    frame = look_of(page)
    theirs = inspect((server.service.pipe.model, folder), "the plum is a tool", target=output)
    assert data_of(frame) == facts_of(theirs.html())
    assert "group=encoder+self-attention&token=4" in frame.url


def test_a_translator_has_a_field_for_the_language(opened: Open) -> None:
    page, server, folder = opened("languages")
    page.locator("textarea[name=source]").fill("the plum is a tool")
    page.locator("textarea[name=language]").fill("fr")
    page.locator(".go").click()
    answered(page)
    tagged = "<2fr> the plum is a tool"
    output = heedful.pipeline(None, folder)(tagged)["output"]
    assert page.locator(".sides .text").all_text_contents() == ["the plum is a tool", output]
    word(page, ".sides", "plum").click()
    frame = look_of(page)
    theirs = inspect((server.service.pipe.model, folder), tagged, target=output)
    assert data_of(frame) == facts_of(theirs.html())
    tokenizer = server.service.pipe.task.source  # type: ignore[attr-defined]
    assert tokenizer.pieces(tokenizer.encode([tagged])[0])[:6] == ["<2fr>", *"the p"]
    assert "group=encoder+self-attention&token=5" in frame.url


def test_a_generated_answer_stands_beside_question_and_context(opened: Open) -> None:
    page, server, folder = opened("generative-question-answering")
    asked = {"question": "what is saw?", "context": "the saw is a tool, and saw"}
    for name, text in asked.items():
        page.locator(f"textarea[name={name}]").fill(text)
    page.locator("textarea[name=context]").press("Control+Enter")
    answered(page)
    output = heedful.pipeline(None, folder)(asked)["output"]
    assert output.strip()
    assert page.locator(".sides .text").all_text_contents() == [*asked.values(), output]
    word(page, ".sides .card:nth-child(2)", "tool").click()
    frame = look_of(page)
    theirs = inspect((server.service.pipe.model, folder), asked, target=output)
    assert data_of(frame) == facts_of(theirs.html())
    place = int(re.search(r"group=encoder\+self-attention&token=(\d+)", frame.url)[1])  # type: ignore[index]
    [encoder] = [one["queries"] for one in theirs.data["maps"] if one["name"] == "encoder self-attention"]
    assert "tool".startswith(encoder[place].strip())
    page.locator(".sides .card:nth-child(3) .word").first.click()
    frame = look_of(page)
    assert data_of(frame) == facts_of(
        inspect((server.service.pipe.model, folder), asked, view="steps", target=output).html()
    )


# ------------------------------------------------------------------------------------------------------ labels and more


def test_labels_are_bars(opened: Open) -> None:
    page, server, folder = opened("text-classification")
    page.locator("textarea[name=text]").fill("the apple is a tool")
    page.locator(".go").click()
    answered(page)
    labels = heedful.pipeline(None, folder)("the apple is a tool", top_k=5)["output"]
    assert page.locator(".bars .name").all_text_contents() == [one["label"] for one in labels]
    shares = [float(text.removesuffix(" %")) for text in page.locator(".bars .share").all_text_contents()]
    assert shares == pytest.approx([100 * one["score"] for one in labels], abs=0.51)
    assert page.locator(".stop").is_hidden()
    word(page, ".result", "apple").click()
    frame = look_of(page)
    assert data_of(frame) == facts_of(inspect((server.service.pipe.model, folder), "the apple is a tool").html())


def test_spans_are_marked_in_the_text(opened: Open) -> None:
    page, _, folder = opened("token-classification")
    text = "the 🍎 pear is, and the quince"
    spans = heedful.pipeline(None, folder)(text)["output"]
    page.locator("textarea[name=words]").fill(text)
    page.locator(".go").click()
    answered(page)
    marked = [one.split("THING")[0] for one in page.locator("mark").all_text_contents()]
    assert marked == [one["text"] for one in spans]
    assert "".join(page.locator(".result .word").all_text_contents()) == text.replace(" ", "")


def test_an_answer_is_marked_in_its_passage(opened: Open) -> None:
    page, server, folder = opened("question-answering")
    asked = {"question": "what is saw?", "context": "the saw is a tool, and saw"}
    for name, text in asked.items():
        page.locator(f"textarea[name={name}]").fill(text)
    page.locator("textarea[name=context]").press("Control+Enter")
    answered(page)
    answers = heedful.pipeline(None, folder)(asked, top_k=5)["output"]
    assert page.locator("mark").all_text_contents() == [answers[0]["answer"]]
    assert page.locator(".bars .name").all_text_contents() == [one["answer"] for one in answers]
    word(page, ".result", "tool").click()
    frame = look_of(page)
    theirs = inspect((server.service.pipe.model, folder), tuple(asked.values()))
    assert data_of(frame) == facts_of(theirs.html())
    place = int(re.search(r"token=(\d+)", frame.url)[1])  # type: ignore[index]
    assert "tool".startswith(theirs.data["maps"][0]["queries"][place].strip())


def test_masks_are_filled(opened: Open) -> None:
    page, _, folder = opened("fill-mask")
    text = "the <mask> is a <mask>"
    page.locator("textarea[name=text]").fill(text)
    page.locator(".go").click()
    answered(page)
    fills = heedful.pipeline(None, folder)(text, top_k=5)["output"]
    assert page.locator(".result h2").all_text_contents() == ["mask 1", "mask 2"]
    assert page.locator(".bars .name").all_text_contents() == [one["label"] for mask in fills for one in mask]
    page.evaluate("find('.result').append(bars([{ label: '', score: 0.5, text: 'the whole text' }]))")
    assert page.locator(".bars .name").last.text_content() == "␣"  # a token of nothing but a space


def test_two_texts_are_compared(opened: Open) -> None:
    page, _, folder = opened("feature-extraction")
    page.locator("textarea[name=first]").fill("the apple")
    page.locator(".go").click()
    page.locator("h2", has_text="a vector of 16 numbers").wait_for()
    page.locator("textarea[name=second]").fill("a pear")
    page.locator(".go").click()
    page.locator(".bars").wait_for()
    a, b = (np.array(one["output"]) for one in heedful.pipeline(None, folder)(["the apple", "a pear"]))
    shown = float(page.locator(".bars .share").text_content())
    assert shown == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=6e-4)


def test_an_image_is_chosen_or_dropped(opened: Open) -> None:
    page, server, folder = opened("image-classification")
    file = png(28, 1)
    page.locator(".go").click()
    page.locator(".error", has_text="choose an image first").wait_for()
    labels = heedful.pipeline(None, folder)(file, top_k=5)["output"]
    picture = {"name": "it's.png", "mimeType": "image/png", "buffer": file}
    page.locator("input[type=file]").set_input_files(picture)
    page.locator(".drop img").wait_for()
    page.locator(".go").click()
    page.locator(".bars").wait_for()
    assert page.locator(".bars .name").all_text_contents() == [one["label"] for one in labels]
    assert "base64 < 'it'\\''s.png'" in page.locator(".sent code").text_content()
    drop(page, file)
    page.locator(".go").click()
    page.locator("button", has_text="what the model looked at").click()
    frame = look_of(page)
    assert data_of(frame) == facts_of(inspect((server.service.pipe.model, folder), file).html())


def test_the_words_of_a_caption_show_the_patches_behind_them(opened: Open, until: Callable[..., None]) -> None:
    page, server, folder = opened("image-to-text")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(server.address)))
    file = png(8, 3)
    drop(page, file)
    options = {"do_sample": True, "temperature": 3.0, "seed": 4}  # of random weights the likeliest text has no words
    page.locator("summary", has_text="options").click()
    for name, value in options.items():
        page.locator(f"input[name={name}]").fill(json.dumps(value))
    page.locator(".go").click()
    answered(page)
    caption = heedful.pipeline(None, folder)(file, **options)["output"]
    assert page.locator(".sides h2").all_text_contents() == ["image", "output"]
    assert page.locator(".sides .text").all_text_contents() == [caption]
    assert page.locator(".sides img").get_attribute("src") == page.locator(".drop img").get_attribute("src")
    theirs = inspect((server.service.pipe.model, folder), file, target=caption)
    words, buttons = theirs.data["words"], page.locator(".sides .word")
    assert "".join(words) == caption.replace(" ", "")
    assert len(words) == 2
    for place, button in enumerate((buttons.first, buttons.last)):
        button.click()
        said = f"what the model looked at before it wrote “{button.text_content()}”"
        assert page.locator(".look h2").text_content() == said
        frame = look_of(page)
        assert data_of(frame) == facts_of(theirs.html())
        frame.locator(f"figure.chosen[data-word='{place}']").wait_for()
        assert frame.locator(".status").text_content().startswith(f"“{words[place]}”: ")
    assert [path for path in asked if path.startswith("/v1")] == ["/v1/attention"]
    page.set_viewport_size({"width": 360, "height": 740})
    box = frame.locator(".words img").first.bounding_box()
    assert box["width"] == box["height"] > 100
    for place in (page, frame):
        assert place.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


@pytest.mark.parametrize("width", [1280, 390])
def test_the_frame_is_as_high_as_its_page_and_the_bar_stays_in_view(
    opened: Open, until: Callable[..., None], width: int
) -> None:
    page, _, _ = opened("text-generation", width=width)
    page.locator("textarea[name=text]").fill("the apple is a tool, and the pear is a fruit")
    page.locator(".go").click()
    answered(page)
    word(page, ".result .given", "apple").click()
    frame = look_of(page)
    frame.locator(".framed").wait_for()
    until(frame, "document.documentElement.scrollHeight <= innerHeight")
    assert frame.evaluate("innerHeight - document.querySelector('main').offsetHeight") <= 2
    assert frame.evaluate("innerHeight") > 900
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("scrollTo(0, document.querySelector('iframe').offsetTop + 500)")
    until(page, "document.querySelector('iframe').getBoundingClientRect().top < -400")
    until(frame, "Math.abs(document.querySelector('.bar').getBoundingClientRect().top - 500) < 12")


# ------------------------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize(
    "name", ["text-generation", "chat", "translation", "question-answering", "fill-mask", "feature-extraction",
             "text-classification", "token-classification", "image-classification"]
)  # fmt: skip
def test_an_example_fills_the_form_and_runs(opened: Open, name: str) -> None:
    page, _, _ = opened(name, width=390)
    buttons = page.locator(".examples button")
    assert 1 <= buttons.count() <= 2
    text = buttons.first.text_content()
    buttons.first.click()
    answered(page)
    assert page.locator(".error").is_hidden()
    if name == "image-classification":
        assert page.locator(".drop img").get_attribute("src") == page.locator(".result img").get_attribute("src")
    elif name == "chat":
        assert page.locator(".talk li.user").text_content() == text
    else:
        assert (
            " / ".join(filter(None, page.locator(".fields textarea").evaluate_all("all => all.map(f => f.value)")))
            == text
        )
        assert page.locator(".answer").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_errors_are_one_line(opened: Open) -> None:
    page, server, _ = opened("text-generation", expected="400 (Bad Request)")  # the browser reports the status
    page.locator(".go").click()
    page.locator(".error", has_text="text is empty; write something in it").wait_for()
    page.locator("textarea[name=text]").fill("the apple")
    page.locator("summary", has_text="options").click()
    page.locator("input[name=temperature]").fill("hot")
    page.locator(".go").click()
    page.locator(".error", has_text="temperature").wait_for()
    assert page.locator(".answer .text").text_content() == "the apple"
    page.locator("input[name=temperature]").fill("")
    page.locator(".go").click()
    answered(page)
    assert page.locator(".error").is_hidden()
    assert server.service.is_alive


def test_a_narrow_page_does_not_scroll_sideways(opened: Open) -> None:
    for name, text in SERVED.items():
        page, _, _ = opened(name, width=360, height=700, dark=name < "g")
        for field in page.locator(".fields textarea").all():
            field.fill(f"{text} {'x' * 60}")
        page.locator("summary", has_text="options").first.click() if page.locator(".more").is_visible() else None
        page.locator(".go").click()
        answered(page)
        page.locator(".sent summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name


def test_the_keyboard_reaches_everything(opened: Open) -> None:
    page, _, _ = opened("text-classification")
    page.keyboard.type("the apple is a tool")  # the first field has the focus
    page.keyboard.press("Control+Enter")
    answered(page)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "word":
            break
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "apple"
    page.keyboard.press("Enter")
    look_of(page)
    page.locator(".close").focus()
    page.keyboard.press("Enter")
    assert page.locator(".look").is_hidden()
    assert page.evaluate("document.activeElement.textContent") == "apple"


INFO = {"task": "one's own", "family": "encoder", "options": {}, "has_template": False, "streams": False}
INFO |= {"embeds": False, "max_tokens": 9, "has_token": True, "model": "<i>", "nonce": "abc"}
INFO |= {"examples": []}


def test_the_form_follows_from_the_columns(open_page: Open) -> None:
    """From disk there is no server: the requests are those of the command that is shown."""
    html = serving_page({**INFO, "columns": {"text": "text", "text_pair": "text?"}})
    page = open_page(html.replace("await fetch(path", "await nothing(path"))
    assert page.locator("label").all_text_contents() == ["text", "text pair (optional)"]
    page.get_by_label("text pair (optional)").fill("it's two")
    page.locator(".go").click()
    page.locator(".error", has_text="text is empty").wait_for()
    page.get_by_label("text", exact=True).fill("one")
    page.locator(".go").click()
    page.locator(".error", has_text="no connection to the server").wait_for()
    command = page.locator(".sent code").text_content()
    assert command.endswith("""-d '{"inputs":{"text":"one","text_pair":"it'\\''s two"}}'""")
    assert '-H "Authorization: Bearer $TOKEN"' in command
    page.get_by_label("text pair (optional)").fill(" ")
    page.locator(".go").click()
    page.locator(".sent code", has_text="""{"inputs":"one"}""").wait_for(state="attached")


def test_the_page_is_escaped() -> None:
    html = serving_page({**INFO, "columns": {"</script><i>": "text"}})
    assert "&lt;i&gt;" in html
    assert "<i>" not in html.replace(asset("serve.js"), "")
    assert html.count('nonce="abc"') == 2
    assert "script-src 'nonce-abc'" in html
    assert facts_of(html)["columns"] == {"</script><i>": "text"}
