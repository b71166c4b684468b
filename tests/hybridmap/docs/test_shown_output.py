"""Protects what the documents show of a command: it is what the command prints.

Times that a command itself took are masked. A page may shorten: ``...`` in a line is any text, ``...`` alone stands for
lines that are left out. ``# with KEY: VALUE, ...`` behind a command changes its job first.
"""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.hybridmap.conftest import invoke
from tests.hybridmap.docs.shown import LEFT_OUT, WALKS, shows
from tests.hybridmap.docs.test_commands import FENCE, PAGES, ROOT, commands_of

WITHOUT_LIMIT = ("calibrate", "compare", "watch")


def shown_on(page):
    """Each command of a page that is followed by output: its line, and the lines below it."""
    for _, _, body in FENCE.findall(page.read_text()):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            line, *output = part.rstrip("\n").split("\n")
            if any(output) and next(iter(commands_of(line)), None):
                yield line, output


ALONE = [page for page in PAGES if page.stem not in WALKS]
"""Pages whose commands stand each for itself; those of a walk follow each other (test_commands)."""
SHOWN = [(page, line, output) for page in ALONE for line, output in shown_on(page)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A reader's checkout, of which jobs may be changed."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change_job(path: Path, changes: str):
    job = yaml.safe_load(path.read_text()) | yaml.safe_load(f"{{{changes}}}")
    path.write_text(yaml.safe_dump(job, sort_keys=False))


def printed_by(page, line):
    """What a command prints after those of its page that write what it names; searches may take longer here."""
    for earlier in (one for there, one, _ in SHOWN if there == page and one != line):
        (words,) = commands_of(earlier)
        if "--out" in words and words[words.index("--out") + 1] in line:
            invoke(*words)
    (words,) = commands_of(line)
    return invoke(*words, *(() if words[0] in WITHOUT_LIMIT else ("--time-limit", "600")))


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line", "output"), SHOWN, ids=[f"{p.stem}-{i}" for i, (p, _, _) in enumerate(SHOWN)])
def test_the_output_on_the_page_is_what_the_command_prints(folder, page, line, output):
    (words,) = commands_of(line)
    _, _, changes = line.partition("# with ")
    if changes:
        change_job(folder / words[1], changes)
    result = printed_by(page, line)
    printed = result.stdout + result.stderr
    assert result.exit_code == (2 if output[0].startswith("Error: ") else 0), printed
    assert shows(output, printed), f"{page.name}: {line}\nprints\n\n{printed}\nand the page shows\n\n" + "\n".join(
        output
    )


def test_the_front_page_shows_a_plan_whole():
    ((line, output),) = [(line, output) for page, line, output in SHOWN if page.name == "README.md"]
    assert line.split()[1] == "plan"
    assert not any(LEFT_OUT in text for text in output)


def test_the_documents_show_a_frontier_and_a_conflict():
    assert any(line.split()[1] == "frontier" for _, line, _ in SHOWN)
    assert any(output[0].startswith("Error: ") for _, _, output in SHOWN)


def test_no_page_leaves_everything_out():
    for page, line, output in SHOWN:
        assert len([text for text in output if text and LEFT_OUT not in text]) >= 1, (page.name, line)


@pytest.mark.parametrize(
    ("output", "printed", "same"),
    [
        (["a", "b"], "a\nb\n", True),
        (["a", "b"], "a\nx\nb\n", False),  # a line is left out without a word
        (["a", "...", "b"], "a\nx\ny\nb\n", True),
        (["a", "...", "b"], "a\nb\n", False),  # nothing is left out
        (["a ...", "b"], "a and more\nb\n", True),
        (["a ... c", "b"], "a and c\nb\n", True),
        (["a ...", "b"], "a and\nmore\nb\n", False),
        (["found in 0.8 s"], "found in 12.3 s\n", True),
        (["iteration 0.8 s"], "iteration 12.3 s\n", False),
        (["1.5 %"], "1x5 %\n", False),
    ],
)
def test_what_a_page_may_leave_out(output, printed, same):
    assert shows(output, printed) is same
