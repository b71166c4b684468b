"""Protects what the documents say of places in the code: every path that they name is there."""

import re

import pytest

from tests.hybridmap.docs.test_commands import ROOT

ROOMS = ("profiles", "simulator", "mapper", "executor", "hybridmap", "benchmarks", "tests", "docs", "examples")
NAMED = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./@*-]*)`")
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 120


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "log.md"], ids=lambda page: page.stem)
def test_every_path_on_the_page_is_there(page):
    for name in NAMED.findall(page.read_text()):
        if "NAME" in name or "ENGINE@" in name or name.startswith("examples/configs/"):  # NeMo-RL's
            continue
        assert list(ROOT.glob(name.rstrip("/"))), f"{page.name} names {name}"


def tree_of(text):
    """The file tree of README as paths: a room at the margin, its floors below it or beside it."""
    (block,) = re.findall(r"## Where things are\n\n```\n(.*?)```", text, re.DOTALL)
    room = None
    for line in block.splitlines():
        words = line.split()
        if not line.startswith(" "):
            room, *words = words
            yield room
        yield from (f"{room}{word.rstrip(';')}" for word in words if word.endswith("/"))


def test_the_file_tree_of_the_front_page_is_the_tree():
    named = set(tree_of((ROOT / "README.md").read_text()))
    assert all((ROOT / name).is_dir() for name in named), sorted(named)
    folders = {
        f"{room}/{path.name}/"
        for room in ROOMS[:5]
        for path in (ROOT / room).iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert folders <= named, folders - named


def test_the_front_page_can_be_read_in_one_go():
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES
