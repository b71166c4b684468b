"""Protects runs that go on: bit for bit the same on the plan that saved, the same parameters and curve on any other."""

import json
from dataclasses import replace

import pytest

from executor.checkpoint.files import checkpoints
from executor.errors import DamagedCheckpointError
from executor.recovery.load import latest, require_whole
from executor.rl.algorithms import RUNNABLE
from executor.rl.algorithms.ppo import ppo
from executor.run import run
from executor.weights.checksum import box_sum, totals
from executor.worker.protocols import register
from executor.worker.roles import WORKERS, ActorWorker, CriticWorker
from profiles.errors import InputError
from tests.executor.engines.test_offload import BOTH, offloaded
from tests.executor.plans import colocated, config, generating_apart, job, learned, metrics, plan

pytestmark = pytest.mark.filterwarnings("ignore")
ALIKE = ("dapo", "rloo", "reinforce++")
"""Run the script of GRPO."""
EVERY_TWO = {"checkpoint": {"every": 2}}
HERE = config(learning_rate=3e-3, launcher="local", **EVERY_TWO)
RAY = config(learning_rate=3e-3, launcher="ray", **EVERY_TWO)


def curve(folder):
    return [learned(line) for line in metrics(folder)]


def stopped_and_gone_on(job_facts, run_plan, settings, tmp_path):
    """Curves of four iterations: in one go, and in two."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(job_facts, run_plan, settings, whole, 4)
    run(job_facts, run_plan, settings, parts, 2)
    run(job_facts, run_plan, settings, parts, 4, resume=True)
    assert [line["iteration"] for line in metrics(parts)] == list(range(4))
    return curve(whole), curve(parts)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=pytest.mark.long if name in ALIKE else ()) for name in sorted(RUNNABLE)]
)
def test_a_run_that_goes_on_is_the_run_that_never_stopped(algorithm, tmp_path):
    """To the last bit, with the controls that have moved meanwhile."""
    learning = {"kl_target": 1e-4, "kl_horizon": 20, "cost_limit": 0.2}
    settings = HERE.model_copy(update={"learning": HERE.learning.model_copy(update=learning)})
    whole, parts = stopped_and_gone_on(
        job(algorithm, samples=2, minibatches=2), colocated(algorithm), settings, tmp_path
    )
    assert parts == whole
    assert len({line["kl_coefficient"] for line in whole}) > 1 or algorithm in ("grpo", "dapo")
    if algorithm == "safe-rlhf":
        assert len({line["cost_multiplier"] for line in whole}) > 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_offloaded_states_go_into_a_checkpoint_and_come_back(dtype, tmp_path):
    away = offloaded(offloaded(colocated("ppo"), "actor", BOTH), "critic", ("optimizer",))
    whole, parts = stopped_and_gone_on(job("ppo"), away, HERE.model_copy(update={"dtype": dtype}), tmp_path)
    assert parts == whole


SPLIT = {"A": (("actor", "reference"), (1, 1, 2)), "B": (("critic", "reward"), (1, 2, 1))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "run_plan",
    [
        pytest.param(plan("ppo", SPLIT), id="split", marks=pytest.mark.long),
        pytest.param(colocated("ppo", (2, 1, 2), zero_stage=0), id="zero-0", marks=pytest.mark.long),
        pytest.param(
            generating_apart(colocated("ppo", (1, 1, 2)), (1, 1, 1), "one-step-off"),
            id="one-step-off",
            marks=pytest.mark.long,
        ),
        pytest.param(generating_apart(colocated("ppo", (1, 1, 2)), (1, 1, 1), "async", 2), id="async"),
    ],
)
def test_on_ranks_of_ray_it_is_the_same_to_the_last_bit(run_plan, on_ray, tmp_path):
    """What was generated ahead comes back, too: it was written by weights that are gone."""
    run(job("ppo", minibatches=2), run_plan, RAY, tmp_path / "whole", 6)
    begin = tmp_path / "whole" / "checkpoints" / "iteration-00000004"
    run(job("ppo", minibatches=2), run_plan, RAY, tmp_path / "rest", 6, resume=begin)
    assert curve(tmp_path / "rest") == curve(tmp_path / "whole")[4:]


def summed(engine):
    """The sum of every parameter's box on this rank."""
    from executor.engines.native.saved_state import stored_of

    found = {}
    for extent in engine.flat.extents:
        (region,) = stored_of(extent, engine.piece).regions
        weight = engine.flat.weights[extent.parameter.name].detach()
        found[region.name, region.box] = int(box_sum(weight, region.box, extent.parameter.shape, region.name))
    return found


