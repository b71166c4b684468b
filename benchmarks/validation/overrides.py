"""Constants of the product with other values, in memory only: what ablation and refits predict with."""

from __future__ import annotations

import hashlib
import importlib
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.validation import devices, paper_plans
from profiles import engine_facts, store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from benchmarks.validation.fit import FitConstant
    from profiles.device import DeviceProfile

Value = int | float | tuple[int, ...]
Values = dict[str, Value]
"""By the name of a constant in a file."""


@contextmanager
def overridden(values: Mapping[FitConstant, Value]) -> Iterator[None]:
    """Inside, every file of each constant has its value; afterwards its own again, whatever happened."""
    engines, parts, modules = _by_place(values)
    with ExitStack() as stack:
        stack.callback(_forget)  # first in, last out: when the replacements have gone
        for module, name, new in modules:
            _replace(stack, module, name, new)
        if engines:
            _replace(stack, engine_facts, "_read", _engine_reader(engines))
        if parts:
            _replace(stack, store, "_load", _device_loader(parts))
        _forget()
        yield


def current_value(constant: FitConstant) -> Value:
    """The value in the constant's (first) file."""
    path = Path(constant.file)
    if path.suffix == ".py":
        return getattr(_module(path), constant.constant)  # type: ignore[no-any-return]
    if path.parent.name == "engines":
        return engine_facts.engine_constants(path.stem)[constant.constant].value
    field, _, key = constant.constant.partition(".")
    value = getattr(store.load_device(path.parent.name).spec, field)
    return value[key] if key else value  # type: ignore[no-any-return]


def _by_place(
    values: Mapping[FitConstant, Value],
) -> tuple[dict[str, Values], dict[str, Values], list[tuple[ModuleType, str, Value]]]:
    """The values by engine, by device and by Python module."""
    engines: dict[str, Values] = {}
    parts: dict[str, Values] = {}
    modules: list[tuple[ModuleType, str, Value]] = []
    for constant, value in values.items():
        for path in map(Path, constant.files):
            if path.suffix == ".py":
                modules.append((_module(path), constant.constant, value))
            elif path.parent.name == "engines":
                engines.setdefault(path.stem, {})[constant.constant] = value
            else:
                parts.setdefault(path.parent.name, {})[constant.constant] = value
    return engines, parts, modules


def _replace(stack: ExitStack, module: ModuleType, name: str, new: object) -> None:
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, new)


def _engine_reader(changes: Mapping[str, Values]) -> Callable[[str], tuple[Any, str]]:
    """``engine_facts._read`` with other values of some facts in some engines."""
    read = vars(engine_facts)["_read"]

    def reader(name: str) -> tuple[Any, str]:
        file, digest = read(name)
        if name not in changes:
            return file, digest
        new = {key: file.facts[key].model_copy(update={"value": v}) for key, v in changes[name].items()}
        changed = hashlib.sha256(f"{digest}:{sorted(changes[name].items())}".encode()).hexdigest()
        return file.model_copy(update={"facts": {**file.facts, **new}}), changed

    return reader


def _device_loader(changes: Mapping[str, Values]) -> Callable[[Path, int], DeviceProfile]:
    """``store._load`` with other values of some fields (``field.dtype`` for one dtype) in some devices."""
    load = vars(store)["_load"]

    def loader(folder: Path, changed_ns: int) -> DeviceProfile:
        profile: DeviceProfile = load(folder, changed_ns)
        new: dict[str, Any] = {}
        for key, value in changes.get(folder.name, {}).items():
            field, _, dtype = key.partition(".")
            before = new.get(field, getattr(profile.spec, field))
            new[field] = {**before, dtype: value} if dtype else value
        return profile.with_spec(replace(profile.spec, **new)) if new else profile

    return loader


def _forget() -> None:
    """Empty every cache that holds a prediction or a loaded device."""
    for function in (paper_plans.hybridflow, paper_plans.baseline_run, paper_plans.generation_sweep):
        function.cache_clear()
    devices.device_profile.cache_clear()


def _module(path: Path) -> ModuleType:
    return importlib.import_module(".".join(path.with_suffix("").parts))
