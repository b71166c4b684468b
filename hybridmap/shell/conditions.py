"""Conditions of a shell: ``[ ]``, ``test``, ``[[ ]]``; true, false, or unknown for want of a name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hybridmap.shell.expansion import Expander
from hybridmap.shell.values import Missing, Text, Unknown, union

if TYPE_CHECKING:
    from hybridmap.shell.syntax import Node

Status = bool | Missing
"""Whether a command succeeds; the names of what would have to be known where that is open."""
_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def negated(status: Status) -> Status:
    """The other way round; what is open stays open."""
    return not status if isinstance(status, bool) else status


class Tester(Expander):
    """Tests."""

    def test_words(self, words: list[Text]) -> Status:
        """``[ words ]``."""
        values = [word.value for word in words]
        for joint, ends in (("-o", True), ("-a", False)):
            if joint in values[1:-1]:
                at = values.index(joint, 1)
                return _both(self.test_words(words[:at]), self.test_words(words[at + 1 :]), ends)
        if values[:1] == ["!"]:
            return negated(self.test_words(words[1:]))
        match len(words):
            case 0:
                return False
            case 1:
                return self._one_sided("-n", words[0])
            case 2:
                return self._one_sided(values[0], words[1])
            case 3:
                return self._compare(values[1], words[0], words[2], pattern=False)
        return ("a test of more than three words",)

    def test_node(self, node: Node) -> Status:
        """``[[ node ]]``."""
        match node["Type"]:
            case "ParenTest":
                return self.test_node(node["X"])
            case "UnaryTest" if node["Op"] == "!":
                return negated(self.test_node(node["X"]))
            case "UnaryTest":
                return self._one_sided(node["Op"], self.text(node["X"]))
            case "BinaryTest" if node["Op"] in ("&&", "||"):
                ends = node["Op"] == "||"
                first = self.test_node(node["X"])
                return first if first is ends else _both(first, self.test_node(node["Y"]), ends)
            case "BinaryTest":
                return self._compare(node["Op"], self.text(node["X"]), self.text(node["Y"]), pattern=True)
        return self._one_sided("-n", self.text(node))

    def _one_sided(self, kind: str, word: Text) -> Status:
        if kind in ("-n", "-z"):
            if word.missing and not _literal_part(word):
                return word.missing
            return bool(word.value) is (kind == "-n")
        if kind == "-v" and not word.missing:
            return True if self.get(word.value) is not None else (word.value,)
        return (f"[ {kind} {word.value[:60]} ]",)

    def _compare(self, kind: str, a: Text, b: Text, pattern: bool) -> Status:
        missing = union(a.missing, b.missing)
        if kind in _NUMBERS:
            try:
                return bool(self._combine(_NUMBERS[kind], self._number_of(a), self._number_of(b)))
            except Unknown as error:
                return error.missing
        if kind not in ("=", "==", "!="):
            return (f"[ {a.value[:30]} {kind} {b.value[:30]} ]",)
        if missing:
            return missing
        same = fnmatchcase(a.value, b.value) if pattern else a.value == b.value
        return same is (kind != "!=")


def _literal_part(word: Text) -> bool:
    """Whether a text that is not wholly known is at least not empty."""
    value = word.value
    return not (value.startswith(("${", "$(")) and value.endswith(("}", ")")) and value.count("$") == 1)


def _both(a: Status, b: Status, ends: bool) -> Status:
    """``a or b`` if either being true ``ends`` it, else ``a and b``."""
    if a is ends or b is ends:
        return ends
    names = [status for status in (a, b) if not isinstance(status, bool)]
    return union(*names) if names else not ends
