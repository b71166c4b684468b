"""Protects the one way to write a file: whole or not at all, several of them together, nothing left behind."""

import os

import pytest

from profiles.atomic_write import write_all_or_none, write_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", ["grün\n", "grün\n".encode(), lambda path: path.write_text("grün\n", "utf-8")])
def test_text_bytes_and_what_a_function_writes(tmp_path, content):
    path = tmp_path / "deep" / "file"
    write_atomically(path, content, durable=True)
    assert path.read_bytes() == "grün\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_every_file_as_it_was(tmp_path, error):
    def broken(path):
        path.write_text("half of it")
        raise error

    (tmp_path / "a").write_text("before")
    with pytest.raises(type(error)):
        write_all_or_none({tmp_path / "a": "after", tmp_path / "b": broken})
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def test_nothing_takes_its_place_before_it_is_on_disk(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "a").write_text("before")
    with pytest.raises(OSError, match="No space"):
        write_all_or_none({tmp_path / "a": "after"}, durable=True)
    assert (tmp_path / "a").read_text() == "before" and names(tmp_path) == ["a"]


def test_every_writer_of_whole_files_is_this_one():
    """Renames elsewhere move folders, or files that a library wrote into a folder of its own."""
    import ast
    from pathlib import Path

    root = Path(__file__).parents[2]
    renaming = {
        path.relative_to(root).as_posix()
        for room in ("profiles", "simulator", "mapper", "hybridmap")
        for path in (root / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("replace", "rename", "renames") and is_os(node.value)
    }
    assert renaming == {"profiles/atomic_write.py", "profiles/importer/import_tables.py"}


def is_os(node):
    import ast

    return isinstance(node, ast.Name) and node.id == "os"
