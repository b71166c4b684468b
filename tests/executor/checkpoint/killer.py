"""Kills a process with SIGKILL in the middle of a save, at one point after another, and looks at what is left.

    python -m tests.executor.checkpoint.killer FOLDER STRIDE NUM_TIMES

A process of its own, since it forks: each child saves once and dies at its point. Points are every ``STRIDE``-th step
that changes the checkpoints' folder (making, syncing, renaming or deleting a file or folder; a sync counts before and
after it), whichever thread takes it, and then ``NUM_TIMES`` random times. Prints a JSON line a point.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from executor.checkpoint.files import clean
from executor.controller.controller import Controller
from executor.controller.models import build_models
from executor.controller.pools import resource_pools
from executor.launch.local import LocalLauncher
from executor.recovery.load import checkpoints_at, latest, load
from executor.recovery.saver import Saver
from executor.run_settings import hyperparameters
from tests.executor.plans import colocated, config, job

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
WRITES = os.O_WRONLY | os.O_RDWR


class Countdown:
    """Kills this process when its ``last``-th step in ``root`` begins."""

    def __init__(self, root: Path, last: int) -> None:
        self.root, self.last, self.seen = str(root), last, 0
        self._lock, self._sync = threading.Lock(), os.fsync
        sys.addaudithook(self._hear)
        os.fsync = self._synced  # type: ignore[assignment]  # audit hooks do not hear of it

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in CHANGES or (event == "open" and arguments[2] & WRITES)
        paths = [str(argument) for argument in arguments if isinstance(argument, str | Path)]
        if changes and any(path.startswith(self.root) or "/" not in path for path in paths[:1]):
            self._step()  # a bare name: a tree is deleted name by name from an open folder

    def _synced(self, handle: int) -> None:
        self._step()
        self._sync(handle)
        self._step()

    def _step(self) -> None:
        with self._lock:
            self.seen += 1
            if self.seen == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


class Trial:
    """A saver in this process whose states tell which save they are of: every master weight is its iteration."""

    def __init__(self, controller: Controller, root: Path) -> None:
        plan, settings = colocated("grpo"), config(launcher="local")
        controller.start(resource_pools(plan))
        self.controller, self.root = controller, root
        self.models = build_models(controller, plan, settings, hyperparameters(job("grpo"), settings, plan))
        self.models.init()
        self.saver = Saver(self.models, controller, root, keep=1, identity={})
        (rank,) = controller._ranks["A"]  # noqa: SLF001
        self.master = rank._roles["actor"].trainer.optimizer.master.data  # noqa: SLF001

    def save(self, iteration: int) -> None:
        self.master.fill_(iteration)
        self.saver.begin(iteration)
        self.saver.publish()
        self.saver.wait()

    def loaded(self) -> int:
        """The iteration of the newest checkpoint; all of it must be loadable, and of that iteration."""
        found = load(self.models, self.controller, checkpoints_at(self.root, str)[0])
        assert (self.master == found).all(), (found, self.master)
        return found

    def killed(self, iteration: int, step: int | None, time_s: float | None) -> bool:
        """Save in a child that dies at a point; whether it did before it was through."""
        pid = os.fork()
        if pid == 0:
            if step is not None:
                Countdown(self.root, step)
            self.save(iteration)
            os._exit(0)
        if time_s is not None:
            time.sleep(time_s)
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        assert status in (0, signal.SIGKILL), status
        return status == signal.SIGKILL

    def tell(self, step: int | None = None, time_s: float | None = None) -> bool:
        newest = latest(self.root)
        assert newest is not None, "the one before is always there"
        before = newest.manifest.iteration
        killed = self.killed(before + 1, step, time_s)
        clean(self.root)
        line = {"step": step, "time_s": time_s, "killed": killed, "before": before, "found": self.loaded()}
        print(json.dumps(line), flush=True)
        return killed


def main(root: Path, stride: int, num_times: int) -> None:
    with Controller(LocalLauncher()) as controller:
        trial = Trial(controller, root)
        trial.save(1)
        start_s = time.perf_counter()
        trial.save(2)
        lasts_s = time.perf_counter() - start_s
        step = 1
        while trial.tell(step=step):
            step += stride
        stream = random.Random(0)
        for _ in range(num_times):
            trial.tell(time_s=stream.uniform(0, lasts_s))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
