"""Executor tests need the extra `run` (torch, tensordict; Ray where several processes run), which `dev` includes."""

import importlib.util
import os

import pytest

missing = [name for name in ("torch", "tensordict", "ray", "safetensors") if importlib.util.find_spec(name) is None]
if missing:  # never skipped in silence: `make test` installs all of it
    raise pytest.UsageError(f"tests/executor needs {', '.join(missing)}: pip install -e '.[dev]', as make test does")

os.environ.setdefault("OMP_NUM_THREADS", "1")
