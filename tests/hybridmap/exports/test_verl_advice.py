"""Protects the advice of an import: it names keys that verl follows and no others, and its time is that of the changed
run, read again."""

from dataclasses import replace

import pytest

from hybridmap.exports.advice import advise
from hybridmap.exports.export import Source
from hybridmap.exports.imported import Given
from hybridmap.exports.reader import READERS
from hybridmap.exports.verl.import_run import import_verl
from hybridmap.exports.verl.read import read_verl_config
from mapper.search.find_plan import find_plan
from simulator.play.simulate import simulate

ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout"))
GIVEN = Given("h100-80gb-sxm", mean_response_length=400)
WORK = (
    "algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.train_batch_size=256 "
    f"data.max_prompt_length=512 data.max_response_length=1024 {ACTOR}.ppo_mini_batch_size=128 {ROLLOUT}.n=4 "
    f"{ACTOR}.use_kl_loss=True {ROLLOUT}.gpu_memory_utilization=0.5 trainer.nnodes=2"
)
SAMPLES = (
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=1 {ROLLOUT}.log_prob_micro_batch_size_per_gpu=1 "
    f"{REF}.log_prob_micro_batch_size_per_gpu=1"
)
PACKS = f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=2048"
FSDP = f"{ACTOR}.ulysses_sequence_parallel_size=4 {ACTOR}.fsdp_config.param_offload=True"
MEGATRON = f"model_engine=megatron {ACTOR}.megatron.tensor_model_parallel_size=4"
RUNS = {"samples": f"{SAMPLES} {FSDP}", "packs": f"{PACKS} {FSDP}", "megatron": f"{SAMPLES} {MEGATRON}"}


def search(job):
    return find_plan(replace(job.request(), runners_up=False))


@pytest.fixture(scope="module", params=RUNS)
def advised(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.sh"
    path.write_text(f"python3 -m verl.trainer.main_ppo {WORK} {RUNS[request.param]}\n")
    config = read_verl_config(path)
    imported = import_verl(config, GIVEN)
    return request.param, config, imported, advise(READERS["verl"], imported, config, search)


def test_the_time_is_that_of_the_changed_run(advised):
    """Changing the keys in the run and importing that gives the plan that was shown, and its time."""
    _, config, imported, advice = advised
    assert advice.reason == ""
    again = import_verl(config.changed({key.lstrip("+"): new for key, _, new in advice.changes}), GIVEN)
    assert again.plan.roles == tuple(
        entry.model_copy(update={"generation": again.plan.role(entry.role).generation})
        for entry in advice.best.plan.roles
    )
    assert advice.iteration_s == simulate(again.plan, again.job.facts()).iteration_s
    assert advice.iteration_s == pytest.approx(advice.best.iteration_s, rel=0.02)  # the KV cache as a share of memory
    assert advice.iteration_s < simulate(imported.plan, imported.job.facts()).iteration_s


def test_every_change_is_one_and_of_the_engine_that_runs(advised):
    name, _, _, advice = advised
    assert advice.changes
    other = "megatron" if name != "megatron" else "fsdp_config"
    for key, now, new in advice.changes:
        assert now != new
        assert other not in key
        assert not key.startswith(("algorithm.", "critic.", "actor_rollout_ref.model.path", "+hybridmap"))
    values = {key: new for key, _, new in advice.changes}
    dynamic = values.get(f"{ACTOR}.use_dynamic_bsz", name == "packs")
    idle = "micro_batch_size_per_gpu" if dynamic else "max_token_len_per_gpu"
    assert not [key for key in values if key.endswith(idle)]  # a micro-batch changes by the keys that count


def test_fsdp_is_offered_no_degree_that_it_lacks(advised):
    """Without verl's limits the best plan of this job may be tensor-parallel, which no key of its FSDP says."""
    name, _, _, advice = advised
    if name == "megatron":
        pytest.skip("it has them")
    for entry in advice.best.plan.roles:
        for layout in (entry.training, entry.inference):
            assert layout is None or (layout.tp, layout.pp, layout.ep) == (1, 1, 1)
    old = f"{ACTOR}.ulysses_sequence_parallel_size"
    changed = {key: new for key, _, new in advice.changes}
    assert changed.get(old, 4) == advice.best.plan.role("actor").training.cp  # left alone, it would win


def test_megatron_is_offered_one_layout_a_process(advised):
    name, _, _, advice = advised
    if name != "megatron":
        pytest.skip("it has a layout for each")
    actor, reference = (advice.best.plan.role(role) for role in ("actor", "reference"))
    assert (actor.training.tp, actor.training.pp) == (reference.inference.tp, reference.inference.pp)


def test_a_run_that_nothing_beats_is_left_alone(advised):
    """Told its own advice, a run gets none that matters."""
    _, config, _, advice = advised
    better = config.changed({key.lstrip("+"): new for key, _, new in advice.changes})
    imported = import_verl(better, GIVEN)
    again = advise(READERS["verl"], imported, better, search)
    now = Source(imported.plan, imported.job).iteration_s()
    assert again.iteration_s is None or again.iteration_s >= 0.98 * now
