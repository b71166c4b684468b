"""Shell text as a syntax tree: shfmt's parser of bash, a program that the package ``shfmt-py`` brings."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from typing import Any

from profiles.errors import FileFormatError, InputError

Node = dict[str, Any]
"""A node as ``shfmt --to-json`` writes it: a mapping with ``Type`` where several kinds may stand."""

MOST_SCRIPT_BYTES = 1 << 16
MOST_OPENED = 4_000
"""Opening brackets and keywords of a script at most: what the parser nests it keeps on its stack."""
TIMEOUT_S = 60.0


def parse_shell(text: str, source: str) -> list[Node]:
    """The statements of a script.

    Raises ``FileFormatError`` for text that is no bash, and for text of a size or a depth that no script has.
    """
    if len(text) > MOST_SCRIPT_BYTES:
        raise FileFormatError(f"{source}: larger than {MOST_SCRIPT_BYTES >> 10} KiB, which no launch script is")
    if sum(text.count(mark) for mark in ("(", "{", "`", "!", "-", "~", "if", "while", "until", "case")) > MOST_OPENED:
        raise FileFormatError(f"{source}: opens more than {MOST_OPENED:,} brackets, which no launch script does")
    done = subprocess.run(
        [parser(), "--to-json", "--language-dialect", "bash"],
        input=text.replace("\0", "").encode("utf-8", "surrogatepass"),
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise FileFormatError(
            f"{source}: not a shell script: {said[0].removeprefix('<standard input>:') if said else ''}"
        )
    try:
        statements: list[Node] = json.loads(done.stdout).get("Stmts") or []
    except RecursionError:
        raise FileFormatError(f"{source}: nested deeper than any launch script") from None
    return statements


@cache
def parser() -> str:
    """The path of shfmt: the one that its package installed, else one on the path."""
    try:
        installed = next((file for file in files("shfmt-py") or () if file.name in ("shfmt", "shfmt.exe")), None)
    except PackageNotFoundError:
        installed = None
    found = str(installed.locate()) if installed is not None else shutil.which("shfmt")
    if found is None:
        raise InputError("launch scripts are parsed with shfmt, which is not installed: pip install shfmt-py")
    return found


def line_of(node: Node) -> int:
    """The line of a node in its script."""
    return int(node["Pos"]["Line"])


def written(node: Node, text: str) -> str:
    """A node as it is written, on one line and not too long to print."""
    raw = text.encode("utf-8")[node["Pos"]["Offset"] : node["End"]["Offset"]].decode("utf-8", "replace")
    line = " ".join(raw.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
