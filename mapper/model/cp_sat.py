"""CP-SAT's Python module, loaded without pandas, which it imports for variables in series and nothing else.

Pandas takes a third of a second, a plan of a small job not much more. Whoever asks the module for pandas later gets it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

PANDAS = "pandas"


class _Later(ModuleType):
    """Stands for pandas until something of it is asked for."""

    Index = Series = type("NotLoaded", (), {})  # named in the signatures of the methods for series


class _AtLast(ModuleType):
    """Pandas, loaded when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(PANDAS), name)


if PANDAS in sys.modules:
    from ortools.sat.python import cp_model
else:
    sys.modules[PANDAS] = _Later(PANDAS)
    try:
        from ortools.sat.python import cp_model
    finally:
        del sys.modules[PANDAS]
    cp_model.pd = _AtLast(PANDAS)  # type: ignore[attr-defined]

__all__ = ["cp_model"]
