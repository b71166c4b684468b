"""Responses to prompts of later iterations, in a checkpoint: their weights are gone, so nobody can make them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.checkpoint_files import RoleFacts, facts_of, require_digest, sync_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from executor.checkpoint_files import Checkpoint
    from executor.controller import Controller
    from executor.futures import Future

GENERATED, SAMPLED = "generated", "sampled"
"""Their folder beside those of the roles; the name of files of responses that are sampled, as most are."""


def write_generated(folder: Path, generated: Mapping[tuple[str, int], Future]) -> RoleFacts:
    """Responses to prompts of later iterations; waits for those that are still being written."""
    from safetensors.torch import save_file

    files = {}
    for (suffix, iteration), future in generated.items():
        path = folder / f"{suffix or SAMPLED}.{iteration}.safetensors"
        save_file({name: column.contiguous() for name, column in future.get().items()}, path)
        sync_file(path)
        files[path.name] = facts_of(path)
    return RoleFacts(num_ranks=1, counters={}, files=files)


def read_generated(controller: Controller, checkpoint: Checkpoint) -> dict[tuple[str, int], Future]:
    """The responses of a checkpoint, by suffix and iteration; ``FileFormatError`` names a damaged file."""
    from safetensors.torch import load_file
    from tensordict import TensorDict

    found: dict[tuple[str, int], Future] = {}
    facts = checkpoint.manifest.roles.get(GENERATED)
    for name, file in facts.files.items() if facts else ():
        path = checkpoint.folder / GENERATED / name
        require_digest(path, file)
        suffix, iteration, _ = name.split(".")
        columns = load_file(path)
        rows = next(iter(columns.values())).shape[0]
        found[suffix if suffix != SAMPLED else "", int(iteration)] = controller.put(TensorDict(columns, [rows]))
    return found
