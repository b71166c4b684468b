"""What variables hold while a script is read: text, of which some may be known only where the script runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from profiles.errors import FileFormatError

MOST_TEXT = 1 << 20
"""Characters that all expansions of a script come to at most; the longest launch scripts stay below a hundredth."""
MOST_STEPS = 20_000
MOST_DEPTH = 60

Missing = tuple[str, ...]
"""Names of what only the machine that runs the script knows: variables of its environment, outputs of commands."""


@dataclass(frozen=True)
class Text:
    """A string. With ``missing`` names it is not wholly known; ``value`` shows ``${NAME}`` or ``$(...)`` for them."""

    value: str = ""
    missing: Missing = ()

    def __add__(self, other: Text) -> Text:
        return Text(self.value + other.value, union(self.missing, other.missing))


@dataclass(frozen=True)
class Array:
    """An array by key, ``"0"``, ``"1"`` and so on unless it was declared with names."""

    items: tuple[tuple[str, Text], ...] = ()
    named: bool = False

    def get(self, key: str) -> Text | None:
        """The element of a key; ``None`` if there is none."""
        return dict(self.items).get(key)

    def with_item(self, key: str, text: Text) -> Array:
        """The same with one element set."""
        return Array.of({**dict(self.items), key: text}, self.named)

    @staticmethod
    def of(items: dict[str, Text], named: bool = False) -> Array:
        """Elements by key; numbers come in order."""
        numbered = not named and all(key.isdecimal() for key in items)
        ordered = sorted(items.items(), key=lambda item: int(item[0])) if numbered else items.items()
        return Array(tuple(ordered), named)

    @property
    def next_key(self) -> int:
        return max((int(key) + 1 for key, _ in self.items if key.isdecimal()), default=0)


def union(*names: Missing) -> Missing:
    """Names in the order in which they first came."""
    return tuple(dict.fromkeys(name for some in names for name in some))


def unknown(name: str, missing: Missing) -> Text:
    """The text of something that is not known."""
    return Text(f"${{{name}}}" if name.isidentifier() or name.isdecimal() else "$(...)", missing)


def has_gap(value: str) -> bool:
    """Whether a text, or a piece of it, shows something that is not known."""
    return "${" in value or "$(" in value


class Unknown(Exception):
    """Raised inside an expression that needs what only the running machine knows."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(*missing)
        self.missing = missing


@dataclass
class State:
    """Variables and functions at one point of a script.

    ``doubt`` names what must be known to say whether this point is reached at all: what is assigned here is unknown.
    ``ended``: ``exit``, ``return``, ``break`` or ``continue`` was met, and nothing more runs up to its end.
    ``integers``: variables that were declared to be numbers.
    """

    variables: dict[str, Text | Array] = field(default_factory=dict)
    functions: dict[str, dict[str, object]] = field(default_factory=dict)
    arguments: tuple[Text, ...] = ()
    doubt: Missing = ()
    ended: str = ""
    integers: frozenset[str] = frozenset()

    def copy(self) -> State:
        """A state that changes apart from this one."""
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))


def merged(states: list[State], missing: Missing) -> State:
    """The state after one of several ways: what they do not agree on is unknown."""
    first = states[0]
    out = first.copy()
    out.ended = first.ended if all(s.ended == first.ended for s in states) else ""
    out.doubt = union(*(s.doubt for s in states), missing if any(s.ended != out.ended for s in states) else ())
    for name in dict.fromkeys(name for state in states for name in state.variables):
        if any(state.variables.get(name) != first.variables.get(name) for state in states):
            out.variables[name] = unknown(name, missing)
    for state in states:
        out.functions |= state.functions
    return out


@dataclass
class Budget:
    """How much reading one script may take, so that no script takes more memory or time than a script deserves."""

    source: str
    text: int = MOST_TEXT
    steps: int = MOST_STEPS
    depth: int = 0

    def spend(self, num_characters: int) -> None:
        """Count expanded text; ``FileFormatError`` when it is too much."""
        self.text -= num_characters
        if self.text < 0:
            raise FileFormatError(
                f"{self.source}: its variables expand to more than {MOST_TEXT:,} characters, which no launch script's "
                "do; look for a variable that grows with each assignment"
            )

    def step(self) -> None:
        """Count a command; ``FileFormatError`` when a loop does not end."""
        self.steps -= 1
        if self.steps < 0:
            raise FileFormatError(
                f"{self.source}: runs more than {MOST_STEPS:,} commands; is there a loop without end?"
            )

    def enter(self) -> None:
        """Go one function, file or nested script deeper; ``FileFormatError`` when that never ends."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise FileFormatError(
                f"{self.source}: functions, variables or files call each other more than {MOST_DEPTH} deep; "
                "is there a cycle?"
            )

    def leave(self) -> None:
        """Come back from ``enter``."""
        self.depth -= 1
