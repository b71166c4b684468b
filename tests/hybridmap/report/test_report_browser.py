"""Protects the report in a real browser: it loads clean, charts draw, hovering, the plan switch and dark mode work."""

import os
import re
from pathlib import Path

import pytest

from tests.hybridmap.browser import LABELS_CUT, browser, needs_browser, opened
from tests.hybridmap.conftest import invoke

pytestmark = [pytest.mark.slow, needs_browser, pytest.mark.thorough]

PHONE = {"viewport": {"width": 390, "height": 844}}
DESK = {"viewport": {"width": 1440, "height": 900}}


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def report(planned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    invoke("what-if", planned.job, "--set", "workload.response_length=128,512", "--out", folder)
    result = invoke("report", planned.plan, "--what-if", folder / "what-if.json", "-o", folder / "report.html")
    assert result.exit_code == 0, result.output
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Where screenshots go for a look: a folder of choice, or a temporary one."""
    chosen = os.environ.get("HYBRIDMAP_SCREENSHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wait_for_charts(page):
    """Those of the plan that is shown; the others draw when they are asked for."""
    for chart in page.locator(".chart:visible").all():
        chart.locator(".main-svg").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_it_loads_clean_and_draws_every_chart(chromium, report, pictures, size, scheme):
    with opened(chromium, report, color_scheme=scheme, **size) as page:
        wait_for_charts(page)
        charts = page.locator(".chart:visible")
        assert charts.count() >= 7
        for i in range(charts.count()):
            assert charts.nth(i).locator("path, .point").count() > 0
            assert charts.nth(i).locator(".xtitle, .ytitle").count() >= 1  # what an axis counts, and in which unit
        assert page.evaluate("document.documentElement.scrollWidth") <= size["viewport"]["width"]
        assert page.evaluate(LABELS_CUT) == []
        wide = "[...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth).length"
        assert page.evaluate(wide) == 0  # no table scrolls sideways
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.screenshot(path=pictures / f"report-{scheme}-{size['viewport']['width']}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(chromium, report, scheme):
    """WCAG's 4.5 to 1 for every colour of text that the page has."""
    with opened(chromium, report, color_scheme=scheme, **DESK) as page:
        wait_for_charts(page)
        for name in ("--text", "--soft"):
            for ground in ("--ground", "--card"):
                pair = [
                    page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('{each}').trim()")
                    for each in (name, ground)
                ]
                assert contrast(*pair) >= 4.5, (name, ground, pair)


def contrast(first, second):
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(hex_color):
    parts = [int(hex_color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_it_prints_on_one_page(chromium, report):
    with opened(chromium, report, **DESK) as page:
        wait_for_charts(page)
        printed = page.pdf(format="A4", print_background=True)
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


def test_hovering_a_call_tells_about_it(chromium, report):
    with opened(chromium, report, **DESK) as page:
        wait_for_charts(page)
        bar = page.locator("#chart-gantt .bars .point path").first
        bar.scroll_into_view_if_needed()
        box = bar.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#chart-gantt .hoverlayer .hovertext")
        assert "compute" in page.locator("#chart-gantt .hoverlayer .hovertext").first.text_content()


def test_the_switch_shows_another_plan_by_keyboard(chromium, report):
    with opened(chromium, report, **DESK) as page:
        wait_for_charts(page)
        before = page.evaluate("document.getElementById('chart-gantt').data.map(t => t.x)")
        page.locator("input[name=plan]").first.focus()
        page.keyboard.press("ArrowUp")  # from the first to the last; the first runner-up may be as fast
        assert page.locator("input[name=plan]").last.is_checked()
        key = page.locator("input[name=plan]").last.get_attribute("value")
        assert page.locator(f"#placement [data-plan={key}]").is_visible()
        assert not page.locator("#placement [data-plan=best]").is_visible()
        assert page.locator(f"#placement [data-plan={key}] .cluster .gpu").count() == 8  # unpacked
        assert page.evaluate("document.getElementById('chart-gantt').data.map(t => t.x)") != before


def test_dark_is_a_button_away_and_text_stays_readable(chromium, report):
    with opened(chromium, report, color_scheme="light", **DESK) as page:
        wait_for_charts(page)
        page.get_by_role("button", name="Dark").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert page.evaluate("document.getElementById('chart-stages').layout.font.color") == "#e6e9ec"


def test_everything_that_acts_can_be_reached_by_tab(chromium, report):
    with opened(chromium, report, **DESK) as page:
        wait_for_charts(page)
        seen = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.add(
                page.evaluate(
                    "document.activeElement.id || document.activeElement.name || document.activeElement.tagName"
                )
            )
        assert {"theme", "plan", "copy", "SUMMARY"} <= seen
