"""FSDP2 on transformers' model code: every parameter sharded over all ranks by ``torch.distributed.fsdp``.

Data parallel alone (p = t = 1): each layer is gathered when it runs and freed behind it. AdamW steps the shards; the
transition reads them where they are.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from executor.checkpoint_shards import EngineState, on_host
from executor.engines.fsdp.model import ScoredDecoder
from executor.engines.layout_state import Held, chunks_to_read, chunks_to_write
from executor.engines.saving import save_model
from executor.engines.sequences import sequences_of
from executor.engines.torch_native.comms import CommClock, join_world, make_groups
from executor.engines.torch_native.engine import DTYPES, ModelSpec
from executor.engines.torch_native.heads import log_probs_and_entropy
from executor.engines.torch_native.optimizer import MOMENTS
from executor.transition.architecture import read_architecture
from executor.transition.checkpoint import fill, reader_of
from executor.transition.native_layout import FsdpLayout
from profiles.errors import InputError, NotYetError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from tensordict import TensorDict

    from executor.checkpoint_shards import Chunk
    from executor.engines.base import Objective
    from executor.records import Identity
    from simulator.groups import Degrees


class FsdpEngine:
    """The training part of ``executor.engines.base.Engine``, and what a transition needs: layout and local tensors."""

    def __init__(self, identity: Identity, address: str, degrees: Degrees, spec: ModelSpec) -> None:
        self.identity, self.address, self.degrees, self.spec = identity, address, degrees, spec
        self.clock = CommClock()
        self.device = torch.device(spec.device)
        self.num_steps = 0

    @property
    def comm_s(self) -> float:
        """Seconds in our own collectives; FSDP's are part of its passes."""
        return self.clock.seconds

    def load(self) -> None:
        x = self.degrees
        if x.p * x.t != 1:
            raise InputError(f"FSDP2 shards over data-parallel ranks alone: p {x.p} and t {x.t} must be 1")
        self.arch = read_architecture(self.spec.path, has_score=self.spec.value_head)
        if self.arch.num_experts:
            raise NotYetError("a mixture of experts cannot run yet on FSDP2; Megatron-Core runs it")
        self.dtype = DTYPES[self.spec.dtype]
        self.layout = FsdpLayout(self.arch, x.num_ranks)
        timeout_s = self.spec.collective_timeout_s
        join_world(self.identity, self.address, self.device, alone=True, timeout_s=timeout_s)
        self.groups = make_groups(self.identity.rank, x, self.clock)
        self.model = self._sharded()
        if self.spec.optimizer is not None:
            given = self.spec.optimizer
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=given.learning_rate, betas=given.betas, eps=given.eps,
                weight_decay=given.weight_decay,
            )  # fmt: skip
        else:
            self.model.requires_grad_(False)

    def _sharded(self) -> Any:
        """The model with its weights, sharded; masters are fp32 and run in the role's type."""
        path = Path(self.spec.path)
        config = json.loads((path / "config.json" if path.is_dir() else path).read_text())
        model = ScoredDecoder(config, has_score=self.spec.value_head).to(self.device)
        mesh = init_device_mesh(self.device.type, (self.degrees.num_ranks,))
        how: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=self.dtype)}
        for layer in model.model.layers:
            fully_shard(layer, **how)
        fully_shard(model, **how)
        sharded: Any = model.named_parameters()
        local = {name: p.to_local().detach() for name, p in sharded}
        read = reader_of(self.arch, self.spec.path, self.spec.seed)
        fill(self.arch, self.layout.stored(self.identity.rank), local, read)
        return model

    def tensors(self) -> dict[str, torch.Tensor]:
        """The shards of this rank by name, in the type that generation uses."""
        found = {}
        for name, parameter in self.model.named_parameters():
            local = parameter.to_local().detach()
            if local.numel():
                found[name] = local.to(self.dtype)
        return found

    def present(self) -> AbstractContextManager[None]:
        """Parameters never leave the device."""
        return nullcontext()

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout; every rank calls this."""
        save_model(self, folder)

    def saved_state(self) -> EngineState:
        if self.spec.optimizer is None:
            return EngineState()
        rank = self.identity.rank
        chunks = on_host(chunks_to_write(self.layout, rank, self._held(), [rank]))
        return EngineState(chunks, {"optimizer_steps": self.num_steps})

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        if self.spec.optimizer is None:
            return
        self.num_steps = counters["optimizer_steps"]
        self.optimizer.state.clear()
        for parameter in self.model.parameters() if self.num_steps else ():
            moments = {name: torch.zeros_like(parameter.data) for name in MOMENTS}
            self.optimizer.state[parameter] = {"step": torch.tensor(float(self.num_steps)), **moments}
        fill(chunks_to_read(self.layout, self.identity.rank, self._held()))

    def _held(self) -> list[Held]:
        """Shards of this rank and their moments; a parameter may have none here."""
        found = []
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            kept = {"": parameter.data, **{f"optimizer.{n}.": state[n] for n in MOMENTS if n in state}}
            if parameter.to_local().numel():
                found.append(Held(name, 0, {prefix: x.to_local().view(-1) for prefix, x in kept.items()}))
        return found

    def log_probs(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, lambda logits, first, rows: self._policy_outputs(logits, first, rows)[0])

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, lambda scores, first, rows: scores[:, first - 1 : -1, 0].float())

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        def at_end(scores: torch.Tensor, first: int, rows: TensorDict) -> torch.Tensor:
            place = torch.arange(scores.shape[1], device=scores.device)
            last = (rows["token_mask"] * place).amax(1)
            return scores[torch.arange(len(last), device=scores.device), last, 0].float()

        return self._forward(batch, at_end)

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None:
        assert self.spec.optimizer is not None
        sums: dict[str, torch.Tensor] = {}
        for objective in objectives:
            self._accumulate(objective, sums)
        parameters = list(self.model.parameters())
        norm: Any = torch.nn.utils.clip_grad_norm_(parameters, self.spec.optimizer.max_grad_norm)
        self.optimizer.step()
        self.num_steps += 1
        self.optimizer.zero_grad()
        names = sorted(sums)
        totals = self.groups.dp.all_reduce(torch.stack([sums[name] for name in names]))
        return dict(zip(names, totals.tolist(), strict=True)) | {"grad_norm": float(norm.full_tensor())}

    def _accumulate(self, objective: Objective, sums: dict[str, torch.Tensor]) -> None:
        """Add an objective's gradients, and its metrics as shares of their global mean."""
        counts = objective.rows["target_mask"].sum().double().to(self.device)
        total = self.groups.dp.all_reduce(counts).clamp(min=1.0)
        ranks = self.degrees.num_ranks  # FSDP averages gradients; ours are shares of a mean already
        for rows in objective.rows.split(self.spec.micro_batch):
            rows = rows.to(self.device)
            logits = self.model(rows["tokens"], rows["token_mask"])
            found = objective.loss(self._outputs(logits, objective.first_target, rows), rows)
            for name, value in found.items():
                share = value.detach().double() / total
                sums[name] = sums.get(name, torch.zeros_like(total)) + share
            (found["loss"] * (objective.weight * ranks / total.float())).backward()

    def _forward(
        self, batch: TensorDict, output: Callable[[torch.Tensor, int, TensorDict], torch.Tensor]
    ) -> torch.Tensor | None:
        rows, first = sequences_of(batch)
        outputs = []
        with torch.no_grad():
            for part in rows.split(self.spec.micro_batch):
                part = part.to(self.device)
                outputs.append(output(self.model(part["tokens"], part["token_mask"]), first, part))
        self.model.reshard()
        return torch.cat(outputs).float().cpu()

    def _outputs(self, logits: torch.Tensor, first: int, rows: TensorDict) -> dict[str, torch.Tensor]:
        if self.spec.value_head:
            return {"values": logits[:, first - 1 : -1, 0].float()}
        log_probs, entropy = self._policy_outputs(logits, first, rows)
        return {"log_probs": log_probs, "entropy": entropy}

    def _policy_outputs(self, logits: torch.Tensor, first: int, rows: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        return log_probs_and_entropy(logits[:, first - 1 : -1].float(), rows["tokens"][:, first:], self.groups.tp)
