"""A command with its words: carried out here where a shell does so itself, kept where it is a program."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING

from hybridmap.shell.printing import Printer
from hybridmap.shell.syntax import MOST_SCRIPT_BYTES, line_of, written
from hybridmap.shell.values import Array, Missing, Text, union, unknown
from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridmap.shell.conditions import Status
    from hybridmap.shell.syntax import Node

_SHELLS = ("bash", "sh", "zsh")
_FLAG = re.compile(r"-[a-z]*c\Z")
_ENDS = {"exit": "exit", "return": "return", "break": "break", "continue": "continue", "exec": ""}
_QUIET = ("trap", "wait", "ulimit", "umask", "shopt", "pushd", "popd", "hash", "alias", "mkdir")
"""Commands whose words start nothing; what they do changes no variable."""


class Builtins(Printer):
    """Commands by name."""

    def __init__(
        self,
        source: str,
        variables: dict[str, Text | Array],
        folder: Path | None,
        status_of: Callable[[tuple[str, ...]], bool | None],
    ) -> None:
        super().__init__(source, dict(variables))
        self.folder, self.status_of = folder, status_of
        self.script = ""
        self.depth = 0
        self.commands: list[tuple[int, tuple[Text, ...], Missing, int | None]] = []
        self.unread: list[str] = []
        self.depends: Missing = ()
        self.line: Text | None = None
        self.separators = " \t"

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
        marks = [each for each in node.get("Assigns", ()) if each["Name"]["Value"] == "IFS"]
        self.separators = (self.text(marks[-1].get("Value")).value if marks else "") or " \t"
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
        self.commands.append((line_of(node), tuple(words), union(self.depends, self.state.doubt), self._end(node)))
        known = None if any(w.missing for w in words) else self.status_of(tuple(w.value for w in words))
        if self.printed is not None and known is not False:
            self.printed.append(unknown(f"$({name})", (f"$({name})",)))
        self._nested(words)
        return (f"the status of {name}",) if known is None else known

    def _end(self, node: Node) -> int | None:
        """The byte of the script behind the last word, before a ``"$@"`` that ends it; ``None`` inside another text."""
        words = node["Args"]
        last = words[-2] if len(words) > 1 and written(words[-1], self.script) in ('"$@"', "$@") else words[-1]
        return int(last["End"]["Offset"]) if self.depth == 1 else None

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

    def _do_true(self, words: list[Text]) -> Status:
        return True

    def _do_false(self, words: list[Text]) -> Status:
        return False

    def _do_names(self, words: list[Text]) -> Status:
        """``read``: variables from a stream, of which only a line in the script itself is known."""
        names = [word.value for word in words if word.value.isidentifier()]
        if self.line is None or self.line.missing or words[0].value == "-t":
            return self._not_read(names)
        marks = self.separators
        first = self.line.value.partition("\n")[0].strip(marks)
        fields = [Text(each) for each in re.split(f"[{re.escape(marks)}]+", first) if each]
        if any(word.value.startswith("-") and "a" in word.value for word in words):
            self.set(names[0], Array.of({str(i): field for i, field in enumerate(fields)}))
            return True
        for i, name in enumerate(names):
            rest = fields[i:] if i + 1 == len(names) else fields[i : i + 1]
            self.set(name, Text((marks[0]).join(field.value for field in rest)))
        return True

    def _not_read(self, names: list[str]) -> Status:
        for name in names:
            self.set(name, unknown(name, (f"$(read {name})",)))
        return ("what the script reads",)

    def _do_lines(self, words: list[Text]) -> Status:
        """``mapfile -t NAME``: the lines of a text in the script itself; those of a stream are not known."""
        name = words[-1].value if words and words[-1].value.isidentifier() else "MAPFILE"
        if self.line is None or self.line.missing or [word.value for word in words] != ["-t", name]:
            return self._not_read([name])
        self.set(name, Array.of({str(i): Text(each) for i, each in enumerate(self.line.value.splitlines())}))
        return True

    def _do_getopts(self, words: list[Text]) -> Status:
        """Options of a script that is given none; any others are known only where it runs."""
        self.set("OPTIND", Text("1"))
        if not self.state.arguments and len(words) == 2:
            return False
        for name in ("OPTARG", *(word.value for word in words[1:2])):
            self.set(name, unknown(name, (f"$(getopts {name})",)))
        return ("the script's own options",)

    def _do_cd(self, words: list[Text]) -> Status:
        """Where the script then is, if it says where from the root."""
        place = words[-1] if words else Text("~")
        absolute = place.value.startswith("/") and not place.missing
        self.set("PWD", place if absolute else unknown("PWD", place.missing or ("PWD",)))
        return True

    def _do_set(self, words: list[Text]) -> Status:
        """``set -- WORDS``: the script's own arguments."""
        if any(word.value == "--" for word in words):
            self.state.arguments = tuple(words[1 + next(i for i, word in enumerate(words) if word.value == "--") :])
        return True

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
    "mapfile": "lines",
    "readarray": "lines",
    "getopts": "getopts",
    "cd": "cd",
    "pwd": "pwd",
    "dirname": "dirname",
    "basename": "basename",
    "realpath": "path",
    "readlink": "path",
    "seq": "seq",
    "set": "set",
    "unset": "unset",
    "shift": "shift",
    "eval": "eval",
    "source": "source",
    ".": "source",
}
