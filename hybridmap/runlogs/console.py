"""What systems print: verl's ``step:3 - a:1 - b:2``, NeMo-RL's list of times, slime's ``perf 3: {...}`` and OpenRLHF's.

Consoles of many processes are one stream: lines come with a prefix of Ray and colours, may be cut, and may have another
process's line inside. A record that cannot be read to its end is counted, and what of it can be read is kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hybridmap.runlogs.events import Event, wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_LINE = 1 << 20
"""Characters of a line that are looked at."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]| \[repeated \d+x across cluster\].*")
"""Colours and cursor movements, and what Ray puts after a line that several workers printed."""
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf"
_WRAPPED = rf"(?:np\.\w+\(|tensor\()?({_NUMBER})(?:, device='[\w:]+')?\)?"

_WORDS = ("step:", "perf ", "Global step ", "•", "= Step", " - timing_s/")
"""A line without one of them is no part of a record, as most of a console's are not."""

_MODEL = re.compile(r"'path': '([^']+)'")
"""Of the configuration that verl prints, key by key in order of the alphabet: the first is the actor's."""

_VERL = re.compile(r"(?<![A-Za-z_/])step:(\d{1,9}) - ")
_VERL_PAIR = re.compile(rf"([\w@.-]+(?:/[\w@.-]+)+):{_WRAPPED}$")
"""No text can be read in two ways: a cut line of 600 characters once took hours."""
_REST_OF_VERL = re.compile(r" - timing_s/[\w/]+:")
_SLIME = re.compile(r"(?<![\w/])perf (\d{1,9}): \{")
_PAIR = re.compile(rf"'([\w/.-]+)': {_WRAPPED}(?=[,}}])")
_OPENRLHF = re.compile(r"(?<![\w/])Global step (\d{1,9}): \{")
_NEMO_STEP = re.compile(r"=+ Step (\d{1,9})/")
_NEMO_TIME = re.compile(rf"• ([\w/]+): ({_NUMBER})s \(")
_NEMO_TOTAL = re.compile(rf"• Total step time: ({_NUMBER})s")
_NEMO_LENGTH = re.compile(rf"• Mean Generation Length: ({_NUMBER})")


class Console:
    """Reads lines one by one; ``damaged`` counts the records that were cut, ``model`` is the actor's."""

    def __init__(self) -> None:
        self.damaged, self.model = 0, ""
        self._nemo_step: int | None = None

    def events(self, lines: Iterable[str]) -> Iterator[Event]:
        """The metrics that are known, in the order of the lines."""
        for raw in (part for line in lines for part in line.split("\r")):  # as progress bars end theirs
            if not self.model and "'path': '" in raw and (named := _MODEL.search(raw[:MOST_LINE])) is not None:
                self.model = named[1]
            if not any(word in raw for word in _WORDS):
                continue
            line = _CONTROL.sub("", raw[:MOST_LINE]).rstrip()
            if _VERL.search(line) is not None:
                for step, text in _records(_VERL, line):
                    yield from self._verl(step, text)
            elif _SLIME.search(line) is not None:
                for step, text in _records(_SLIME, line):
                    yield from self._mapping(step, text)
            elif _OPENRLHF.search(line) is not None:
                for step, text in _records(_OPENRLHF, line):
                    yield from self._mapping(step, text, "train/")  # as its other loggers name them
            elif "•" in line or "= Step" in line:
                yield from self._nemo(line)
            else:
                self.damaged += _REST_OF_VERL.search(line) is not None  # of a record that another line cut

    def _verl(self, step: int, text: str) -> Iterator[Event]:
        """Times and lengths are decimal fractions, so a whole number at the end is one that was cut."""
        *pairs, last = text.split(" - ")
        for pair in [*pairs, *([last] if last else [])]:
            found = _VERL_PAIR.match(pair)
            if found is None:
                self.damaged += pair is last or wanted(pair.partition(":")[0])
            elif wanted(found[1]):
                if pair is last and found[2].isdigit():
                    self.damaged += 1
                else:
                    yield Event(step, found[1], float(found[2]))

    def _mapping(self, step: int, text: str, before: str = "") -> Iterator[Event]:
        self.damaged += not text.endswith("}")
        for name, value in _PAIR.findall(text):
            if wanted(before + name):
                yield Event(step, before + name, float(value))

    def _nemo(self, line: str) -> Iterator[Event]:
        """A list of times belongs to the last step that was announced."""
        if (found := _NEMO_STEP.search(line)) is not None:
            self._nemo_step = int(found[1])
        elif self._nemo_step is None:
            return
        elif (found := _NEMO_TOTAL.search(line)) is not None:
            yield Event(self._nemo_step, "timing/train/total_step_time", float(found[1]))
        elif (found := _NEMO_LENGTH.search(line)) is not None:
            yield Event(self._nemo_step, "train/mean_gen_tokens_per_sample", float(found[1]))
        elif (found := _NEMO_TIME.search(line)) is not None and wanted(f"timing/train/{found[1]}"):
            yield Event(self._nemo_step, f"timing/train/{found[1]}", float(found[2]))


def _records(start: re.Pattern[str], line: str) -> Iterator[tuple[int, str]]:
    """The records that begin in a line, each as far as the next: a newline between two may be lost."""
    found = list(start.finditer(line))
    for this, after in zip(found, [*found[1:], None], strict=True):
        yield int(this[1]), line[this.end() : after.start() if after else len(line)]
