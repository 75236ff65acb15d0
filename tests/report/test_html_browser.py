"""Pages in headless Chromium: no request, no error, figures are drawn, tables sort and filter by keys, in the dark too.

Skipped with the reason where selenium, Chromium or its driver is not there (Debian: `apt install chromium-driver`).
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from immunize.records import read_record
from immunize.report.html import write_run_page, write_sweep_page
from tests.report.conftest import SAVE
from tests.report.making import table2_records, without_held_out, written

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra `dev`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("needs Chromium and chromedriver (Debian: chromium-driver)", allow_module_level=True)

Browser = Any
PAIRS = [(p, h) for p, h in itertools.permutations(range(4), 2)]
LONG = ".long table.sortable"
SECTIONS = 4
"""Of the page of a sweep that show one part and estimator; the table of every pair is one of them."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    records = table2_records(read_record(finished_run), PAIRS, range(2), ("ours", "imma", "none"))
    sweep = written(map(without_held_out, records), folder / "sweep")  # half as many figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", SAVE)
        return {"run": write_run_page(finished_run, folder), "sweep": write_sweep_page(sweep, sweep)}


def opened(browser: Browser, page: Path, *, width: int = 1280, scheme: str = "light") -> Browser:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    return browser


def requested(browser: Browser) -> set[str]:
    events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}


def press(browser: Browser, selector: str, key: str) -> None:
    browser.find_element("css selector", selector).send_keys(key)


@pytest.mark.parametrize("kind", ["run", "sweep"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_opens_without_an_error_or_a_request(
    kind: str, width: int, scheme: str, browser: Browser, pages: dict[str, Path]
) -> None:
    opened(browser, pages[kind], width=width, scheme=scheme)
    assert browser.get_log("browser") == []
    assert {url for url in requested(browser) if not url.startswith("data:")} == {pages[kind].as_uri()}
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    dark = max(map(int, background.removeprefix("rgb(").rstrip(")").split(","))) < 80
    assert dark == (scheme == "dark")
    sizes = browser.execute_script("return [...document.images].map((i) => [i.complete, i.naturalWidth])")
    assert len(sizes) == {"run": 3, "sweep": 6}[kind]
    assert all(there and size > 250 for there, size in sizes)


def shown(browser: Browser, selector: str) -> list[str]:
    return [one.text for one in browser.find_elements("css selector", f"{LONG} {selector}") if one.is_displayed()]


def test_tables_sort_both_ways_by_keyboard_and_are_filtered(browser: Browser, pages: dict[str, Path]) -> None:
    def column() -> list[float]:
        return [float(text.partition(" ±")[0].replace(",", "")) for text in shown(browser, "td:nth-child(6)")]

    opened(browser, pages["sweep"])
    before, button = column(), f"{LONG} th:nth-child(6) button"
    press(browser, button, "\ue007")  # Enter
    assert column() == sorted(before, reverse=True) != before
    assert browser.find_element("css selector", f"{LONG} th:nth-child(6)").get_attribute("aria-sort") == "descending"
    press(browser, button, " ")
    assert column() == sorted(before)
    press(browser, "input.filter", "imma 3")
    rows = shown(browser, "tbody tr")
    assert 0 < len(rows) < len(before)
    assert all("imma" in text and "3" in text for text in rows)
    count = browser.find_element("css selector", ".count").text
    assert count == f"{len(rows)} of {len(before)} rows"


def test_choice_of_part_and_estimator_rules_all_sections_and_needs_a_script(
    browser: Browser, pages: dict[str, Path]
) -> None:
    def views() -> list[str]:
        blocks = browser.find_elements("css selector", "[data-view]")
        return [block.get_attribute("data-view") for block in blocks if block.is_displayed()]

    opened(browser, pages["sweep"])
    assert views() == ["fit, spectrum"] * SECTIONS
    press(browser, "select[data-views]", "\ue015")  # arrow down
    assert views() == ["fit, released"] * SECTIONS
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, pages["sweep"])
        assert len(views()) == SECTIONS * 3
        assert not browser.find_element("css selector", "select").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
