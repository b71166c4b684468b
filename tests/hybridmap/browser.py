"""A headless Chromium for the tests of pages: Debian's, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

import pytest

from tests.work import HANGS_S

CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
IN_CI = os.environ.get("CI", "") not in ("", "false")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not IN_CI, reason="no chromium on this machine; `make browser` installs Debian's"
)
"""In continuous integration a missing browser is a failure, not a skip."""

LABELS_CUT = """() => {
  const inside = (box) => box.left >= 0 && box.right <= innerWidth;
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const cut = [];
  for (const chart of document.querySelectorAll(".js-plotly-plot")) {
    const points = [...chart.querySelectorAll(".bars .point")];
    for (const point of points) {
      const text = point.querySelector("text");
      if (!text || getComputedStyle(text).visibility === "hidden") continue;
      const box = text.getBoundingClientRect();
      const covers = points.filter((p) => p !== point && meet(p.querySelector("path").getBoundingClientRect(), box));
      if (!inside(box) || covers.length) cut.push(text.textContent);
    }
  }
  return cut;
}"""
"""Names of bars that the screen's edge cuts or another bar covers."""


@contextmanager
def browser():
    """A browser that is closed again; each test opens pages of its own in it."""
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "no chromium; `make browser` installs Debian's"
    with sync_playwright() as playwright:
        # Continuous integration runs as root in a machine of its own, where Chromium has no sandbox.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def opened(chromium, address, **options):
    """A page and what its console said; an error or a warning there fails the test."""
    page = chromium.new_page(**options)
    page.set_default_timeout(1_000 * HANGS_S)
    said = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: said.append(f"request: {request.url}") if _outside(request.url) else None)
    page.goto(address)
    yield page
    page.close()
    bad = [line for line in said if line.startswith(("error", "warning", "request"))]
    assert not bad, bad


def _outside(url):
    """Whether a page asks for anything that is not in itself or on this machine."""
    return not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1", "ws://127.0.0.1"))
