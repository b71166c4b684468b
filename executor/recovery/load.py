"""Checkpoints of a run: found, and loaded into any plan of the same run. Saving: ``recovery.saver``.

    require_free(folder, iteration)    no checkpoint there is beyond the iteration that a run begins with
    latest(folder)              the newest complete ``Checkpoint`` in a folder, or None
    candidates(folder, on_skipped)  all that are complete, newest first; whoever loads takes the first that is whole
    load(models, controller, checkpoint)    into models that are initialised, in whatever layout they have

Complete is what has a manifest that is true and all files in their sizes. Whether contents are what was written is only
seen by reading all of them, which ranks do together, before anything is loaded: ``DamagedCheckpointError``.

``iteration`` counts the iterations that are through. Saved are the master weights and optimizer states of every role
that is trained, random states of every rank, counters of optimizer steps and updates, KL coefficient and cost
multiplier, what was generated ahead of training, and what identifies the run. Learning rates follow from the optimizer
steps that are counted. Roles that are not trained come from the weights that the run section names. Files and the way
they appear: ``checkpoint.files``; shards: ``checkpoint.shards``; a rank's side: ``checkpoint.rank``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from executor.checkpoint.files import Damaged, checkpoints, survey
from executor.checkpoint.generated import generated_damage, read_generated
from executor.checkpoint.manifest import Checkpoint, damage_of, read_checkpoint
from executor.controller.actor_group import ActorGroup
from executor.errors import DamagedCheckpointError
from profiles.errors import FileFormatError, InputError
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from executor.controller.controller import Controller
    from executor.controller.models import Models
    from executor.controller.worker_group import WorkerGroup

GENERATOR = "-generation"
"""After a role's name: its ranks on a generation pool of their own."""


def latest(folder: str | Path) -> Checkpoint | None:
    """The newest complete checkpoint in ``folder``, by the manifests there."""
    found = checkpoints(Path(folder))
    return found[-1] if found else None


def candidates(folder: str | Path, on_skipped: Callable[[str], None]) -> tuple[Checkpoint, ...]:
    """Complete checkpoints in ``folder``, newest first. ``on_skipped`` hears of damaged ones that are newer."""
    found = survey(Path(folder))
    complete = tuple(each for each in found if isinstance(each, Checkpoint))
    for each in found[: found.index(complete[0])] if complete else ():
        assert isinstance(each, Damaged), "what is newer than the newest complete one is none"
        on_skipped(skipping(each.reason, complete[0]))
    return complete


def skipping(reason: str, older: Checkpoint) -> str:
    """What to say of a damaged checkpoint where an older one is taken."""
    return f"{reason}; resuming from {older.folder}, which is older"


def checkpoints_at(path: str | Path, on_skipped: Callable[[str], None]) -> tuple[Checkpoint, ...]:
    """``candidates`` of a folder, or the one checkpoint that ``path`` is; ``InputError`` where there is none."""
    given = Path(path).absolute()  # as the folder that a run saves into
    if given.name.startswith("iteration-"):
        return (read_checkpoint(given),)
    found = candidates(given, on_skipped)
    if found:
        return found
    damaged = next((f" ({each.reason})" for each in survey(given) if isinstance(each, Damaged)), "")
    raise InputError(
        f"{given} has no complete checkpoint{damaged}; 'run.checkpoint: {{every: N}}' makes a run save them"
    )


def require_whole(checkpoint: Checkpoint) -> None:
    """Compare all files with their digests, here; ``DamagedCheckpointError`` names the first that differs."""
    for role, facts in checkpoint.manifest.roles.items():
        for name, file in facts.files.items():
            if found := damage_of(checkpoint.folder / role / name, file):
                raise DamagedCheckpointError(found)


def load(models: Models, controller: Controller, checkpoint: Checkpoint) -> int:
    """Bring initialised models to the state of a checkpoint; returns the iteration to resume with.

    Every rank reads what its layout needs. ``InputError`` names a role that is missing; ``DamagedCheckpointError`` a
    file that is damaged, before anything is loaded.
    """
    manifest, waiting = checkpoint.manifest, []
    groups = groups_of(models)
    for name in groups:
        if name not in manifest.roles and not name.endswith(GENERATOR):
            raise FileFormatError(f"{checkpoint.folder} has nothing of {name}; it has {', '.join(manifest.roles)}")
    of_roles = {
        name: (group, str(checkpoint.folder / name)) for name, group in groups.items() if name in manifest.roles
    }
    _require_whole_by_ranks(checkpoint, of_roles)
    for name, (group, folder) in of_roles.items():
        waiting += group.load_checkpoint(folder=folder, facts=manifest.roles[name])
    waiting += models.controller.set_controls(**manifest.controls)
    for future in waiting:
        future.wait()
    controller.count_on_from(manifest.next_call)
    actor = models.groups["actor"]
    assert isinstance(actor, ActorGroup), "every algorithm generates with its actor"
    ahead = read_generated(controller, checkpoint) if actor.ahead == manifest.ahead else {}
    drawn = manifest.iteration if manifest.batches_drawn is None else manifest.batches_drawn
    actor.resume(manifest.iteration, manifest.roles["actor"].counters["updates"], drawn, ahead)
    return manifest.iteration


def _require_whole_by_ranks(checkpoint: Checkpoint, of_roles: dict[str, tuple[WorkerGroup, str]]) -> None:
    """Compare all files with their digests: each role's ranks share its files, and all of them read at once."""
    waiting = [
        future
        for name, (group, folder) in of_roles.items()
        for future in group.checkpoint_damage(folder=folder, facts=checkpoint.manifest.roles[name])
    ]
    if found := next(filter(None, [generated_damage(checkpoint), *(future.first() for future in waiting)]), ""):
        raise DamagedCheckpointError(found)


def require_free(folder: Path, iteration: int, damaged: Collection[Path] = ()) -> None:
    """Raise ``InputError`` where ``folder`` has checkpoints beyond ``iteration``: of another run, or of a later one.

    Those that are known to be ``damaged`` do not count.
    """
    newest = max((c.manifest.iteration for c in checkpoints(folder) if c.folder not in damaged), default=0)
    if newest > iteration:
        raise InputError(
            f"{folder} has checkpoints up to iteration {newest}, this run begins at {iteration}: "
            "--resume continues from the newest; another --out or run.checkpoint.dir begins anew"
        )


def groups_of(models: Models) -> dict[str, WorkerGroup]:
    """The groups that have a part in a checkpoint, by the names of their folders."""
    found: dict[str, WorkerGroup] = {}
    for role, group in models.groups.items():
        if isinstance(group, ActorGroup):
            found[role] = group.trainer
            if group.generator is not group.trainer:
                found[role + GENERATOR] = group.generator
        elif role != CONTROLLER:
            found[role] = group
    return found
