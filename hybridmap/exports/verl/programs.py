"""verl's programs that train with PPO's loop: which has a plan's schedule, what each sets against ``ppo_trainer``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridmap.exports.verl.places import ROLLOUT
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.plan.plan import Plan, Schedule


@dataclass(frozen=True)
class Program:
    """One of verl's programs.

    Parameters
    ----------
    module
        What ``python3 -m`` starts.
    schedule
        How its iterations follow each other where the engines have GPUs of their own.
    before, after
        Overrides that come before a script's own (its configuration), and after them (its code).
    also
        Older names, and names of the file.
    """

    module: str
    schedule: Schedule = "sync"
    before: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def is_named(self, name: str) -> bool:
        """Whether a script starts it by this module or this file."""
        path = name.removesuffix(".py").replace("/", ".").lstrip(".")
        whole = [known for known in (self.module, *self.also) if "." in known]
        return path in self.also or any(path == known or path.endswith(f".{known}") for known in whole)


_OWN_GPUS = {f"{ROLLOUT}.nnodes": "${rollout.nnodes}", f"{ROLLOUT}.n_gpus_per_node": "${rollout.n_gpus_per_node}"}
"""experimental/one_step_off_policy/main_ppo.py:121 and fully_async_policy/fully_async_main.py:235 copy them so."""
_BYPASS = {"algorithm.rollout_correction.bypass_mode": "True"}

MAIN = Program(
    "verl.trainer.main_ppo",
    also=(
        *("verl.trainer.main_ppo_v0", "trainer.main_ppo", "main_ppo", "main_ppo_v0"),
        *("recipe.dapo.main_dapo", "recipe.dapo.src.main_dapo", "dapo.main_dapo", "main_dapo", "hybridmap_verl"),
    ),
)
ONE_STEP_OFF = Program(
    "verl.experimental.one_step_off_policy.main_ppo",
    "one-step-off",
    _BYPASS | {f"{ROLLOUT}.free_cache_engine": "False"},
    _OWN_GPUS,
    ("recipe.one_step_off_policy.main_ppo", "one_step_off_policy.main_ppo"),
)
FULLY_ASYNC = Program(
    "verl.experimental.fully_async_policy.fully_async_main",
    "async",
    _BYPASS,
    _OWN_GPUS,
    ("recipe.fully_async_policy.fully_async_main", "fully_async_main"),
)
PROGRAMS = (ONE_STEP_OFF, FULLY_ASYNC, MAIN)
"""The special ones first: their files are called main_ppo too."""
CONFIG_PATH = "hydra.searchpath=[pkg://verl.trainer.config]"
"""Where the special ones' configurations find the one that they are built on; without it, in the working folder alone
(experimental/one_step_off_policy/config/one_step_off_ppo_trainer.yaml:3)."""

CONFIGS: dict[str, tuple[str, Program]] = {
    f"{prefix}{trainer}": ("megatron" if "megatron" in trainer else "dp", program)
    for prefix, program in (("", MAIN), ("one_step_off_", ONE_STEP_OFF), ("fully_async_", FULLY_ASYNC))
    for trainer in ("ppo_trainer", "ppo_megatron_trainer")
} | {"dapo_trainer": ("dp", MAIN), "dapo_megatron_trainer": ("megatron", MAIN)}
"""Configurations of verl's own: the engine that each trains with, and whose it is."""


def program_with(schedule: Schedule, in_flight_updates: bool) -> Program:
    """The program whose loop a schedule is, for engines on GPUs of their own; they never stop in the main one."""
    if schedule == "one-step-off":
        return ONE_STEP_OFF
    return FULLY_ASYNC if schedule == "async" and not in_flight_updates else MAIN


def program_for(plan: Plan) -> Program:
    """The program that runs a plan which verl can follow."""
    return program_with(plan.schedule, plan.in_flight_updates)


def program_of(source: str, name: str) -> Program | None:
    """The program that a script starts; ``None`` for one of the user's own.

    Raises ``InputError`` for another one of verl's.
    """
    found = next((program for program in PROGRAMS if program.is_named(name)), None)
    if found is None and name.startswith(("verl.", "recipe.")):
        known = ", ".join(program.module for program in PROGRAMS)
        raise InputError(f"{source}: starts {name}, whose schedule and keys are not read; {known} are")
    return found
