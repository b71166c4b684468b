"""Models as configurations of other systems name them: a Hugging Face id, or a folder somewhere."""

from __future__ import annotations

import os
from pathlib import Path

from profiles.errors import InputError, UnknownNameError
from profiles.models.catalogue import checkpoint_called, hf_id, is_known, model_names
from profiles.models.hub_cache import cached_config

SUFFIXES = ("-instruct", "-chat-hf", "-chat", "-base", "-hf", "-it")


class UnknownModelError(InputError):
    """A run's model that nobody here knows; ``model`` is what its configuration calls it."""

    def __init__(self, message: str, model: str) -> None:
        super().__init__(message)
        self.model = model


def known_model(source: str, key: str, path: str, named: bool = True, role: str = "actor") -> str:
    """The catalogue's name of a model, its id, or the path of its config; as it is where it need not be ``named``.

    Raises ``InputError`` for one that is not known, with the option that names it.
    """
    if not named:
        return path
    for name in model_names():
        if path == hf_id(name):
            return name
    short = path.rstrip("/").split("/")[-1].lower()
    names = [short, *(short.removesuffix(suffix) for suffix in SUFFIXES)]
    found = next((name for name in names if name in model_names()), None)
    if found is None and os.path.exists(Path(path) / "config.json"):  # unlike Path.exists, false for names too long
        return str((Path(path) / "config.json").resolve())
    if found is None and is_known(path):
        return path
    found = found or checkpoint_called(short) or (path if cached_config(path) else None)
    if found is None:
        known = UnknownNameError("model", short, model_names())
        raise UnknownModelError(
            f"{source}: {key}={path}: {known}; give --model-config with its config.json, or --model {role}=NAME, or "
            "--allow-download to fetch it from Hugging Face",
            path,
        )
    return found
