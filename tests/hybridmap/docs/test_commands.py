"""Protects the documents: every command and every piece of Python in README and docs runs, page by page, in order."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.hybridmap.conftest import SMALL_JOB, invoke
from tests.hybridmap.docs.shown import WALKS, shows

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = ("run", "ui", "profile", "validate", "--profile")
"""Commands and options that tests of their own run: they start processes and stay, or measure for minutes."""

LEAVE = ("init", "import", "calibrate", "export", "trace", "report", "--out")
"""Commands and options whose files those below them may read; of ``plan`` these lie in ``hybridmap-out``."""

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def steps_of(text):
    """What a page asks a reader to do, in order: ``(kind, argument)`` of files to write, commands and Python.

    ``("shown", lines)`` follows a command whose output the page shows.
    """
    for language, title, body in FENCE.findall(text):
        named = re.search(r'title="([^"]+)"', title)
        if named:
            yield "write", (named[1], body)
        elif language == "python":
            yield "python", body
        elif language in ("", "sh", "console"):
            for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE):
                lines = part.rstrip("\n").split("\n")
                commands = [words for line in lines for words in commands_of(line)]
                yield from (("command", words) for words in commands)
                if part.startswith("$ ") and commands and any(lines[1:]):
                    yield "shown", lines[1:]


def commands_of(line):
    """The commands on a line, without prompt and comment; two stand side by side with spaces between."""
    line = line.removeprefix("$ ")
    if not line.startswith("hybridmap "):
        return
    for part in re.split(r"\s{2,}(?=hybridmap )", line.strip()):
        words = shlex.split(part, comments=True)
        if not {"|", *ELSEWHERE} & {words[1], *words}:
            yield words[1:]


def pages_with_steps():
    return [page for page in PAGES if any(True for _ in steps_of(page.read_text()))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader stands: the checkout's examples and a job; what else a page names, its commands write."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "JOB.yaml").write_text(yaml.safe_dump(SMALL_JOB, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stands_alone(words, below):
    """Whether the page shows what the command prints, and nothing further down reads what it leaves."""
    is_read = "hybridmap-out" in str(below) if words[0] == "plan" else bool({*LEAVE} & {*words})
    return below[0][0] == "shown" and not is_read and "--out" not in words


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with_steps(), ids=lambda page: page.stem)
def test_everything_on_the_page_runs(page, folder):
    printed, steps = "", [*steps_of(page.read_text()), ("end", None)]
    for i, (kind, what) in enumerate(steps[:-1]):
        if kind == "write":
            (folder / what[0]).write_text(what[1])
        elif kind == "command" and page.stem not in WALKS and stands_alone(what, steps[i + 1 :]):
            continue  # test_shown_output runs it, and reads what it prints
        elif kind == "command":
            result = invoke(*what)
            assert result.exit_code == 0, f"hybridmap {shlex.join(what)}: {result.output}"
            printed = result.stdout + result.stderr
        elif kind == "shown":  # elsewhere each command stands alone: test_shown_output
            assert page.stem not in WALKS or shows(what, printed), f"{page.name} shows not\n\n{printed}"
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(what, str(page), "exec"), {"__name__": "page"})


def test_the_pages_that_matter_have_steps():
    there = {page.stem for page in pages_with_steps()}
    assert {"README", "quickstart", "tutorial-verl", "tutorial-memory", "tutorial-gpus", "exports"} <= there


def test_every_page_is_in_the_site():
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_no_command_is_left_out_of_the_documents(run):
    """The reference is built from the commands; here the front page names each."""
    from typer.main import get_command

    from hybridmap.cli import app

    front = (ROOT / "docs" / "index.md").read_text()
    names = set(get_command(app).commands) - {"models", "devices", "simulate"}
    assert names <= set(re.findall(r"`([\w-]+)`", front))
