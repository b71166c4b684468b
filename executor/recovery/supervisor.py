"""Recovery from a failure: clear away what is stuck, plan again if the shape no longer fits, load, continue.

    start -> attempt -> through
      ^         | a rank is lost, hangs, or returns no numbers
      |         v
      +--- clear, count devices, (replan), newest checkpoint

An attempt that ends in an input that cannot work ends the run: another start would end the same way.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from executor.controller.pools import Devices
from executor.errors import DamagedCheckpointError, Failure, RankFailedError
from executor.records import Recovery
from executor.recovery.load import skipping
from profiles.atomic_write import write_atomically
from profiles.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from executor.checkpoint.manifest import Checkpoint
    from executor.launch.launcher import Launcher
    from simulator.plan.plan import Plan

    Replan = Callable[[Devices], Plan]
    """The best plan on at most those devices; ``InputError`` where there is none."""

T = TypeVar("T")
FAILURES = "failures.jsonl"


@dataclass(frozen=True)
class Policy:
    """What to do after a failure.

    Parameters
    ----------
    on_failure
        ``stop``: raise it. ``restart``: start again with the same plan, on devices that are left or spare. ``replan``:
        the same, with another plan where too few devices are left for this one.
    max_restarts
        Starts in a row without an iteration that no start before had finished.
    """

    on_failure: Literal["stop", "restart", "replan"] = "stop"
    max_restarts: int = 3


@dataclass(frozen=True)
class Start:
    """One start of a run: how many were before it, with which plan, from which checkpoint (none: the beginning).

    ``checkpoints`` are newest first: it resumes from the first that is whole. ``damaged`` are those that were skipped.
    """

    attempt: int
    plan: Plan
    checkpoints: tuple[Checkpoint, ...] = ()
    damaged: tuple[Path, ...] = ()

    @property
    def iteration(self) -> int:
        """The iteration that it resumes with."""
        return self.checkpoints[0].manifest.iteration if self.checkpoints else 0

    def loaded(self, load: Callable[[Checkpoint], object], on_skipped: Callable[[str], None]) -> Start:
        """``load`` the first checkpoint that is whole; ``on_skipped`` is called for each that is skipped.

        Returns the start without these. ``DamagedCheckpointError`` where none is whole.
        """
        damaged: list[DamagedCheckpointError] = []
        for i, checkpoint in enumerate(self.checkpoints):
            try:
                load(checkpoint)
            except DamagedCheckpointError as error:
                damaged.append(error)
                if i + 1 < len(self.checkpoints):
                    on_skipped(skipping(str(error), self.checkpoints[i + 1]))
            else:
                skipped = tuple(each.folder for each in self.checkpoints[:i])
                return replace(self, checkpoints=self.checkpoints[i:], damaged=skipped)
        if damaged:
            raise DamagedCheckpointError(
                f"{damaged[0]}, and none of the run's other checkpoints there is whole; without --resume it begins anew"
            )
        return self


class GaveUpError(RankFailedError):
    """A run failed more often in a row than it may."""

    def __init__(self, failure: Failure, num_starts: int, iteration: int) -> None:
        super().__init__(failure)
        self.args = (
            f"{num_starts} starts in a row did not get beyond iteration {iteration}, run.max_restarts allows "
            f"{num_starts - 1}; once the reason is gone, --resume continues from the newest checkpoint. The last "
            f"failure: {self.args[0]}",
        )


class Supervisor:
    """Keeps a run going.

    Parameters
    ----------
    launcher
        What the ranks are started on; lives through all starts.
    newest
        Checkpoints of this run that a start may resume from, newest first.
    folder
        The run's output, where ``failures.jsonl`` gets a line for each failure that was survived.
    replan
        Needed where ``policy.on_failure`` is ``replan``.
    on_recovery
        Called with each recovery once models are loaded again.
    """

    def __init__(
        self,
        launcher: Launcher,
        policy: Policy,
        newest: Callable[[], tuple[Checkpoint, ...]],
        folder: Path,
        *,
        replan: Replan | None = None,
        on_recovery: Callable[[Recovery], None] | None = None,
    ) -> None:
        self._launcher, self._policy, self._newest = launcher, policy, newest
        self._folder, self._replan, self._on_recovery = folder, replan, on_recovery
        self._furthest = self._furthest_before = self._in_a_row = 0
        self._failed: list[tuple[int, Failure, float]] = []
        self._lines = ""

    def run(self, start: Start, attempt: Callable[[Start], T]) -> T:
        """Make attempts until one comes to its end; raises what the policy does not let a run survive."""
        self._furthest = self._furthest_before = start.iteration
        self._lines = self._lines_before(start)
        while True:
            try:
                return attempt(start)
            except RankFailedError as error:
                if self._policy.on_failure == "stop":
                    raise
                start = self._next(start, error.failure, error)
            except InfeasibleError as error:
                if start.attempt == 0:
                    raise
                # what was left a moment ago found no place: it is going, too
                start = self._next(start, Failure(-1, "start", "-", 0, str(error), ""), error)

    def _lines_before(self, start: Start) -> str:
        """What a run that resumes in its own folder has survived so far; those of an earlier run there are removed."""
        path = self._folder / FAILURES
        if start.iteration and path.exists():
            return path.read_text(encoding="utf-8")
        path.unlink(missing_ok=True)
        return ""

    def finished(self, iteration: int) -> None:
        """Tell that ``iteration`` iterations are through."""
        self._furthest = max(self._furthest, iteration)

    def ready(self, start: Start) -> None:
        """Tell that a start's models are loaded."""
        if start.attempt == 0:  # the newest checkpoint may have been damaged
            self._furthest = self._furthest_before = start.iteration
        lost, now_s = self._furthest - start.iteration, time.time()
        failed, self._failed = self._failed, []
        for i, (attempt, failure, noticed_s) in enumerate(failed):  # a start may fail before it is ready
            recovery = Recovery(
                attempt,
                failure.call,
                failure.pool,
                failure.rank,
                failure.node,
                failure.summary,
                noticed_s,
                now_s - noticed_s,
                start.iteration,
                0 if i else lost,
                start.plan.num_gpus,
            )
            self._lines += json.dumps(asdict(recovery)) + "\n"
            write_atomically(self._folder / FAILURES, self._lines)
            if self._on_recovery is not None:
                self._on_recovery(recovery)

    def _next(self, start: Start, failure: Failure, error: Exception) -> Start:
        """The start after a failure; raises where there is none."""
        self._failed.append((start.attempt + 1, failure, time.time()))
        self._launcher.clear()
        if self._furthest > self._furthest_before:
            self._in_a_row, self._furthest_before = 0, self._furthest
        self._in_a_row += 1
        if self._in_a_row > self._policy.max_restarts:
            raise GaveUpError(failure, self._in_a_row, self._furthest) from error
        found = self._newest()
        known = {checkpoint.folder for checkpoint in found}
        before = tuple(each for each in start.checkpoints if each.folder not in known)  # of a folder of another run
        return Start(start.attempt + 1, self._fitting(start.plan, failure, error), (*found, *before))

    def _fitting(self, plan: Plan, failure: Failure, error: Exception) -> Plan:
        """The plan itself where there are devices for it, else another one if the policy says so."""
        left = Devices.of(self._launcher)
        if left.hold(plan):
            return plan
        lost = f"after {failure.call} failed on rank {failure.rank} of pool {failure.pool} ({failure.summary})"
        asked = Devices(plan.num_gpus, plan.gpus if left.kinds else {})
        if self._policy.on_failure != "replan" or self._replan is None:
            raise InfeasibleError(
                f"{lost} {left} are left and the plan asks for {asked}; run.on_failure: replan continues with "
                "another plan, --resume with this one once there are enough",
                fewest_gpus=plan.num_gpus,
            ) from error
        try:
            return self._replan(left)
        except InputError as none:  # pins of the job may name what is gone
            raise InfeasibleError(
                f"{lost} {left} are left, and no plan fits them: {none}. --resume continues once there are more",
                fewest_gpus=none.fewest_gpus if isinstance(none, InfeasibleError) else None,
            ) from error
