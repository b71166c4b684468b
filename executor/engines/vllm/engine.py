"""The vLLM generation engine: in process under ``external_launcher``, its weights written by the transition."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from executor.engines.start_memory import memory_share
from executor.engines.vllm.adapters import (
    adapter_settings,
    adapter_tensors,
    clear_slot,
    occupy_slot,
    scale_slot,
)
from executor.engines.vllm.cpu_setup import pack_experts, patch_vllm, prepare_environment, require_kernels
from executor.engines.vllm.cuda_setup import CUDA_ENVIRONMENT, cuda_settings
from executor.engines.vllm.drafts import DraftCounter, draft_architecture, draft_settings, load_draft
from executor.engines.vllm.memory import EmptiedStorages, SleepingEngine
from executor.engines.vllm.samples import columns, requests, seeds_are_free
from executor.records import Drafted
from executor.weights.architecture import read_config
from executor.weights.vllm_layout import VllmLayout
from profiles.errors import InputError, NotYetError
from simulator.plan.groups import generation_coordinates, generation_order

if TYPE_CHECKING:
    from tensordict import TensorDict

    from executor.engines.model_spec import DraftSpec
    from executor.engines.vllm.memory import EngineMemory
    from executor.rl.sampling import Sampling
    from executor.weights.architecture import Architecture
    from simulator.plan.groups import Degrees

CPU_KV_BYTES = 64 << 20
"""KV cache of a CPU rank where the plan gives no budget: tests and laptops."""

KV_BLOCK_TOKENS = 128
"""Tokens of the largest block that vLLM deals KV cache out in: CPUs take 128, GPUs 16."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
    **CUDA_ENVIRONMENT,
}


@dataclass(frozen=True)
class VllmOptions:
    """``max_num_seqs`` sequences of a replica run at once. ``kv_cache_bytes`` of a rank; 0 leaves it to vLLM (GPU) or
    takes ``CPU_KV_BYTES``. ``max_length`` of prompt and response together, 0 for the model's own. ``draft`` writes
    tokens ahead."""  # noqa: D205, D209

    max_num_seqs: int = 256
    kv_cache_bytes: int = 0
    max_length: int = 0
    draft: DraftSpec | None = None


