"""Pages in headless Chromium: no request, no error, figures are drawn, tables sort, keys do what a mouse does.

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

from immunize.records import ATTACK_RECORD, RECORD
from immunize.report.html import write_run_page, write_sweep_page
from tests.report.making import table2_records, written

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra `dev`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("needs Chromium and chromedriver (Debian: chromium-driver)", allow_module_level=True)

Browser = Any
PAIRS = [(p, h) for p, h in itertools.permutations(range(4), 2)]


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
def pages(
    stored_run: dict[str, Any], attacked_run: Path, finished_network: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    run = folder / "run"
    run.mkdir()
    (run / RECORD).write_text(json.dumps(stored_run))
    (run / "metrics.csv").write_text("loss,term/task,RIR,step\n3,2,,0\n2,1,5,10\n1.5,1,9,20\n1.2,.9,12,30\n")
    sweep = written(table2_records(stored_run, PAIRS, range(2), ("ours", "imma", "none")), folder / "sweep")
    return {
        "run": write_run_page(run, run),
        "sweep": write_sweep_page(sweep, sweep),
        "attacked": write_run_page(attacked_run, folder / "attacked"),
        "network": write_run_page(finished_network, folder / "network"),
    }


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


@pytest.mark.parametrize("kind", ["run", "sweep", "attacked", "network"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_opens_without_an_error_or_a_request(
    kind: str, width: int, scheme: str, browser: Browser, pages: dict[str, Path]
) -> None:
    opened(browser, pages[kind], width=width, scheme=scheme)
    assert browser.get_log("browser") == []
    assert {url for url in requested(browser) if url != "data:,"} == {pages[kind].as_uri()}
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    dark = max(map(int, background.removeprefix("rgb(").rstrip(")").split(","))) < 80
    assert dark == (scheme == "dark")


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


def test_every_figure_is_drawn(
    browser: Browser, pages: dict[str, Path], attacked_run: Path, finished_network: Path
) -> None:
    found = {}
    for name, page in pages.items():
        opened(browser, page)
        found[name] = browser.execute_script(
            """
            return [...document.querySelectorAll(".chart > svg")].filter((svg) => svg.checkVisibility()).map((svg) => ({
              size: svg.getBoundingClientRect().width,
              lines: [...svg.querySelectorAll(".line")].map((line) => line.getTotalLength()),
              strokes: [...svg.querySelectorAll(".line")].map((line) => getComputedStyle(line).stroke),
              dots: svg.querySelectorAll(".dot").length,
              ticks: svg.querySelectorAll(".axis text").length,
            }));
            """
        )
    training, spectra, norm_ratios, front = 2, 4, 4, 1
    assert len(found["run"]) == training + spectra + norm_ratios
    assert len(found["sweep"]) == front
    tiers = [of["immunized"] for of in json.loads((attacked_run / ATTACK_RECORD).read_text())["results"].values()]
    assert len(found["attacked"]) == spectra + norm_ratios + sum(map(len, tiers))
    probes = json.loads((finished_network / RECORD).read_text())["curves"]["probe"]
    assert len(found["network"]) == spectra + sum(map(len, probes.values()))
    for chart in itertools.chain(*found.values()):
        assert chart["size"] > 250
        assert chart["lines"] or chart["dots"]
        points = sum(
            length == 0 for length in chart["lines"]
        )  # curves of one point, such as those of a tier of one step
        assert points <= chart["dots"]
        assert all(length > 20 for length in chart["lines"] if length)
        assert all(stroke.startswith("rgb") for stroke in chart["strokes"])
        assert len(set(chart["strokes"])) == len(chart["strokes"])
        assert chart["ticks"] >= 5


def test_heat_maps_are_drawn_on_one_scale(browser: Browser, pages: dict[str, Path]) -> None:
    """Blue where RIR is at least 1 and red below, the stronger the further from it, in every map alike."""
    opened(browser, pages["sweep"])
    maps = browser.execute_script(
        """
        return [...document.querySelectorAll(".map table")].filter((table) => table.checkVisibility()).map((table) =>
          [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1).map((cell) => ({
            text: cell.innerText.trim(), width: cell.getBoundingClientRect().width, title: cell.title,
            colour: (getComputedStyle(cell).backgroundColor.match(/[\\d.]+/g) ?? []).map(Number),
          }))));
        """
    )
    assert len(maps) == 3
    strengths = []
    for rows in maps:
        assert [len(row) for row in rows] == [4] * 4
        for p, row in enumerate(rows):
            for h, cell in enumerate(row):
                if p == h:
                    assert cell["text"] == cell["title"] == ""
                    continue
                value = float(cell["text"].replace("−", "-"))
                red, _, blue, *opacity = cell["colour"]
                if value:  # not rounded to nothing
                    assert (blue > red) == (value > 0)
                assert cell["title"].startswith(f"D_P {p}, D_H {h}: RIR")
                assert cell["width"] > 20
                strengths.append((abs(value), opacity[0] if opacity else 1.0))
    at = [strength for _, strength in sorted(strengths)]
    assert at == sorted(at)
    assert at[0] < at[-1] == 1


LONG, MEANS = ".long table.sortable", "#means [data-view]:not([hidden]) table.sortable"


def column(browser: Browser, index: int, table: str = LONG) -> list[float]:
    cells = browser.execute_script(
        """
        const table = document.querySelector(arguments[1]);
        return [...table.tBodies[0].rows].map((row) => row.cells[arguments[0]].dataset.value);
        """,
        *(index, table),
    )
    return [float(cell) for cell in cells]


def test_tables_sort_both_ways_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    before = column(browser, 5)
    button = ".long table.sortable thead th:nth-child(6) button"
    state = "return document.querySelector('.long thead th:nth-child(6)').ariaSort"
    assert browser.execute_script(state) == "none"
    press(browser, button, "\ue007")  # Enter
    assert column(browser, 5) == sorted(before, reverse=True) != before
    assert browser.execute_script(state) == "descending"
    press(browser, button, " ")
    assert column(browser, 5) == sorted(before)
    assert browser.execute_script(state) == "ascending"


def test_means_sort_by_the_mean_that_is_shown(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    heads = browser.execute_script(f"return [...document.querySelectorAll('{MEANS} thead th')].map((h) => h.innerText)")
    at = heads.index("RIR ↑")
    shown = f"return [...document.querySelectorAll('{MEANS} tbody tr')].map((row) => row.cells[{at}].innerText)"
    before = column(browser, at, MEANS)
    press(browser, f"{MEANS} thead th:nth-child({at + 1}) button", " ")
    assert column(browser, at, MEANS) == sorted(before, reverse=True)
    texts = browser.execute_script(shown)
    assert all("±" in text for text in texts)
    means = [float(text.partition(" ±")[0].replace(",", "")) for text in texts]
    assert means == sorted(means, reverse=True)
    press(browser, f"{MEANS} thead th:nth-child({at + 1}) button", " ")
    assert column(browser, at, MEANS) == sorted(before) != sorted(before, reverse=True)


def test_rows_are_filtered(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    press(browser, "input.filter", "imma 3")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.long tbody tr')].filter((r) => !r.hidden).map((r) => r.innerText)"
    )
    assert 0 < len(shown) < len(PAIRS) * 3
    assert all("imma" in text and "3" in text for text in shown)
    count = browser.execute_script("return document.querySelector('.count').textContent")
    assert count == f"{len(shown)} of {len(PAIRS) * 3} rows"


def test_choice_of_part_and_estimator_shows_its_views_only(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    shown = """
        return [...new Set([...document.querySelectorAll("[data-view]")].filter((b) => b.checkVisibility())
          .map((b) => b.dataset.view))]
    """
    assert browser.execute_script(shown) == ["all-fit-spectrum"]
    press(browser, "select[data-views]", "\ue015")  # arrow down
    assert browser.execute_script(shown) == ["all-fit-released"]


def test_legend_hides_a_series(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["run"])
    hidden = """
        return [...document.querySelectorAll("#spectra-figure .line.s1")].filter((p) => p.closest("svg[role]"))
          .map((p) => getComputedStyle(p).visibility)
    """
    assert browser.execute_script(hidden) == ["visible"] * 4
    key = "#spectra-figure .legend button:nth-child(2)"
    press(browser, key, " ")
    assert browser.execute_script(hidden) == ["hidden"] * 4
    assert browser.execute_script(f"return document.querySelector('{key}').ariaPressed") == "false"
    press(browser, key, " ")
    assert browser.execute_script(hidden) == ["visible"] * 4


def test_arrow_keys_read_a_chart(browser: Browser, pages: dict[str, Path], stored_run: dict[str, Any]) -> None:
    opened(browser, pages["run"])
    said = "return document.querySelector('#spectra-figure .readout').textContent"
    for key in ("\ue010", "\ue011", "\ue014"):  # End, Home, arrow right
        press(browser, "#spectra-figure svg[tabindex]", key)
    spectra = stored_run["spectra"]["fit"]["pretrain"]
    second = " · ".join(f"{which} {spectra[which]['sigma'][1]:.4g}" for which in ("immunized", "identity"))
    assert browser.execute_script(said) == f"index i of σ_i 2: {second}"


def test_arrow_keys_read_a_scatter_plot(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])
    chart = "[data-view]:not([hidden]) .chart:has(svg[data-reads=dots])"
    dots = browser.execute_script(f"return document.querySelectorAll('{chart} circle:not(.faint)').length")
    assert dots > 1
    said = []
    for key in ("\ue011", *["\ue014"] * (dots - 1)):  # Home, then arrow right
        press(browser, f"{chart} svg[tabindex]", key)
        said.append(browser.execute_script(f"return document.querySelector('{chart} .readout').textContent"))
    titles = f"return [...document.querySelectorAll('{chart} circle:not(.faint)')].map((dot) => dot.textContent)"
    assert sorted(said) == sorted(browser.execute_script(titles))


def numbers(colour: str) -> list[float]:
    """Of a computed colour, rgb(…) or rgba(…)."""
    return [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")]


def luminance(colour: str) -> float:
    parts = [part / 255 for part in numbers(colour)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(scheme: str, browser: Browser, pages: dict[str, Path]) -> None:
    """WCAG 2.2: contrast of at least 4.5 for text and 3 for lines and dots, on what they stand on."""
    opened(browser, pages["run"], scheme=scheme)
    found = browser.execute_script(
        """
        const colour = (name) => {
          const probe = document.createElement("i");
          probe.className = "probe-" + name;
          document.body.append(probe);
          probe.style.setProperty("color", `var(--${name})`);
          const value = getComputedStyle(probe).color;
          probe.remove();
          return value;
        };
        return Object.fromEntries(arguments[0].map((name) => [name, colour(name)]));
        """,
        ["page", "card", "ink", "soft", "link", "pass", "pass-back", "fail", "fail-back", "warn", "warn-back"]
        + [f"s{i}" for i in range(8)],
    )

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(found[one]), luminance(found[other])))
        return (high + 0.05) / (low + 0.05)

    for text in ("ink", "soft", "link"):
        for back in ("page", "card"):
            assert contrast(text, back) >= 4.5, (text, back)
    for text in ("pass", "fail", "warn"):
        assert contrast(text, f"{text}-back") >= 4.5, text
    for line in range(8):
        assert contrast(f"s{line}", "page") >= 3, line


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_heat_maps_stands_out(scheme: str, browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"], scheme=scheme)
    found = browser.execute_script(
        """
        const box = document.createElement("div");
        box.className = "map";
        document.body.append(box);
        return arguments[0].map((name) => {
          const cell = document.createElement("div");
          cell.className = name;
          box.append(cell);
          const style = getComputedStyle(cell);
          return [style.color, style.backgroundColor, getComputedStyle(document.body).backgroundColor];
        });
        """,
        [f"{sign}{step}" for sign in "np" for step in range(8)],
    )
    assert len({tuple(colours) for colours in found}) == len(found) == 16
    for ink, cell, page in found:
        *colour, opacity = numbers(cell) if cell.startswith("rgba") else [*numbers(cell), 1.0]
        seen = [opacity * a + (1 - opacity) * b for a, b in zip(colour, numbers(page), strict=True)]
        low, high = sorted((luminance(ink), luminance(f"rgb({', '.join(map(str, seen))})")))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, cell, opacity)


def test_everything_is_there_without_a_script(browser: Browser, pages: dict[str, Path]) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, pages["sweep"])
        blocks = browser.find_elements("css selector", "[data-view]")
        assert len(blocks) >= 12
        assert all(block.is_displayed() for block in blocks)
        assert not browser.find_element("css selector", "select").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
