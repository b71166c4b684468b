"""Commands that a shell carries out itself, and what programs print that a script asks for."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING

from hybridmap.shell.conditions import Status, Tester
from hybridmap.shell.syntax import MOST_SCRIPT_BYTES, line_of, written
from hybridmap.shell.values import Array, Missing, Text, Unknown, union, unknown
from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridmap.shell.syntax import Node

_SHELLS = ("bash", "sh", "zsh")
_FLAG = re.compile(r"-[a-z]*c\Z")
_ENDS = {"exit": "exit", "return": "return", "break": "break", "continue": "continue", "exec": ""}
_QUIET = ("set", "trap", "wait", "ulimit", "umask", "shopt", "cd", "pushd", "popd", "hash", "alias", "mkdir")
"""Commands whose words start nothing; what they do changes no variable."""


class Builtins(Tester):
    """Commands by name."""

    def __init__(
        self,
        source: str,
        variables: dict[str, Text],
        folder: Path | None,
        status_of: Callable[[tuple[str, ...]], bool | None],
    ) -> None:
        super().__init__(source, dict(variables))
        self.folder, self.status_of = folder, status_of
        self.script = ""
        self.commands: list[tuple[int, tuple[Text, ...], Missing]] = []
        self.unread: list[str] = []
        self.depends: Missing = ()
        self.printed: list[Text] | None = None

    @abstractmethod
    def read(self, text: str) -> Status:
        """Read a piece of script."""

    @abstractmethod
    def run(self, statements: list[Node]) -> Status:
        """Run statements."""

    @abstractmethod
    def call_function(self, name: str, arguments: list[Text]) -> Status:
        """Call a function of the script."""

    def call(self, node: Node) -> Status:
        """A command with its words, or assignments alone."""
        if not node.get("Args"):
            for assign in node.get("Assigns", ()):
                self.assign(assign)
            return True
        words = self.words(node["Args"])
        if not words:
            return True
        name, rest = words[0].value, words[1:]
        if name in self.state.functions:
            return self.call_function(name, rest)
        if name in ("[", "test"):
            return self.test_words(rest[:-1] if name == "[" else rest)
        own: Callable[[list[Text]], Status] | None = getattr(self, f"_do_{_OWN.get(name, '')}", None)
        if own is not None:
            return own(rest)
        if name in _ENDS and not (name == "exec" and rest):
            self.state.ended = _ENDS[name]
            return True
        return self._program(node, words)

    def _program(self, node: Node, words: list[Text]) -> Status:
        if words[0].value in ("exec", "command", "builtin", "nohup", "time"):
            words = words[1:] or words
        name = written(node, self.script)
        if words[0].value in _QUIET:
            return (f"the status of {name}",)
        self.commands.append((line_of(node), tuple(words), union(self.depends, self.state.doubt)))
        known = None if any(w.missing for w in words) else self.status_of(tuple(w.value for w in words))
        if self.printed is not None and known is not False:
            self.printed.append(unknown(f"$({name})", (f"$({name})",)))
        self._nested(words)
        return (f"the status of {name}",) if known is None else known

    def _nested(self, words: list[Text]) -> None:
        """A script that another shell is given as a word: ``bash -c TEXT``, also behind ``srun`` or ``docker``."""
        shells = [i for i, word in enumerate(words) if word.value.rsplit("/", 1)[-1] in _SHELLS]
        for i in shells[:1]:
            flag = next((j for j in range(i + 1, len(words) - 1) if _FLAG.match(words[j].value)), None)
            if flag is not None:
                kept = self.state
                self.state = kept.copy()
                self.state.arguments = tuple(words[flag + 3 :])
                self.read(words[flag + 1].value)
                self.state = kept

    def output(self, node: Node) -> Text:
        """What the commands of ``$( )`` print."""
        kept, outer = self.state, self.printed
        self.state, self.printed = kept.copy(), []
        num_commands = len(self.commands)
        status = self.run(node.get("Stmts", []))
        printed, self.state, self.printed = self.printed, kept, outer
        del self.commands[num_commands:]
        out = Text("".join(piece.value for piece in printed).rstrip("\n"), union(*(p.missing for p in printed)))
        if not isinstance(status, bool) and not out.missing and _branches(node):
            return unknown("$(...)", status)
        return unknown(written(node, self.script), (written(node, self.script),)) if out.missing else out

    def assign(self, node: Node) -> None:
        """``name=value``, ``name+=value``, ``name=(values)``, ``name[key]=value``."""
        name = node["Name"]["Value"]
        before = self.get(name)
        if "Array" in node:
            self.set(name, self._array(node, before if node.get("Append") else None))
            return
        value = self.text(node.get("Value"))
        if "Index" in node:
            if isinstance(before, Text) and before.missing:
                return
            array = before if isinstance(before, Array) else Array()
            try:
                self.set(name, array.with_item(self._key(node["Index"], array), value))
            except Unknown as error:
                self.set(name, unknown(name, error.missing))
        elif node.get("Append"):
            first = before.get("0") if isinstance(before, Array) else before
            value = (first or Text()) + value
            self.budget.spend(len(value.value))
            self.set(name, before.with_item("0", value) if isinstance(before, Array) else value)
        else:
            self.set(name, value)

    def _array(self, node: Node, before: Text | Array | None) -> Array | Text:
        if isinstance(before, Text) and before.missing:
            return before
        array = before if isinstance(before, Array) else Array((("0", before),) if isinstance(before, Text) else ())
        items = dict(array.items)
        key = array.next_key
        for element in node["Array"].get("Elems") or ():
            if element.get("Index"):
                items[self.text(element["Index"]).value] = self.text(element.get("Value"))
                continue
            for text in self.words([element["Value"]] if element.get("Value") else []):
                items[str(key)] = text
                key += 1
        return Array.of(items)

    def declare(self, node: Node) -> Status:
        """``export``, ``local``, ``declare`` and their like."""
        for argument in node.get("Args", ()):
            if "Name" in argument and not argument.get("Naked"):
                self.assign(argument)
            elif argument.get("Naked") and "Value" in argument:
                for word in self.words([argument["Value"]]):
                    name, sign, value = word.value.partition("=")
                    if sign and name.isidentifier():
                        self.set(name, Text(value, word.missing))
        return True

    def _do_true(self, words: list[Text]) -> Status:
        return True

    def _do_false(self, words: list[Text]) -> Status:
        return False

    def _do_echo(self, words: list[Text]) -> Status:
        if self.printed is not None:
            while words and words[0].value in ("-n", "-e", "-ne"):
                words = words[1:]
            line = Text(" ".join(w.value for w in words) + "\n", union(*(w.missing for w in words)))
            self.printed.append(line)
        return True

    def _do_printf(self, words: list[Text]) -> Status:
        values = [w.value for w in words]
        if values[:1] == ["-v"]:
            self.set(values[1], unknown(values[1], (f"$(printf {values[1]})",)))
        elif self.printed is not None and len(words) == 2 and values[0] in ("%s", "%d", "%s\\n", "%d\\n"):
            self.printed.append(words[1])
        elif self.printed is not None:
            self.printed.append(unknown("$(printf)", ("$(printf)",)))
        return True

    def _do_names(self, words: list[Text]) -> Status:
        """``read`` and ``mapfile``: variables from a stream."""
        for word in words:
            if word.value.isidentifier():
                self.set(word.value, unknown(word.value, (f"$(read {word.value})",)))
        return ("what the script reads",)

    def _do_unset(self, words: list[Text]) -> Status:
        for word in words:
            self.state.variables.pop(word.value, None)
        return True

    def _do_shift(self, words: list[Text]) -> Status:
        count = self._number_of(words[0]) if words and not words[0].missing else 1
        if count > len(self.state.arguments):
            return False
        self.state.arguments = self.state.arguments[count:]
        return True

    def _do_eval(self, words: list[Text]) -> Status:
        return self.read(" ".join(word.value for word in words))

    def _do_source(self, words: list[Text]) -> Status:
        """A file beside the script or below it; of others their name is kept, for messages."""
        name = words[0].value if words else ""
        if self.folder is not None and not (words and words[0].missing):
            path, root = (self.folder / name).resolve(), self.folder.resolve()
            if path.is_relative_to(root) and path.is_file() and path.stat().st_size <= MOST_SCRIPT_BYTES:
                try:
                    return self.read(path.read_text(encoding="utf-8"))
                except (OSError, UnicodeDecodeError) as error:
                    raise FileFormatError(f"{path}: cannot be read ({error})") from None
        self.unread.append(name)
        return True


def _branches(node: Node) -> bool:
    """Whether what a substitution prints depends on a status: it joins commands with ``&&`` or ``||``."""
    statements = node.get("Stmts", [])
    return len(statements) == 1 and statements[0].get("Cmd", {}).get("Op") in ("&&", "||")


_OWN = {
    ":": "true",
    "true": "true",
    "false": "false",
    "echo": "echo",
    "printf": "printf",
    "read": "names",
    "mapfile": "names",
    "readarray": "names",
    "unset": "unset",
    "shift": "shift",
    "eval": "eval",
    "source": "source",
    ".": "source",
}