class VllmEngine:
    """One rank of a generation replica. All ranks of the pool make theirs together; one engine a process."""

    keeps_tensors = True

    def __init__(
        self, rank: int, degrees: Degrees, arch: Architecture, path: str, dtype: torch.dtype, options: VllmOptions
    ) -> None:
        self.rank, self.degrees, self.arch, self.path, self.dtype = rank, degrees, arch, path, dtype
        self.options = options
        self.layout = VllmLayout(arch, degrees)
        self._draft_arch: Architecture | None = None
        self._counter: DraftCounter | None = None
        self._drafted = Drafted()

    def load(self) -> None:
        """Make the engine with blank weights; ``InputError`` if vLLM refuses the model or the KV budget."""
        require_installed()
        if self.arch.rope_type == "dynamic":
            raise NotYetError("dynamic rotary scaling cannot run on vLLM: it scales all lengths, trainers long ones")
        if self.options.draft is not None:
            self._draft_arch = draft_architecture(self.options.draft, self.arch)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        prepare_environment()
        from vllm import LLM

        for arch in filter(None, (self.arch, self._draft_arch)):
            require_kernels(arch.head_dim)
        patch_vllm()
        from executor.engines.vllm.groups import ranks_in_order

        with tempfile.TemporaryDirectory() as folder, ranks_in_order(generation_order(self.degrees), self.rank):
            (Path(folder) / "config.json").write_text(json.dumps(dict(read_config(self.path))))
            try:
                self._llm: Any = LLM(model=folder, **self._settings())
            except ValueError as error:
                raise InputError(f"vLLM refuses to start: {error}") from error
        has = self.arch.adapters
        self._slot: Any = occupy_slot(self._llm, self.arch, has, self.path) if has is not None else None
        self._worker: Any = self._llm.collective_rpc(lambda worker: worker)[0]
        if self.options.draft is not None:
            load_draft(self._runner.get_draft_model(), self.options.draft)
            self._counter = DraftCounter(self._llm)
        if self.degrees.pg > 1 and not torch.cuda.is_available():
            self._runner.profile_run()  # on CPU stages meet once before the first batch, or the first one asserts
        self._require_known_tensors()
        self._memory = self._memory_of(self._llm)

    def _memory_of(self, llm: Any) -> EngineMemory:
        """What gives this engine's memory back: vLLM's sleep on GPUs, emptied storages elsewhere."""
        if torch.cuda.is_available():
            return SleepingEngine(llm)
        return EmptiedStorages(self.tensors(), lambda: self._runner.kv_caches)

    def _settings(self) -> dict[str, Any]:
        max_length = self.options.max_length or self.arch.max_length
        budget = self.options.kv_cache_bytes or (0 if torch.cuda.is_available() else CPU_KV_BYTES)
        memory: dict[str, Any] = {}
        if budget:
            memory["kv_cache_memory_bytes"] = budget = min(budget, self._most_kv_bytes(max_length))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what the trainer's start left in torch's own hands
            free_bytes, total_bytes = torch.cuda.mem_get_info()
            share = memory_share(free_bytes, total_bytes, self.weights_bytes, budget, "vLLM")
            memory |= {**cuda_settings(self.arch, self.degrees), "gpu_memory_utilization": share}
        return {
            "tensor_parallel_size": self.degrees.tg,
            "pipeline_parallel_size": self.degrees.pg,
            "distributed_executor_backend": "external_launcher",
            "load_format": "dummy",
            "dtype": self.dtype,
            "skip_tokenizer_init": True,
            "enforce_eager": not torch.cuda.is_available(),
            "max_model_len": max_length,
            "max_num_seqs": self.options.max_num_seqs,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": False,
            "seed": 0,
            "disable_custom_all_reduce": True,
            **(adapter_settings(self.arch.adapters) if self.arch.adapters is not None else {}),
            **(draft_settings(self.options.draft, self.degrees.tg) if self.options.draft is not None else {}),
            **memory,
        }

    @property
    def weights_bytes(self) -> int:
        """Bytes of this rank's generation shard, and of its part of the model that drafts."""
        drafting = self._draft_arch.shape.num_params // self.degrees.tg if self._draft_arch is not None else 0
        return (sum(stored.numel for stored in self.layout.stored(self.rank)) + drafting) * self.dtype.itemsize

    def _most_kv_bytes(self, max_length: int) -> int:
        """KV cache of this rank for as many sequences as may run, each at its longest; more would never be used."""
        stage = generation_coordinates(self.rank, self.degrees)[1]
        models = [(self.arch, len(self.layout.layers(stage)))]
        if self._draft_arch is not None:
            models.append((self._draft_arch, self._draft_arch.num_layers))
        heads = [layers * max(arch.num_kv_heads // self.degrees.tg, 1) * arch.head_dim for arch, layers in models]
        token_bytes = 2 * sum(heads) * self.dtype.itemsize
        blocks = -(-max_length // KV_BLOCK_TOKENS) + 1  # and one that vLLM keeps empty
        return self.options.max_num_seqs * blocks * KV_BLOCK_TOKENS * token_bytes

    @property
    def _runner(self) -> Any:
        return getattr(self._worker, "worker", self._worker).model_runner

    def _require_known_tensors(self) -> None:
        """The weight map and vLLM must agree on every name and shape, before anything is written."""
        found = {name: tuple(tensor.shape) for name, tensor in self.tensors().items()}
        wanted = {stored.name: stored.shape for stored in self.layout.stored(self.rank)}
        for name in sorted(found.keys() | wanted.keys()):
            if found.get(name) != wanted.get(name):
                raise InputError(
                    f"vLLM holds {name} as {found.get(name, 'nothing')}, "
                    f"the weight map says {wanted.get(name, 'nothing')}"
                )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters of this rank by vLLM's names; factors of adapters by those of a checkpoint."""
        model = self._runner.model
        found = {name.replace(".base_layer.", "."): weight.data for name, weight in model.named_parameters()}
        return found | (adapter_tensors(model, self.arch.adapters) if self.arch.adapters is not None else {})

    def ready(self) -> None:
        """New weights are written: bring them into the form that kernels read, forget what old ones computed.

        The cache takes its memory again only now, when what the transition and the trainer held is free.
        """
        pack_experts(self.tensors())
        if self._slot is not None:
            scale_slot(self.tensors(), self.arch.adapter_scale)
        self._memory.restore_cache()
        self._llm.reset_prefix_cache()

    def release_cache(self) -> None:
        """Give back the memory of the KV cache; weights stay."""
        self._llm.reset_prefix_cache()
        self._memory.release_cache()

    def release(self) -> None:
        """Give back the memory of weights and KV cache."""
        self._llm.reset_prefix_cache()
        self._memory.release()

    def restore(self) -> None:
        """Take the weights' memory again, undefined until the transition has written them; the cache waits for it."""
        self._memory.restore_weights()
        if self._slot is not None:
            clear_slot(self.tensors())

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        """Responses, mask and log-probs of the sampled tokens.

        A sample's tokens depend on its uid and the seed where that is asked for, or costs nothing. Else vLLM draws by
        one seed for the call, which all ranks of a replica share.
        """
        from tensordict import TensorDict

        alone = sampling.reproducible
        if alone is None:
            alone = seeds_are_free(self._llm) or not torch.cuda.is_available()
        prompts, params = requests(batch, sampling, own_seeds=alone)
        outputs = self._llm.generate(prompts, params, use_tqdm=False, lora_request=self._slot)
        if self._counter is not None:
            self._drafted = self._counter.take()
        return TensorDict(columns(outputs, sampling.max_tokens), batch_size=batch.batch_size)

    def drafted(self) -> Drafted:
        """Drafts of the last call, once."""
        found, self._drafted = self._drafted, Drafted()
        return found

    def stop(self) -> None:
        """End the engine; its message queues in shared memory go with it."""
        self._llm.llm_engine.engine_core.shutdown()


def require_installed() -> None:
    """Raise ``InputError`` where vLLM is missing."""
    import importlib.util

    if importlib.util.find_spec("vllm") is None:
        raise InputError("the plan generates with vLLM, which is not installed: pip install 'hybridmap[gpu]'")
