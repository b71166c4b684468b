"""Protects the command line as a shell sees it: completion, no colour in pipes, readers that go, slips."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hybridmap.cli import app
from hybridmap.text.help_examples import EXAMPLES

ROOT = str(Path(__file__).parents[3])
START = "import sys; sys.argv = ['hybridmap']; from hybridmap.cli import main; main()"


def completed(words):
    env = os.environ | {
        "_HYBRIDMAP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run([sys.executable, "-c", START], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hybridmap pl", ["plan"]),
        ("hybridmap export plan.json --to n", ["nemo-rl"]),
        ("hybridmap init --device h1", ["h100-80gb-sxm"]),
        ("hybridmap init --algorithm reinf", ["reinforce++"]),
        ("hybridmap init --model qwen2.5-14", ["qwen2.5-14b"]),
    ],
)
def test_a_shell_completes_commands_and_names(words, expected):
    assert completed(words) == expected


@pytest.mark.parametrize("args", [("models", "list"), ("what-if", "--help"), ("--help",)])
def test_there_is_no_colour_in_a_pipe(args):
    env = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run([sys.executable, "-m", "hybridmap", *args], env=env, capture_output=True)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [(("pln",), "plan"), (("whatif",), "what-if"), (("plan", "x.yaml", "--otu", "y"), "--out")],
)
def test_slips_are_answered_with_what_was_meant(run, args, suggestion):
    result = run(*args)
    assert result.exit_code == 2
    assert suggestion in result.stderr


@contextlib.contextmanager
def unread(name, monkeypatch):
    """stdout or stderr as a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, name, stream)
        yield


def ended(*args):
    with pytest.raises(SystemExit) as end:
        app([str(arg) for arg in args])
    return end.value.code


ANSWERS = (
    "plan",
    "simulate",
    "compare",
    "fit",
    "what-if",
    "frontier",
    "robust",
    "explain",
    "report",
    "trace",
    "export",
)


AS_JSON = ("plan", "simulate", "trace")
"""Enough of them: all print their document in one place."""


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(pytest.param(command, (), id=f"{command}-text") for command in ANSWERS),
        *(pytest.param(command, ("--json",), id=f"{command}-json") for command in AS_JSON),
    ],
)
def test_an_answer_that_nobody_reads_to_its_end_is_no_error(command, option, planned, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "JOB.yaml").symlink_to(planned.job)
    shutil.copytree(planned.out, tmp_path / "hybridmap-out")
    words = shlex.split(EXAMPLES[command][0])[1:]
    more = {"plan": ["--out", "other"], "robust": ["--draws", "1"], "report": ["--frontier-limit", "0"]}
    more["explain"] = ["--time-limit", "1"]
    with unread("stdout", monkeypatch):
        assert ended(*words, *more.get(command, ()), *option) == 0


@pytest.mark.parametrize("args", [("models", "list"), ("devices", "show", "h200-sxm"), ("--help",), ("--version",)])
def test_nor_is_one_of_a_catalogue_or_help(args, monkeypatch):
    with unread("stdout", monkeypatch):
        assert ended(*args) == 0


@pytest.mark.parametrize(
    ("args", "stream"),
    [
        (("simulate",), "stderr"),
        (("pln",), "stderr"),
        (("simulate", "--json"), "stdout"),
        (("pln", "--json"), "stdout"),
    ],
)
def test_an_error_that_nobody_reads_is_one(args, stream, monkeypatch):
    with unread(stream, monkeypatch):
        assert ended(*args) == 2


def test_a_broken_pipe_of_our_own_is_a_fault(monkeypatch):
    """Only what reads our output may go: a pipe to a process of ours that breaks keeps its traceback."""

    def names():
        raise BrokenPipeError("a rank's")

    monkeypatch.setattr("profiles.models.catalogue.model_names", names)
    with pytest.raises(BrokenPipeError, match="a rank's"):
        app(["models", "list"])


@pytest.mark.parametrize("args", [("models", "list"), ("devices", "show", "h100-80gb-sxm"), ("plan", "--help")])
def test_head_in_a_shell(args):
    """The pipe of a real shell, whose reader goes after a line: nothing on stderr, and no status but 0."""
    command = f"set -o pipefail; {sys.executable} -m hybridmap {shlex.join(args)} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ROOT}
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("args", [("--version",), ("plan", "nowhere.yaml"), ("plan",)])
@pytest.mark.parametrize("module", ["hybridmap", "hybridmap.cli"])
def test_python_m_is_the_command(module, args):
    """``main`` is what the installed script calls: the same words, usage lines included, and the same exit status."""
    script = f"import sys; from hybridmap.cli import main; sys.argv = ['/bin/hybridmap', *{args}]; main()"
    by_script, by_module = (
        subprocess.run([sys.executable, *how], capture_output=True, text=True)
        for how in (("-c", script), ("-m", module, *args))
    )
    assert by_script.stdout + by_script.stderr
    assert (by_module.returncode, by_module.stdout, by_module.stderr) == (
        by_script.returncode,
        by_script.stdout,
        by_script.stderr,
    )
