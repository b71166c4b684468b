"""FSDP2 on transformers' model code: parameters sharded over data-parallel ranks by ``torch.distributed.fsdp``.

Where the layout has tensor parallelism, DTensor cuts them over its ranks first (``tensor_parallel``). Each layer is
gathered when it runs and freed behind it. AdamW steps the shards, which are the fp32 masters; the transition reads them
where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from executor.checkpoint.shards import EngineState, on_host
from executor.checks import require_equal_stored
from executor.collectives import CommClock, join_world, make_groups
from executor.engines.entry import PLAIN
from executor.engines.fsdp.model import ScoredDecoder, compute_again
from executor.engines.fsdp.optimizer import adamw, clip_gradients, expect_states, state_tensors
from executor.engines.fsdp.tensor_parallel import cut_over
from executor.engines.layout_state import MOMENTS, Held, chunks_to_read, chunks_to_write
from executor.engines.native.heads import log_probs_and_entropy
from executor.engines.offload import HostMemory, OnHost, spans_of
from executor.engines.saving import save_model
from executor.records import WeightsMoved
from executor.rl.packing import in_order, lengths_of, pack, spans
from executor.rl.sequences import sequences_of
from executor.weights.architecture import read_architecture, read_config
from executor.weights.checkpoint import fill, reader_of
from executor.weights.native_layout import FsdpLayout
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk
    from executor.engines.entry import LayoutOptions
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity
    from executor.rl.loss_terms import LossTerm
    from executor.rl.packing import Packed
    from simulator.plan.groups import Degrees


class FsdpEngine(OnHost):
    """``TrainingEngine`` of ``executor.engines.interfaces``."""

    def __init__(
        self, identity: Identity, address: str, degrees: Degrees, spec: ModelSpec, options: LayoutOptions = PLAIN
    ) -> None:
        self.identity, self.address, self.degrees, self.spec = identity, address, degrees, spec
        self.sequence_parallel = options.sequence_parallel and degrees.t > 1
        self.clock, self.host = CommClock(), HostMemory({}, ())
        self.device = torch.device(spec.device)
        self.num_steps = 0

    def load(self) -> None:
        degrees = self.degrees
        if degrees.p != 1:
            raise InputError(f"FSDP2 has data and tensor parallelism and no pipeline: p {degrees.p} must be 1")
        adapters = self.spec.adapters
        self.arch = read_architecture(self.spec.path, has_score=self.spec.value_head, adapters=adapters)
        self.dtype = self.spec.torch_dtype
        self.layout = FsdpLayout(self.arch, degrees.num_ranks, degrees.t)
        timeout_s = self.spec.collective_timeout_s
        join_world(self.identity, self.address, self.device, alone=True, timeout_s=timeout_s)
        self.groups = make_groups(self.identity.rank, degrees, self.clock)
        self.model = self._sharded()
        read = reader_of(self.arch, self.spec.path, self.spec.seed)
        fill(self.arch, self.layout.stored(self.identity.rank), self.weights(), read)
        states = {"parameters": lambda: spans_of(self.weights().values())}
        for name, parameter in self._parameters().items():
            parameter.requires_grad_(self.spec.learns(name))
        if self.spec.optimizer is not None:
            self.optimizer = adamw(self._learned(), self.spec.optimizer)
            states["optimizer"] = lambda: spans_of(state_tensors(self.optimizer))
        self.host = HostMemory(states, [name for name in self.spec.offload if name in states])
        self.host.send_away()

    def _sharded(self) -> Any:
        """The model, cut and sharded, its weights without values; fp32 that runs in the role's type.

        It is cut before it has memory: no rank ever holds more of it than its shards.
        """
        config, degrees = dict(read_config(self.spec.path)), self.degrees
        with torch.device("meta"):
            model = ScoredDecoder(config, has_score=self.spec.value_head, adapters=self.spec.adapters)
        mesh = init_device_mesh(
            self.device.type, (degrees.d, degrees.t), mesh_dim_names=("dp", "tp")
        )  # ranks: tp fastest
        if degrees.t > 1:
            cut_over(model, mesh["tp"], self.arch, sequence_parallel=self.sequence_parallel)
        compute_again(model, self.spec.recompute)
        how: dict[str, Any] = {"mesh": mesh["dp"], "mp_policy": MixedPrecisionPolicy(self.dtype, torch.float32)}
        for layer in model.model.layers:
            fully_shard(layer, **how)
        fully_shard(model, **how)
        model.to_empty(device=self.device)
        model.compute_buffers(self.device)
        return model

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        """The sharded parameters by name; a tied head is the embedding."""
        return dict(self.model.named_parameters())

    def _learned(self) -> dict[str, torch.nn.Parameter]:
        """Those that the optimizer steps."""
        return {name: parameter for name, parameter in self._parameters().items() if parameter.requires_grad}

    def weights(self) -> dict[str, torch.Tensor]:
        """What passes read, by name: the fp32 shards of this rank, empty ones too; no memory while they are away."""
        parameters: dict[str, Any] = self._parameters()
        return {name: parameter.to_local().detach() for name, parameter in parameters.items()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The shards of this rank by name, in the type that generation uses."""
        return {name: master.to(self.dtype) for name, master in self.weights().items() if master.numel()}

    def lasting_weights(self) -> dict[str, torch.Tensor]:
        return self.weights()

    def weights_moved(self) -> WeightsMoved:
        return WeightsMoved()

    def check_replicas(self) -> None:
        """Compare what tensor-parallel ranks hold whole: norms and score head; ``UnequalWeightsError``."""
        with self.present():
            held = {name: master for name, master in self.weights().items() if master.numel()}
            require_equal_stored(self.layout, self.identity.rank, held, self.groups.tp)

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout; every rank calls this."""
        with self.present():
            save_model(self, folder)

    def saved_state(self) -> EngineState:
        if self.spec.optimizer is None:
            return EngineState()
        rank = self.identity.rank
        with self.host.present("parameters", "optimizer"):
            chunks = on_host(chunks_to_write(self.layout, rank, self._held(), self.groups.tp.ranks))
        return EngineState(chunks, {"optimizer_steps": self.num_steps})

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        if self.spec.optimizer is None:
            return
        self.num_steps = counters["optimizer_steps"]
        with self.host.present("parameters", "optimizer", changed=True):
            expect_states(self.optimizer, self._learned(), self.num_steps)
            fill(chunks_to_read(self.layout, self.identity.rank, self._held()))

    def _held(self) -> list[Held]:
        """Shards of this rank and their moments; a parameter may have none here."""
        found = []
        for name, parameter in self._learned().items():
            state = self.optimizer.state.get(parameter, {})
            kept: dict[str, Any] = {"": parameter.data, **{f"optimizer.{n}.": state[n] for n in MOMENTS if n in state}}
            local = {prefix: x.to_local().view(-1) for prefix, x in kept.items()}
            if local[""].numel():
                found.append(Held(name, 0, local))
        return found

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        return self._forward(batch, lambda micro: self._policy_outputs(micro, temperature)[0])

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, self._values)

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, lambda micro: self._run(micro, micro.last)[:, 0].float())

    def update(self, terms: tuple[LossTerm, ...]) -> dict[str, float] | None:
        assert self.spec.optimizer is not None
        sums: dict[str, torch.Tensor] = {}
        with self.host.present("parameters", "optimizer", changed=True):
            for term in terms:
                self._accumulate(term, sums)
            norm = clip_gradients(self._learned(), self.groups, self.spec.optimizer.max_grad_norm)
            self.spec.optimizer.set_rate(self.optimizer.param_groups, self.num_steps)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.num_steps += 1
        names = sorted(sums)
        totals = self.groups.dp.all_reduce(torch.stack([sums[name] for name in names]))
        return dict(zip(names, totals.tolist(), strict=True)) | {"grad_norm": norm}

    def _accumulate(self, term: LossTerm, sums: dict[str, torch.Tensor]) -> None:
        """Add a term's gradients, and its metrics as shares of their global mean."""
        counts = self.groups.dp.all_reduce(term.counts().to(self.device)).clamp(min=1.0)
        total, divisor = counts[0], counts[1]
        ranks = self.degrees.d  # over which FSDP averages gradients; ours are shares of a mean already
        for micro in self._micros(term.rows, term.first_target):
            found = term.loss(self._outputs(term, micro), micro.rows)
            for name, value in found.items():
                share = value.detach().double() / (divisor if name == "loss" else total)
                sums[name] = sums.get(name, torch.zeros_like(total)) + share
            (found["loss"] * (term.weight * ranks / divisor.float())).backward()

    def _micros(self, rows: TensorDict, first: int) -> list[Packed]:
        """Micro-batches, as many on every data-parallel rank: each gathers weights that all of them hold."""
        how = (lengths_of(rows), self.spec.micro_batch, self.spec.token_budget)
        parts, num = spans(*how), 0
        if self.spec.token_budget and self.degrees.d > 1:
            count = torch.full((), len(parts), device=self.device)
            num = int(self.groups.dp.all_reduce(count, op=dist.ReduceOp.MAX))
            parts = spans(*how, num)
        multiple = self.degrees.t if self.sequence_parallel else 1
        return [micro.to(self.device) for micro in pack(rows, first, parts, multiple=multiple, num=num)]

    def _forward(self, batch: TensorDict, output: Callable[[Packed], torch.Tensor]) -> torch.Tensor | None:
        micros = self._micros(*sequences_of(batch))
        with self.present(), torch.no_grad():
            outputs = [output(micro) for micro in micros]
            self.model.reshard()
        return in_order(outputs, micros)

    def _run(self, micro: Packed, places: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(micro.tokens, micro.positions, micro.lengths, places)
        return found

    def _outputs(self, term: LossTerm, micro: Packed) -> dict[str, torch.Tensor]:
        if self.spec.value_head:
            return {"values": self._values(micro)}
        log_probs, entropy = self._policy_outputs(micro, term.temperature)
        return {"log_probs": log_probs, "entropy": entropy}

    def _values(self, micro: Packed) -> torch.Tensor:
        return micro.spread(self._run(micro, micro.before)[:, 0].float())

    def _policy_outputs(self, micro: Packed, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._run(micro, micro.before).float()
        log_probs, entropy = log_probs_and_entropy(logits, micro.targets, self.groups.tp, temperature)
        return micro.spread(log_probs), micro.spread(entropy)
