"""What gives a variable its value in a shell: assignments, and ``declare`` and its like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.shell.conditions import Status, Tester
from hybridmap.shell.syntax import line_of
from hybridmap.shell.values import Array, Text, Unknown, unknown

if TYPE_CHECKING:
    from hybridmap.shell.syntax import Node


class Assigner(Tester):
    """Assignments."""

    def __init__(self, source: str, variables: dict[str, Text | Array]) -> None:
        super().__init__(source, variables)
        self.hidden: list[dict[str, Text | Array | None]] = []

    def assign(self, node: Node) -> None:
        """``name=value``, ``name+=value``, ``name=(values)``, ``name[key]=value``."""
        name = node["Name"]["Value"]
        before = self.get(name)
        if "Array" in node:
            self.set(name, self._array(node, before if node.get("Append") else None))
            return
        value = self.text(node.get("Value"))
        if name in self.state.integers:
            value = self._as_number(name, value)
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
            joint = Text("+") if name in self.state.integers and first else Text()
            value = (first or Text()) + joint + value
            value = self._as_number(name, value) if joint.value else value
            self.budget.spend(len(value.value))
            self.set(name, before.with_item("0", value) if isinstance(before, Array) else value)
        else:
            self.set(name, value)

    def _as_number(self, name: str, text: Text) -> Text:
        """What a variable that was declared to be a number takes."""
        try:
            return Text(str(self._number_of(text)))
        except Unknown as error:
            return unknown(name, error.missing)

    def _array(self, node: Node, before: Text | Array | None, named: bool = False) -> Array | Text:
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
        return Array.of(items, named or array.named)

    def declare(self, node: Node) -> Status:
        """``export``, ``local``, ``declare`` and their like."""
        arguments = node.get("Args", ())
        flags = "".join(self.text(each["Value"]).value for each in arguments if each.get("Naked") and each.get("Value"))
        own = node["Variant"]["Value"] in ("local", "declare", "typeset") and "g" not in flags
        for argument in arguments:
            name = argument.get("Name", {}).get("Value", "")
            if name and "n" in flags and not argument.get("Naked"):
                target = self.text(argument.get("Value"))
                if target.missing:
                    raise self.fault(
                        f"line {line_of(node)}: which variable {name} stands for depends on {target.missing[0]}"
                    )
                self.references[name] = self.references.get(target.value, target.value)
                continue
            if name and own and self.hidden:
                self._hide(name, keeps_value=not argument.get("Naked"))
            if name and "A" in flags and not isinstance(self.get(name), Array):
                self.set(name, Array(named=True))
            if name and "i" in flags:
                self.state.integers |= {name}
            if "Name" in argument and not argument.get("Naked"):
                self.assign(argument)
            elif argument.get("Naked") and "Value" in argument:
                for word in self.words([argument["Value"]]):
                    name, sign, value = word.value.partition("=")
                    if sign and name.isidentifier():
                        self.set(name, Text(value, word.missing))
        return True

    def _hide(self, name: str, keeps_value: bool) -> None:
        """A variable of the function that runs now; that of the same name comes back when it ends."""
        if name not in self.hidden[-1]:
            self.references.pop(name, None)
            self.hidden[-1][name] = self.state.variables.get(name)
            if not keeps_value:
                self.state.variables.pop(name, None)
