"""Models of a job that nobody here knows: given as a ``config.json``, or fetched where that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiles.errors import HybridmapError, InputError, UnknownNameError
from profiles.models.catalogue import load_model
from profiles.models.hf_config import read_config
from profiles.models.hub_fetch import fetch_config

if TYPE_CHECKING:
    from pathlib import Path


def with_models(raw: object, base: Path, config: Path | None, allow_download: bool) -> object:
    """What a job file holds, with ``config`` for the one model that is unknown, or with all of them downloaded.

    Without either the job is as it was. Raises ``InputError`` where ``config`` stands for no model or for several, or
    where a model cannot be fetched.
    """
    roles = raw.get("models") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(roles, dict) or (config is None and not allow_download):
        return raw
    named = {role: name for role, entry in roles.items() if (name := _name(entry)) and is_unknown(name, base)}
    unknown = sorted(set(named.values()))
    if config is None:
        for name in unknown:
            fetch_config(name)
        return raw
    if len(unknown) != 1:
        which = f"{', '.join(unknown)} are not" if unknown else "all of them are"
        raise InputError(
            f"--model-config {config} stands for the one model of the job that is not known here, and {which}; "
            "write the path in the job file, in place of the model that it is of"
        )
    shape = {"config": dict(read_config(config)[0]), "name": unknown[0].rpartition("/")[2].lower()}
    return {**raw, "models": {role: _of(entry, shape) if role in named else entry for role, entry in roles.items()}}


def is_unknown(name: str, base: Path | None = None) -> bool:
    """Whether a model is neither of the catalogue, nor on this disk; one that cannot be read is known, and wrong."""
    try:
        load_model(name, base)
    except UnknownNameError:
        return True
    except HybridmapError:
        return False
    return False


def _name(entry: object) -> str | None:
    name = entry.get("shape") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else None


def _of(entry: object, shape: dict[str, Any]) -> dict[str, Any]:
    return {**(entry if isinstance(entry, dict) else {}), "shape": shape}
