"""Models as configurations of other systems name them: a Hugging Face id, or a folder somewhere."""

from __future__ import annotations

import os
from pathlib import Path

from profiles.errors import InputError, UnknownNameError
from profiles.models.catalogue import checkpoint_called, hf_id, is_known, model_names

SUFFIXES = ("-instruct", "-chat-hf", "-chat", "-base", "-hf", "-it")


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
    found = found or checkpoint_called(short)
    if found is None:
        known = UnknownNameError("model", short, model_names())
        raise InputError(
            f"{source}: {key}={path}: {known}; give --model-config with its config.json, or --model {role}=NAME"
        )
    return found
