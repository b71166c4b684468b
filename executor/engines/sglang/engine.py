"""The SGLang generation engine: its offline ``Engine``, one GPU a replica, weights handed over by tensor.

Never run: SGLang's packages do not install beside ours (another torch, kernels for GPUs alone). What is asked of it is
held against version 0.5.23 of its package (``tests/executor/engines/test_sglang.py``).

SGLang's model lives in a process of its own, so a transition writes into tensors of ours by the checkpoint's names, and
``ready`` hands them over: until then both copies of the shard are there.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from executor.engines.start_memory import memory_share
from executor.memory import note_peak_memory
from executor.records import Drafted
from executor.weights.architecture import read_config
from executor.weights.native_layout import NativeLayout
from profiles.errors import InputError
from simulator.plan.groups import in_buckets

if TYPE_CHECKING:
    from tensordict import TensorDict

    from executor.rl.sampling import Sampling
    from executor.weights.architecture import Architecture
    from simulator.plan.groups import Degrees

WEIGHTS, CACHE = "weights", "kv_cache"
"""What SGLang calls the parts of its memory."""

HAND_OVER_BYTES = 512 << 20
"""Of the tensors that are handed over at once."""

ALL_TOKENS = -1
"""SGLang's ``top_k`` that leaves none out."""


@dataclass(frozen=True)
class SglangOptions:
    """``max_num_seqs`` sequences run at once. ``kv_cache_bytes`` of the GPU, 0 leaves it to SGLang. ``max_length`` of
    prompt and response together, 0 for the model's own."""  # noqa: D205, D209

    max_num_seqs: int = 256
    kv_cache_bytes: int = 0
    max_length: int = 0
    device: str = "cuda"


