"""Protects generation on a dedicated pool: results stay, staleness is counted and bounded."""

import pytest

from executor.controller.actor_group import ActorGroup, PromptStream
from executor.controller.models import Models, build_models
from executor.errors import WorkerInputError
from executor.run import run
from executor.run_settings import hyperparameters
from profiles.errors import InputError
from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.play.schedule import play
from tests.executor.plans import ROLES, colocated, config, generating_apart, job, learned, metrics
from tests.executor.workers import meetings

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
ITERATIONS = 4
JOB = job("ppo", prompts=8, minibatches=2)
RAY = config(learning_rate=3e-3, launcher="ray")
HERE = config(learning_rate=3e-3, launcher="local")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The curve of one process."""
    folder = tmp_path_factory.mktemp("reference")
    run(JOB, colocated("ppo"), HERE, folder, ITERATIONS)
    return [learned(line) for line in metrics(folder)]


def one_process_ahead(tmp_path, monkeypatch, ahead):
    """The curve of one process that generates ``ahead``, with the weights of then, on one group."""

    def made_ahead(controller, plan, run_config, hyper, *rest):
        hyper = hyper.model_copy(update={"staleness_bound": ahead})
        models = build_models(controller, plan, run_config, hyper, *rest)
        actor = models.actor
        return Models({**models.groups, "actor": ActorGroup(actor.trainer, actor.trainer, ahead)})

    with monkeypatch.context() as patched:
        patched.setattr("executor.controller.models.build_models", made_ahead)
        run(JOB, colocated("ppo"), HERE, tmp_path / "here", ITERATIONS)
    return [learned(line) for line in metrics(tmp_path / "here")]


def same(found, expected):
    return all(a == pytest.approx(b, rel=2e-3, abs=2e-5) for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "generation"), [((2, 1, 1), (1, 2, 1)), ((1, 2, 1), (2, 1, 1)), ((1, 1, 2), (1, 1, 2))]
)
def test_a_generation_pool_changes_no_result(training, generation, reference, on_ray, tmp_path):
    plan = generating_apart(colocated("ppo", training), generation)
    timeline = run(JOB, plan, RAY, tmp_path, ITERATIONS)[-1]
    assert same([learned(line) for line in metrics(tmp_path)], reference)
    assert {span.pool for span in timeline.spans if span.call == "transition"} == {"A", "G"}
    assert {span.pool for span in timeline.spans if span.call == "generate_sequences"} == {"G"}


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "steps"), [("one-step-off", 1), ("async", 2)])
def test_generation_runs_ahead_with_the_staleness_that_the_plan_says(schedule, steps, on_ray, tmp_path, monkeypatch):
    plan = generating_apart(colocated("ppo", (1, 1, 2)), (1, 1, 1), schedule, steps)
    timelines = run(JOB, plan, RAY, tmp_path / "apart", ITERATIONS)
    found = metrics(tmp_path / "apart")
    assert [line["actor/staleness"] for line in found] == [min(i, steps) for i in range(ITERATIONS)]
    assert same([learned(line) for line in found], one_process_ahead(tmp_path, monkeypatch, steps))
    last = {span.call for span in timelines[-1].spans}
    assert "generate_sequences" not in last  # nothing is generated for iterations that never come


@pytest.mark.slow
def test_training_overlaps_generation_as_the_simulator_plays_it(on_ray, tmp_path):
    """Each update meets the generation of the next iteration's responses, and they overlap when played."""
    durations_s = {"transition": 0.1, "generate_sequences": 0.5, "compute_values": 0.2, "update_actor": 0.4}
    meets = {("update_actor", i): ("generate_sequences", i + 1) for i in range(3)}
    engines = meetings(ROLES["ppo"], tmp_path / "met", meets)
    plan = generating_apart(colocated("ppo"), (1, 1, 1), "one-step-off")
    timeline = run(job("ppo"), plan, RAY, tmp_path / "out", 4, engines=engines)[2]
    flow = build_dataflow("ppo", ROLES["ppo"])
    pool_of = {**dict.fromkeys(ROLES["ppo"], "A"), CONTROLLER: CONTROLLER}
    seconds = {call.key: durations_s.get(call.key, 0.0) for call in flow.calls}
    played = play(flow, seconds, pool_of, generation_pool="G", overlapped=True)
    at = {call.key: record for call, record in zip(flow.calls, played, strict=True)}
    apart = "generate_sequences"
    of = {span.call: span for span in timeline.spans if (span.pool == "G") == (span.call == apart)}
    for found in (at, of):
        a, b = found["update_actor"], found[apart]
        assert min(a.end_s, b.end_s) > max(a.start_s, b.start_s)
    turns = [call.key for call in flow.calls if call.role != CONTROLLER and call.key != apart]
    turns.sort(key=lambda key: at[key].start_s)
    assert sorted(turns, key=lambda key: of[key].start_s) == turns


def test_responses_older_than_the_plan_allows_are_refused(tmp_path, monkeypatch):
    def too_far_ahead(controller, plan, run_config, hyper, *rest):
        models = build_models(controller, plan, run_config, hyper, *rest)
        return Models({**models.groups, "actor": ActorGroup(models.actor.trainer, models.actor.trainer, 1)})

    monkeypatch.setattr("executor.controller.models.build_models", too_far_ahead)
    with pytest.raises(WorkerInputError, match=r"responses are 1 updates behind .* the plan's schedule allows 0"):
        run(JOB, colocated("ppo"), HERE, tmp_path, ITERATIONS)
    assert len(metrics(tmp_path)) == 1


def test_prompts_must_come_in_order_where_generation_runs_ahead():
    stream = PromptStream(lambda i: f"batch {i}", 3)

    class Group:
        controller = type("Controller", (), {"next_number": lambda self: 0})()

        def call_numbered(self, *_):
            pass

        def generate_sequences(self, prompts, *, suffix):
            return f"responses to {prompts}"

    group = Group()
    actor = ActorGroup(group, group, ahead=1)
    actor.prompts = stream
    assert [actor.generate_sequences(prompts) for prompts in stream] == [f"responses to batch {i}" for i in range(3)]
    with pytest.raises(InputError, match="needs the prompts of the run, in their order"):
        ActorGroup.generate_sequences(actor_at_start(group, stream), "others")


def actor_at_start(group, stream):
    actor = ActorGroup(group, group, ahead=1)
    actor.prompts = stream
    return actor


def test_one_process_cannot_do_both(tmp_path):
    with pytest.raises(InputError, match="a generation pool needs processes of its own"):
        run(JOB, generating_apart(colocated("ppo"), (1, 1, 1)), HERE, tmp_path)


def test_staleness_bounds_follow_the_schedule():
    apart = generating_apart(colocated("ppo"), (1, 1, 1), "async", 3)
    assert hyperparameters(JOB, HERE, apart).staleness_bound == 3
    assert hyperparameters(JOB, HERE, colocated("ppo")).staleness_bound == 0
