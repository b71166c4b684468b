"""Executor tests need the install set `run` (torch, tensordict; Ray where several processes run)."""

import importlib.util
import os

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("tensordict") is None:
    collect_ignore_glob = ["test_*.py"]  # the planning install alone: nothing here can run

os.environ.setdefault("OMP_NUM_THREADS", "1")
