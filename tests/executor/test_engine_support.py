"""Protects users from plans that an engine cannot run: refused by name, before anything starts."""

import importlib.util

import pytest

from executor.engines.support import require_engines_run, resolved, transition_note
from executor.run_config import EnginesSection
from profiles.errors import InputError, NotYetError
from simulator.plan import ParallelLayout, Plan
from tests.executor.plans import colocated, config

FSDP = EnginesSection(training="fsdp2")
MEGATRON = EnginesSection(training="megatron-core")
NATIVE = EnginesSection()


def changed(layout=(1, 1, 1), generation=None, **changes) -> Plan:
    made = colocated("grpo", layout, generation=generation)
    roles = [
        role.model_copy(update={"training": role.training.model_copy(update=changes)}) if role.training else role
        for role in made.roles
    ]
    return made.model_copy(update={"roles": tuple(roles)})


@pytest.mark.parametrize(("plan", "engines", "reason"), [
    (changed(cp=2), NATIVE, "actor: cp 2 cannot run yet; Megatron-Core's needs Transformer Engine"),
    (changed(ep=2), NATIVE, "ep 2 cannot run yet on torch-native; megatron-core has it"),
    (changed(vpp=2), FSDP, None),
    (changed((1, 2, 1)), FSDP, "tp 2 pp 1 cannot run on fsdp2; it shards over dp alone"),
    (changed(zero_stage=3), NATIVE, "zero_stage 3 cannot run on torch-native; 0 and 1 do, 3 on fsdp2"),
    (changed(zero_stage=3), FSDP, None),
    (changed((1, 1, 2), (1, 2)), NATIVE, "generation tp 2 pp 1 does not nest in training tp 1 pp 1"),
    (changed((1, 1, 2), (1, 2)), FSDP, None),
])  # fmt: skip
def test_what_an_engine_cannot_run_is_named(plan, engines, reason):
    if reason is None:
        require_engines_run(plan, engines)
        return
    with pytest.raises(NotYetError, match=reason):
        require_engines_run(plan, engines)


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core")
@pytest.mark.parametrize(("plan", "reason"), [
    (changed((2, 1, 1), ep=2), "ep 2 with pp 2 cannot run yet"), (changed(vpp=2), "vpp 2 interleaves"),
])  # fmt: skip
def test_what_megatron_cannot_run_is_named(plan, reason):
    with pytest.raises((NotYetError, InputError), match=reason):
        require_engines_run(plan, MEGATRON)


OTHER_SCORING = {"inference": ParallelLayout(dp=2)}


@pytest.mark.parametrize(("changes", "reason"), [
    ({"offload": ("optimizer",)}, "offload of optimizer cannot run yet on fsdp2; torch-native has it"),
    (OTHER_SCORING, "another layout for scoring than for training cannot run yet on fsdp2; torch-native has it"),
])  # fmt: skip
def test_what_only_the_embedded_engine_has_is_named(changes, reason):
    made = colocated("grpo")
    made = made.model_copy(update={"roles": tuple(role.model_copy(update=changes) for role in made.roles)})
    with pytest.raises(NotYetError, match=reason):
        require_engines_run(made, FSDP)


def test_an_engine_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else name)
    with pytest.raises(InputError, match=r"engine vllm, which is not installed: pip install 'hybridmap\[gpu\]'"):
        require_engines_run(changed(), EnginesSection(generation="vllm"))


def test_as_planned_takes_the_engines_of_the_job():
    given = config(engines={"training": "as-planned", "generation": "as-planned"})
    found = resolved(given, {"training": "fsdp@2.13", "generation": "vllm@0.32"}).engines
    assert (found.training, found.generation) == ("fsdp2", "vllm")
    with pytest.raises(NotYetError, match=r"generation on sglang@0\.5, which cannot run yet"):
        resolved(given, {"training": "fsdp@2.13", "generation": "sglang@0.5"})
    with pytest.raises(InputError, match="as-planned"):
        require_engines_run(changed(), given.engines)


def test_the_general_way_is_said_with_its_cost():
    general = config(engines={"training": "fsdp2"})
    note = transition_note(colocated("grpo", (1, 1, 2), generation=(1, 2)), general)
    assert note is not None
    assert "does not nest" in note
    assert "MB a rank in each transition" in note
    assert transition_note(colocated("grpo", (1, 1, 2), generation=(1, 1)), general) is None
