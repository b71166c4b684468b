"""Protects terminals: names come from files of others, and a terminal obeys what it is shown."""

import json

from hybridmap import console
from hybridmap.console import new_table, say_table, shown
from mapper import progress


def test_what_a_terminal_obeys_is_not_shown():
    assert shown("a\x1b[2Jb\r\x07\x9b\ud800\u202e") == "a?[2Jb??????"[: len("a?[2Jb") + 5]
    assert shown("│ ─ é 中\n\t1") == "│ ─ é 中\n\t1"


def test_tables_keep_their_own_style_and_lose_that_of_names(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    table = new_table(("role",))
    table.add_row("act\x1b]0;title\x07or")
    say_table(table)
    printed = capsys.readouterr().out
    assert "\x1b]" not in printed
    assert "\x07" not in printed
    assert "act" in printed


def test_errors_and_answers_alike(run, write_job, small_job):
    small_job["models"]["actor"] = "\x1b[31mllama"
    result = run("plan", write_job(small_job))
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert json.loads(run("plan", write_job(small_job), "--json").stdout)["error"]


def test_a_search_says_what_it_does_where_it_is_asked_and_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(console, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setattr(console, "WRITTEN_EVERY_S", 0.0)
    with console.working("searching ...", asked=True):
        progress.tell("pricing layouts", 3, 8)
        progress.tell("proving that nothing is faster", best_s=12.345)
    written = capsys.readouterr()
    assert written.out == ""
    first, second = written.err.splitlines()
    assert first.startswith("searching ... pricing layouts 3 of 8 (")
    assert "proving that nothing is faster, best so far 12.3" in second
    with console.working("searching ..."):  # no terminal, and nobody asked
        progress.tell("pricing layouts", 4, 8)
    progress.tell("pricing layouts", 5, 8)  # nobody listens
    assert capsys.readouterr().err == ""


def test_short_work_says_nothing(capsys):
    with console.working("searching ...", asked=True):
        progress.tell("pricing layouts", 1, 2)
    assert capsys.readouterr().err == ""
