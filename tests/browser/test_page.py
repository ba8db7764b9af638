"""The report in a real browser: Debian's chromium and chromium-driver. Run by tox -e heavy."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from attnbench_plugins.page.page import render
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.measured_records import record

HOSTILE = "<script>alert(1)</script>"
QUOTED = "dir \"a\" 'b'/file.py:SPEC"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
TIMES = {"scaled_dot": 2e-3, "additive": 3e-1, "vector_sum": 1e-5, HOSTILE: 4e-3, QUOTED: 1e-3}


@pytest.fixture(scope="module")
def browser() -> Any:
    options = webdriver.ChromeOptions()
    driver = shutil.which("chromedriver") or pytest.skip(
        "no browser: apt-get install chromium chromium-driver"
    )
    options.binary_location = str(shutil.which("chromium"))
    for flag in FLAGS:
        options.add_argument(flag)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    records = [
        record(name, length, time * length / 64)
        for length in (64, 128, 256)
        for name, time in TIMES.items()
    ]
    records.append(record("absent", 64, None, status="out_of_memory", reason="needs 9 GiB"))
    outcomes = [{"subject": HOSTILE, "invariant": QUOTED, "status": "failed", "reason": HOSTILE}]
    path = tmp_path / "a 'page' \"quoted\".html"
    path.write_text(render(records, outcomes=outcomes))
    browser.get(path.as_uri())
    return browser


def cells(page: Any, number: Any) -> Any:
    rows = page.find_elements(By.CSS_SELECTOR, "#table tbody tr:not([hidden])")
    return [row.find_elements(By.CSS_SELECTOR, "th, td")[number] for row in rows]


def column(page: Any, number: Any) -> Any:
    return [cell.text for cell in cells(page, number)]


def head(page: Any, name: Any) -> Any:
    return next(
        b for b in page.find_elements(By.CSS_SELECTOR, "#table thead button") if b.text == name
    )


def test_a_click_sorts_by_number_and_another_turns_it_round(page: Any) -> None:
    for turned in (False, True):
        head(page, "time").click()
        *times, last = [cell.get_attribute("data-value") for cell in cells(page, 3)]
        assert last == ""
        assert times == sorted(times, key=float, reverse=turned)


def test_a_click_sorts_by_text(page: Any) -> None:
    head(page, "subject").click()
    names = column(page, 0)
    assert names[0] == HOSTILE
    assert names[-1] == "vector_sum"


def test_words_and_lists_filter_the_rows(page: Any) -> None:
    page.find_element(By.ID, "find").send_keys("vector")
    assert set(column(page, 0)) == {"vector_sum"}
    assert page.find_element(By.ID, "shown").text == "3 of 16 shown"
    page.find_element(By.CSS_SELECTOR, "#case option:nth-child(2)").click()
    assert len(column(page, 0)) == 1


def test_a_touch_of_a_cell_says_what_it_stands_for(page: Any) -> None:
    last = page.find_elements(By.CSS_SELECTOR, "#table td:last-child")
    next(cell for cell in last if cell.text.startswith("out_of_memory")).click()
    assert page.find_element(By.ID, "told").text == "needs 9 GiB"


def test_on_a_phone_no_column_of_the_measurements_is_cut(page: Any) -> None:
    page.set_window_size(390, 900)
    table = page.find_element(By.ID, "table")
    shown = [cell for cell in table.find_elements(By.CSS_SELECTOR, "td") if cell.is_displayed()]
    assert shown
    right = max(cell.rect["x"] + cell.rect["width"] for cell in shown)
    assert right <= table.rect["x"] + table.rect["width"] + 1 <= 390


def test_nothing_is_logged_as_an_error(page: Any) -> None:
    assert [e for e in page.get_log("browser") if e["level"] == "SEVERE"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_itself_never_scrolls_sideways(page: Any, width: Any) -> None:
    page.set_window_size(width, 900)
    wide = page.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert wide == 0
