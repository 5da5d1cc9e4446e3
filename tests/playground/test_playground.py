"""The playground in a headless browser: it is built, served from this machine, and used by mouse and keyboard."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import chromium, served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("playground")]

_MINUTE = 60_000
_DESKTOP, _PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build and serve the page."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    from playground.build import build

    folder = tmp_path_factory.mktemp("built") / "page"
    build(folder)
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


class Page:
    """An opened page, the requests that it made, and its errors."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.context = browser.new_context(**{"viewport": _DESKTOP, "bypass_csp": True, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(_MINUTE)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        started = time.monotonic()
        self.page.goto(address)
        self.ready()
        self.seconds = time.monotonic() - started

    def ready(self) -> None:
        self.page.wait_for_function("document.getElementById('status').textContent.startsWith('Ready')")

    def say(self, text: str) -> None:
        """Replace the status, so that the next one is seen to come."""
        self.page.evaluate("text => { document.getElementById('status').textContent = text; }", text)

    def type(self, text: str) -> None:
        """Replace the program by the keyboard."""
        self.page.click(".cm-content")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    def wait_for(self, selector: str, text: str) -> None:
        script = "([s, t]) => [...document.querySelectorAll(s)].some((each) => each.textContent.includes(t))"
        self.page.wait_for_function(script, arg=[selector, text])

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))


@pytest.fixture(scope="module")
def opened(browser: Any, address: str) -> Iterator[Page]:
    page = Page(browser, address)
    yield page
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith((address, "data:", "blob:"))] == []


def test_the_first_program_shows_its_kernel(opened: Page) -> None:
    assert opened.seconds < 60
    assert "struct Region0" in opened.text("#panel")
    assert "evt-3x" in opened.text("#panel .route")
    assert "out amax: f32" in opened.text("#signature")
    assert opened.page.input_value("#example") == "first steps"
    started = time.monotonic()
    opened.page.reload()
    opened.ready()
    print(f"first C++ after {opened.seconds:.1f} s; from the browser's cache {time.monotonic() - started:.1f} s")


def test_a_typed_formula_changes_the_kernel(opened: Page) -> None:
    started = time.monotonic()
    opened.type("D = silu(acc*factor[m]) - bias")
    opened.wait_for("#signature", "factor")
    opened.wait_for("#panel", "evt::fn::silu")
    print(f"next C++ after {time.monotonic() - started:.2f} s")
    opened.page.select_option("#arch", "sm80")
    opened.wait_for("#panel .route", "sm80")
    opened.page.select_option("#dtype", "bf16")
    opened.wait_for("#signature", "bf16")


def test_a_mistake_is_shown_in_place_and_explained(opened: Page) -> None:
    opened.type("D = gellu(acc) + bias")
    opened.wait_for("#problems .error", "E0201")
    assert "did you mean gelu?" in opened.text("#problems")
    assert opened.page.locator(".cm-lintRange-error").inner_text() == "gellu"
    opacity = "selector => getComputedStyle(document.querySelector(selector)).opacity"
    for old in ("#signature", "#panel > :last-child"):
        assert opened.page.evaluate(opacity, old) == "0.7"
    opened.page.click("#problems button >> text=E0201")
    opened.wait_for("#help[open] h2", "E0201: an unknown function")
    assert opened.page.locator("#help code >> text=gelu(x)").count() == 1
    opened.page.keyboard.press("Escape")
    assert not opened.page.locator("#help[open]").count()
    opened.page.click("#problems button >> text=Go to it")
    opened.page.keyboard.insert_text("gelu")  # replaces the selection
    opened.wait_for("#panel", "evt::fn::gelu")
    assert opened.page.evaluate(opacity, "#signature") == "1"
    assert opened.page.locator("#problems li").count() == 0
    opened.type("D = alpha*acc + scale*x")
    opened.wait_for("#problems .warning", "W0401")


def test_the_formula_and_the_kernel_are_linked(opened: Page) -> None:
    opened.page.select_option("#arch", "sm90")
    opened.type("z = acc + bias\nD = gelu(z)*C")
    opened.wait_for("#panel .line", "gelu(z)*C")
    opened.page.hover("#panel .line[data-link] >> text=gelu(z)*C")
    assert opened.page.locator(".cm-content .linked").inner_text() == "gelu(z)*C"
    opened.page.click(".cm-line >> nth=1", position={"x": 70, "y": 8})
    opened.page.wait_for_selector("#panel .line.linked")
    assert "gelu(z)*C" in opened.page.locator("#panel .line.linked").all_inner_texts()[0]
    opened.page.click("#panel .line[data-link] >> text=gelu(z)*C")
    assert opened.page.evaluate("document.getSelection().toString()") == "gelu(z)*C"


