"""Commands of a shell that print: lines, numbers, parts of paths. Only a substitution around one keeps what it says."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from hybridmap.shell.assignments import Assigner
from hybridmap.shell.values import Array, Text, Unknown, union, unknown

if TYPE_CHECKING:
    from hybridmap.shell.conditions import Status

_BLANKS = {"\\n": "\n", "\\t": "\t"}


class Printer(Assigner):
    """Commands that print."""

    def __init__(self, source: str, variables: dict[str, Text | Array]) -> None:
        super().__init__(source, variables)
        self.printed: list[Text] | None = None

    def _do_echo(self, words: list[Text]) -> Status:
        if self.printed is not None:
            while words and words[0].value in ("-n", "-e", "-ne"):
                words = words[1:]
            line = Text(" ".join(w.value for w in words) + "\n", union(*(w.missing for w in words)))
            self.printed.append(line)
        return True

    def _do_printf(self, words: list[Text]) -> Status:
        name = words[1].value if len(words) > 1 and words[0].value == "-v" else ""
        text = formatted(words[2:] if name else words)
        if name:
            self.set(name, text or unknown(name, (f"$(printf {name})",)))
        elif self.printed is not None:
            self.printed.append(text or unknown("$(printf)", ("$(printf)",)))
        return True

    def _do_pwd(self, words: list[Text]) -> Status:
        known = self.get("PWD")
        return self._prints(known if isinstance(known, Text) else unknown("$(pwd)", ("$(pwd)",)))

    def _do_dirname(self, words: list[Text]) -> Status:
        return self._prints(*(Text(posixpath.dirname(word.value) or ".", word.missing) for word in words[-1:]))

    def _do_basename(self, words: list[Text]) -> Status:
        name = Text(posixpath.basename(words[0].value), words[0].missing) if words else Text()
        suffix = words[1].value if len(words) > 1 else ""
        return self._prints(Text(name.value.removesuffix(suffix), name.missing))

    def _do_path(self, words: list[Text]) -> Status:
        """``realpath`` and ``readlink -f``."""
        return self._prints(*(Text(posixpath.normpath(word.value), word.missing) for word in words[-1:]))

    def _do_seq(self, words: list[Text]) -> Status:
        try:
            numbers = [self._number_of(word) for word in words if not word.value.startswith("-")]
        except Unknown as error:
            return self._prints(unknown("$(seq)", error.missing))
        first, step, last = {1: (1, 1), 2: (numbers[0], 1), 3: tuple(numbers[:2])}[len(numbers)] + (numbers[-1],)
        found = range(first, last + 1, step) if step > 0 else range(first, last - 1, step or -1)
        self.budget.spend(8 * len(found))
        return self._prints(*(Text(str(number)) for number in found))

    def _prints(self, *lines: Text) -> Status:
        if self.printed is not None:
            self.printed += [line + Text("\n") for line in lines]
        return True


def formatted(words: list[Text]) -> Text | None:
    """What ``printf`` makes of a format and its words; ``None`` for a format with more than strings and numbers."""
    if not words or words[0].missing:
        return None
    pieces = re.split(r"(%[sdi%])", words[0].value)
    if any("%" in piece for piece in pieces[::2]):
        return None
    takes = sum(piece in ("%s", "%d", "%i") for piece in pieces)
    rest = list(words[1:])
    out = Text()
    while True:
        for piece in pieces:
            known = {"%%": Text("%")}.get(piece) or Text(re.sub(r"\\[nt]", lambda m: _BLANKS[m[0]], piece))
            out += (rest.pop(0) if rest else Text()) if piece in ("%s", "%d", "%i") else known
        if not rest or not takes:
            return out
