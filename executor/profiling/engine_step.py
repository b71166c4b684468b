"""What the torch-native engine takes for whole calls on one rank: the evidence for its host costs.

A probe is a model and a batch. Its calls run in the order of an iteration, again and again, so each finds the caches as
the others left them, and each is timed as a run's recorder times it, from the worker's side.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.profiling.statistics import Summary, summarise
from profiles.models.probe_models import SHAPE_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from tensordict import TensorDict

    from executor.engines.interfaces import EngineChoice
    from executor.profiling.cases import Key
    from executor.profiling.timing import Precision
    from executor.rl.hyperparameters import Hyperparameters
    from executor.worker.worker import RankProcess

ENGINE = "torch-native"
Cycle = dict[str, float]
"""Seconds of an iteration's calls."""
CYCLES_TO_WARM = 2
MOST_PROBE_S = 12.0
"""A large model's probe ends after this, with as few as two cycles."""
PROBE_SHARE = 1.0
"""A probe of all calls may take so many times what one case may: more probes tell more than surer ones."""


@dataclass(frozen=True)
class Probe:
    """``config`` is a Hugging Face config; ``samples`` in ``minibatches`` steps of ``micro_batch`` samples at once.

    ``idle_ms`` passes before each call, as it does for a rank that waits for its controller: caches are cold then.
    """

    config: dict[str, Any]
    samples: int
    prompt: int
    response: int
    micro_batch: int
    minibatches: int = 1
    idle_ms: int = 0

    def key(self, dtype: str, call: str) -> Key:
        """What identifies a row of table ``engine_step``."""
        shape: Key = {name: int(self.config[theirs]) for name, theirs in SHAPE_KEYS.items()}
        head_dim = self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]
        work: Key = {
            "samples": self.samples,
            "prompt": self.prompt,
            "response": self.response,
            "micro_batch": self.micro_batch,
            "minibatches": self.minibatches,
            "idle_ms": self.idle_ms,
        }
        tied = int(bool(self.config.get("tie_word_embeddings", False)))
        kind = str(self.config["model_type"])
        return {
            "engine": ENGINE,
            "call": call,
            "dtype": dtype,
            "model_type": kind,
            **shape,
            "head_dim": int(head_dim),
            "tied": tied + 1,
            **work,
        }


CALLS = ("generate_sequences", "compute_values", "compute_ref_log_prob", "update_critic", "update_actor")


def measure_probe(
    probe: Probe, dtype: str, device: torch.device, precision: Precision, slowness: Callable[[], float] = lambda: 1.0
) -> Iterator[tuple[Key, Summary]]:
    """Yield each call's key and times. ``InputError`` where the engine does not run such a model.

    ``slowness``: how many times as long the core takes now as at the pace to which times are brought; it is asked
    before and after each cycle of calls, whose times are divided by it.
    """
    made = list[Cycle]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(probe.config))
        rank = _rank(probe, str(path), dtype, device)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for cycle in range(CYCLES_TO_WARM):
            dict(_cycle(rank, probe, cycle))
        before = slowness()
        while not _is_enough(made, precision, time.perf_counter() - start_s):
            timed = dict(_cycle(rank, probe, CYCLES_TO_WARM + len(made)))
            after = slowness()
            made.append({call: 2.0 * s / (before + after) for call, s in timed.items()})
            before = after
        share = (time.process_time() - start_cpu_s) / (time.perf_counter() - start_s)
    computes = device.type == "cpu" and not probe.idle_ms
    for call, found in _summaries(made).items():
        yield probe.key(dtype, call), replace(found, cpu_share=share if computes else None)


def _summaries(cycles: Sequence[Cycle]) -> dict[str, Summary]:
    return {call: summarise([cycle[call] for cycle in cycles]) for call in CALLS}


def _is_enough(made: Sequence[Cycle], precision: Precision, spent_s: float) -> bool:
    if len(made) >= precision.max_repeats or (spent_s > MOST_PROBE_S and len(made) > 1):
        return True
    if len(made) < precision.min_repeats:
        return False
    sure = all(found.half_width <= precision.half_width for found in _summaries(made).values())
    return sure or spent_s > precision.max_s * PROBE_SHARE


