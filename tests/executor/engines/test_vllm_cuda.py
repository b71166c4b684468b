"""Protects vLLM on GPUs where each rank sees its own, by vLLM's own code as far as it runs without one: how ranks add
up, who puts weights in order, which generator draws, and what may sleep when. Not run on a GPU.
"""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from executor.engines.vllm import engine as adapter
from executor.engines.vllm.cuda_setup import cuda_settings
from executor.engines.vllm.engine import ENVIRONMENT, VllmEngine, VllmOptions
from executor.engines.vllm.memory import SleepingEngine
from executor.engines.vllm.samples import requests
from executor.rl.sampling import Sampling
from executor.weights.architecture import read_architecture
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY

TP2 = Degrees(1, 2, 1, 1, 2)
MIXTURE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
BATCH = TensorDict(
    {"prompts": torch.ones(2, 3).long(), "prompt_mask": torch.ones(2, 3).bool(), "uid": torch.tensor([7, 8])}, [2]
)
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of vLLM's imports
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: the extra cpu-engines"),
]


@pytest.fixture
def on_cuda(monkeypatch):
    """As far as our own code asks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (79 << 30, 80 << 30))


def made_by_vllm(monkeypatch):
    """What vLLM's communicator of a tensor-parallel group of two would reduce by, were this CUDA."""
    from vllm.distributed.device_communicators import (
        cuda_communicator,
        custom_all_reduce,
        flashinfer_all_reduce,
        pynccl,
        symm_mem,
    )
    from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

    def base(self, *_, **__):
        self.world_size, self.use_all2all = 2, False
        self.cpu_group = self.device = self.device_group = None

    monkeypatch.setattr(DeviceCommunicatorBase, "__init__", base)
    cuda = SimpleNamespace(is_cuda=lambda: True, is_rocm=lambda: False)
    monkeypatch.setattr(cuda_communicator, "current_platform", cuda)
    monkeypatch.setattr(cuda_communicator, "is_symmetric_memory_enabled", lambda: False)
    monkeypatch.setattr(cuda_communicator.CudaCommunicator, "_log_all_reduce_backend_selection", lambda _: None)
    found = []
    for module, name in (
        (pynccl, "PyNcclCommunicator"),
        (symm_mem, "SymmMemCommunicator"),
        (flashinfer_all_reduce, "FlashInferAllReduce"),
        (custom_all_reduce, "CustomAllreduce"),
    ):
        monkeypatch.setattr(module, name, lambda name=name, **_: found.append(name) or SimpleNamespace(disabled=False))
    cuda_communicator.CudaCommunicator(None, unique_name="tp:0")
    return found


def test_ranks_that_see_one_gpu_each_reduce_by_nccl(monkeypatch):
    """Left alone vLLM joins its ranks in three more ways, each by devices that the rank does not see."""
    from vllm.distributed import parallel_state

    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert len(made_by_vllm(monkeypatch)) == 4
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(parallel_state, "_ENABLE_CUSTOM_ALL_REDUCE", False)  # disable_custom_all_reduce
    assert made_by_vllm(monkeypatch) == ["PyNcclCommunicator"]


def test_nor_is_an_all_reduce_fused_with_a_norm(on_cuda):
    from vllm.config import CompilationConfig

    made = VllmEngine(0, TP2, read_architecture(TINY), str(TINY), torch.bfloat16, VllmOptions())
    given = made._settings()  # noqa: SLF001
    assert CompilationConfig(**given["compilation_config"]).pass_config.fuse_allreduce_rms is False
    assert given["disable_custom_all_reduce"] and given["enable_sleep_mode"]


def test_experts_stay_in_the_order_that_the_transition_writes(tmp_path):
    """On Blackwell vLLM's first choice reorders them at loading, and would take what we write as reordered."""
    from vllm.model_executor.layers.fused_moe.oracle import unquantized as oracle

    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(TINY.read_text()) | MIXTURE))
    arch = read_architecture(str(config))
    backend = oracle.map_unquantized_backend(cuda_settings(arch, TP2)["moe_backend"])
    w13, w2 = torch.randn(4, 8, 4), torch.randn(4, 4, 4)
    config = SimpleNamespace(is_act_and_mul=True)
    kept = oracle.convert_to_unquantized_kernel_format(backend, config, w13, w2)
    assert torch.equal(kept[0], w13) and torch.equal(kept[1], w2)
    theirs = oracle.UnquantizedMoeBackend.FLASHINFER_CUTLASS
    assert not torch.equal(oracle.convert_to_unquantized_kernel_format(theirs, config, w13, w2)[0], w13)
    assert "moe_backend" not in cuda_settings(read_architecture(TINY), TP2)


