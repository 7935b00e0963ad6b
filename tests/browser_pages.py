"""A real browser for tests of pages: headless Chromium, without network, that hears every complaint of a page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


@pytest.fixture(scope="module")  # no longer: while it is open its event loop runs, and other tests start their own
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by playwright; the test is skipped, saying so, where either is absent."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is absent: pages are not driven")
    executable = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip(f"no browser ({', '.join(CHROMIUM)}) is installed: pages are not driven")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=SWITCHES)
        yield chromium
        chromium.close()


@pytest.fixture
def open_address(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address and gives playwright's page: ``open_address(url, own, offline=False, dark=True, width=1200)``.

    The test fails where the page writes to the console (but for what ``expected`` is part of), raises an error or asks
    for an address for which ``own`` does not hold.
    """
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_it(
        address: str,
        own: Callable[[str], bool],
        *,
        offline: bool = True,
        dark: bool = False,
        width: int = 1200,
        height: int = 900,
        expected: str = "no complaint",
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=offline
        )
        contexts.append(context)

        def decide(route: Any) -> None:
            if own(route.request.url):
                route.continue_()
            else:
                complaints.append(f"asked for {route.request.url}")
                route.abort()

        context.route("**/*", decide)
        page = context.new_page()
        page.set_default_timeout(20_000)  # far more than a page needs: other work may hold the processor

        def hear(message: Any) -> None:
            if expected not in message.text:
                complaints.append(f"console {message.type}: {message.text}")

        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def open_page(open_address: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Opens HTML from disk, without network: ``open_page(html, "#layer=1", dark=True, width=1200)``."""
    count = iter(range(100))

    def open_it(html: str, address: str = "", **how: Any) -> Any:
        path = tmp_path / f"page{next(count)}.html"
        path.write_text(html, encoding="utf-8")
        page = open_address(path.as_uri() + address, lambda url: url.split("#")[0] == path.as_uri(), **how)
        page.evaluate("() => new Promise(requestAnimationFrame)")  # the small maps are drawn in the first frame
        return page

    return open_it


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits until an expression holds in a page: ``until(page, "document.title === 'x'")``, or a function of ``arg``.

    In place of ``page.wait_for_function``, which evaluates text in the page: the policy of our pages forbids it.
    """

    def wait(page: Any, expression: str, arg: Any = None) -> None:
        end = time.monotonic() + 20
        while not page.evaluate(expression, arg):
            assert time.monotonic() < end, f"never came true: {expression}"
            page.wait_for_timeout(20)

    return wait