def _rank(probe: Probe, path: str, dtype: str, device: torch.device) -> Any:
    """A process-like rank with an actor, a critic and a reference, loaded."""
    from executor.engines.model_spec import ModelSpec, OptimizerConfig
    from executor.engines.spec import EngineSpec
    from executor.rl.hyperparameters import Hyperparameters

    hyper = Hyperparameters(max_tokens=probe.response, minibatches=probe.minibatches, entropy_coefficient=0.01)
    specs = {
        role: ModelSpec(
            path=path,
            dtype=dtype,
            value_head=role == "critic",
            micro_batch=probe.micro_batch,
            optimizer=OptimizerConfig(1e-6) if role != "reference" else None,
            device=str(device),
        )
        for role in ("actor", "critic", "reference")
    }
    return one_rank(
        {
            role: EngineSpec(spec, generation="torch-native" if role == "actor" else None)
            for role, spec in specs.items()
        },
        hyper,
    )


def one_rank(engines: Mapping[str, EngineChoice], hyper: Hyperparameters) -> RankProcess:
    """A rank of this process that holds the models of some roles, loaded."""
    from executor.records import Identity
    from executor.worker.roles import WORKERS
    from executor.worker.worker import RankProcess
    from simulator.plan.groups import Degrees

    rank = RankProcess(Identity("A", 0, 1), lambda references: list(references))
    for role, engine in engines.items():
        given = {"address": "", "degrees": Degrees(1, 1, 1, 1, 1), "engine": engine, "algorithm": "ppo", "hyper": hyper}
        rank.add_role(role, WORKERS[role], given)
        timed_call(rank, role, "init_model", None)
    return rank


def _cycle(rank: Any, probe: Probe, number: int) -> Iterator[tuple[str, float]]:
    """One iteration's calls, each with its seconds."""
    import torch

    from executor.batch import from_wire

    batch, idle_s = _prompts(probe, number), probe.idle_ms / 1000
    timed_call(rank, "actor", "transition", None, version=number)  # one update has passed in each cycle before
    made, seconds = timed_call(rank, "actor", "generate_sequences", batch, idle_s)
    yield "generate_sequences", seconds
    made = from_wire(made)
    for name in ("responses", "response_mask", "log_probs", "version"):
        batch[name] = made[name]
    values, seconds = timed_call(rank, "critic", "compute_values", batch, idle_s)
    yield "compute_values", seconds
    reference, seconds = timed_call(rank, "reference", "compute_ref_log_prob", batch, idle_s)
    yield "compute_ref_log_prob", seconds
    batch["values"], batch["ref_log_probs"] = from_wire(values)["values"], from_wire(reference)["ref_log_probs"]
    batch["advantages"] = torch.randn(probe.samples, probe.response)
    batch["returns"] = torch.randn(probe.samples, probe.response)
    for role, call in (("critic", "update_critic"), ("actor", "update_actor")):
        yield call, timed_call(rank, role, call, batch, idle_s)[1]


def _prompts(probe: Probe, number: int) -> TensorDict:
    import torch
    from tensordict import TensorDict

    draw = torch.Generator().manual_seed(number)
    shape = (probe.samples, probe.prompt)
    vocab = int(probe.config["vocab_size"])
    return TensorDict(
        {
            "uid": torch.arange(probe.samples) + number * probe.samples,
            "prompts": torch.randint(0, vocab, shape, generator=draw),
            "prompt_mask": torch.ones(shape, dtype=torch.bool),
        },
        batch_size=[probe.samples],
    )


def timed_call(
    rank: Any, role: str, method: str, batch: TensorDict | None, idle_s: float = 0.0, **options: int
) -> tuple[Any, float]:
    """What a call of one of the rank's roles gives, and its seconds as a run's recorder has them."""
    from executor.records import CallRequest

    time.sleep(idle_s)
    argument = None if batch is None else batch.clone(recurse=False)
    output, record = rank.call(CallRequest(0, method, role, method, argument, options))
    return output, record.end_s - record.start_s
