"""Arithmetic of a shell, ``$(( ))``: 64-bit whole numbers, variables by name, assignments."""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from hybridmap.shell.syntax import parse_shell
from hybridmap.shell.values import Array, Budget, State, Text, Unknown, unknown
from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridmap.shell.syntax import Node

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_NUMBER = re.compile(r"\s*([+-]?)(?:(0[xX][0-9a-fA-F]+)|(\d+)#(\w+)|(\d+))\s*\Z", re.ASCII)
MOST = 2**63

_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
}


class Machine(ABC):
    """What every part of reading a script shares: its state, its budget, and how a word becomes text."""

    def __init__(self, source: str, variables: dict[str, Text | Array], arguments: tuple[Text, ...] = ()) -> None:
        self.source = source
        self.state = State(dict(variables), arguments=arguments)
        self.budget = Budget(source)
        self.references: dict[str, str] = {}

    @abstractmethod
    def text(self, word: Node | None) -> Text:
        """A word as one text, without splitting."""

    def get(self, name: str) -> Text | Array | None:
        """What a variable holds; ``None`` where nothing set it."""
        return self.state.variables.get(self.references.get(name, name))

    def set(self, name: str, value: Text | Array) -> None:
        """Assign; a value that may not be assigned here is unknown."""
        name = self.references.get(name, name)
        if self.state.doubt and value != self.state.variables.get(name):
            value = unknown(name, self.state.doubt)
        self.state.variables[name] = value

    def fault(self, message: str) -> FileFormatError:
        """An error that names the script."""
        return FileFormatError(f"{self.source}: {message}")


class Calculator(Machine):
    """Arithmetic expressions."""

    def number(self, node: Node) -> int:
        """The value of an expression; ``Unknown`` if a part of it is not known here."""
        self.budget.step()
        match node["Type"]:
            case "ParenArithm":
                return self.number(node["X"])
            case "UnaryArithm":
                return self._unary(node)
            case "BinaryArithm":
                return self._binary(node)
        return self._number_of(self.text(node))

    def _number_of(self, text: Text) -> int:
        if text.missing:
            raise Unknown(text.missing)
        if not text.value.strip():
            return 0
        if found := _NUMBER.match(text.value):
            sign = -1 if found[1] else 1
            return sign * self._bounded(_read(found, self))
        return self._of_expression(text.value.strip())

    def _of_expression(self, expression: str) -> int:
        """The value of a variable's name, or of a variable that holds an expression."""
        self.budget.enter()
        try:
            if _NAME.match(expression):
                value = self.get(expression)
                if value is None:
                    raise Unknown((expression,))
                return self._number_of(value if isinstance(value, Text) else value.get("0") or Text("0"))
            self.budget.spend(len(expression))
            (statement, *more) = parse_shell(f"(({expression}))", self.source) or [{}]
            command = statement.get("Cmd", {})
            if more or command.get("Type") != "ArithmCmd":
                raise self.fault(f"'{expression[:60]}' is no number")
            return self.number(command["X"])
        finally:
            self.budget.leave()

    def _unary(self, node: Node) -> int:
        value = self.number(node["X"])
        match node["Op"]:
            case "-":
                return self._bounded(-value)
            case "+":
                return value
            case "!":
                return int(value == 0)
            case "~":
                return ~value
        changed = value + (1 if node["Op"] == "++" else -1)
        self.set(self._target(node["X"]), Text(str(changed)))
        return value if node.get("Post") else changed

    def _binary(self, node: Node) -> int:
        kind: str = node["Op"]
        if kind in ("&&", "||"):
            decided = bool(self.number(node["X"])) is (kind == "||")
            return int(kind == "||") if decided else int(self.number(node["Y"]) != 0)
        if kind == "?":
            branch = node["Y"]["X"] if self.number(node["X"]) else node["Y"]["Y"]
            return self.number(branch)
        if kind.endswith("=") and kind not in ("==", "!=", "<=", ">="):
            return self._assign(node, kind[:-1])
        first = self.number(node["X"])
        return self._combine(kind, first, self.number(node["Y"]))

    def _assign(self, node: Node, kind: str) -> int:
        value = self.number(node["Y"])
        name = self._target(node["X"])
        if kind:
            value = self._combine(kind, self.number(node["X"]), value)
        self.set(name, Text(str(value)))
        return value

    def _target(self, node: Node) -> str:
        text = self.text(node) if node["Type"] == "Word" else Text()
        if not _NAME.match(text.value):
            raise self.fault(f"arithmetic assigns to '{text.value[:60]}', which is no variable's name")
        return text.value

    def _combine(self, kind: str, a: int, b: int) -> int:
        if kind == ",":
            return b
        if kind in ("/", "%"):
            if b == 0:
                raise self.fault("arithmetic divides by zero")
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # towards zero, as in C
            return quotient if kind == "/" else a - b * quotient
        if kind in ("<<", ">>", "**"):
            if not 0 <= b < 64 or (kind == "**" and abs(a) > 1 and b * abs(a).bit_length() > 128):
                raise self.fault(f"arithmetic leaves 64 bits: {a} {kind} {b}")
            return self._bounded(a << b if kind == "<<" else a >> b if kind == ">>" else a**b)
        if kind not in _BINARY:
            raise self.fault(f"arithmetic has '{kind}', which is not understood here")
        return self._bounded(_BINARY[kind](a, b))

    def _bounded(self, value: int) -> int:
        if not -MOST <= value < MOST:
            raise self.fault("arithmetic leaves 64 bits")
        return value


def _read(found: re.Match[str], machine: Machine) -> int:
    """A number as C writes it, or with its base before ``#``."""
    _, hexadecimal, base, digits, plain = found.groups()
    try:
        if hexadecimal:
            return int(hexadecimal, 16)
        if base:
            return int(digits, int(base))
        return int(plain, 8 if plain.startswith("0") else 10)
    except ValueError:
        raise machine.fault(f"'{found[0].strip()[:60]}' is no number") from None
