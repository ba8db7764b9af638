"""The manual's page to play with, in a real browser. Run by tox -e heavy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

FOLDER = Path(__file__).resolve().parents[2] / "page"
FILES = ("play.html", "play.css", "play.js", "scores.js")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Any:
    options = webdriver.ChromeOptions()
    driver = shutil.which("chromedriver") or pytest.skip(
        "no browser: apt-get install chromium chromium-driver"
    )
    options.binary_location = str(shutil.which("chromium"))
    for flag in FLAGS + QUIET:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def page(browser: Any) -> Any:
    return opened(browser)


def opened(browser: Any, width: int = 1280, scheme: str = "light") -> Any:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get((FOLDER / "play.html").as_uri())
    WebDriverWait(browser, 60).until(
        lambda b: b.execute_script("return document.querySelectorAll('#variance-table tr').length")
    )
    return browser


def text(page: Any, css: str) -> str:
    return str(page.find_element(By.CSS_SELECTOR, css).get_attribute("textContent"))


def slide(page: Any, name: str, value: float) -> None:
    page.execute_async_script(
        "const done = arguments[2], input = document.getElementById(arguments[0]);"
        "input.value = arguments[1];"
        "input.dispatchEvent(new Event('input', {bubbles: true}));"
        "requestAnimationFrame(() => requestAnimationFrame(done))",
        name,
        value,
    )


def test_arrow_keys_move_the_chosen_point_and_page_keys_choose_another(page: Any) -> None:
    plane = page.find_element(By.ID, "plane")
    page.execute_script("arguments[0].focus()", plane)
    start = text(page, "#point-state")
    plane.send_keys(Keys.ARROW_LEFT)
    WebDriverWait(page, 5).until(lambda b: text(b, "#point-state") != start)
    plane.send_keys(Keys.PAGE_DOWN)
    WebDriverWait(page, 5).until(lambda b: text(b, "#point-state").startswith("query 2"))
    plane.send_keys(Keys.PAGE_UP, Keys.PAGE_UP)
    WebDriverWait(page, 5).until(lambda b: text(b, "#point-state").startswith("key 8"))


def test_every_control_has_a_name_and_is_reached_by_tab(page: Any) -> None:
    nameless = page.execute_script(
        "return [...document.querySelectorAll('input, select, button, canvas[role], svg')]"
        ".filter(e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label')"
        " && !e.getAttribute('aria-labelledby') && !e.textContent.trim()).map(e => e.id)"
    )
    assert nameless == []
    wanted = set(
        page.execute_script(
            "return [...document.querySelectorAll('input, select, button, #plane')]"
            ".filter(e => !e.disabled).map(e => e.id)"
        )
    )
    reached = set()
    body = page.find_element(By.TAG_NAME, "body")
    page.execute_script("document.activeElement.blur()")
    for _ in range(len(wanted) + 6):
        (page.switch_to.active_element or body).send_keys(Keys.TAB)
        reached.add(page.switch_to.active_element.get_attribute("id"))
    assert wanted <= reached


def test_a_larger_temperature_flattens_and_a_larger_scale_sharpens(page: Any) -> None:
    def sharpest() -> float:
        return float(text(page, "#all-scaled_dot span").split()[2])

    start = sharpest()
    slide(page, "temperature", 20)
    assert sharpest() < start
    slide(page, "temperature", 0)
    slide(page, "scale", 20)
    assert sharpest() > start


def test_a_mask_of_the_settings_reaches_the_weights(page: Any) -> None:
    page.execute_script("document.getElementById('numbers').open = true")
    Select(page.find_element(By.ID, "mask")).select_by_value("empty")
    slide(page, "valid", 2)
    first = page.find_elements(By.CSS_SELECTOR, "#numbers tbody tr")[0].text
    second = page.find_elements(By.CSS_SELECTOR, "#numbers tbody tr")[1]
    weights = [cell.text.split("\n")[1] for cell in second.find_elements(By.TAG_NAME, "td")[:-1]]
    assert first.count("0.000") == 8
    assert [float(weight) > 0 for weight in weights] == [True, True] + [False] * 6


def test_a_function_is_chosen_by_its_picture(page: Any) -> None:
    page.find_element(By.ID, "all-additive").click()
    WebDriverWait(page, 5).until(lambda b: text(b, "#chosen-title").startswith("additive: w_v"))
    assert page.find_element(By.ID, "all-additive").get_attribute("aria-pressed") == "true"
    assert not text(page, "#alike")


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways_and_text_stands_out(
    browser: Any, width: int, scheme: str
) -> None:
    page = opened(browser, width, scheme)
    root = "document.documentElement"
    assert page.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth")
    colors = page.execute_script(
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
    )
    ground, ink = (sum(int(c) for c in color[4:-1].split(",")) for color in colors)
    assert abs(ground - ink) > 500
    assert (ground > ink) == (scheme == "light")


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_logged(page: Any) -> None:
    assert page.get_log("browser") == []
    loaded = page.execute_script(
        "return [...document.querySelectorAll('script, link, img')].map(e => e.src || e.href)"
    )
    assert {name.rsplit("/", 1)[1] for name in loaded if name.startswith("file:")} == set(FILES[1:])
    assert all(name.startswith(("file:", "data:")) for name in loaded)
    assert not any("http" in (FOLDER / name).read_text(encoding="utf-8") for name in FILES)
    assert sum((FOLDER / name).stat().st_size for name in FILES) < 100_000


def test_without_javascript_it_says_so_and_shows_a_picture_of_the_manual(browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((FOLDER / "play.html").as_uri())
        missing = browser.find_element(By.CSS_SELECTOR, ".missing")
        assert "needs JavaScript" in missing.text
        picture = browser.find_element(By.CSS_SELECTOR, "noscript img").get_attribute("src")
        assert (FOLDER.parent / "pictures" / picture.rsplit("/", 1)[1]).exists()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
