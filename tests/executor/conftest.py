"""Executor tests need the extra `run` (torch, tensordict; Ray where several processes run), which `dev` includes."""

import importlib.util
import os

import pytest

missing = [name for name in ("torch", "tensordict", "ray", "safetensors") if importlib.util.find_spec(name) is None]
if missing:  # never skipped in silence: `make test` installs all of it
    raise pytest.UsageError(f"tests/executor needs {', '.join(missing)}: pip install -e '.[dev]', as make test does")

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    """Tests on warm ranks last: those that start a Ray of their own find none before."""
    items.sort(key=lambda item: "warm" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="package")
def warm():
    """Four ranks that live through the runs of all files, on one Ray."""
    from tests.executor.warm import WarmLauncher

    launcher = WarmLauncher(4)
    yield launcher
    launcher.close()


@pytest.fixture
def on_ray(warm, monkeypatch):
    """Runs that ask for Ray get these ranks."""
    from executor import run
    from executor.launch.choice import choose_launcher

    monkeypatch.setattr(
        run, "choose_launcher", lambda p, c, b: warm if c.launcher == "ray" else choose_launcher(p, c, b)
    )