class SummedActor(ActorWorker):
    @register(protocol="ONE_TO_ALL")
    def sums(self):
        return summed(getattr(self.trainer, "trainer", self.trainer))


class SummedCritic(CriticWorker):
    @register(protocol="ONE_TO_ALL")
    def sums(self):
        return summed(getattr(self.trainer, "trainer", self.trainer))


def whole_sums(group):
    """Checksums of whole parameters; ranks that hold the same box hold the same values."""
    boxes = {}
    for future in group.sums():
        for key, value in future.first().items():
            assert boxes.setdefault(key, value) == value
    return totals(boxes)


@pytest.fixture
def sums(monkeypatch):
    """Checksums of actor and critic before every iteration."""
    found = []

    def summing(models, batches):
        for prompts in batches:
            found.append({role: whole_sums(getattr(models, role)) for role in ("actor", "critic")})
            yield from ppo(models, [prompts])

    monkeypatch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=summing))
    monkeypatch.setitem(WORKERS, "actor", SummedActor)
    monkeypatch.setitem(WORKERS, "critic", SummedCritic)
    return found


OTHERS = {
    "one process": colocated("ppo"),
    "pipeline and tensor parallel, no ZeRO": colocated("ppo", (2, 2, 1), zero_stage=0),
    "split otherwise": plan("ppo", {"A": (("actor", "reward"), (2, 1, 1)), "B": (("critic", "reference"), (1, 1, 2))}),
    "standalone": plan("ppo", {role: ((role,), (1, 1, 1)) for role in ("actor", "critic", "reference", "reward")}),
    "generation apart": generating_apart(colocated("ppo", (1, 1, 2)), (1, 1, 1)),
}


@pytest.mark.thorough
def test_a_checkpoint_loads_into_plans_of_other_layouts_placements_and_sizes(on_ray, tmp_path, sums):
    """Saved by ZeRO ranks of two pools with tensor parallelism; parameters equal by checksum, and the curve goes on."""
    saving = plan("ppo", {"A": (("actor", "reference"), (1, 2, 1)), "B": (("critic", "reward"), (1, 1, 2))})
    run(job("ppo", minibatches=2), saving, RAY, tmp_path / "a", 6)
    expected, whole = sums[4], curve(tmp_path / "a")
    assert sums[4] != sums[3]
    begin = tmp_path / "a" / "checkpoints" / "iteration-00000004"
    for name, other in OTHERS.items():
        sums.clear()
        settings = RAY.model_copy(update={"checkpoint": None, "launcher": "local" if other.num_gpus == 1 else "ray"})
        run(job("ppo", minibatches=2), other, settings, tmp_path / name, 6, resume=begin)
        assert sums[0] == expected, name
        for mine, theirs in zip(curve(tmp_path / name), whole[4:], strict=True):
            assert mine == pytest.approx(theirs, rel=2e-3, abs=2e-5), name
            assert mine["reward"] == theirs["reward"]


def test_lines_and_checkpoints_of_what_was_lost_are_written_again_once(tmp_path):
    """A run that died in its fifth iteration goes on after the fourth."""
    run(job("grpo", samples=2), colocated("grpo"), HERE, tmp_path / "whole", 6)
    run(job("grpo", samples=2), colocated("grpo"), HERE, tmp_path / "died", 4)
    lines = (tmp_path / "died" / "metrics.jsonl").read_text()
    (tmp_path / "died" / "metrics.jsonl").write_text(lines + json.dumps({"iteration": 4, "reward": 9.0}) + "\n")
    run(job("grpo", samples=2), colocated("grpo"), HERE, tmp_path / "died", 6, resume=True)
    assert curve(tmp_path / "died") == curve(tmp_path / "whole")
    assert [c.manifest.iteration for c in checkpoints(tmp_path / "died" / "checkpoints")] == [4, 6]
    steps = latest(tmp_path / "died" / "checkpoints").manifest.roles["actor"].counters
    assert steps == {"optimizer_steps": 6, "updates": 6}


def test_metrics_say_what_saving_cost(tmp_path):
    run(job("grpo", samples=2), colocated("grpo"), HERE, tmp_path, 4)
    costs = [
        {name: value for name, value in line.items() if name.startswith("checkpoint/")} for line in metrics(tmp_path)
    ]
    assert ["checkpoint/blocking_s" in cost for cost in costs] == [False, True, False, True]
    told = [cost for cost in costs[2:] if "checkpoint/background_s" in cost]  # of the first: while the run goes on, or
    assert len(told) == 1  # at the latest when the next save begins
    assert not any("checkpoint/background_s" in cost for cost in costs[:2])
    assert told[0]["checkpoint/bytes"] == next(iter(checkpoints(tmp_path / "checkpoints"))).num_bytes > 0


