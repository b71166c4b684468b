"""Protects the trainer from a transition that ends half way: a rank is killed in the middle of it, the error names that
rank, and what the others train on is untouched.
"""

import importlib.util
import os
import signal

import pytest

from executor.controller.pools import ResourcePool
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.spec import EngineSpec
from executor.errors import RankFailedError
from executor.records import CallRequest
from executor.rl.hyperparameters import Hyperparameters
from executor.worker.protocols import register
from executor.worker.roles import ActorWorker
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY

ray = pytest.importorskip("ray")
from executor.controller.controller import Controller  # noqa: E402
from executor.launch.ray import RayLauncher  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
VICTIM = 2


class Interrupted(ActorWorker):
    """An actor of which one rank dies when the transition's second collective begins; in place there is one."""

    @register(protocol="ONE_TO_ALL")
    def sums(self):
        from executor.weights.checksum import sums_of_stored

        engine = getattr(self.trainer, "trainer", self.trainer)
        return sums_of_stored(engine.layout.stored(engine.identity.rank), engine.tensors(), engine.arch)

    @register(protocol="ONE_TO_ALL")
    def interrupted_transition(self):
        in_place = getattr(self.trainer, "transition", None)
        collectives, calls = self.trainer.collectives if in_place is None else in_place.collectives, []
        last = 2 if in_place is None else 1

        def dying(method):
            def call(*arguments):
                calls.append(method)
                if len(calls) == last and self.identity.rank == VICTIM:
                    os.kill(os.getpid(), signal.SIGKILL)
                return method(*arguments)

            return call

        collectives.all_gather_in_place = dying(collectives.all_gather_in_place)
        collectives.exchange = dying(collectives.exchange)
        self.made.generator.to_generation()

    @register(protocol="ONE_TO_ALL")
    def is_generating(self):
        engine = self.made.generator
        return bool(engine._is_generating if hasattr(engine, "_is_generating") else engine._generating)  # noqa: SLF001


@pytest.mark.parametrize(
    "training", ["in-place", *(pytest.param(name, marks=pytest.mark.long) for name in ("fsdp2", "megatron-core"))]
)
def test_a_killed_rank_is_named_and_trainers_keep_their_weights(training):
    if training == "megatron-core" and importlib.util.find_spec("megatron") is None:
        pytest.skip("needs megatron-core: the extra cpu-engines")
    model = ModelSpec(str(TINY), dtype="fp32", optimizer=OptimizerConfig(1e-3))
    spec = EngineSpec(model, "torch-native" if training == "in-place" else training, "torch-native")
    x = Degrees(2, 2, 1, 1, 1) if training == "megatron-core" else Degrees(1, 2, 2, 1, 1)
    through = (0, 1) if training == "in-place" else ()  # another micro-DP group than the victim's
    options = {"engine": spec, "algorithm": "grpo", "hyper": Hyperparameters()}
    with Controller(RayLauncher(cpu_ranks=4)) as controller:
        controller.start([ResourcePool("A", 4)])
        actor = controller.add_group("actor", "A", Interrupted, x, options)
        for future in actor.init_model():
            future.wait()
        before = [future.first() for future in actor.sums()]
        assert all(before)
        calls = actor.interrupted_transition()
        with pytest.raises(RankFailedError, match=rf"failed on rank {VICTIM} of pool A: its process ended"):
            for future in calls:
                future.wait()
        for rank, process in enumerate(controller._ranks["A"]):  # noqa: SLF001
            if rank != VICTIM:
                for method, expected in (("sums", before[rank]), ("is_generating", rank in through)):
                    asked = controller.launcher.submit([process], [CallRequest(99, method, "actor", method, None)])
                    assert controller.launcher.get(asked[0].data) == expected
