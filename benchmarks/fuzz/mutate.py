"""Changed inputs: bytes of a file, or values of the document that it holds. All by one ``random.Random``."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.fuzz.values import ALIASES, MERGES, PIECES, VALUES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

MOST_BYTES = 200_000
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def changed_bytes(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One of ``seeds`` after one to six changes that know nothing of its format."""
    data = random.choice(seeds)
    for _ in range(1 + min(int(random.expovariate(0.7)), 5)):
        data = random.choice(_CHANGES)(random, data, seeds)[:MOST_BYTES]
    return data


def changed_document(random: Random, document: Any) -> Any:
    """A copy of a nested document after one to four changes of its values, keys and shape."""
    document = copy.deepcopy(document)
    for _ in range(1 + min(int(random.expovariate(0.8)), 3)):
        places = list(_places(document))
        if not places:
            return random.choice(VALUES)
        holder, key = random.choice(places)
        _change(random, holder, key, places)
    return document


def grown_script(random: Random, seeds: Sequence[bytes]) -> bytes:
    """A changed script; one in eight first says much in few words: doublings, loops, references in circles."""
    changed = changed_bytes(random, seeds)
    if random.random() >= 1 / 8:
        return changed
    first, rest = random.choice(seeds).split(b"\n", 1)
    times = random.choice((5, 20, 40))
    bomb = random.choice(
        (
            b"A=aaaaaaaaaaaaaaaa\n" + b"A=$A$A\n" * times,
            b"A=(a a a a)\n" + b'A=("${A[@]}" "${A[@]}")\n' * times,
            b"A=$B\nB=$A\n" * times,
            b"n=1\n" + b"n=$((n * n + 9))\n" * times,
            b"A=" + b"${B:-" * times + b"x" + b"}" * times + b"\n",
            b"f() { f; f; }\nf\n",
            b"source $0\n" * times,
        )
    )
    return first + b"\n" + bomb + rest.replace(b"$NNODES", random.choice((b"$NNODES", b"$A", b"$n")))


def as_json(document: Any) -> bytes:
    """JSON as a careless program writes it: NaN, Infinity and every kind of key."""
    return json.dumps(_jsonable(document), default=str).encode("utf-8", "surrogatepass")


def as_yaml(document: Any) -> bytes:
    """YAML of any document."""
    return yaml.dump(document, Dumper=yaml.SafeDumper, sort_keys=False, width=200).encode("utf-8", "surrogatepass")


def _jsonable(document: Any) -> Any:
    if isinstance(document, dict):
        return {str(key): _jsonable(value) for key, value in document.items()}
    return [_jsonable(value) for value in document] if isinstance(document, list) else document


def _places(document: Any) -> Any:
    """Every place in a document as ``(holder, key)``."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items) if isinstance(document, dict | list) else ():
        yield document, key
        yield from _places(value)


def _change(random: Random, holder: Any, key: Any, places: Sequence[tuple[Any, Any]]) -> None:
    other_holder, other_key = random.choice(places)
    what = random.random()
    try:
        if what < 0.5:
            holder[key] = random.choice(VALUES)
        elif what < 0.65:
            del holder[key]
        elif what < 0.75:
            holder[key] = copy.deepcopy(other_holder[other_key])
        elif what < 0.83:
            holder[key] = _nudged(random, holder[key])
        elif what < 0.9 and isinstance(holder, dict):
            holder[random.choice([*map(str, VALUES[:40]), str(other_key), f"{key}s"])] = holder.pop(key)
        elif what < 0.95 and isinstance(holder, list):
            holder.insert(0, copy.deepcopy(holder[key]))
        else:
            holder[key] = [holder[key]] if random.random() < 0.5 else {"a": holder[key]}
    except (KeyError, IndexError, TypeError):  # an earlier change took the place away
        pass


def _nudged(random: Random, value: Any) -> Any:
    """A number a little or much off, a text cut or doubled."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return random.choice(VALUES)
    if isinstance(value, str):
        return random.choice((value[:-1], value * 2, value.upper(), f" {value} "))
    try:
        return random.choice((value + 1, value - 1, value * 2, -value, value * 10**6, value // 2, float(value)))
    except OverflowError:
        return value


def _cut(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + data[start + random.choice((1, 1, 2, 8, 64, 10**6)) :]


def _put(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + random.choice(PIECES) + data[start:]


def _flip(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    if not data:
        return bytes([random.randrange(256)])
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _double(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """A line, or any piece, twice: keys that are given twice."""
    lines = data.splitlines(keepends=True)
    if lines and random.random() < 0.6:
        place = random.randrange(len(lines))
        return b"".join([*lines[: place + 1], *lines[place:]])
    start = random.randrange(len(data) + 1)
    end = min(start + random.choice((1, 10, 100)), len(data))
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


def _renumber(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    place = random.choice(found)
    return data[: place.start()] + repr(random.choice(VALUES[:30])).encode() + data[place.end() :]


def _splice(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = random.choice(seeds)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _bomb(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    return random.choice((ALIASES, MERGES)) + random.choice((b"", data))


_CHANGES = (*[_cut, _put, _flip, _double, _renumber] * 4, _splice, _splice, _bomb)
