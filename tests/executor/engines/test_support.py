"""Protects users from plans that an engine cannot run: refused by name, before anything starts."""

import importlib.util
import json

import pytest

from executor.controller.models import engine_of
from executor.engines.support import (
    require_adapters_run,
    require_engines_run,
    require_models_run,
    resolved,
    transition_note,
)
from executor.run import run
from executor.run_config import EnginesSection
from profiles.errors import InputError, NotYetError
from simulator.plan.plan import ParallelLayout, Plan
from tests.executor.plans import ROLES, TINY, colocated, config, generating_apart, job

FSDP = EnginesSection(training="fsdp2")
MEGATRON = EnginesSection(training="megatron-core")
NATIVE = EnginesSection()
EXPERTS = json.loads(TINY.read_text()) | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}


def changed(layout=(1, 1, 1), generation=None, **changes) -> Plan:
    made = colocated("grpo", layout, generation=generation)
    roles = [
        role.model_copy(update={"training": role.training.model_copy(update=changes)}) if role.training else role
        for role in made.roles
    ]
    return made.model_copy(update={"roles": tuple(roles)})


def generating(**changes) -> Plan:
    made = colocated("grpo", (1, 2, 1))
    actor = made.role("actor")
    layout = actor.generation.model_copy(update=changes)
    return made.model_copy(update={"roles": (actor.model_copy(update={"generation": layout}),)})


@pytest.mark.parametrize(
    ("plan", "engines", "reason"),
    [
        (changed(cp=2), NATIVE, "actor: cp 2 cannot run yet on torch-native; megatron-core has it"),
        (changed(cp=2), FSDP, "actor: cp 2 cannot run yet on fsdp2; megatron-core has it"),
        (changed(vpp=2), NATIVE, "vpp 2 cannot run yet on torch-native; megatron-core has it"),
        (generating(ep=2), NATIVE, "actor: generation ep 2 cannot run yet on torch-native"),
        (generating(attention_dp=2), NATIVE, "actor: generation attention_dp 2 cannot run yet"),
        (changed(ep=2), NATIVE, "ep 2 cannot run yet on torch-native; megatron-core has it"),
        (changed(vpp=2), FSDP, None),
        (changed((1, 2, 1)), FSDP, None),
        (changed((2, 1, 1)), FSDP, "actor: pp 2 cannot run on fsdp2; it has dp and tp"),
        (changed(zero_stage=3), NATIVE, "zero_stage 3 cannot run on torch-native; 0 and 1 do, 3 on fsdp2"),
        (changed(zero_stage=3), FSDP, None),
        (changed((1, 1, 2), (1, 2)), NATIVE, "generation tp 2 pp 1 does not nest in training tp 1 pp 1"),
        (changed((1, 1, 2), (1, 2)), FSDP, None),
    ],
)
def test_what_an_engine_cannot_run_is_named(plan, engines, reason):
    if reason is None:
        require_engines_run(plan, engines)
        return
    with pytest.raises(NotYetError, match=reason):
        require_engines_run(plan, engines)


@pytest.mark.parametrize(
    ("plan", "engines", "reason"),
    [
        (changed((2, 2, 1), (1, 2)), NATIVE, None),
        (changed((1, 1, 2)), FSDP, None),
        (changed((1, 2, 1)), FSDP, "actor: adapters .* with tp 2 on fsdp2; torch-native has both"),
        (changed(), MEGATRON, "adapters .* on megatron-core; name torch-native or fsdp2 in run.engines, or"),
        (generating_apart(changed(), (1, 1, 1)), NATIVE, "where generation has a pool of its own"),
        (changed((1, 2, 1)), EnginesSection(generation="vllm"), None),
    ],
)
def test_adapters_are_refused_where_they_cannot_run(plan, engines, reason):
    if reason is None:
        require_adapters_run(plan, engines)
        return
    with pytest.raises(NotYetError, match=reason):
        require_adapters_run(plan, engines)


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core")
@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (changed(zero_stage=2), "zero_stage 2 cannot run on megatron-core; 0 and 1 do, 3 on fsdp2"),
        (changed((2, 1, 1), ep=2), "ep 2 with pp 2 cannot run yet on megatron-core"),
        (changed(vpp=2), "actor: vpp 2 of megatron-core interleaves"),
    ],
)
def test_what_megatron_cannot_run_is_named(plan, reason):
    with pytest.raises((NotYetError, InputError), match=reason):
        require_engines_run(plan, MEGATRON)


OTHER_SCORING = {"inference": ParallelLayout(dp=2)}


def changed_roles(algorithm="grpo", layout=(1, 1, 1), **changes):
    made = colocated(algorithm, layout)
    return made.model_copy(update={"roles": tuple(role.model_copy(update=changes) for role in made.roles)})


@pytest.mark.parametrize("engines", [FSDP, MEGATRON, NATIVE])
@pytest.mark.parametrize("changes", [OTHER_SCORING, {"offload": ("parameters", "optimizer")}], ids=str)
def test_offload_and_scoring_in_another_layout_reach_every_trainer(changes, engines):
    made = changed_roles(**changes)
    require_engines_run(made, engines)
    spec = engine_of(made.role("actor"), made, config(engines=engines.model_dump()), "cpu")
    assert spec.model.offload == changes.get("offload", ())
    assert (spec.scoring is not None) == ("inference" in changes)


def test_scoring_is_held_to_the_engine_that_trains():
    with pytest.raises(NotYetError, match="actor: pp 2 cannot run on fsdp2"):
        require_engines_run(changed_roles(inference=ParallelLayout(dp=1, pp=2)), FSDP)