def seeds_that_vllm_takes(params):
    """By the code of its second model runner, which is the one on GPUs."""
    import numpy as np
    from vllm.v1.worker.gpu.sample.states import SamplingStates

    kept = {name: np.zeros(2) for name in ("temperature", "top_p", "top_k", "min_p")}
    state = SimpleNamespace(
        **{name: SimpleNamespace(np=found) for name, found in kept.items()},
        seeds=SimpleNamespace(np=np.zeros(2, dtype=np.int64)),
        seeds_set=np.zeros(2, dtype=bool),
        num_logprobs=np.zeros(2),
        vocab_size=16,
    )
    for i, each in enumerate(params):
        SamplingStates.add_request(state, i, each)
    return state.seeds.np.tolist()


def test_one_seed_for_a_call_is_one_for_vllms_second_model_runner():
    """It draws by numpy's generator: unseeded, ranks of a replica part, and replicas draw alike."""
    taken = [
        seeds_that_vllm_takes(requests(batch, Sampling(4, seed=seed), own_seeds=False)[1])
        for seed, batch in ((1, BATCH), (1, BATCH), (2, BATCH), (1, BATCH[1:]))
    ]
    assert taken[0] == taken[1]
    assert len({tuple(seeds) for seeds in taken}) == 3
    own = [
        seeds_that_vllm_takes(requests(batch, Sampling(4, seed=1), own_seeds=True)[1]) for batch in (BATCH, BATCH[1:])
    ]
    assert own[0][1] == own[1][0]


@pytest.mark.parametrize(("second_runner", "own"), [(True, True), (False, False)])
def test_seeds_that_cost_nothing_are_given(monkeypatch, on_cuda, second_runner, own):
    made = VllmEngine(0, TP2, read_architecture(TINY), str(TINY), torch.bfloat16, VllmOptions())
    asked = []
    config = SimpleNamespace(use_v2_model_runner=second_runner)
    made._llm = SimpleNamespace(  # noqa: SLF001
        llm_engine=SimpleNamespace(vllm_config=config), generate=lambda *_, **__: []
    )
    made._slot = None  # noqa: SLF001
    monkeypatch.setattr(adapter, "requests", lambda *_, own_seeds: (asked.append(own_seeds), ([], []))[1])
    monkeypatch.setattr(adapter, "columns", lambda *_: {})
    for reproducible in (None, True, False):
        made.generate(BATCH, Sampling(4, reproducible=reproducible))
    assert asked == [own, True, False]


def a_core():
    """Of vLLM's engine what sleeps and wakes; its worker notes what it is told."""
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    names = (
        "sleep",
        "wake_up",
        "release_kv_cache_memory",
        "pause_scheduler",
        "resume_scheduler",
        "is_scheduler_paused",
        "is_sleeping",
        "_finish_pause",
    )
    core = type("Core", (), {name: getattr(EngineCore, name) for name in names})()
    executor = type("OneRank", (), {n: vars(Executor)[n] for n in ("sleep", "wake_up", "discard", "is_sleeping")})()
    executor.sleeping_tags, told = set(), []
    executor.collective_rpc = lambda name, args=(), kwargs=None: told.append((name, *args, *(kwargs or {}).values()))
    core.model_executor, core.batch_queue, core._reset_caches = executor, None, lambda: None  # noqa: SLF001
    core.scheduler = SimpleNamespace(pause_state=PauseState.UNPAUSED, has_requests=lambda: False)
    core.scheduler.finish_requests = lambda *_: None
    core.scheduler.set_pause_state = lambda state: setattr(core.scheduler, "pause_state", state)
    return core, told


def test_vllm_lets_its_cache_go_first_and_come_last():
    """Through a training step, and beside adapters, where the base stays: both end in an engine that schedules."""
    core, told = a_core()
    engine = SimpleNamespace(is_sleeping=core.is_sleeping)
    llm = SimpleNamespace(sleep=core.sleep, wake_up=core.wake_up, llm_engine=engine)
    llm.release_kv_cache_memory = core.release_kv_cache_memory
    memory = SleepingEngine(llm)
    for step in (memory.release, memory.restore_weights, memory.restore_cache, memory.release_cache, memory.release):
        step()
    for step in (memory.restore_weights, memory.restore_cache, memory.release_cache, memory.restore_cache):
        step()
    assert [each for each in told if each[0] != "synchronize_device"] == [
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("wake_up", ["kv_cache"]),
        ("discard", ("kv_cache",)),
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("wake_up", ["kv_cache"]),
        ("discard", ("kv_cache",)),
        ("wake_up", ["kv_cache"]),
    ]
    assert not core.is_sleeping()
