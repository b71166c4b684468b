"""Protects the command line as a shell sees it: completion, no colour in pipes, suggestions for slips."""

import os
import subprocess
import sys

import pytest

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