class SglangEngine:
    """One replica, which is one rank. Its tensors may be written between ``restore`` and ``ready``."""

    keeps_tensors = False

    def __init__(
        self, rank: int, degrees: Degrees, arch: Architecture, path: str, dtype: torch.dtype, options: SglangOptions
    ) -> None:
        self.rank, self.arch, self.path, self.dtype, self.options = rank, arch, path, dtype, options
        self.layout = NativeLayout(arch, degrees, "generation", transposed=False)
        self._staged: dict[str, torch.Tensor] = {}

    def load(self) -> None:
        """Start it with blank weights; ``InputError`` if SGLang refuses the model or the memory."""
        from sglang import Engine

        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(dict(read_config(self.path))))
            try:
                self._engine: Any = Engine(model_path=folder, **self._settings())
            except ValueError as error:
                raise InputError(f"SGLang refuses to start: {error}") from error
        self._asleep: set[str] = set()

    def _settings(self) -> dict[str, Any]:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        of_all = memory_share(free_bytes, total_bytes, self.weights_bytes, self.options.kv_cache_bytes, "SGLang")
        budget = self.options.kv_cache_bytes
        return {
            "load_format": "dummy",
            "dtype": str(self.dtype).removeprefix("torch."),
            "skip_tokenizer_init": True,
            "context_length": self.options.max_length or self.arch.max_length,
            "max_running_requests": self.options.max_num_seqs,
            "max_total_tokens": budget // self._token_bytes if budget else None,
            "mem_fraction_static": of_all * total_bytes / free_bytes,  # SGLang's share is one of what is free
            "enable_memory_saver": True,
            "random_seed": 0,
            "tp_size": 1,
            "log_level": "error",
        }

    @property
    def weights_bytes(self) -> int:
        """Bytes of the model."""
        return sum(stored.numel for stored in self.layout.stored(self.rank)) * self.dtype.itemsize

    @property
    def _token_bytes(self) -> int:
        return 2 * self.arch.num_layers * self.arch.num_kv_heads * self.arch.head_dim * self.dtype.itemsize

    def tensors(self) -> dict[str, torch.Tensor]:
        """Tensors of the checkpoint's names, to be handed over; empty once they are."""
        return self._staged

    def restore(self) -> None:
        """Take memory for the weights: SGLang's own, and ours that the transition writes into."""
        self._wake(WEIGHTS)
        blank = torch.empty(0, dtype=self.dtype, device=self.options.device)
        self._staged = {stored.name: blank.new_empty(stored.shape) for stored in self.layout.stored(self.rank)}

    def ready(self) -> None:
        """Hand the weights over, bucket by bucket, give our copy back, then take the cache's memory."""
        names = list(self._staged)
        for bucket in in_buckets([self._staged[name].nbytes for name in names], HAND_OVER_BYTES):
            given = [(names[i], self._staged[names[i]]) for i in bucket]
            done = self._engine.update_weights_from_tensor(named_tensors=given, flush_cache=False)
            _require_done(done, f"{given[0][0]} to {given[-1][0]}")
            del given
            for i in bucket:
                del self._staged[names[i]]
        self._wake(CACHE)
        self._engine.flush_cache()

    def release_cache(self) -> None:
        """Give back the memory of the KV cache; weights stay."""
        self._sleep(CACHE)

    def release(self) -> None:
        """Give back the memory of weights and KV cache."""
        self._staged = {}
        self._sleep(CACHE, WEIGHTS)

    def _sleep(self, *parts: str) -> None:
        awake = [part for part in parts if part not in self._asleep]
        if awake:
            note_peak_memory()
            self._engine.flush_cache()
            self._engine.release_memory_occupation(tags=awake)
            self._asleep |= set(awake)

    def _wake(self, part: str) -> None:
        if part in self._asleep:
            note_peak_memory()
            torch.cuda.empty_cache()  # its process asks the driver, and torch keeps what the trainer has freed
            self._engine.resume_memory_occupation(tags=[part])
            self._asleep.remove(part)

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        """Responses, mask and log-probs of the sampled tokens."""
        from tensordict import TensorDict

        rows = zip(batch["prompts"], batch["prompt_mask"], strict=True)
        outputs = self._engine.generate(
            input_ids=[tokens[mask].tolist() for tokens, mask in rows],
            sampling_params=[_params(sampling, uid) for uid in batch["uid"].tolist()],
            return_logprob=True,
        )
        return TensorDict(_columns(outputs, sampling.max_tokens), batch_size=batch.batch_size)

    def drafted(self) -> Drafted:
        return Drafted()

    def stop(self) -> None:
        """End its processes."""
        self._engine.shutdown()


def _require_done(answer: Any, what: str) -> None:
    """SGLang answers ``(whether it did, why not)``."""
    is_done, why = answer[0], answer[1]
    if not is_done:
        raise InputError(f"SGLang does not take the weights {what}: {why}")


def _params(sampling: Sampling, uid: int) -> dict[str, Any]:
    return {
        "max_new_tokens": sampling.max_tokens,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or ALL_TOKENS,
        "ignore_eos": True,
        "stop_token_ids": list(sampling.end_tokens),
        "sampling_seed": zlib.crc32(f"{sampling.seed}:{uid}".encode()) >> 1,
    }


def _columns(outputs: list[dict[str, Any]], max_tokens: int) -> dict[str, torch.Tensor]:
    """From ``output_ids`` and ``(log-prob, token, text)`` of each of them."""
    tokens = torch.zeros(len(outputs), max_tokens, dtype=torch.int64)
    mask = torch.zeros(len(outputs), max_tokens, dtype=torch.bool)
    log_probs = torch.zeros(len(outputs), max_tokens)
    for i, output in enumerate(outputs):
        chosen = output["meta_info"]["output_token_logprobs"]
        found = [token for _, token, *_ in chosen]
        if found != list(output["output_ids"]):
            raise InputError(f"SGLang gives log-probs of {len(found)} tokens for {len(output['output_ids'])}")
        length = len(found)
        tokens[i, :length] = torch.tensor(found, dtype=torch.int64)
        mask[i, :length] = True
        log_probs[i, :length] = torch.tensor([log_prob for log_prob, *_ in chosen])
    return {"responses": tokens, "response_mask": mask, "log_probs": log_probs}
