"""Words of a shell made text: quotes, variables with their defaults and cuts, arithmetic, arrays, splitting."""

from __future__ import annotations

import re
from abc import abstractmethod
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hybridmap.shell.arithmetic import Calculator
from hybridmap.shell.braces import brace_expanded
from hybridmap.shell.values import Array, Text, Unknown, has_gap, union, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.shell.syntax import Node

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}
_MANY = ("@", "*")
EMPTY = Text()
_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda s: s[:1].upper() + s[1:],
    ",": lambda s: s[:1].lower() + s[1:],
}


class Expander(Calculator):
    """Words and parameters."""

    @abstractmethod
    def output(self, node: Node) -> Text:
        """What the commands of a substitution print."""

    def text(self, word: Node | None) -> Text:
        """A word as one text, as an assignment takes it."""
        if word is None:
            return EMPTY
        out = EMPTY
        for part in word.get("Parts", ()):
            for i, field in enumerate(self._part(part, quoted=False)):
                out += (Text(" ") if i else EMPTY) + field
        self.budget.spend(len(out.value))
        return out

    def words(self, nodes: list[Node]) -> list[Text]:
        """Words as a command or an array gets them: what is not quoted splits at blanks, and may be none at all."""
        return [field for node in nodes for word in brace_expanded(node, self.budget) for field in self._split(word)]

    def _split(self, word: Node) -> list[Text]:
        """The fields of a word; ``None`` among its pieces is where one field ends."""
        pieces: list[Text | None] = []
        for part in word.get("Parts", ()):
            found = self._part(part, quoted=False)
            bare = part["Type"] in ("ParamExp", "CmdSubst", "ArithmExp")
            for i, piece in enumerate(found):
                pieces += [None] * (i > 0)
                pieces += _at_blanks(piece) if bare else [piece]
        fields = _fields(pieces)
        self.budget.spend(sum(len(field.value) + 1 for field in fields))
        return fields

    def _part(self, part: Node, quoted: bool) -> list[Text]:
        """The texts of one part of a word: one, or several of an array, or none of an empty one."""
        match part["Type"]:
            case "Lit":
                return [Text(_unescaped(part.get("Value", ""), '$`"\\\n' if quoted else ""))]
            case "SglQuoted":
                value = part.get("Value", "")
                return [Text(_ansi(value) if "Dollar" in part else value)]
            case "DblQuoted":
                return self._quoted(part.get("Parts", []))
            case "ParamExp":
                return self._parameter(part, quoted)
            case "CmdSubst":
                return [self.output(part)]
            case "ArithmExp":
                return [self._arithmetic(part["X"])]
            case "ExtGlob" | "BraceExp":
                raise self.fault("a word that matches files or makes several words of braces is not understood here")
        return [unknown("<(...)", ("a process substitution",))]

    def _quoted(self, parts: list[Node]) -> list[Text]:
        if not parts:
            return [EMPTY]
        pieces: list[Text | None] = []
        for part in parts:
            for i, piece in enumerate(self._part(part, quoted=True)):
                pieces += [None, piece] if i else [piece]
        return _fields(pieces)

    def _arithmetic(self, node: Node) -> Text:
        try:
            return Text(str(self.number(node)))
        except Unknown as error:
            return unknown("((...))", error.missing)

    def _parameter(self, node: Node, quoted: bool) -> list[Text]:
        try:
            return self._values_of(node, quoted)
        except Unknown as error:
            return [unknown(node["Param"]["Value"], error.missing)]

    def _values_of(self, node: Node, quoted: bool) -> list[Text]:
        name: str = node["Param"]["Value"]
        name = "BASH_SOURCE" if name == "0" else name
        index, kind = node.get("Index"), node.get("Exp", {}).get("Op", "")
        many = name if name in _MANY else self._all_of(index)
        if node.get("Excl"):
            return self._indirect(node, name, many)
        values = self._values(name, index, many)
        if node.get("Length"):
            return [self._length(name, values, many)]
        if many and kind in (":+", "+"):
            return self._split(node["Exp"]["Word"]) if values else []
        if many and (values or not kind):
            whole = {key: value for key, value in node.items() if key != "Slice"}
            found = [self._changed(whole, name, v) for v in self._sliced_list(node, values or [])]
            return [_joined(found)] if many == "*" and quoted else found
        return self._one(node, name, values[0] if values else None)

    def _all_of(self, index: Node | None) -> str:
        """``@`` or ``*`` where an index asks for all elements."""
        literal = _literal(index) if index and index["Type"] == "Word" else ""
        return literal if literal in _MANY else ""

    def _values(self, name: str, index: Node | None, many: str) -> list[Text] | None:
        """What a parameter stands for: texts, or ``None`` where nothing set it."""
        if name in _MANY:
            return list(self.state.arguments)
        if name.isdecimal():
            at = int(name)
            return [self.state.arguments[at - 1]] if 0 < at <= len(self.state.arguments) else None
        if name == "#":
            return [Text(str(len(self.state.arguments)))]
        value = self.get(name)
        if isinstance(value, Text) or value is None:
            return None if value is None else [value]
        if many:
            return [text for _, text in value.items]
        key = self._key(index, value) if index else "0"
        found = value.get(key)
        return None if found is None else [found]

    def _key(self, index: Node, array: Array | None) -> str:
        """The key of an element: a name where the array has names, else a number."""
        if index["Type"] == "Word":
            text = self.text(index)
            if array is not None and array.named:
                if text.missing:
                    raise Unknown(text.missing)
                return text.value
            if array is not None and any(key == text.value for key, _ in array.items):
                return text.value
            if array is not None and array.items and not all(key.isdecimal() for key, _ in array.items):
                return text.value
        at = self.number(index)
        return str(at if at >= 0 or array is None else array.next_key + at)

    def _indirect(self, node: Node, name: str, many: str) -> list[Text]:
        value = self.get(name)
        if many and isinstance(value, Array):
            return [Text(key) for key, _ in value.items]
        if not isinstance(value, Text) or value.missing:
            return [unknown(f"!{name}", value.missing if isinstance(value, Text) else (name,))]
        target = {k: v for k, v in node.items() if k not in ("Excl", "Param")} | {"Param": {"Value": value.value}}
        self.budget.enter()
        try:
            return self._parameter(target, quoted=False)
        finally:
            self.budget.leave()

    def _length(self, name: str, values: list[Text] | None, many: str) -> Text:
        if values is None:
            return unknown(f"#{name}", (name,))
        missing = union(*(value.missing for value in values))
        if missing:
            return unknown(f"#{name}", missing)
        return Text(str(len(values) if many else len(values[0].value)))

    def _sliced_list(self, node: Node, values: list[Text]) -> list[Text]:
        if "Slice" not in node:
            return values
        first, length = self._slice(node["Slice"])
        return values[first:] if length is None else values[first : first + length]

    def _slice(self, node: Node) -> tuple[int, int | None]:
        first = self.number(node["Offset"]) if node.get("Offset") else 0
        length = self.number(node["Length"]) if node.get("Length") else None
        if first < 0 or (length is not None and length < 0):
            raise self.fault("a part is cut out from the end, which is not understood here")
        return first, length

    def _one(self, node: Node, name: str, value: Text | None) -> list[Text]:
        """One parameter with its default or its alternative."""
        operation = node.get("Exp", {})
        kind, word = operation.get("Op", ""), operation.get("Word")
        empty = value is None or (kind.startswith(":") and value == EMPTY)
        if kind in (":-", "-", ":=", "=") and empty:
            default = self.text(word)
            # The variable's own name says better what to give than the command that its default comes from.
            default = Text(default.value, tuple(name if m.startswith("$(") else m for m in default.missing))
            if kind.endswith("="):
                self.set(name, default)
            return [default]
        if kind in (":+", "+"):
            return [EMPTY if empty else self.text(word)]
        if value is None:
            return [unknown(name, (name if name.isidentifier() else f"${name}",))]
        return [self._changed(node, name, value)]

    def _changed(self, node: Node, name: str, value: Text) -> Text:
        """A value cut, replaced or in another case."""
        operation, replace = node.get("Exp", {}), node.get("Repl")
        kind = operation.get("Op", "")
        if not (replace or "Slice" in node or kind[:1] in ("#", "%", "^", ",", "@")):
            return value
        pattern = self.text(operation.get("Word") or (replace or {}).get("Orig"))
        missing = union(value.missing, pattern.missing)
        if missing:
            return unknown(name, missing)
        if replace:
            new = self.text(replace.get("With"))
            return Text(self._replaced(value.value, pattern.value, new.value, bool(replace.get("All"))), new.missing)
        if "Slice" in node:
            first, length = self._slice(node["Slice"])
            return Text(value.value[first:] if length is None else value.value[first : first + length])
        return Text(self._cut(kind, value.value, pattern.value, name))

    def _replaced(self, value: str, pattern: str, new: str, everywhere: bool) -> str:
        if any(mark in pattern for mark in "*?[") or pattern[:1] in ("#", "%"):
            raise self.fault(f"a replacement by the pattern '{pattern[:60]}' is not understood here")
        if not pattern:
            return value
        out = value.replace(pattern, new, -1 if everywhere else 1)
        self.budget.spend(len(out))
        return out

    def _cut(self, kind: str, value: str, pattern: str, name: str) -> str:
        if kind in ("#", "##", "%", "%%"):
            self.budget.spend(len(value) ** 2 // 64 + 1)
            front = kind[0] == "#"
            pieces = [(value[:i], value[i:]) for i in range(len(value) + 1)]
            rests = (
                [b for a, b in pieces if fnmatchcase(a, pattern)]
                if front
                else [a for a, b in pieces if fnmatchcase(b, pattern)]
            )
            pick = min if len(kind) == 2 else max
            return pick(rests, key=len) if rests else value
        if kind not in _CASES or pattern:
            raise self.fault(f"${{{name}{kind}...}} is not understood here")
        return _CASES[kind](value)


def _literal(word: Node) -> str:
    parts = word.get("Parts", ())
    return parts[0]["Value"] if len(parts) == 1 and parts[0]["Type"] == "Lit" else ""


def _at_blanks(text: Text) -> list[Text | None]:
    """A text that is not quoted, split at blanks; ``None`` where it splits."""
    value = text.value
    words = value.split()
    marked = [Text(word, text.missing if has_gap(word) else ()) for word in words]
    pieces: list[Text | None] = [None] if value[:1].isspace() else []
    for i, word in enumerate(marked):
        pieces += [None, word] if i else [word]
    return [*pieces, None] if words and value[-1:].isspace() else pieces


def _fields(pieces: list[Text | None]) -> list[Text]:
    """Pieces that follow one another joined; a ``None`` ends a field."""
    fields: list[Text] = []
    out: Text | None = None
    for piece in pieces:
        if piece is not None:
            out = piece if out is None else out + piece
        elif out is not None:
            fields.append(out)
            out = None
    return fields if out is None else [*fields, out]


def _joined(values: list[Text]) -> Text:
    return Text(" ".join(v.value for v in values), union(*(v.missing for v in values)))


def _unescaped(value: str, only: str) -> str:
    """A literal without its backslashes; inside double quotes they escape ``only`` some characters."""
    if "\\" not in value:
        return value
    return re.sub(r"\\(.|\n)", lambda m: "" if m[1] == "\n" else m[1] if not only or m[1] in only else m[0], value)


def _ansi(value: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), value)
