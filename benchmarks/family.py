"""The processes of a run, seen from outside: who is who, what they hold, and how one of them is ended."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import psutil

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

Victim = Literal["rank", "controller", "raylet", "gcs", "agent"]
SIGNS: dict[Victim, str] = {
    "rank": "ray::RankActor",
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
    "agent": "dashboard/agent.py",
}
"""What stands in the command line of each."""


@dataclass(frozen=True)
class Family:
    """A controller and all that it started."""

    controller: int

    def members(self) -> Iterator[tuple[psutil.Process, str]]:
        """Processes that live, with their command lines."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self.controller).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    yield one, " ".join(one.cmdline())

    def of(self, victim: Victim) -> list[psutil.Process]:
        """The processes of one kind."""
        if victim == "controller":
            return [psutil.Process(self.controller)]
        return [one for one, line in self.members() if SIGNS[victim] in line]

    def end(self, victim: Victim, draw: random.Random) -> bool:
        """SIGKILL to one of a kind; false where there is none just now."""
        found = self.of(victim)
        if found:
            draw.choice(found).kill()
        return bool(found)

    def memory_bytes(self) -> dict[str, int]:
        """Memory that no one shares (USS), of the controller and of a rank on average; nothing while they start."""
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = [one.memory_full_info().uss for one in self.of("rank")]
            mine = psutil.Process(self.controller).memory_full_info().uss
            return {"controller": mine, "ranks": sum(ranks) // len(ranks)} if ranks else {}
        return {}
