"""Reading a script: its commands in the order in which bash would run them, their words expanded, nothing run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hybridmap.shell.builtins import Builtins
from hybridmap.shell.conditions import Status, negated
from hybridmap.shell.syntax import line_of, parse_shell
from hybridmap.shell.values import MOST_STEPS, Array, Missing, State, Text, Unknown, merged, union, unknown
from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hybridmap.shell.syntax import Node


def _nothing() -> None:
    """The way on which a command is not reached."""


class Shell(Builtins):
    """Statements, one after another."""

    def read(self, text: str) -> Status:
        """Read a script, or a piece of one that a command was given."""
        self.budget.enter()
        outer, self.script = self.script, text
        self.depth += 1
        try:
            return self.run(parse_shell(text, self.source))
        finally:
            self.script = outer
            self.depth -= 1
            self.budget.leave()

    def run(self, statements: list[Node]) -> Status:
        """Statements up to the end, or up to an exit; the status of the last."""
        status: Status = True
        for statement in statements:
            if self.state.ended:
                break
            self.budget.step()
            status = self._statement(statement)
        return status

    def _statement(self, statement: Node) -> Status:
        command = statement.get("Cmd")
        if command is None:  # a redirection alone
            return True
        self.budget.enter()
        redirections = statement.get("Redirs", ())
        given = [each.get("Hdoc") or each["Word"] for each in redirections if each["Op"] in ("<<<", "<<", "<<-")]
        self.line = self.text(given[-1]) if given else None
        try:
            apart = statement.get("Background") or command["Type"] == "Subshell"
            status = self._apart(lambda: self._command(command)) if apart else self._command(command)
        finally:
            self.budget.leave()
        return negated(status) if statement.get("Negated") else status

    def _apart(self, what: Callable[[], Status]) -> Status:
        """In a process of its own, whose assignments nobody sees."""
        kept = self.state
        self.state = kept.copy()
        status = what()
        self.state = kept
        return status

    def _command(self, node: Node) -> Status:
        kinds: dict[str, Callable[[Node], Status]] = {
            "CallExpr": self.call,
            "BinaryCmd": self._joined,
            "IfClause": self._if,
            "CaseClause": self._case,
            "ForClause": self._for,
            "WhileClause": self._while,
            "FuncDecl": self._define,
            "DeclClause": self.declare,
            "Subshell": lambda n: self.run(n["Stmts"]),
            "Block": lambda n: self.run(n["Stmts"]),
            "TestClause": lambda n: self.test_node(n["X"]),
            "ArithmCmd": lambda n: self._arithmetic_status([n["X"]]),
            "LetClause": lambda n: self._arithmetic_status(n["Exprs"]),
            "TimeClause": lambda n: self.run([n["Stmt"]] if n.get("Stmt") else []),
        }
        found = kinds.get(node["Type"])
        if found is None:
            raise self.fault(f"line {line_of(node)}: {node['Type']} is not understood here")
        return found(node)

    def _arithmetic_status(self, expressions: list[Node]) -> Status:
        try:
            return [self.number(node) for node in expressions][-1] != 0
        except Unknown as error:
            return error.missing

    def _joined(self, node: Node) -> Status:
        kind = node["Op"]
        if kind in ("|", "|&"):
            self._apart(lambda: self._statement(node["X"]))
            return self._apart(lambda: self._statement(node["Y"]))
        first = self._statement(node["X"])
        if isinstance(first, bool):
            return self._statement(node["Y"]) if first is (kind == "&&") and not self.state.ended else first
        self.either([lambda: self._statement(node["Y"]), _nothing], first)
        return first

    def either(self, ways: list[Callable[[], object]], missing: Missing) -> None:
        """Go every way of which only one is taken; a way that leaves the script is not the one."""
        before, outer = self.state, self.depends
        self.depends = union(outer, missing)
        states: list[State] = []
        for way in ways:
            self.state = before.copy()
            way()
            if self.state.ended != "exit":
                states.append(self.state)
        self.depends = outer
        self.state = merged(states, missing) if states else before
        if not states:
            self.state.ended = "exit"

    def _if(self, node: Node) -> Status:
        status: Status = self.run(node["Cond"]) if node.get("Cond") else True
        if self.state.ended:
            return True

        def otherwise() -> None:
            if node.get("Else"):
                self._if(node["Else"])

        if isinstance(status, bool):
            return self.run(node["Then"]) if status else self._if(node["Else"]) if node.get("Else") else True
        self.either([lambda: self.run(node["Then"]), otherwise], status)
        return status

    def _case(self, node: Node) -> Status:
        subject = self.text(node["Word"])
        open_ways: list[Callable[[], object]] = []
        missing: Missing = ()
        for item in node.get("Items", ()):
            patterns = [self.text(pattern) for pattern in item["Patterns"]]
            unsure = union(subject.missing, *(pattern.missing for pattern in patterns))
            catches_all = any(pattern.value == "*" for pattern in patterns)
            if not unsure and not any(fnmatchcase(subject.value, pattern.value) for pattern in patterns):
                continue
            if item["Op"] != ";;":
                raise self.fault(f"line {line_of(node)}: a case that falls through is not understood here")
            open_ways.append(lambda item=item: self.run(item.get("Stmts", [])))  # type: ignore[misc]
            missing = union(missing, unsure)
            if not unsure or catches_all:
                break
        else:
            open_ways.append(_nothing)
        if len(open_ways) == 1:
            open_ways[0]()
            return True
        self.either(open_ways, missing)
        return missing

    def _for(self, node: Node) -> Status:
        loop = node["Loop"]
        if node.get("Select"):
            raise self.fault(f"line {line_of(node)}: a select is not understood here")
        if loop["Type"] != "WordIter":
            return self._counted(loop, node["Do"])
        items = self.words(loop["Items"]) if "InPos" in loop else list(self.state.arguments)
        name = loop["Name"]["Value"]
        missing = union(*(item.missing for item in items))
        if missing:  # it may stand for any number of words
            self.set(name, unknown(name, missing))
            self._perhaps(node["Do"], missing)
            return True
        for item in items:
            self.budget.step()
            self.set(name, item)
            if self._body(node["Do"]):
                break
        return True

    def _counted(self, loop: Node, body: list[Node]) -> Status:
        try:
            if loop.get("Init"):
                self.number(loop["Init"])
            while not loop.get("Cond") or self.number(loop["Cond"]):
                self.budget.step()
                if self._body(body):
                    break
                if loop.get("Post"):
                    self.number(loop["Post"])
        except Unknown as error:
            self._perhaps(body, error.missing)
        return True

    def _while(self, node: Node) -> Status:
        for _ in range(MOST_STEPS):
            self.budget.step()
            status = self.run(node["Cond"])
            if not isinstance(status, bool):
                self._perhaps(node["Do"], status)
                return True
            if status is bool(node.get("Until")) or self._body(node["Do"]):
                break
        return True

    def _body(self, statements: list[Node]) -> bool:
        """One turn of a loop; whether it was the last."""
        doubt = self.state.doubt
        self.run(statements)
        if self.state.ended == "continue":
            self.state.ended = ""
        leaving = bool(self.state.ended)
        if self.state.ended == "break":
            self.state.ended = ""
            self.state.doubt = doubt
        return leaving

    def _perhaps(self, body: list[Node], missing: Missing) -> None:
        """A loop of nobody knows how many turns: what it assigns is unknown."""
        self.either([lambda: self._body(body), _nothing], missing)

    def _define(self, node: Node) -> Status:
        self.state.functions[node["Name"]["Value"]] = node["Body"]
        return True

    def call_function(self, name: str, arguments: list[Text]) -> Status:
        """A function of the script, with arguments and variables of its own."""
        outer, doubt, references = self.state.arguments, self.state.doubt, dict(self.references)
        self.state.arguments = tuple(arguments)
        self.hidden.append({})
        status = self._statement(self.state.functions[name])
        self.state.arguments, self.references = outer, references
        for local, before in self.hidden.pop().items():
            self.state.variables.pop(local, None)
            if before is not None:
                self.state.variables[local] = before
        if self.state.ended == "return":
            self.state.ended = ""
        self.state.doubt = doubt
        return status


@dataclass(frozen=True)
class Command:
    """A program that the script starts: its line, its words, and what decides whether it is started at all.

    ``end``: the byte of the script behind its words, before a last ``"$@"``; ``None`` for one inside another text.
    """

    line: int
    words: tuple[Text, ...]
    depends: Missing
    end: int | None = None


@dataclass(frozen=True)
class Script:
    """What reading gave: the programs in order, and files that the script reads but this could not."""

    commands: tuple[Command, ...]
    unread: tuple[str, ...]


def read_script(
    text: str,
    source: str,
    environment: Mapping[str, str],
    folder: Path | None = None,
    status_of: Callable[[tuple[str, ...]], bool | None] = lambda words: None,
) -> Script:
    """What a script would start.

    Parameters
    ----------
    text, source
        The script, and its name for messages.
    environment
        Variables that it finds set. No variable of this process is looked at.
    folder
        Where files lie that it may read with ``source``.
    status_of
        Whether a program, given by its words, is known to succeed or to fail.

    Raises
    ------
    FileFormatError
        It is no bash, or has what is not understood here; says what and where.
    """
    own = Text(os.path.abspath(source)) if folder is not None else unknown("$0", ("$0",))
    variables: dict[str, Text | Array] = {name: Text(value) for name, value in environment.items()}
    shell = Shell(source, {"BASH_SOURCE": Array((("0", own),)), **variables}, folder, status_of)
    try:
        shell.read(text)
    except RecursionError:
        raise FileFormatError(f"{source}: nested deeper than any launch script") from None
    return Script(tuple(Command(*each) for each in shell.commands), tuple(shell.unread))
