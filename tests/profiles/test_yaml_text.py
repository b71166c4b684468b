"""Protects every reader of YAML: plain data, no key twice, and no file that stands for more than it holds."""

import pytest

from benchmarks.fuzz.values import ALIASES, MERGES
from profiles.errors import FileFormatError
from profiles.yaml_text import MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse_yaml, read_yaml_file

BAD = {
    "references to references": (
        ALIASES,
        f"line 6, column .*: more than {MAX_VALUES:,} values, references written out",
    ),
    "merges of merges": (MERGES, f"more than {MAX_VALUES:,} values"),
    "a list that holds itself": ("&a [*a]", "a stands for nothing yet"),
    "a reference to nothing": ("a: *b", "line 1, column 4: "),
    "an anchor given twice": ("a: &x 1\nb: &x [2]\nc: *x", "line 2, column 4: second occurrence"),
    "deep": ("[" * (MAX_DEPTH + 1), f"nested too deep, more than {MAX_DEPTH} levels"),
    "so deep that the C parser ends the process": ("[" * 500_000, "nested too deep"),
    "deep in blocks": ("- " * 5_000, "nested too deep"),
    "many values": ("- a\n" * (MAX_VALUES + 1), f"more than {MAX_VALUES:,} values"),
    "large": ("#" * (MAX_BYTES + 1), "larger than 1 MiB"),
    "an object": ("!!python/object/apply:os.system [echo]", "could not determine a constructor"),
    "a key twice": ("a: 1\nb: {c: 1, c: 2}", "line 2, column 11: key 'c' is given twice"),
    "a number of 5,000 digits": ("9" * 5000, "not YAML: Exceeds the limit"),
    "a tag that does not fit": ("!!int x", "not YAML: invalid literal"),
    "a time that is none": ("!!timestamp x", "not YAML: "),
    "an empty number": ("!!int ''", "not YAML: "),
    "a month that is none": ("2024-13-45", "not YAML: month must be in"),
    "two documents": ("a: 1\n---\nb: 2\n", "line 2, column 1"),
    "bytes that are no text": (b"a: \xff", "not YAML: "),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_plain_small_document_is_refused(name):
    text, said = BAD[name]
    with pytest.raises(FileFormatError, match=f"^here: .*{said}"):
        parse_yaml(text, "here")


def test_references_and_merges_are_read():
    text = "a: &a {k: 1}\nb: *a\nc: {<<: *a, l: 2}\nd: &d [1, 2]\ne: [*d, *d]\n"
    assert parse_yaml(text, "here") == {
        "a": {"k": 1},
        "b": {"k": 1},
        "c": {"k": 1, "l": 2},
        "d": [1, 2],
        "e": [[1, 2], [1, 2]],
    }


def test_files(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1")
    assert read_yaml_file(path) == {"a": 1}
    for other in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(FileFormatError, match="cannot be read"):
            read_yaml_file(other)
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(FileFormatError, match="larger than"):
        read_yaml_file(path)