def test_a_layout_of_scoring_is_that_of_a_frozen_engine_besides():
    scoring = ParallelLayout(dp=2, tp=2, micro_batch=8, sequence_parallel=False)
    made = changed_roles(layout=(2, 2, 1), inference=scoring, offload=("optimizer",))
    engines = {"training": "megatron-core", "generation": "vllm"}
    spec = engine_of(made.role("actor"), made, config(engines=engines), "cpu")
    scored = spec.scoring
    assert (spec.options.sequence_parallel, scored.options.sequence_parallel, scored.model.micro_batch) == (
        True,
        False,
        8,
    )
    assert (scored.training, scored.generation, scored.model.optimizer) == ("megatron-core", None, None)
    assert (spec.model.offload, scored.model.offload) == (("optimizer",), ())


def test_each_role_is_held_to_its_own_engine():
    made = colocated("ppo", (2, 1, 1))
    for engines in (EnginesSection(roles={"critic": "fsdp2"}), EnginesSection(training="fsdp2")):
        role = "critic" if engines.roles else "actor"
        with pytest.raises(NotYetError, match=f"^{role}: pp 2 cannot run on fsdp2"):
            require_engines_run(made, engines)
    require_engines_run(made, EnginesSection(training="fsdp2", roles=dict.fromkeys(ROLES["ppo"], "torch-native")))


def test_each_role_gets_the_engine_that_the_run_section_names():
    roles = {"critic": "fsdp2", "reference": "torch-native"}
    given = config(engines={"training": "megatron-core", "generation": "vllm", "roles": roles}, reward=None)
    made = colocated("ppo")
    specs = {entry.role: engine_of(entry, made, given, "cpu") for entry in made.roles}
    assert {role: spec.training for role, spec in specs.items()} == {
        "actor": "megatron-core",
        "critic": "fsdp2",
        "reference": "torch-native",
        "reward": "megatron-core",
    }
    assert {role: spec.generation for role, spec in specs.items()} == {
        "actor": "vllm",
        "critic": None,
        "reference": None,
        "reward": None,
    }


def test_a_role_that_the_plan_has_not_is_named_with_those_that_it_has():
    message = "run.engines.roles names critics; the plan has actor, critic, reference, reward"
    with pytest.raises(InputError, match=message):
        require_engines_run(colocated("ppo"), EnginesSection(roles={"critics": "fsdp2"}))


def test_an_engine_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else name)
    with pytest.raises(InputError, match=r"engine vllm, which is not installed: pip install 'hybridmap\[gpu\]'"):
        require_engines_run(changed(), EnginesSection(generation="vllm"))


def test_as_planned_takes_the_engines_of_the_job():
    given = config(engines={"training": "as-planned", "generation": "as-planned"})
    found = resolved(given, {"training": "fsdp@2.13", "generation": "vllm@0.32"}).engines
    assert (found.training, found.generation) == ("fsdp2", "vllm")
    able = "vllm, sglang, torch-native"
    with pytest.raises(NotYetError, match=rf"generation on tensorrt-llm@1\.0, which cannot run yet; {able} can"):
        resolved(given, {"training": "fsdp@2.13", "generation": "tensorrt-llm@1.0"})
    with pytest.raises(InputError, match="as-planned"):
        require_engines_run(changed(), given.engines)


def test_roles_take_the_engines_of_the_job_too():
    given = config(engines={"training": "torch-native", "roles": {"critic": "as-planned", "reference": "fsdp2"}})
    planned = {"training": "megatron-core@0.16", "generation": "sglang@0.5"}  # which nobody asked for
    found = resolved(given, planned).engines
    assert [found.training_of(role) for role in ("actor", "critic", "reference")] == [
        "torch-native",
        "megatron-core",
        "fsdp2",
    ]
    with pytest.raises(InputError, match="as-planned"):
        require_engines_run(colocated("ppo"), given.engines)
    with pytest.raises(NotYetError, match=r"training on nemo@1, which cannot run yet"):
        resolved(given, {"training": "nemo@1", "generation": "vllm@0.32"})


def test_the_general_way_is_said_with_its_cost():
    general = config(engines={"training": "fsdp2"})
    note = transition_note(colocated("grpo", (1, 1, 2), generation=(1, 2)), general)
    assert note is not None
    assert "does not nest" in note
    assert "MB a rank in each transition" in note
    assert transition_note(colocated("grpo", (1, 1, 2), generation=(1, 1)), general) is None


def test_a_mixture_with_context_parallelism_needs_one_stage(tmp_path):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(EXPERTS))
    settings = config(model, engines={"training": "megatron-core", "generation": "vllm"})
    require_models_run(changed(cp=2), settings)
    with pytest.raises(NotYetError, match="actor: 4 experts with cp 2 and pp 2 cannot run yet"):
        require_models_run(changed((2, 1, 1), cp=2), settings)


@pytest.mark.parametrize(
    ("engines", "reason"),
    [
        ({}, "actor: 4 experts cannot run yet on torch-native; megatron-core, vllm run them"),
        ({"training": "fsdp2", "generation": "vllm"}, "actor: 4 experts cannot run yet on fsdp2"),
        ({"training": "megatron-core"}, "actor: 4 experts cannot run yet on torch-native"),
        ({"training": "megatron-core", "generation": "vllm", "roles": {"critic": "fsdp2"}}, "critic: 4 experts"),
        ({"training": "megatron-core", "generation": "vllm"}, None),
    ],
)
def test_a_mixture_runs_where_it_can_and_is_refused_elsewhere(engines, reason, tmp_path):
    """Before anything starts."""
    model = tmp_path / "config.json"
    model.write_text(json.dumps(EXPERTS))
    settings = config(model, engines=engines, reward=None)
    if reason is None:
        require_models_run(colocated("ppo"), settings)
        return
    with pytest.raises(NotYetError, match=reason):
        run(job("ppo"), colocated("ppo"), settings, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()
