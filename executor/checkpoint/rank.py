"""One rank's side of a checkpoint: copies the state, writes it while the next calls run, reads it back.

Ranks need not meet for that. Each leaves its shards and, when they are synced, a report beside them; the controller
puts the reports together.
"""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError

from executor.checkpoint.files import KEPT
from executor.checkpoint.manifest import RoleFacts, damage_of
from executor.checkpoint.shards import Chunk, EngineState, read_shards, write_shards
from executor.weights.regions import whole_box
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


CUDA_BYTES = 16
"""Size of the state of a GPU's generator: seed and offset. All zeros stand for a run that had no GPU."""


def report_name(rank: int) -> str:
    """The file that says what a rank wrote; gone once the checkpoint is complete."""
    return f"rank-{rank:05d}.json"


class RankCheckpoint:
    """Saves and loads one role on one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._writing: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, folder: Path, state: EngineState, counters: Mapping[str, int]) -> None:
        """Write ``state`` and this process's random states into ``folder``, in a thread. Nothing else may be writing.

        ``counters`` are the worker's, besides the engine's own.
        """
        self.finish()
        chunks = (*state.chunks, *_random_chunks(self.rank))
        counted = {**(state.counters or {}), **counters}
        self._writing = threading.Thread(target=self._write, args=(folder, chunks, counted), daemon=True)
        self._writing.start()

    def finish(self) -> None:
        """Wait until what was begun is on disk; ``InputError`` says why it could not be written."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, OSError | SafetensorError):  # whose file it was, safetensors does not say
                raise InputError(f"the checkpoint could not be written: {error}; {KEPT}") from error
            raise error

    def _write(self, folder: Path, chunks: tuple[Chunk, ...], counters: dict[str, int]) -> None:
        try:
            facts = RoleFacts(num_ranks=1, counters=counters, files=write_shards(folder, self.rank, chunks))
            partial = folder / f".{report_name(self.rank)}"
            partial.write_text(facts.model_dump_json())
            os.rename(partial, folder / report_name(self.rank))
        except Exception as error:  # raised where the controller asks, by finish
            self._error = error

    def damage(self, folder: Path, facts: RoleFacts, num_ranks: int) -> str:
        """What is wrong with the role's files, of which each of ``num_ranks`` compares its share with their digests."""
        mine = sorted(facts.files)[self.rank :: num_ranks]
        return next((found for name in mine if (found := damage_of(folder / name, facts.files[name]))), "")

    def load(self, folder: Path, facts: RoleFacts, load_state: Callable[..., None], num_ranks: int) -> None:
        """Read the role's files as far as this rank needs them; all ranks have seen that they are whole.

        Random states come back where there are as many ranks as there were.
        """
        load_state(lambda chunks: read_shards(folder, chunks), facts.counters)
        if facts.num_ranks == num_ranks:
            states = _random_chunks(self.rank)
            read_shards(folder, states)
            _set_random(states)


def take_report(path: Path) -> RoleFacts:
    """What a rank wrote; its report is not part of the checkpoint."""
    found = RoleFacts.model_validate_json(path.read_text())
    path.unlink()
    return found


def _random_chunks(rank: int) -> list[Chunk]:
    """Copies of the states of this process's generators: torch's on CPU and GPU, Python's, NumPy's."""
    version, words, gauss = random.getstate()
    assert version == 3, "Python's generator has had this form since 3.2"
    kept = torch.tensor([*words, np.nan if gauss is None else gauss], dtype=torch.float64)
    numpy: Any = np.random.get_state()  # noqa: NPY002 - a user's function may draw from it
    _, keys, *rest = numpy
    words_of_numpy = torch.tensor([*keys.tolist(), *rest], dtype=torch.float64)
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else torch.zeros(CUDA_BYTES, dtype=torch.uint8)
    states = {"torch": torch.get_rng_state(), "python": kept, "numpy": words_of_numpy, "cuda": cuda}
    return [Chunk(f"random.{kind}.rank-{rank:05d}", whole_box(v.shape), v) for kind, v in states.items()]


def _set_random(states: list[Chunk]) -> None:
    by_kind = {chunk.name.split(".")[1]: chunk.values for chunk in states}
    torch.set_rng_state(by_kind["torch"])
    *words, gauss = by_kind["python"].tolist()
    random.setstate((3, tuple(int(word) for word in words), None if np.isnan(gauss) else gauss))
    *keys, pos, has_gauss, cached = by_kind["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), int(pos), int(has_gauss), cached))  # noqa: NPY002
    if torch.cuda.is_initialized() and by_kind["cuda"].any():
        torch.cuda.set_rng_state(by_kind["cuda"])
