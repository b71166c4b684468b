"""Every call of every engine on pretended GPUs, in one process.

    python -m tests.executor.device_shim.calls [--table]

Prints a line of JSON for each call: engine, call, CPU tensors in collectives, waits of the host, peak bytes; with
``--table`` the page ``calls.md`` beside this file instead.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from megatron.core.models.common.embeddings import rope_utils
from tensordict import TensorDict

from executor import collectives
from executor.engines import attention
from executor.engines.disaggregated import ReceivingEngine, SendingEngine
from executor.engines.entry import PLAIN
from executor.engines.fsdp import engine as fsdp
from executor.engines.hybrid import HybridEngine
from executor.engines.megatron import cpu_shim, passes, session
from executor.engines.megatron import engine as megatron
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.native import engine as native
from executor.engines.registry import TRAINING
from executor.engines.spec import EngineSpec
from executor.records import Identity
from executor.rl.algorithms import RUNNABLE
from executor.rl.hyperparameters import Hyperparameters
from executor.rl.loss_terms import policy_loss_terms
from executor.rl.sampling import Sampling
from executor.weights.link import PoolBroadcast, PoolLink
from executor.weights.vllm_layout import VllmLayout
from simulator.plan.groups import Degrees
from tests.executor.device_shim.pretend_gpu import NAME, host_waits, pretended_world, watched, with_values
from tests.executor.device_shim.waits import NUM_TOKENS

MODEL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


def prompts_and_responses(rows=4, prompt=4, response=NUM_TOKENS):
    """A batch on the host, of real tensors: responses of different lengths."""
    lengths = torch.arange(rows) % response + 1
    mask = torch.arange(response)[None] < lengths[:, None]
    blank = torch.zeros(rows, response)
    return TensorDict(
        {
            "uid": torch.arange(rows),
            "prompts": torch.zeros(rows, prompt, dtype=torch.long),
            "prompt_mask": torch.ones(rows, prompt, dtype=torch.bool),
            "responses": torch.zeros(rows, response, dtype=torch.long),
            "response_mask": mask,
            **dict.fromkeys(("log_probs", "advantages", "ref_log_probs", "values", "returns"), blank),
        },
        batch_size=[rows],
    )


class PretendVllm:
    """The tensors of a vLLM rank, and nothing that generates."""

    keeps_tensors = True

    def __init__(self, rank, degrees, arch, dtype):
        self.layout, self.rank, self.dtype = VllmLayout(arch, degrees), rank, dtype

    def load(self):
        self._tensors = {
            stored.name: torch.empty(stored.shape, dtype=self.dtype, device=NAME)
            for stored in self.layout.stored(self.rank)
        }

    def tensors(self):
        return self._tensors

    def release(self):
        pass

    restore = restore_cache = release_cache = ready = release


class PretendChannel:
    """A process group of two pools that moves nothing; it refuses tensors of the host."""

    def broadcast(self, tensors, _options):
        assert all(tensor.device.type == NAME for tensor in tensors)
        return self

    def wait(self):
        pass


def spec_of(path, **changes):
    given = {"dtype": "bf16", "optimizer": OptimizerConfig(1e-3), "micro_batch": 2, "max_num_seqs": 8, "device": NAME}
    return ModelSpec(path, **(given | changes))


def training_calls(trainer, batch, *, value_head=False):
    """The calls of a trainer by name."""
    from executor.rl.loss_terms import value_loss_terms

    hyper = Hyperparameters()
    if value_head:
        passes = {"values": lambda: trainer.values(batch), "scores": lambda: trainer.scores(batch)}
        terms = with_values(value_loss_terms)(batch, hyper)
    else:
        passes = {"log_probs": lambda: trainer.log_probs(batch, 1.0)}
        terms = with_values(policy_loss_terms)(batch, RUNNABLE["grpo"], hyper)
    return {
        "load": trainer.load,
        **passes,
        "update": lambda: trainer.update(terms),
        "check_replicas": trainer.check_replicas,
        "saved_state": trainer.saved_state,
    }


def trainer_case(name, degrees, rank, path, batch, options=PLAIN, **changes):
    """A trainer of the registry alone."""
    spec = EngineSpec(spec_of(path, **changes), name, options=options)
    made = spec.build(Identity("A", rank, degrees.num_ranks), "", degrees).trainer
    return training_calls(made, batch, value_head=changes.get("value_head", False))


def native_case(degrees, rank, path, batch):
    """The engine that generates in the memory in which it trains."""
    made = EngineSpec(spec_of(path), "torch-native", "torch-native")
    role = made.build(Identity("A", rank, degrees.num_ranks), "", degrees)
    sampling = Sampling(NUM_TOKENS, end_tokens=(3,), seed=1)
    return training_calls(role.trainer, batch) | {
        "to_generation": role.resharded.to_generation,
        "generate": lambda: role.generator.generate(batch, sampling),
    }


def hybrid_case(training, degrees, rank, path, batch):
    """A trainer beside vLLM on the same ranks: its transition."""
    spec = EngineSpec(spec_of(path), training)
    trainer = spec.training_engine(Identity("A", rank, degrees.num_ranks), "", degrees)
    made = HybridEngine(degrees, trainer, lambda arch, dtype, _clock: PretendVllm(rank, degrees, arch, dtype))
    return {"load": made.load, "to_generation": made.to_generation, "log_probs": lambda: made.log_probs(batch, 1.0)}


def pools_case(training, degrees, rank, path, *, sends):
    """Two pools: one end of the transfer."""
    link = PoolLink("127.0.0.1:1", degrees, degrees, sends=sends)
    identity, spec = Identity("A", rank, degrees.num_ranks), spec_of(path)
    if sends:
        trainer = EngineSpec(spec, training).training_engine(identity, "", degrees)
        made = SendingEngine(trainer, link)
    else:
        senders = lambda arch: TRAINING[training].layout(arch, degrees, PLAIN)  # noqa: E731
        generator = lambda arch, dtype, _clock: PretendVllm(rank, degrees, arch, dtype)  # noqa: E731
        made = ReceivingEngine(identity, "", spec, link, senders, generator)
    return {"load": made.load, "to_generation": made.to_generation}


CASES = {
    "torch-native": (native_case, Degrees(1, 2, 2, 1, 1), 0, {}),
    "torch-native critic, last stage": ("torch-native", Degrees(2, 1, 2, 1, 1), 3, {"value_head": True}),
    "fsdp2, tensor parallel": ("fsdp2", Degrees(1, 2, 2, 1, 1), 0, {}),
    "fsdp2 critic": ("fsdp2", Degrees(1, 1, 4, 1, 1), 0, {"value_head": True}),
    "megatron-core, last stage": ("megatron-core", Degrees(2, 2, 2, 2, 2), 7, {}),
    "megatron-core, context parallel": ("megatron-core", Degrees(1, 2, 2, 1, 1, 2), 2, {}),
    "megatron-core critic": ("megatron-core", Degrees(1, 1, 2, 1, 1), 0, {"value_head": True}),
    "fsdp2 beside vllm": (hybrid_case, Degrees(1, 1, 4, 1, 2), 0, {"training": "fsdp2"}),
    "megatron-core beside vllm": (hybrid_case, Degrees(1, 2, 2, 1, 1), 0, {"training": "megatron-core"}),
    "fsdp2 sends": (pools_case, Degrees(1, 1, 4, 1, 2), 0, {"training": "fsdp2", "sends": True}),
    "vllm receives": (pools_case, Degrees(1, 1, 2, 1, 2), 0, {"training": "megatron-core", "sends": False}),
}


def calls_of(name, path):
    """The calls of one case, in the world of its rank."""
    kind, degrees, rank, given = CASES[name]
    if isinstance(kind, str):
        return trainer_case(kind, degrees, rank, path, with_values(prompts_and_responses)(), **given)
    if kind is pools_case:
        return pools_case(degrees=degrees, rank=rank, path=path, **given)
    return kind(degrees=degrees, rank=rank, path=path, batch=with_values(prompts_and_responses)(), **given)


def measured(path):
    """What each call of each case did, in order."""
    path.write_text(json.dumps(MODEL))
    cpu_shim.STAND_IN = torch.device(NAME)
    cpu_shim._synchronize = host_waits  # noqa: SLF001
    passes.packed_params = with_values(passes.packed_params)
    attention.causal_lower_right = with_values(attention.causal_lower_right)  # a name for a mask, not a tensor
    theirs = rope_utils._apply_rotary_pos_emb_thd  # noqa: SLF001
    rope_utils._apply_rotary_pos_emb_thd = lambda t, ends, *rest, **named: theirs(  # noqa: SLF001
        t, with_values(ends.numpy)(), *rest, **named
    )
    for engine in (native, fsdp, megatron):  # what the host does with a batch it does with values
        for name in ("sequences_of", "lengths_of", "padded_lengths", "pack", "part_of"):
            if hasattr(engine, name):
                setattr(engine, name, with_values(getattr(engine, name)))
    for name, (_, degrees, rank, _) in CASES.items():
        collectives._HANDLES.clear()  # noqa: SLF001
        session._STATES.clear()  # noqa: SLF001
        with (
            pretended_world(rank, degrees.num_ranks),
            patch.object(PoolBroadcast, "_join", lambda *_: PretendChannel()),
            patch("executor.weights.link.open_store", lambda *_: True),
            patch("executor.engines.disaggregated.serve_early", lambda *_: True),
        ):
            for call, do in calls_of(name, str(path)).items():
                with watched() as watch:
                    do()
                found = {
                    "on_host": dict(watch.on_host),
                    "syncs": dict(watch.syncs),
                    "summed": sorted(watch.summed),
                    "peak_bytes": watch.peak_bytes,
                    "largest_bytes": watch.largest_bytes,
                    "live_bytes": watch.live_bytes,
                }
                yield {"engine": name, "call": call, **found}


TABLE = Path(__file__).parent / "calls.md"
HEAD = """# Calls of engines on pretended GPUs

A Llama of two layers and 32 hidden on one rank of the degrees in `calls.py`, in bf16, without values: what does not
depend on a device's speed. The host waits where it reads, copies at once or synchronises. Not run on a GPU. Written by
`python -m tests.executor.device_shim.calls --table`.

| engine | call | CPU tensors in collectives | host waits | peak KiB |
|---|---|---|---|---|
"""


def table_of(calls):
    """The page of all calls."""
    rows = [
        f"| {c['engine']} | {c['call']} | {sum(c['on_host'].values())} | {sum(c['syncs'].values())} "
        f"| {c['peak_bytes'] / 1024:.1f} |"
        for c in calls
    ]
    return HEAD + "\n".join(rows) + "\n"


def main():
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder) / "config.json")
        if "--table" in sys.argv:
            TABLE.write_text(table_of(list(found)))
            return
        for call in found:
            print(json.dumps(call), flush=True)


if __name__ == "__main__":
    main()