def test_what_cannot_go_on_is_said_before_anything_starts(tmp_path):
    facts, here = job("grpo", samples=2), colocated("grpo")
    with pytest.raises(InputError, match=r"checkpoints has no complete checkpoint; 'run.checkpoint: \{every: N\}'"):
        run(facts, here, HERE, tmp_path / "none", 4, resume=True)
    run(facts, here, HERE, tmp_path, 2)
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=r"learning_rate was 0\.003 and is 0.001; seed was 1 and is 2"):
        run(facts, here, HERE.model_copy(update={"learning_rate": 1e-3, "seed": 2}), tmp_path, 4, resume=True)
    with pytest.raises(InputError, match=r"workload.response.maximum was 3 and is 4"):
        run(job("grpo", samples=2, response=4), here, HERE, tmp_path, 4, resume=True)
    with pytest.raises(InputError, match=r"has 2 iterations behind it and the run shall make 2: .* --iterations 3"):
        run(facts, here, HERE, tmp_path, 2, resume=True)
    with pytest.raises(InputError, match="has checkpoints up to iteration 2, this run begins at 0: --resume continues"):
        run(facts, here, HERE, tmp_path, 4)
    assert kept == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def flip_a_bit(folder):
    """Of the last byte of the actor's first shard."""
    shard = min((folder / "actor").iterdir())
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def spoil_the_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"next_call"', '"next_cell"'))


@pytest.mark.parametrize(("damage", "resume"), [(flip_a_bit, "checkpoints"), (spoil_the_manifest, True)])
def test_a_newest_checkpoint_that_is_damaged_is_skipped_where_an_older_one_is_whole(
    damage, resume, tmp_path, monkeypatch
):
    """To the last bit the run that never stopped; what is damaged is replaced when its iteration comes again."""
    monkeypatch.chdir(tmp_path)
    facts, here = job("ppo", minibatches=2), colocated("ppo")
    run(facts, here, HERE, tmp_path / "whole", 6)
    run(facts, here, HERE, tmp_path, 4)
    saved = tmp_path / "checkpoints"
    damage(saved / "iteration-00000004")
    told = r"iteration-00000004/.*(is damaged: SHA-256|next_c.ll).*; resuming from .*iteration-00000002, which is older"
    with pytest.warns(UserWarning, match=told):
        run(facts, here, HERE, tmp_path, 6, resume=resume)
    assert curve(tmp_path) == curve(tmp_path / "whole")
    assert [c.manifest.iteration for c in checkpoints(saved)] == [4, 6]
    for each in checkpoints(saved):
        require_whole(each)


def test_what_has_no_iteration_left_goes_on_where_that_is_damaged(tmp_path):
    """The last checkpoint of a run of four iterations: it is made again, since the run has it no more."""
    facts, here = job("grpo", samples=2), colocated("grpo")
    run(facts, here, HERE, tmp_path, 4)
    before = curve(tmp_path)
    flip_a_bit(tmp_path / "checkpoints" / "iteration-00000004")
    told = []
    run(facts, here, HERE, tmp_path, 4, resume=True, on_damaged=told.append)
    assert len(told) == 1
    assert curve(tmp_path) == before
    require_whole(latest(tmp_path / "checkpoints"))


def test_where_no_checkpoint_is_whole_the_run_ends_and_the_file_is_named(tmp_path):
    facts, here, told = job("grpo", samples=2), colocated("grpo"), []
    run(facts, here, HERE, tmp_path, 4)
    for folder in (tmp_path / "checkpoints").iterdir():
        flip_a_bit(folder)
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    one = tmp_path / "checkpoints" / "iteration-00000004"
    for resume in (True, one):  # one that is named is not replaced by another
        with pytest.raises(DamagedCheckpointError, match=r"00000004/actor/rank-00000-0.safetensors is damaged: SHA"):
            run(facts, here, HERE, tmp_path, 6, resume=resume, on_damaged=told.append)
    assert len(told) == 1
    assert kept == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_the_reason(tmp_path):
    """A file takes its folder's place while the run is at work, in one move: what is being saved makes no other."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    gone, other = tmp_path / "gone", tmp_path / "other"
    gone.symlink_to(tmp_path / "folder")
    settings = HERE.model_copy(update={"checkpoint": HERE.checkpoint.model_copy(update={"every": 1, "dir": str(gone)})})

    def remove(iteration, found):
        other.symlink_to(tmp_path / "file")
        other.replace(gone)

    with pytest.raises(InputError, match=r"Not a directory|the checkpoint could not be written"):
        run(job("grpo", samples=2), colocated("grpo"), settings, tmp_path / "out", 4, watch=remove)
