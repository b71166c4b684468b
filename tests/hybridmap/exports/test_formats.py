"""Protects number formats, adapters and drafts in exports: set where a system can, else left out of what is priced, and
refused where the run would be another."""

import pytest
import yaml

from hybridmap.exports.export import Source
from hybridmap.exports.followed import FOLLOWED
from hybridmap.exports.imported import newest
from hybridmap.exports.slime.settings import slime_settings
from hybridmap.exports.systems import SYSTEMS, WRITTEN, export_plan
from hybridmap.exports.verl.settings import verl_settings
from hybridmap.job.load import job_from_document
from profiles.errors import InputError
from simulator.play.simulate import simulate
from tests.builders import replace_role
from tests.hybridmap.exports.plans import GRPO, plan_file

DRAFT = {"draft": "qwen2.5-0.5b", "draft_tokens": 3, "acceptance": 0.7}


def with_sections(**sections):
    """The small plan for a job with other sections; drafts need room, which a smaller cache leaves."""
    file = plan_file("grpo")
    engine = file.plan.role("actor").generation
    small = engine.model_copy(update={"kv_cache_bytes": engine.kv_cache_bytes // 4})
    return file.model_copy(
        update={"plan": replace_role(file.plan, "actor", generation=small), "job": {**file.job, **sections}}
    )


def read_back(file, system):
    """What the system runs, and what its file says when it is read."""
    job = job_from_document(file.job)
    ours, _ = FOLLOWED[system](Source(file.plan, job))
    export = export_plan(file, "formats", system)
    name = next(name for name in export.files if name in WRITTEN)
    return export, ours, WRITTEN[name](export.files[name], name, ours)


@pytest.mark.parametrize(
    ("system", "keys"),
    [
        ("verl", {"+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config"}),
        ("nemo-rl", {"policy.generation.vllm_kwargs.speculative_config"}),
    ],
)
def test_a_draft_model_is_an_argument_of_vllm(system, keys):
    export, ours, back = read_back(with_sections(speculation=DRAFT), system)
    (value,) = (export.settings[key] for key in keys)
    assert value == {"model": "Qwen/Qwen2.5-0.5B", "num_speculative_tokens": 3}
    assert ours.facts.speculation is not None and back.facts.speculation == ours.facts.speculation
    assert simulate(back.plan, back.facts).iteration_s == pytest.approx(ours.iteration_s(), rel=1e-3)


@pytest.mark.parametrize("system", ["verl", "nemo-rl"])
@pytest.mark.parametrize("tokens", [0, 2])
def test_the_plan_says_how_many_tokens_engines_draft(system, tokens):
    file = with_sections(speculation=DRAFT | {"draft_tokens": [0, 2, 3]})
    file = file.model_copy(update={"plan": file.plan.model_copy(update={"draft_tokens": tokens})})
    export, ours, back = read_back(file, system)
    written = [value for key, value in export.settings.items() if key.endswith("speculative_config")]
    assert [value["num_speculative_tokens"] for value in written] == ([tokens] if tokens else [])
    assert (ours.draft_tokens, back.draft_tokens) == (tokens, tokens)
    assert simulate(back.plan, back.facts).iteration_s == pytest.approx(ours.iteration_s(), rel=1e-3)


@pytest.mark.parametrize("system", ["openrlhf", "slime"])
def test_drafts_that_a_system_has_no_setting_for_are_named_and_not_priced(system):
    drafting, plain = with_sections(speculation=DRAFT), with_sections()
    export, ours, back = read_back(drafting, system)
    assert "speculation" in {point.place for point in export.points}
    assert ours.facts.speculation is None and back.facts.speculation is None
    assert export.times.written_s == export_plan(plain, "plain", system).times.written_s


@pytest.mark.parametrize(
    ("settings_of", "engine", "expected"),
    [
        (verl_settings, "vllm", {"enable": True, "enable_rollout": True, "num_speculative_tokens": 2}),
        (
            verl_settings,
            "sglang",
            {"enable": True, "enable_rollout": True, "speculative_num_steps": 2, "speculative_num_draft_tokens": 3},
        ),
        (
            slime_settings,
            "sglang",
            {"algorithm": "EAGLE", "num-steps": 2, "eagle-topk": 1, "num-draft-tokens": 3},
        ),
    ],
)
def test_a_models_own_layers_draft_as_its_recipes_have_it(settings_of, engine, expected):
    document = plan_file("grpo").job | {
        "models": dict.fromkeys(("actor", "reference"), "glm-4.5-air"),
        "speculation": {"draft_tokens": 2, "acceptance": 0.8},
        "engines": {"generation": newest("generation", engine.split("@")[0])},
    }
    settings = settings_of(Source(plan_file("grpo").plan, job_from_document(document))).values
    drafts = {key: value for key, value in settings.items() if ".mtp." in key or key.startswith("sglang-speculative")}
    assert {key.rpartition(".")[2].removeprefix("sglang-speculative-"): v for key, v in drafts.items()} == expected


SERVED = {"models": {**GRPO["models"], "actor": {"shape": "qwen2.5-1.5b", "precision": "fp8_block"}}}


@pytest.mark.parametrize("system", SYSTEMS)
def test_rollout_in_fp8_by_blocks_goes_where_a_system_serves_it(system):
    export, ours, back = read_back(with_sections(**SERVED), system)
    served = system != "openrlhf"
    assert (ours.facts.roles["actor"].precision == "fp8_block") is served
    assert back.facts.roles["actor"].precision == ours.facts.roles["actor"].precision
    assert ("models.actor.precision" in {point.place for point in export.points}) is not served
    if system == "slime":
        assert "the folder of the model, in FP8 by blocks of 128}" in export.files["run_slime.sh"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_training_in_fp8_goes_where_a_trainer_has_it(system):
    file = with_sections(implementation={"old_log_prob": "trainer", "training_dtype": "fp8_block"})
    export, ours, _ = read_back(file, system)
    trained = system in ("verl", "nemo-rl")
    assert ours.facts.implementation.training_dtype == ("fp8_block" if trained else "bf16")
    assert ("implementation.training_dtype" in {point.place for point in export.points}) is not trained


def test_adapters_are_refused_where_whole_models_would_be_trained_instead():
    file = with_sections(implementation={"old_log_prob": "trainer", "lora_rank": 16})
    with pytest.raises(InputError, match=r"slime has no LoRA \(slime/utils/arguments.py.*export to verl, nemo-rl or"):
        export_plan(file, "lora", "slime")
    for system, key in (("verl", "actor_rollout_ref.model.lora.rank"), ("openrlhf", "ds.lora.rank")):
        assert export_plan(file, "lora", system).settings[key] == 16
    recipe = yaml.safe_load(export_plan(file, "lora", "nemo-rl").files["recipe.yaml"])
    assert recipe["policy"]["megatron_cfg"]["peft"] == {"enabled": True, "dim": 16}
