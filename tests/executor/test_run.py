"""Protects a whole run in one process: what it writes, that seeds decide it, and what it refuses."""

from dataclasses import replace

import pytest
from safetensors.torch import load_file

from executor.errors import WorkerInputError
from executor.rl.algorithms import RUNNABLE
from executor.run import run
from profiles.errors import InputError, NotYetError
from simulator.facts import Implementation
from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.plan.timeline import Timeline
from tests.executor.plans import ROLES, colocated, config, job, learned, metrics, plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def script_order(flow):
    """Calls as scripts make them: a reward that is a function comes last before the advantages."""
    calls = [call for call in flow.calls if call.key != "compute_reward" or call.role != CONTROLLER]
    function = [call for call in flow.calls if call not in calls]
    place = next(i for i, call in enumerate(calls) if call.key == "compute_advantage")
    return calls[:place] + function + calls[place:]


@pytest.mark.parametrize("algorithm", sorted(RUNNABLE))
def test_every_algorithm_makes_the_calls_of_its_dataflow_in_its_order(algorithm, tmp_path):
    timelines = run(job(algorithm, samples=2), colocated(algorithm), config(), tmp_path, 2)
    flow = build_dataflow(algorithm, ROLES[algorithm])
    for timeline in timelines:
        assert [span.call for span in timeline.spans] == [call.key for call in script_order(flow)]
        assert {span.call for span in timeline.spans} == {call.key for call in flow.calls}
        assert sum(timeline.stages.values()) == pytest.approx(timeline.iteration_s)
    written = Timeline.model_validate_json((tmp_path / "timeline.json").read_text())
    assert written.computed_from and not written.is_edited
    assert written.model_copy(update={"computed_from": "", "digest": ""}) == timelines[-1]
    assert [line["iteration"] for line in metrics(tmp_path)] == [0, 1]
    assert metrics(tmp_path)[0]["tokens"] == 16 * (4 + 3)


def test_a_job_priced_with_adapters_trains_these(tmp_path):
    given = replace(job("grpo", samples=2), implementation=Implementation(lora_rank=2, lora_targets=("qkv",)))
    changes = {"checkpoint": {"every": 1}, "lora_alpha": 4.0}
    run(given, colocated("grpo"), config(**changes), tmp_path, 1)
    saved = [name for file in tmp_path.rglob("rank-*.safetensors") for name in load_file(file) if "model." in name]
    assert saved
    assert all("_proj.lora_" in name for name in saved)
    with pytest.raises(InputError, match=r"adapters.alpha was 4.0 and is 8.0"):
        run(given, colocated("grpo"), config(**changes | {"lora_alpha": 8.0}), tmp_path, 2, resume=True)
    several = replace(given, implementation=Implementation(lora_rank=2, lora_adapters=2))
    with pytest.raises(NotYetError, match="lora_adapters 2 cannot run yet"):
        run(several, colocated("grpo"), config(), tmp_path, 1)


def test_the_seed_decides_the_run(tmp_path):
    curves = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(job("ppo"), colocated("ppo"), config(seed=seed), tmp_path / name, 3)
        curves.append([learned(line) for line in metrics(tmp_path / name)])
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]


def test_a_reward_model_scores_in_place_of_a_function(tmp_path):
    run(job("ppo"), colocated("ppo"), config(reward=None), tmp_path, 1)
    assert metrics(tmp_path)[0]["reward"] not in (0.0, 1.0)


def test_ppo_needs_neither_a_reward_model_nor_a_reference(tmp_path):
    without = plan("ppo", {"A": (("actor", "critic"), (1, 1, 1))})
    (timeline,) = run(job("ppo"), without, config(), tmp_path, 1)
    calls = {span.call for span in timeline.spans}
    assert "compute_reward" in calls
    assert "compute_ref_log_prob" not in calls


def test_end_tokens_shorten_responses(tmp_path):
    run(job("ppo", response=6), colocated("ppo"), config(learning={"end_token": 3}), tmp_path, 4)
    assert min(line["response_tokens"] for line in metrics(tmp_path)) < 6


