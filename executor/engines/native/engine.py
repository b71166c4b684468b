"""The torch-native engine: holds a shard, runs passes, takes optimizer steps, changes layout, generates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from executor.checkpoint.shards import EngineState, on_host
from executor.checks import bit_sums, require_equal_copies
from executor.collectives import COLLECTIVE_TIMEOUT_S, CommClock, join_world, make_groups
from executor.engines.native.decoder import run_stage, whole_step
from executor.engines.native.flat import FlatParameters
from executor.engines.native.generation import generate, kv_bytes_per_sequence
from executor.engines.native.heads import local_logits, log_probs_and_entropy
from executor.engines.native.offload import HostMemory, OnHost
from executor.engines.native.optimizer import FlatAdamW, OptimizerConfig
from executor.engines.native.pipeline import MicroBatch, Stages, run_forward, run_training
from executor.engines.native.replica import Replica
from executor.engines.native.resharding import gather_scoring_weights, generation_slice, training_slice
from executor.engines.native.saved_state import chunks_to_read, chunks_to_write
from executor.engines.native.transition import Transition, in_place_plan
from executor.rl.sequences import sequences_of
from executor.weights.architecture import EMBEDDING, SCORE
from executor.weights.checksum import require_arrived
from executor.weights.link import LayoutLink, PoolLink, serve_early
from executor.weights.native_layout import NativeLayout, require_even
from executor.weights.parameters import cut_out, drawn, parameters_of, read, read_dense
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk
    from executor.engines.base import Objective, Sampling
    from executor.records import Identity, WeightsMoved
    from executor.weights.report import TransitionReport
    from simulator.plan.groups import Degrees

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class ModelSpec:
    """Which model a role runs, and how.

    ``path`` is a ``config.json`` (weights drawn by ``seed``) or a folder with one and ``*.safetensors`` files.
    ``micro_batch`` in rows of a rank; ``max_num_seqs`` sequences of a replica generate at once, fewer if
    ``kv_cache_bytes`` of a rank (0: no limit) do not hold them. ``scoring`` are the degrees of forward passes where
    they differ from those of training. ``offload`` names what waits in host memory: ``parameters``, ``optimizer``.
    ``link`` leads to the other side where training and generation have pools of their own. ``recompute`` as in plans.
    ``check_weights``: compare checksums after each transition.
    """

    path: str
    seed: int = 0
    dtype: str = "fp32"
    value_head: bool = False
    micro_batch: int = 1
    zero_stage: int = 1
    optimizer: OptimizerConfig | None = None
    max_num_seqs: int = 1024
    kv_cache_bytes: int = 0
    scoring: Degrees | None = None
    offload: tuple[str, ...] = ()
    link: PoolLink | None = None
    recompute: str = "none"
    device: str = "cpu"
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
    check_weights: bool = True


class TorchNativeEngine(OnHost):
    """See ``executor.engines.base.Engine``."""

    def __init__(self, identity: Identity, address: str, degrees: Degrees, spec: ModelSpec) -> None:
        self.identity, self.address, self.degrees, self.spec = identity, address, degrees, spec
        self.clock = CommClock()
        self._generating: Replica | None = None
        self._store = serve_early(spec.link, identity.rank, spec.collective_timeout_s)

    @property
    def comm_s(self) -> float:
        return self.clock.seconds

    def load(self) -> None:
        if self.spec.dtype not in DTYPES:
            raise InputError(f"dtype is one of {', '.join(DTYPES)}, got {self.spec.dtype}")
        self.arch = read_dense(self.spec.path, has_score=self.spec.value_head)
        for degrees in (self.degrees, self.spec.scoring):
            if degrees is not None:
                require_even(self.arch, degrees.p, degrees.t)
        self.layout = NativeLayout(self.arch, self.degrees, "training", transposed=False)
        plan = in_place_plan(self.arch, self.degrees)  # layouts that do not nest are refused before ranks meet
        self.device = torch.device(self.spec.device)
        self.dtype = DTYPES[self.spec.dtype]
        self.piece = training_slice(self.identity.rank, self.degrees)
        parameters = parameters_of(self.arch, self.piece, value_head=self.spec.value_head)
        values = self._values(parameters)
        join_world(self.identity, self.address, self.device, timeout_s=self.spec.collective_timeout_s)
        self.groups = make_groups(self.identity.rank, self.degrees, self.clock)
        self.scoring_groups = make_groups(self.identity.rank, self.spec.scoring or self.degrees, self.clock)
        self.transition = Transition(plan, self.identity.rank, self.dtype, self.device, self.groups.micro_dp)
        self.flat = FlatParameters(
            parameters,
            self.piece.t,
            self.transition.training,
            values,
            multiple=self.degrees.d,
            trained=self.spec.optimizer is not None,
        )
        self._training = Replica(self.arch, self.piece, self.groups.tp, self.groups.pp, self.flat.weights)
        if self.arch.tied and self.piece.stages > 1 and not self.spec.value_head:
            self.flat.tied_names.add(EMBEDDING)
        states = {"parameters": lambda: self.transition.held}
        if self.spec.optimizer is not None:
            self.optimizer = FlatAdamW(self.flat, self.groups, self.spec.optimizer, zero_stage=self.spec.zero_stage)
            states["optimizer"] = self.optimizer.states
        self.host = HostMemory(states, [name for name in self.spec.offload if name in states])
        self.host.send_away()
        self.link: LayoutLink | None = None
        if (link := self.spec.link) is not None:
            source = NativeLayout(self.arch, link.senders, "training", transposed=False)
            self.link = LayoutLink(
                self.identity.rank,
                link,
                self.arch,
                source,
                self.device,
                self.clock,
                self.spec.collective_timeout_s,
                self._store,
            )

    def _values(self, parameters: list[Any]) -> dict[str, torch.Tensor]:
        folder = Path(self.spec.path)
        has_files = folder.is_dir() and any(folder.glob("*.safetensors"))
        found = read(parameters, self.piece, folder) if has_files else {}
        for parameter in parameters:
            if parameter.name not in found:
                whole = drawn(parameter, self.arch, self.spec.seed)
                found[parameter.name] = cut_out(whole, parameter, self.piece)
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters of this rank by name, in ``layout``."""
        return {name: weight.detach() for name, weight in self.flat.weights.items()}

    def weights_moved(self) -> WeightsMoved:
        """Weights received and sent since this was last asked: in a transition, or from and to another pool."""
        return self.link.moved() if self.link is not None else self.transition.moved()

    @property
    def report(self) -> TransitionReport | None:
        """What the last transition on this pool did here."""
        return self.transition.report

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        def of_policy(x: Replica, hidden: torch.Tensor, first: int, micro: MicroBatch) -> torch.Tensor:
            return self._policy_outputs(x, hidden, first, micro, temperature)[0]

        return self._forward(batch, of_policy)

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, lambda x, hidden, first, micro: values_at(x, hidden[:, first - 1 : -1]))

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        def at_end(x: Replica, hidden: torch.Tensor, first: int, micro: MicroBatch) -> torch.Tensor:
            # the head of a reward model reads the last token itself, not the one before it
            width = hidden.shape[1]
            place = torch.arange(width, device=hidden.device)
            last = (micro.token_mask * place).amax(1)
            return values_at(x, hidden[torch.arange(len(last)), last])

        return self._forward(batch, at_end)

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None:
        self.to_training()
        sums: dict[str, torch.Tensor] = {}
        with self.host.present("parameters", "optimizer", changed=True):
            for objective in objectives:
                self._accumulate(objective, sums)
            norm = self.optimizer.step()
        if not self.piece.is_last:
            return None
        names = sorted(sums)
        totals = self.groups.dp.all_reduce(torch.stack([sums[name] for name in names]))
        return dict(zip(names, totals.tolist(), strict=True)) | {"grad_norm": norm}

    @property
    def num_steps(self) -> int:
        """Optimizer steps that the weights have seen, those before a checkpoint included."""
        return self.optimizer.num_steps

    def saved_state(self) -> EngineState:
        if self.spec.optimizer is None:
            return EngineState()
        with self.host.present("optimizer"):
            chunks = on_host(chunks_to_write(self.optimizer, self.groups, self.piece))
            return EngineState(chunks, {"optimizer_steps": self.optimizer.num_steps})

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        if self.spec.optimizer is None:
            return
        self.to_training()
        with self.host.present("parameters", "optimizer", changed=True):
            self.optimizer.expect(counters["optimizer_steps"])
            fill(chunks_to_read(self.optimizer, self.piece))
            self.optimizer.publish()

    def to_generation(self) -> None:
        if self.link is not None:
            self._pass_on(self.link)
            return
        if self._generating is not None:
            return
        self.host.hold("parameters")
        self.transition.to_generation(self.flat, check=self.spec.check_weights)
        piece = generation_slice(self.identity.rank, self.degrees)
        weights = self.transition.generation
        self._generating = Replica(self.arch, piece, self.groups.gen_tp, self.groups.gen_pp, weights)

    def _pass_on(self, link: LayoutLink) -> None:
        """Send the weights to the pool that generates, or receive them there."""
        if link.link.sends:
            with self.present():
                link.send(self.tensors())
        else:
            trained = link.receive(self.layout, self.tensors())
            if self.spec.check_weights:
                require_arrived(self.arch, self.layout, self.identity, self.tensors(), trained)
            self._generating = self._training

    def check_replicas(self) -> None:
        """Compare the copies that ranks hold of the same weights: of data parallelism, and whole ones of tensor's.

        Raises ``UnequalWeightsError``; every rank of the role calls this.
        """
        with self.present():
            sums = bit_sums(self.flat.weights)
        names = list(self.flat.weights)
        require_equal_copies(names, sums, self.groups.dp)
        cut = {e.parameter.name for e in self.flat.extents if e.parameter.cut is not None}
        whole = [i for i, name in enumerate(names) if name not in cut]
        require_equal_copies([names[i] for i in whole], sums[whole], self.groups.tp)

    def to_training(self) -> None:
        """Give back what only generation needs: an update would make it wrong."""
        if self._generating is not None and self.link is None:
            self.transition.to_training(self.flat)
            self.host.let_go("parameters")
        self._generating = None

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        from tensordict import TensorDict

        if self._generating is None:
            self.to_generation()
        assert self._generating is not None, "the ranks that only train do not generate"
        parts = []
        with torch.no_grad():
            for rows in batch.split(self._wave(batch, sampling)):
                prompts, mask = rows["prompts"].to(self.device), rows["prompt_mask"].to(self.device)
                parts.append(generate(self._generating, prompts, mask, rows["uid"], sampling))
        columns = {
            name: torch.cat([part[i] for part in parts]).cpu()
            for i, name in enumerate(("responses", "response_mask", "log_probs"))
        }
        return TensorDict(columns, batch_size=batch.batch_size)

    def _wave(self, batch: TensorDict, sampling: Sampling) -> int:
        """Sequences that generate at once."""
        assert self._generating is not None
        length = batch["prompts"].shape[1] + sampling.max_tokens
        size = kv_bytes_per_sequence(self.arch, self._generating.piece, length, self.dtype.itemsize)
        if self.spec.kv_cache_bytes and self.spec.kv_cache_bytes < size:
            raise InputError(
                f"a KV budget of {self.spec.kv_cache_bytes:,} bytes does not hold one sequence of {length} tokens "
                f"({size:,} bytes)"
            )
        return min(self.spec.max_num_seqs, self.spec.kv_cache_bytes // size or self.spec.max_num_seqs)

    def _stages(self, x: Replica, recompute: str = "none") -> Stages:
        def run(entering: torch.Tensor, token_mask: torch.Tensor) -> torch.Tensor:
            return run_stage(x.weights, self.arch, x.piece, x.tp, entering, whole_step(token_mask), recompute)

        return Stages(x.piece, x.pp, run, self.arch.hidden, self.dtype)

    def _micros(self, rows: TensorDict) -> list[MicroBatch]:
        return [
            MicroBatch(part["tokens"].to(self.device), part["token_mask"].to(self.device), part)
            for part in rows.split(self.spec.micro_batch)
        ]

    def _forward(
        self, batch: TensorDict, output: Callable[[Replica, torch.Tensor, int, MicroBatch], torch.Tensor]
    ) -> torch.Tensor | None:
        rows, first = sequences_of(batch)
        with self.present():
            x = self._for_scoring()
            outputs = run_forward(self._stages(x), self._micros(rows), lambda h, micro: output(x, h, first, micro))
        return None if outputs is None else torch.cat(outputs).float().cpu()

    def _for_scoring(self) -> Replica:
        """What a forward pass runs on: the training replica, or a copy in another layout that is dropped after it."""
        degrees, groups = self.spec.scoring, self.scoring_groups
        if degrees is None:
            return self._training
        piece = training_slice(self.identity.rank, degrees)
        weights = gather_scoring_weights(self._training, piece, self.groups.model, value_head=self.spec.value_head)
        return Replica(self.arch, piece, groups.tp, groups.pp, weights)

    def _accumulate(self, objective: Objective, sums: dict[str, torch.Tensor]) -> None:
        """Add an objective's gradients, and its metrics as shares of their global mean."""
        counts = objective.rows["target_mask"].sum().double()
        total = self.groups.dp.all_reduce(counts.to(self.device)).clamp(min=1.0)

        def loss(hidden: torch.Tensor, micro: MicroBatch) -> torch.Tensor:
            found = objective.loss(self._outputs(hidden, objective, micro), micro.rows.to(self.device))
            for name, value in found.items():
                share = value.detach().double() / total
                sums[name] = sums.get(name, torch.zeros_like(total)) + share
            return found["loss"] * (objective.weight / total.float())

        run_training(self._stages(self._training, self.spec.recompute), self._micros(objective.rows), loss)

    def _outputs(self, hidden: torch.Tensor, objective: Objective, micro: MicroBatch) -> dict[str, torch.Tensor]:
        first = objective.first_target
        if self.spec.value_head:
            return {"values": values_at(self._training, hidden[:, first - 1 : -1])}
        log_probs, entropy = self._policy_outputs(self._training, hidden, first, micro, objective.temperature)
        return {"log_probs": log_probs, "entropy": entropy}

    def _policy_outputs(
        self, x: Replica, hidden: torch.Tensor, first: int, micro: MicroBatch, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = local_logits(x.head, hidden[:, first - 1 : -1], x.tp)
        return log_probs_and_entropy(logits, micro.tokens[:, first:], x.tp, temperature)


def values_at(x: Replica, hidden: torch.Tensor) -> torch.Tensor:
    """The value head on hidden states, in fp32."""
    return torch.nn.functional.linear(hidden, x.weights[SCORE])[..., 0].float()
