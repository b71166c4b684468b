"""A job as this machine would run it: the device and the engines of a profile folder in place of the job's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.console import warn
from profiles.engine_names import FOLDER, GENERATION, TRAINING
from profiles.errors import InputError
from profiles.hardware import DEVICE_FILE, load_doubts, load_spec

if TYPE_CHECKING:
    from pathlib import Path

EAGER = {"kernels": "eager", "loss_head": "unfused"}
"""How the torch-native engine is built: uncompiled, log-softmax in tensor operations."""


def on_this_machine(document: Any, folder: Path, ranks: int = 1, *, force: bool = False) -> Any:
    """The job's document with cluster, engines, number formats and implementation of this machine.

    A document that is no mapping is handed back as it is: what is wrong with it is said where jobs are read.

    Raises
    ------
    InputError
        ``folder`` is no profile of this machine's engine, or one that is marked as disturbed or incomplete and is not
        taken by ``force``; the message says how to make one.
    """
    if not isinstance(document, dict):
        return document
    engines = {
        kind: folder.resolve() / FOLDER / name for kind, name in (("training", TRAINING), ("generation", GENERATION))
    }
    for needed in (folder / DEVICE_FILE, *engines.values()):
        if not needed.is_file():
            raise InputError(
                f"{folder} is no profile that a run can be priced with ({needed.name} is missing); "
                f"'hybridmap profile --quick --models CONFIG --out {folder}' makes one"
            )
    if doubts := load_doubts(folder):
        told = f"{folder} is a profile that predicts little: {'; '.join(doubts)}"
        if not force:
            raise InputError(
                f"{told}. Measure again while the machine does nothing else ('hybridmap profile --quick --models "
                "CONFIG --out ANOTHER'), or take it with --force-profile"
            )
        warn(told)
    dtype = _dtype(document)
    gpus = max(load_spec(folder).gpus_per_node, ranks)
    changed = {
        "cluster": [{"device": str(folder.resolve()), "nodes": 1, "gpus_per_node": gpus}],
        "engines": {kind: str(path) for kind, path in engines.items()},
        "implementation": {**EAGER, **_section(document, "implementation"), "training_dtype": dtype},
        "models": {role: _with_precision(model, dtype) for role, model in _section(document, "models").items()},
    }
    return {**document, **changed}


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _dtype(document: dict[str, Any]) -> str:
    found = _section(document, "run").get("dtype", "bf16")
    return found if found in ("fp32", "bf16") else "bf16"


def _with_precision(model: Any, dtype: str) -> Any:
    shape = model.get("shape") if isinstance(model, dict) else model
    return {"shape": shape, "precision": dtype}
