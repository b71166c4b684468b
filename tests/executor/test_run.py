"""Protects a whole run in one process: what it writes, that seeds decide it, and what it refuses."""

import pytest

from executor.errors import WorkerInputError
from executor.rl.algorithms import RUNNABLE
from executor.run import run
from profiles.errors import InputError, NotYetError
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
    assert Timeline.model_validate_json((tmp_path / "timeline.json").read_text()) == timelines[-1]
    assert [line["iteration"] for line in metrics(tmp_path)] == [0, 1]
    assert metrics(tmp_path)[0]["tokens"] == 16 * (4 + 3)


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


def test_what_cannot_run_is_said_before_anything_starts(tmp_path):
    with pytest.raises(NotYetError, match="dpo has no script yet; dapo, grpo, ppo, reinforce"):
        run(job("ppo"), colocated("ppo").model_copy(update={"algorithm": "dpo"}), config(), tmp_path)
    with pytest.raises(InputError, match=r"grpo without a reward model needs run.reward.function"):
        run(job("grpo", samples=2), colocated("grpo"), config(reward=None), tmp_path)
    with pytest.raises(WorkerInputError, match=r"actor.init_model, rank 0 of pool A: .*nowhere"):
        run(job("ppo"), colocated("ppo"), config(weights={"actor": "nowhere"}), tmp_path)
    assert list(tmp_path.iterdir()) == []
