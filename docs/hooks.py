"""Builds the reference of commands from the commands themselves, so that it cannot drift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where the page asks for them."""
    return markdown.replace(PLACE, "\n".join(_commands())) if PLACE in markdown else markdown


def _commands() -> Iterator[str]:
    from typer.main import get_command

    from hybridmap.cli import app

    root = get_command(app)
    for name, command in sorted(root.commands.items()):  # type: ignore[attr-defined]
        yield from _command(f"hybridmap {name}", command)


def _command(path: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        for name, each in sorted(inner.items()):
            yield from _command(f"{path} {name}", each)
        return
    yield f"## {path}\n"
    yield f"{_text(command.help)}\n"
    yield "| argument or option | meaning | default |\n|---|---|---|"
    for parameter in command.params:
        if parameter.name != "help":
            yield _parameter(parameter)
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines()[2:]]
        yield "\n```sh\n" + "\n".join(lines) + "\n```"
    yield ""


def _parameter(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = parameter.metavar if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    value = "" if is_argument or parameter.is_flag or not parameter.metavar else f" {parameter.metavar}"
    default = "required" if parameter.required else "" if parameter.default in (None, False) else str(parameter.default)
    return f"| `{name}{value}` | {_text(parameter.help)} | {_text(default)} |"


def _text(value: str | None) -> str:
    return (value or "").replace("\f", "").replace("|", "\\|").strip()
