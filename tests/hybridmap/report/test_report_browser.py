"""Protects the report in a real browser: it loads clean, charts draw, hovering, the plan switch and dark mode work."""

import os
from pathlib import Path

import pytest

from tests.hybridmap.browser import browser, needs_browser, opened
from tests.hybridmap.conftest import invoke

pytestmark = [pytest.mark.slow, needs_browser, pytest.mark.thorough]

PHONE = {"viewport": {"width": 390, "height": 844}}
DESK = {"viewport": {"width": 1200, "height": 900}}


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
    page.wait_for_function("[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg.main-svg'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_it_loads_clean_and_draws_every_chart(chromium, report, pictures, size, scheme):
    with opened(chromium, report, color_scheme=scheme, **size) as page:
        wait_for_charts(page)
        assert page.locator(".chart").count() >= 7
        for i in range(page.locator(".chart").count()):
            assert page.locator(".chart").nth(i).locator("path, .point").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= size["viewport"]["width"]
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.screenshot(path=pictures / f"report-{scheme}-{size['viewport']['width']}.png", full_page=True)


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
        page.keyboard.press("ArrowDown")
        assert page.locator("input[name=plan]").nth(1).is_checked()
        key = page.locator("input[name=plan]").nth(1).get_attribute("value")
        assert page.locator(f"#placement [data-plan={key}]").is_visible()
        assert not page.locator("#placement [data-plan=best]").is_visible()
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
