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

from tests.hybridmap.browser import browser, needs_browser, opened
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
    """Fill a field until the page answers: a page that reconnects on a busy machine forgets what was typed before."""
    from playwright.sync_api import TimeoutError as NothingShown

    for _ in range(60):
        page.get_by_label(label).fill("")
        page.get_by_label(label).fill(value)
        try:
            page.wait_for_selector(shows, timeout=5_000)
        except NothingShown:
            continue
        return
    raise AssertionError(f"{label} = {value} never showed {shows}")


def test_it_shows_a_plan_and_its_charts(chromium, address):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        assert iteration_s(page) > 0
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot svg.main-svg').length >= 3")
        page.wait_for_selector("text=More or fewer GPUs")
        assert "pool A" in page.locator("svg.cluster title").first.text_content()


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
        assert "minibatches" in page.locator(".text-red-700").text_content()
        page.get_by_label("optimizer steps").fill("2")
        ready(page)


@pytest.mark.parametrize(("label", "place"), [("prompts", "workload.prompts"), ("nodes", "cluster[0].nodes")])
def test_an_entry_that_cannot_be_stays_as_it_is_and_is_told(chromium, address, label, place):
    with opened(chromium, address, viewport={"width": 1300, "height": 1000}) as page:
        ready(page)
        title = page.locator(".text-lg").first
        assert "32 prompts" in title.text_content()
        assert "32 prompts" in page.title()
        changed(page, label, "0", "text=no plan")
        page.get_by_label(label).blur()
        page.get_by_label("mean response").focus()
        page.wait_for_timeout(1_000)  # longer than a change takes to be planned
        assert page.get_by_label(label).input_value() == "0"
        assert f"{place}: got 0" in page.locator(".text-red-700").text_content()
        assert title.text_content() == ""  # no job, no title
        assert page.title() == "hybridmap"
        changed(page, label, "2", f"text=/{'2 prompts' if label == 'prompts' else '2 nodes'}/")
        assert page.title() != "hybridmap"


def test_it_listens_on_this_machine_alone(address):
    port = int(address.rsplit(":", 1)[1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
    assert listening == [f"0100007F:{port:04X}"]
    assert str(port) not in [
        str(int(r.split()[1].split(":")[1], 16)) for r in Path("/proc/net/tcp6").read_text().splitlines()[1:]
    ]
