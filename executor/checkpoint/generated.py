"""Responses to prompts of later iterations, in a checkpoint: their weights are gone, so nobody can make them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.checkpoint.files import KEPT, os_errors_as, sync_file
from executor.checkpoint.manifest import RoleFacts, damage_of, facts_of
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from executor.checkpoint.manifest import Checkpoint
    from executor.controller.controller import Controller
    from executor.worker.futures import Future

GENERATED, SAMPLED = "generated", "sampled"
"""Their folder beside those of the roles; the name of files of responses that are sampled, as most are."""


def write_generated(folder: Path, generated: Mapping[tuple[str, int], Future]) -> RoleFacts:
    """Responses to prompts of later iterations; waits for those that are still being written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    files = {}
    for (suffix, iteration), future in generated.items():
        path = folder / f"{suffix or SAMPLED}.{iteration}.safetensors"
        columns = {name: column.contiguous() for name, column in future.get().items()}
        with os_errors_as("the checkpoint could not be written", KEPT):
            try:
                save_file(columns, path)
            except SafetensorError as error:  # how it says so itself
                raise InputError(f"the checkpoint could not be written: {error} ({path}); {KEPT}") from error
            sync_file(path)
            files[path.name] = facts_of(path)
    return RoleFacts(num_ranks=1, counters={}, files=files)


def generated_damage(checkpoint: Checkpoint) -> str:
    """What is wrong with a checkpoint's responses; nothing where they are what was written."""
    facts = checkpoint.manifest.roles.get(GENERATED)
    files = facts.files if facts else {}
    folder = checkpoint.folder / GENERATED
    return next((found for name, file in files.items() if (found := damage_of(folder / name, file))), "")


def read_generated(controller: Controller, checkpoint: Checkpoint) -> dict[tuple[str, int], Future]:
    """The responses of a checkpoint, by suffix and iteration."""
    from safetensors.torch import load_file
    from tensordict import TensorDict

    found: dict[tuple[str, int], Future] = {}
    facts = checkpoint.manifest.roles.get(GENERATED)
    for name in facts.files if facts else ():
        path = checkpoint.folder / GENERATED / name
        suffix, iteration, _ = name.split(".")
        columns = load_file(path)
        rows = next(iter(columns.values())).shape[0]
        found[suffix if suffix != SAMPLED else "", int(iteration)] = controller.put(TensorDict(columns, [rows]))
    return found
