"""Values that parsers trip over, as Python objects, as pieces of text and as bytes."""

from __future__ import annotations

import datetime
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 8, 64, 1024, 65_537, 10**6, 10**7 + 1, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    10**9, 10**18, 10**40, 10**400, -0.0, 0.5, 1e-308, 5e-324, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip

TEXTS = (
    "", " ", "0", "1", "null", "actor", "a100-80gb-sxm", "h100-80gb-sxm", "llama-3.2-1b", "x" * 5000, "\x00", "a\x00b",
    "\ufeff", "\ud800", "\U0001f600", "a\nb", "<script>alert(1)</script>", "../../etc/passwd", "/etc/passwd", "/", ".",
    "..", "/dev/zero", "/proc/self/mem", "~", "${HOME}", "a/" * 200, "x" * 300 + ".json", "%s%n", "1e999", "NaN",
    "-" * 50, "os:system", "json:loads", ":", "a:b:c", "loop", "fifo", "folder",
)  # fmt: skip
"""Texts; ``loop``, ``fifo`` and ``folder`` are a link to itself, a pipe and a folder beside the fuzzed file."""

OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], {"": None}, {"a": 1}, {1: 2}, [1, 2, 3], ["actor", "critic"],
    datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), b"bytes", {1, 2},
)  # fmt: skip

VALUES: tuple[Any, ...] = (*NUMBERS, *TEXTS, *OTHERS)

PIECES = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\n", b"\r\n", b"\t", b"---\n", b"...\n", b"&a ",
    b"*a", b"<<: *a",
    b"!!python/object/apply:os.system [echo]", b"!!binary ", b"!!set ", b"!!int x", b"!!float x", b"!!timestamp x",
    b"? ", b"- ", b": ", b"{", b"}", b"[", b"]", b"'", b'"', b"#", b",", b"|", b">", b"%YAML 9.9\n", b"0x", b"0b",
    b"1_0",
    b"1:30", b"2024-13-45", b"1e999", b"-0.0", b".nan", b".inf", b"NaN", b"Infinity", b"-Infinity", b"null", b"~",
    b"9" * 5000, b"0." + b"9" * 400, b"[" * 600, b'{"a":' * 600, b"- " * 300, b"\\u0000", b"\\ud800", b"$", b"`",
    b"=", b"\\\n",
)  # fmt: skip
"""Bytes that mean something to YAML, JSON, CSV or a shell."""

ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n".encode()
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine levels of nine references each: half a kilobyte that stands for 400 million values."""

MERGES = b"a: &a {k: 1}\n" + b"".join(
    f"{name}: &{name} {{<<: [{','.join(['*' + before] * 9)}]}}\n".encode()
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""The same by merge keys, which a loader copies."""
