"""Protects vLLM beside a trainer, on GPUs that are none: vLLM's own start-up check on faked snapshots, its own look-up
of devices where a rank sees one, and the order in which memory is taken again. Not run on a GPU.
"""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from executor.engines.entry import GeneratorSetup
from executor.engines.hybrid import HybridEngine
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.native.generator import NativeGenerator
from executor.engines.registry import GENERATION
from executor.engines.spec import EngineSpec
from executor.engines.start_memory import memory_share
from executor.engines.vllm.engine import VllmEngine, VllmOptions
from executor.engines.vllm.memory import SleepingEngine
from executor.records import Identity
from executor.weights.architecture import read_architecture
from profiles.errors import InputError
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY

GIB = 1 << 30
ONE = Degrees(1, 1, 1, 1, 1)
pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM's imports
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: the extra cpu-engines")


@needs_vllm
@pytest.mark.parametrize("held", [2, 10, 30])
def test_vllm_starts_beside_what_the_trainer_holds(held):
    """Without a share of the plan's vLLM asks for 92 % of the device, and refuses from 7 GiB of a trainer on."""
    from vllm.config.cache import CacheConfig
    from vllm.v1.worker.utils import request_memory

    free, total = (79 - held) * GIB, 80 * GIB
    share = memory_share(free, total, 14 * GIB, 32 * GIB, "vLLM")
    snapshot = SimpleNamespace(total_memory=total, free_memory=free - GIB, device_="cuda:0")  # NCCL has come since
    config = CacheConfig(gpu_memory_utilization=share, kv_cache_memory_bytes=32 * GIB)
    assert request_memory(snapshot, config) == pytest.approx(46 * GIB, abs=1)


def test_a_cache_that_does_not_fit_is_refused_with_its_numbers():
    with pytest.raises(InputError, match=r"48\.0 GiB .*\(14\.0 weights, 32\.0 KV cache, 2 reserve\), 29\.0 of 80\.0"):
        memory_share(29 * GIB, 80 * GIB, 14 * GIB, 32 * GIB, "vLLM")
    assert memory_share(29 * GIB, 80 * GIB, 14 * GIB, 0, "vLLM") == pytest.approx(27 / 80)


@needs_vllm
def test_a_rank_that_sees_one_device_finds_its_own_and_no_neighbour(monkeypatch):
    """Custom all-reduce asks for neighbours by local rank, which a process that sees one device does not have."""
    from vllm.platforms.interface import Platform

    class Cuda(Platform):
        device_control_env_var = "CUDA_VISIBLE_DEVICES"

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert Cuda.logical_device_id_to_visible_device_id(0) == 0
    with pytest.raises(IndexError):
        Cuda.logical_device_id_to_visible_device_id(1)
    made = VllmEngine(0, ONE, read_architecture(TINY), str(TINY), torch.bfloat16, VllmOptions())
    assert made._settings()["disable_custom_all_reduce"]  # noqa: SLF001


class AsleepVllm(NativeGenerator):
    """Our own generator that takes and gives memory as vLLM's does, told of every step."""

    def load(self):
        super().load()
        self.started_beside_bytes = self.trainer_bytes()
        self.events = []
        self.asleep = set()
        engine = SimpleNamespace(is_sleeping=lambda: bool(self.asleep))
        llm = SimpleNamespace(sleep=self.sleep, wake_up=self.wake_up, llm_engine=engine)
        llm.release_kv_cache_memory = self.release_cache_memory
        self.memory = SleepingEngine(llm)

    def sleep(self, level):
        self.asleep = {"weights", "kv_cache"} if level else self.asleep
        self.events.append(f"sleep {level}")

    def wake_up(self, tags):
        self.asleep -= set(tags)
        self.events.append(f"wake {' '.join(tags)}")

    def release_cache_memory(self):
        self.asleep.add("kv_cache")
        self.events.append(f"trainer holds {self.trainer_bytes()}, cache sleeps")

    def release_cache(self):
        self.memory.release_cache()

    def release(self):
        self.events.append(f"trainer holds {self.trainer_bytes()}")
        super().release()
        self.memory.release()

    def restore(self):
        self.memory.restore_weights()
        super().restore()

    def tensors(self):
        self.events.append("written")
        return super().tensors()

    def ready(self):
        self.events.append(f"trainer holds {self.trainer_bytes()}")
        self.memory.restore_cache()
        super().ready()


def test_cache_and_trainer_are_never_there_together(monkeypatch):
    """Weights wake, move, the trainer sleeps, the cache wakes; the cache sleeps, the trainer wakes, weights sleep.

    Before either wakes torch gives back what the trainer has freed, which stayed on an H100.
    """
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: engine.generator.events.append("torch lets go"))
    model = ModelSpec(str(TINY), optimizer=OptimizerConfig(1e-2), check_weights=False)
    identity = Identity("A", 0, 1)

    def generator(arch, dtype, clock):
        made = GENERATION["torch-native"].build(GeneratorSetup(identity, ONE, model, arch, dtype, clock))
        made.__class__ = AsleepVllm
        made.trainer_bytes = lambda: sum(t.untyped_storage().nbytes() for t in engine.trainer.tensors().values())
        return made

    engine = HybridEngine(ONE, EngineSpec(model).training_engine(identity, "", ONE), generator)
    engine.load()
    assert engine.generator.started_beside_bytes == 0
    alone = EngineSpec(model).training_engine(identity, "", ONE)
    alone.load()
    assert all(torch.equal(found, engine.trainer.tensors()[name]) for name, found in alone.tensors().items())
    engine.generator.events.clear()
    engine.to_generation()
    events = [e for i, e in enumerate(engine.generator.events) if e not in engine.generator.events[i - 1 : i]]
    assert events == [
        "torch lets go",
        "wake weights",
        "written",
        "trainer holds 0",
        "torch lets go",
        "wake kv_cache",
    ]
    engine.generator.events.clear()
    shard_bytes = sum(stored.numel for stored in engine.plan.source.stored(0)) * 4
    engine.to_training()
    assert [e for e in dict.fromkeys(engine.generator.events) if e != "written"] == [
        "sleep 0",
        "trainer holds 0, cache sleeps",
        f"trainer holds {shard_bytes}",
        "sleep 2",
    ]