def test_views_by_the_keyboard(opened: Page) -> None:
    opened.page.focus("#tab-cxx")
    opened.page.keyboard.press("ArrowRight")
    opened.page.wait_for_selector("#panel svg")
    assert "gelu" in opened.page.locator("#panel svg").inner_html()
    opened.page.keyboard.press("ArrowRight")
    opened.wait_for("#panel svg title", "add")
    opened.page.keyboard.press("ArrowRight")
    opened.wait_for("#panel pre", "also applies")
    opened.page.keyboard.press("ArrowRight")
    opened.wait_for("#panel pre", "backward:")
    assert opened.page.get_attribute("[aria-selected=true]", "id") == "tab-gradient"
    opened.page.keyboard.press("ArrowRight")
    opened.wait_for("#drawn", "size 64")
    opened.page.fill("#layout", "(4,8):(8,1)")
    opened.wait_for("#drawn", "size 32, cosize 32, injective true")
    opened.page.fill("#layout", "(4,8):(8")
    opened.wait_for("#drawn", "E0671")
    opened.page.focus("#tab-layout")
    opened.page.keyboard.press("ArrowRight")
    opened.wait_for("#panel", "struct Region0")


def test_completion_hover_and_format(opened: Page) -> None:
    opened.type("D=ge")
    opened.page.keyboard.press("End")
    opened.page.keyboard.press("Control+Space")
    opened.wait_for(".cm-tooltip-autocomplete", "gelu_tanh")
    opened.page.keyboard.press("Escape")
    opened.type("D=gelu(acc)")
    opened.page.keyboard.press("Control+Shift+f")
    opened.wait_for(".cm-content", "D = gelu(acc)")
    opened.ready()
    opened.page.hover(".cm-content >> text=gelu")
    opened.wait_for(".cm-tooltip pre", "gelu(x)")


def test_a_shared_link_opens_the_same_state(browser: Any, address: str, opened: Page) -> None:
    opened.type("# \U0001f600 é\nD = hardswish(acc) + C")
    opened.page.select_option("#operation", "conv2d")
    opened.page.click("#tab-explain")
    opened.wait_for("#panel pre", "conv2d(A: ")
    other = Page(browser, opened.page.url)
    assert "hardswish(acc) + C" in other.text(".cm-content")
    assert "\U0001f600 é" in other.text(".cm-content")
    assert other.page.input_value("#operation") == "conv2d"
    assert "conv2d(A: " in other.text("#panel")
    assert other.errors == []
    other.context.close()
    opened.page.select_option("#operation", "gemm")
    opened.page.click("#tab-cxx")


def test_another_link_replaces_the_whole_state(opened: Page) -> None:
    opened.page.select_option("#dtype", "f16")
    link = opened.page.url
    opened.type("D = acc")
    opened.page.select_option("#arch", "sm80")
    opened.page.select_option("#dtype", "bf16")
    opened.page.click("#tab-graph")
    opened.page.wait_for_selector("#panel svg")
    opened.page.evaluate("link => { location.href = link; }", link)
    opened.wait_for(".cm-content", "hardswish(acc) + C")
    opened.wait_for("#panel .route", "sm90")
    assert opened.page.input_value("#dtype") == "f16"
    assert opened.page.url == link


def test_a_failure_of_python_is_said_and_mended(opened: Page) -> None:
    """Nested calls fill the browser's stack, after which Pyodide answers nothing."""
    opened.type(f"D = {'gelu(' * 1000}acc{')' * 1000}")
    opened.wait_for("#status", "Python failed: ")
    opened.type("D = selu(acc)")
    opened.wait_for("#panel", "evt::fn::selu")
    opened.errors.clear()  # the browser's report of the full stack


def test_every_example_shows_a_kernel(opened: Page) -> None:
    names = opened.page.eval_on_selector_all("#example option", "all => all.map((each) => each.value)")
    assert len(names) > 40
    for name in filter(None, names):
        opened.say("")
        opened.page.select_option("#example", name)
        opened.ready()
        assert opened.page.locator("#problems .error").count() == 0, name
        assert "namespace" in opened.text("#panel"), name
    opened.type("D = acc")
    assert opened.page.input_value("#example") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(browser: Any, address: str, scheme: str, tmp_path: Path) -> None:
    page = Page(browser, address, viewport=_PHONE, color_scheme=scheme, has_touch=True, is_mobile=True)
    assert page.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    colour = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(colour.removeprefix("rgb(").split(",")[0])
    assert (red < 64) is (scheme == "dark")
    page.page.focus(".cm-content")
    page.page.keyboard.press("Control+a")
    page.page.wait_for_selector(".cm-selectionBackground")
    marked = "getComputedStyle(document.querySelector('.cm-selectionBackground')).backgroundColor"
    red = int(page.page.evaluate(marked).removeprefix("rgb(").split(",")[0])
    assert (red < 64) is (scheme == "dark")
    page.page.tap("#tab-optimised")
    page.page.wait_for_selector("#panel svg")
    assert page.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    small = "all => all.filter((each) => each.offsetHeight && each.offsetHeight < 32).map((each) => each.id)"
    assert page.page.eval_on_selector_all("header button, header select, [role=tab]", small) == []
    page.page.screenshot(path=tmp_path / f"phone-{scheme}.png")
    assert page.errors == []
    page.context.close()