def test_the_trainer_recomputes_log_probs_where_the_job_prices_that(tmp_path):
    """Engine and trainer are the same model here, so nothing is off; the call is where the dataflow has it."""
    asked = job("ppo", old_log_prob="trainer")
    (timeline,) = run(asked, colocated("ppo"), config(learning={"importance": "token"}), tmp_path, 1)
    assert [span.call for span in timeline.spans][:3] == ["transition", "generate_sequences", "compute_log_prob"]
    (line,) = metrics(tmp_path)
    assert line["mismatch/probs_diff_max"] < 1e-5
    for cut in ({"top_p": 0.5}, {"top_k": 2}, {"importance": "sequence"}):
        with pytest.raises(InputError, match="old_log_prob: trainer"):
            run(job("ppo"), colocated("ppo"), config(learning=cut), tmp_path, 1)


def test_what_sampling_leaves_out_shows_as_mismatch(tmp_path):
    run(job("ppo", old_log_prob="trainer"), colocated("ppo"), config(learning={"top_k": 2}), tmp_path, 1)
    assert metrics(tmp_path)[0]["mismatch/kl"] > 0.1


def test_held_out_prompts_are_scored_when_due(tmp_path):
    given = {"every": 2, "prompts": 4, "at_start": False}
    with_, without = tmp_path / "with", tmp_path / "without"
    run(job("ppo"), colocated("ppo"), config(validation=given), with_, 3)
    run(job("ppo"), colocated("ppo"), config(), without, 3)
    found = [{name: line.pop(name) for name in list(line) if name.startswith("validation/")} for line in metrics(with_)]
    assert [sorted(each) for each in found] == [
        [],
        [],
        ["validation/response_tokens", "validation/reward", "validation/seconds"],
    ]
    lines = [{k: v for k, v in learned(line).items() if k[:10] != "validation"} for line in metrics(with_)]
    assert lines == [learned(line) for line in metrics(without)]


def test_a_rate_that_warms_up_learns_nothing_at_first(tmp_path):
    run(job("ppo"), colocated("ppo"), config(optimizer={"warmup": 1}), tmp_path / "a", 3)
    run(job("ppo"), colocated("ppo"), config(), tmp_path / "b", 3)
    warm, cold = (metrics(tmp_path / name) for name in "ab")
    assert warm[0]["actor/grad_norm"] == cold[0]["actor/grad_norm"]
    assert abs(warm[1]["kl"]) < 1e-6 < 1e-3 < abs(cold[1]["kl"])
    assert abs(warm[2]["kl"]) > 1e-3


def test_dynamic_sampling_fills_an_iteration_with_groups_that_differ(tmp_path):
    """Half of the first digits are even, so of groups of two about half score alike and are replaced."""
    rules = {"dynamic_sampling": True, "most_batches": 8}
    given = config(reward={"function": "first-is-even"}, learning=rules, checkpoint={"every": 1})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    timelines = run(job("grpo", samples=2), colocated("grpo"), given, whole, 2)
    calls = [span.call for span in timelines[0].spans]
    assert calls.count("generate_sequences") == calls.count("compute_reward") > 1
    assert calls.count("transition") == calls.count("update_actor") == 1
    assert [line["reward"] for line in metrics(whole)] == [0.5, 0.5]
    run(job("grpo", samples=2), colocated("grpo"), given, parts, 1)
    run(job("grpo", samples=2), colocated("grpo"), given, parts, 2, resume=True)
    assert [learned(line) for line in metrics(parts)] == [learned(line) for line in metrics(whole)]
    narrow = config(reward={"function": "first-is-even"}, learning=rules | {"most_batches": 1})
    with pytest.raises(InputError, match=r"most_batches is too small") as error:
        run(job("grpo", samples=2), colocated("grpo"), narrow, tmp_path / "narrow", 1)
    assert "an iteration takes 16" in str(error.value)


def test_dynamic_sampling_is_about_groups(tmp_path):
    with pytest.raises(InputError, match="which ppo does not compare"):
        run(job("ppo"), colocated("ppo"), config(learning={"dynamic_sampling": True}), tmp_path, 1)


def test_what_cannot_run_is_said_before_anything_starts(tmp_path):
    with pytest.raises(NotYetError, match="dpo has no script yet; dapo, grpo, ppo, reinforce"):
        run(job("ppo"), colocated("ppo").model_copy(update={"algorithm": "dpo"}), config(), tmp_path)
    with pytest.raises(InputError, match=r"grpo without a reward model needs run.reward.function"):
        run(job("grpo", samples=2), colocated("grpo"), config(reward=None), tmp_path)
    with pytest.raises(WorkerInputError, match=r"actor.init_model, rank 0 of pool A: .*nowhere"):
        run(job("ppo"), colocated("ppo"), config(weights={"actor": "nowhere"}), tmp_path)
    assert list(tmp_path.iterdir()) == []
