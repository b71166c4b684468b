"""YAML that others wrote: plain data only, of bounded size, depth and expansion, and no key twice.

A kilobyte of YAML can stand for billions of values (references to references), and a few hundred kilobytes of
brackets end the process inside the C loader. So the events are counted before anything is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from profiles.errors import FileFormatError
from profiles.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_BYTES = MIB
MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Values of a document with every reference written out. No file of ours comes near."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]  # one of two classes, by how PyYAML was built
    """The safe loader, which knows no objects, and refuses a key given twice: YAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key.value}' is given twice", key.start_mark)
            seen.add(key.value)
        built: dict[object, object] = super().construct_mapping(node, deep)
        return built


def parse_yaml(text: str | bytes, source: str) -> Any:
    """The document in ``text``.

    Raises
    ------
    FileFormatError
        Not YAML, more than one document, too large, too deep, or with too many references; the message begins with
        ``source`` and has line and column.
    """
    if len(text) > MAX_BYTES:
        raise FileFormatError(f"{source}: larger than {MAX_BYTES // MIB} MiB, which no YAML file of ours is")
    try:
        _check_extent(text, source)
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        place = _place(error.problem_mark)
        raise FileFormatError(f"{source}: {place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise FileFormatError(f"{source}: not YAML: {str(error).splitlines()[0]}") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # A number, a date or a tag that the loader cannot make a value of; LookupError: an empty `!!int`.
        raise FileFormatError(f"{source}: not YAML: {error}") from None


def read_yaml_file(path: Path) -> Any:
    """The document of a file; errors as in ``parse_yaml``, and ``FileFormatError`` if the file cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(raw) > MAX_BYTES:
        return parse_yaml(raw, str(path))  # which refuses it; its last character may be cut
    try:
        return parse_yaml(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: not UTF-8 text (byte {error.start})") from None


def yaml_of(document: Mapping[str, Any]) -> str:
    """A mapping as the YAML that we write: keys in their order, lines of at most 110 characters."""
    return str(yaml.safe_dump(dict(document), sort_keys=False, width=110, allow_unicode=True))


def _check_extent(text: str | bytes, source: str) -> None:
    """Count depth and values event by event; a reference counts as what it stands for."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise FileFormatError(f"{source}: {_place(event.start_mark)}*{event.anchor} stands for nothing yet")
            total += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            total += 1
            open_nodes.append((event.anchor, total))  # not in sizes yet: it cannot hold itself
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = total - before + 1
        if len(open_nodes) > MAX_DEPTH:
            raise FileFormatError(f"{source}: {_place(event.start_mark)}nested too deep, more than {MAX_DEPTH} levels")
        if total > MAX_VALUES:
            where = _place(event.start_mark)
            raise FileFormatError(f"{source}: {where}more than {MAX_VALUES:,} values, references written out")


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
