"""Protects the command line from growing by accident: a new command or flag is a decision, made in the golden file."""

import tomllib
from pathlib import Path

from typer.main import get_command

import hybridmap
from hybridmap.cli import app

GOLDEN = Path(__file__).parent / "frozen.txt"


def described(command, path):
    """One line per command and per parameter of it: names, and whether it must be given."""
    names = {
        " / ".join(param.opts) if param.param_type_name == "option" else f"<{param.name}>": param.required
        for param in command.params
        if param.name != "help"
    }
    yield path
    for name, required in sorted(names.items()):
        yield f"{path} {name}{' (required)' if required else ''}"
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from described(inner, f"{path} {name}")


def test_commands_and_options_are_the_golden_ones():
    assert list(described(get_command(app), "hybridmap")) == GOLDEN.read_text().splitlines()


def test_the_version_is_that_of_the_package(run):
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert run("--version").stdout == f"hybridmap {pyproject['project']['version']}\n"
    assert hybridmap.__version__ == pyproject["project"]["version"]


def test_help_names_every_command(run):
    text = run("--help").stdout
    assert all(command in text for command in ("plan", "simulate", "compare", "frontier", "models", "devices"))
