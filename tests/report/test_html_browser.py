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

from immunize.records import RECORD
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
def pages(stored_run: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    (run := folder / "run").mkdir()
    (run / RECORD).write_text(json.dumps(stored_run))
    (run / "metrics.csv").write_text("loss,term/task,RIR,step\n3,2,,0\n2,1,5,10\n1.5,1,9,20\n1.2,.9,12,30\n")
    records = table2_records(stored_run, PAIRS, range(2), ("ours", "imma", "none"))
    sweep = written(map(without_held_out, records), folder / "sweep")  # half as many figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", SAVE)
        return {"run": write_run_page(run, run), "sweep": write_sweep_page(sweep, sweep)}


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
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)
    browser.switch_to.active_element.send_keys(key)


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


def test_policy_forbids_the_network(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["run"])
    violated = browser.execute_async_script(
        """
        const done = arguments[0];
        document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
        document.body.append(Object.assign(new Image(), { src: "http://127.0.0.1:9/x.png" }));
        setTimeout(() => done("nothing"), 2000);
        """
    )
    assert violated == "img-src"


def column(browser: Browser, index: int) -> list[float]:
    texts = browser.execute_script(
        f"return [...document.querySelector('{LONG}').tBodies[0].rows].map((r) => r.cells[{index}].textContent)"
    )
    return [float(text.partition(" ±")[0].replace(",", "")) for text in texts]


def test_tables_sort_both_ways_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    before = column(browser, 5)
    button = f"{LONG} thead th:nth-child(6) button"
    press(browser, button, "\ue007")  # Enter
    assert column(browser, 5) == sorted(before, reverse=True) != before
    state = f"return document.querySelector('{LONG} thead th:nth-child(6)').ariaSort"
    assert browser.execute_script(state) == "descending"
    press(browser, button, " ")
    assert column(browser, 5) == sorted(before)


def test_rows_are_filtered(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    press(browser, "input.filter", "imma 3")
    shown = browser.execute_script(
        "return [...document.querySelector('.long').querySelectorAll('tbody tr')]"
        ".filter((r) => !r.hidden).map((r) => r.innerText)"
    )
    assert 0 < len(shown) < len(PAIRS) * 3
    assert all("imma" in text and "3" in text for text in shown)
    count = browser.execute_script("return document.querySelector('.count').textContent")
    assert count == f"{len(shown)} of {len(PAIRS) * 3} rows"


def test_choice_of_part_and_estimator_rules_all_sections_and_needs_a_script(
    browser: Browser, pages: dict[str, Path]
) -> None:
    opened(browser, pages["sweep"])
    shown = """
        return [...document.querySelectorAll("[data-view]")].filter((block) => block.checkVisibility())
          .map((block) => block.dataset.view)
    """
    assert browser.execute_script(shown) == ["fit, spectrum"] * SECTIONS
    press(browser, "select[data-views]", "\ue015")  # arrow down
    assert browser.execute_script(shown) == ["fit, released"] * SECTIONS
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, pages["sweep"])
        blocks = browser.find_elements("css selector", "[data-view]")
        assert len(blocks) == SECTIONS * 3
        assert all(block.is_displayed() for block in blocks)
        assert not browser.find_element("css selector", "select").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
