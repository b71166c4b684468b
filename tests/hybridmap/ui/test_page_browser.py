"""Protects `hybridmap ui` in a real browser: a change shows, errors are told, and it stays local."""

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from hybridmap.ui.share import MOST_TEXT
from tests.hybridmap.browser import LABELS_CUT, browser, needs_browser, opened
from tests.hybridmap.exports.plans import GRPO
from tests.work import HANGS_S, wait_until

pytest.importorskip("nicegui", reason="the page needs the extra ui")
pytestmark = [pytest.mark.slow, needs_browser, pytest.mark.thorough]
ROOT = Path(__file__).parents[3]


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=HANGS_S).close()
    except OSError:
        return False
    return True


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of a small job, served by the command in a process of its own."""
    folder = tmp_path_factory.mktemp("ui")
    (folder / "job.yaml").write_text(yaml.safe_dump(GRPO))
    port = free_port()
    command = [sys.executable, "-m", "hybridmap", "ui", "job.yaml", "--port", str(port), "--no-browser"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    env.pop("PYTEST_CURRENT_TEST", None)  # NiceGUI would take itself for the one under test
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url) or process.poll() is not None, "the page")
        assert process.poll() is None, process.stderr.read().decode()
        yield url
        process.terminate()


def test_another_name_for_this_machine_gets_no_answer(address):
    """A page elsewhere could have its name point here, and read what is answered."""
    request = urllib.request.Request(address, headers={"Host": "example.com"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=HANGS_S)


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


def iteration_s(page):
    text = page.locator(".text-xl").first.text_content()
    return float(re.sub(r"[^0-9.]", "", text))


def ready(page):
    page.wait_for_selector("text=/planned in/", timeout=1_000 * HANGS_S)


def changed(page, label, value, shows):
    """Fill a field and wait for the answer, however long the machine takes."""
    page.get_by_label(label).fill(value)
    page.wait_for_selector(shows)


def test_it_shows_a_plan_and_its_charts(chromium, address):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        assert iteration_s(page) > 0
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot svg.main-svg').length >= 3")
        page.wait_for_selector("text=More or fewer GPUs")
        page.wait_for_selector("text=/Runners-up: .* s/")
        assert "pool A" in page.locator(".cluster").get_attribute("aria-label")


def test_a_change_is_planned_at_once(chromium, address):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        before = iteration_s(page)
        changed(page, "longest response", "2048", "text=/up to 2,048/")
        ready(page)
        assert iteration_s(page) > before


def test_what_cannot_be_is_told(chromium, address):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        changed(page, "optimizer steps", "3", "text=no plan")
        assert "minibatches" in page.locator(".wrong").first.text_content()
        page.get_by_label("optimizer steps").fill("2")
        ready(page)


@pytest.mark.parametrize(("label", "place"), [("prompts", "workload.prompts"), ("nodes", "cluster[0].nodes")])
def test_an_entry_that_cannot_be_stays_as_it_is_and_is_told(chromium, address, label, place):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        title = page.locator(".text-lg").first
        assert "32 prompts" in title.text_content()
        page.wait_for_function("document.title.includes('32 prompts')")  # it arrives after the text it names
        changed(page, label, "0", "text=no plan")
        page.get_by_label(label).blur()
        page.get_by_label("mean response").focus()
        page.wait_for_timeout(1_000)  # for the widget to put its own number there; nothing waits for an answer
        assert page.get_by_label(label).input_value() == "0"
        assert f"{place}: got 0" in page.locator(".wrong").first.text_content()
        assert title.text_content() == ""  # no job, no title
        page.wait_for_function("document.title === 'hybridmap'")
        changed(page, label, "2", f"text=/{'2 prompts' if label == 'prompts' else '2 nodes'}/")
        page.wait_for_function("document.title !== 'hybridmap'")


SIZES = {"desk": (1440, 1000), "phone": (390, 844)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_fits_its_screen_in_light_and_dark(chromium, address, size, scheme):
    width, height = SIZES[size]
    with opened(chromium, address, viewport={"width": width, "height": height}, color_scheme=scheme) as page:
        ready(page)
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot svg.main-svg').length >= 3")
        page.wait_for_selector("text=seconds per iteration")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(LABELS_CUT) == []
        form, answer = page.get_by_label("nodes").bounding_box(), page.locator(".layouts").bounding_box()
        assert answer["y"] + answer["height"] <= form["y"] if size == "phone" else answer["x"] > form["x"]
        assert page.locator(".layouts td:visible", has_text="actor").count() == 1
        assert page.evaluate("(t => t.scrollWidth <= t.clientWidth)(document.querySelector('.layouts'))")
        assert page.evaluate("document.body.classList.contains('body--dark')") is (scheme == "dark")
        for text in ("seconds of the iteration", "GiB of pool A's fullest GPU", "seconds", "GPUs"):
            assert page.locator(".js-plotly-plot text", has_text=text).count() >= 1
        if folder := os.environ.get("HYBRIDMAP_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"page-{scheme}-{width}.png", full_page=True)


def test_a_link_brings_the_job_along(chromium, address):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        page.wait_for_function("location.search.startsWith('?job=')")
        before = page.evaluate("location.search")
        changed(page, "nodes", "2", "text=/2 nodes/")
        page.wait_for_function("before => location.search !== before", arg=before)  # it comes after the title
        link = page.url
    with opened(chromium, link, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        assert page.get_by_label("nodes").input_value() == "2"


def test_a_plan_is_pinned_and_its_job_downloaded(chromium, address):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        page.get_by_role("button", name="Pin").click()
        page.wait_for_selector("text=Pinned plans")
        page.get_by_role("button", name="Download").click()
        with page.expect_download() as found:
            page.get_by_text("job", exact=True).last.click()
        job = yaml.safe_load(Path(found.value.path()).read_text())
        assert job["algorithm"] == "grpo"


def test_a_pasted_job_is_read(chromium, address):
    other = GRPO | {"workload": GRPO["workload"] | {"prompts": 48}}
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        page.get_by_role("button", name="Import").click()
        page.get_by_label("paste here").fill(yaml.safe_dump(other))
        page.get_by_role("button", name="Read").click()
        page.wait_for_selector("text=/48 prompts/")
        assert page.locator("text=/48 prompts/").first.is_visible()


def test_two_visitors_share_nothing(chromium, address):
    """What one changes, pins and is told of stays theirs."""
    size = {"width": 1300, "height": 1000}
    with opened(chromium, address, viewport=size) as one, opened(chromium, address, viewport=size) as other:
        ready(one)
        ready(other)
        theirs = other.locator(".text-lg").first.text_content()
        changed(one, "prompts", "48", "text=/48 prompts/")
        one.get_by_role("button", name="Pin").click()
        one.wait_for_selector("text=Pinned plans")
        changed(one, "nodes", "0", "text=no plan")
        changed(other, "optimizer steps", "1", "text=planning ...")
        ready(other)
        assert other.get_by_label("prompts", exact=True).input_value() == "32"
        assert other.get_by_label("nodes").input_value() == "1"
        assert other.locator(".text-lg").first.text_content() == theirs
        assert not other.locator("text=Pinned plans").is_visible()
        assert other.locator(".wrong").first.text_content() == ""


def test_ten_megabytes_are_refused(chromium, address):
    """The field takes little more than what is read, which is told; a longer message ends its own connection."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        page.get_by_role("button", name="Import").click()
        assert page.get_by_label("paste here").get_attribute("maxlength") == str(MOST_TEXT + 1)
        page.get_by_label("paste here").fill("a" * (MOST_TEXT + 1))
        page.get_by_role("button", name="Read").click()
        page.wait_for_selector("text=/more than .* characters/")
    where = f"{address.replace('http', 'ws')}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    with connect(where, origin=address, open_timeout=HANGS_S, proxy=None) as one, pytest.raises(ConnectionClosed):
        one.send("4" + "a" * 10_000_000)
        for _ in range(9):  # what it greets with, then nothing more
            one.recv(timeout=HANGS_S)
    assert answers(address)


def test_a_websocket_of_another_page_is_refused(address):
    """A browser lets any page open a websocket to this machine; only its Origin tells."""
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    where = f"{address.replace('http', 'ws')}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    with connect(where, origin=address, open_timeout=HANGS_S, proxy=None) as socket_here:
        assert socket_here.recv(timeout=HANGS_S)
    with pytest.raises(InvalidStatus):
        connect(where, origin="http://example.com", open_timeout=HANGS_S, proxy=None)
    request = urllib.request.Request(address, headers={"Origin": "http://example.com"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=HANGS_S)


def test_it_listens_on_this_machine_alone(address):
    port = int(address.rsplit(":", 1)[1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
    assert listening == [f"0100007F:{port:04X}"]
    assert str(port) not in [
        str(int(r.split()[1].split(":")[1], 16)) for r in Path("/proc/net/tcp6").read_text().splitlines()[1:]
    ]
