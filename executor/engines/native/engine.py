"""The torch-native engine: holds a shard, runs passes, takes optimizer steps, changes layout, generates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from executor.checkpoint.shards import EngineState, on_host
from executor.checks import bit_sums, require_equal_copies
from executor.collectives import CommClock, join_world, make_groups
from executor.engines.native.decoder import Step, run_stage
from executor.engines.native.flat import FlatParameters
from executor.engines.native.generation import generate_waves
from executor.engines.native.heads import local_logits, log_probs_and_entropy
from executor.engines.native.optimizer import FlatAdamW
from executor.engines.native.pipeline import Stages, run_forward, run_training
from executor.engines.native.replica import Replica, generation_slice, training_slice
from executor.engines.native.saved_state import chunks_to_read, chunks_to_write
from executor.engines.native.transition import Transition, in_place_plan
from executor.engines.offload import HostMemory, OnHost
from executor.engines.rotary import require_length
from executor.engines.saving import save_model
from executor.records import Drafted
from executor.rl.packing import in_order, lengths_of, pack, spans
from executor.rl.sequences import sequences_of
from executor.weights.architecture import EMBEDDING, SCORE
from executor.weights.native_layout import NativeLayout, cut_dimension
from executor.weights.parameters import drawn_slices, parameters_of, read, read_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity, WeightsMoved
    from executor.rl.loss_terms import LossTerm
    from executor.rl.packing import Packed
    from executor.rl.sampling import Sampling
    from executor.weights.parameters import Parameter
    from simulator.plan.groups import Degrees


class TorchNativeEngine(OnHost):
    """``TrainingEngine`` and ``Generator`` of ``executor.engines.interfaces``, in the same memory."""

    def __init__(self, identity: Identity, address: str, degrees: Degrees, spec: ModelSpec) -> None:
        self.identity, self.address, self.degrees, self.spec = identity, address, degrees, spec
        self.clock, self.host = CommClock(), HostMemory({}, ())
        self.device = torch.device(spec.device)
        self._generating: Replica | None = None

    def load(self) -> None:
        self.dtype = self.spec.torch_dtype
        self.arch = read_dense(self.spec.path, has_score=self.spec.value_head, adapters=self.spec.adapters)
        self.layout = NativeLayout(self.arch, self.degrees, "training", transposed=False)
        plan = in_place_plan(self.arch, self.degrees)  # layouts that do not nest are refused before ranks meet
        self.piece = training_slice(self.identity.rank, self.degrees)
        parameters = parameters_of(self.arch, self.piece, value_head=self.spec.value_head)
        values = self._values(parameters)
        join_world(self.identity, self.address, self.device, timeout_s=self.spec.collective_timeout_s)
        self.groups = make_groups(self.identity.rank, self.degrees, self.clock)
        self.transition = Transition(plan, self.identity.rank, self.dtype, self.device, self.groups.micro_dp)
        self.flat = FlatParameters(
            parameters,
            self.piece.t,
            self.transition.training,
            values,
            multiple=self.degrees.d,
            trained=self.spec.learns,
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

    def _values(self, parameters: list[Parameter]) -> dict[str, torch.Tensor]:
        folder = Path(self.spec.path)
        has_files = folder.is_dir() and any(folder.glob("*.safetensors"))
        found = read(parameters, self.piece, folder) if has_files else {}
        new = [parameter for parameter in parameters if parameter.name not in found]
        return found | drawn_slices(new, self.piece, self.arch, self.spec.seed)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters of this rank by name, in ``layout``."""
        return {name: weight.detach() for name, weight in self.flat.weights.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        """What passes read, by name: the same."""
        return self.tensors()

    def lasting_weights(self) -> dict[str, torch.Tensor]:
        return self.tensors() if self.spec.optimizer is None else {"master": self.optimizer.master}

    def weights_moved(self) -> WeightsMoved:
        return self.transition.log.take()

    def save(self, folder: str) -> None:
        self.to_training()
        with self.present():
            save_model(self, folder)

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        return self._forward(batch, lambda x, h, micro: self._policy_outputs(x, h, micro, temperature)[0])

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, lambda x, h, micro: micro.spread(values_at(x, h[micro.before])))

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        # the head of a reward model reads the last token itself, not the one before it
        return self._forward(batch, lambda x, h, micro: values_at(x, h[micro.last]))

    def update(self, terms: tuple[LossTerm, ...]) -> dict[str, float] | None:
        self.to_training()
        sums: dict[str, torch.Tensor] = {}
        with self.host.present("parameters", "optimizer", changed=True):
            for term in terms:
                self._accumulate(term, sums)
            norm = self.optimizer.step()
        if not self.piece.is_last:
            return None
        names = sorted(sums)
        totals = self.groups.dp.all_reduce(torch.stack([sums[name] for name in names]))
        return dict(zip(names, totals.tolist(), strict=True)) | {"grad_norm": norm}

    @property
    def num_steps(self) -> int:
        return 0 if self.spec.optimizer is None else self.optimizer.num_steps

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
        if self._generating is not None:
            return
        self.host.hold("parameters")
        self.transition.to_generation(self.flat, check=self.spec.check_weights)
        piece = generation_slice(self.identity.rank, self.degrees)
        weights = self.transition.generation
        self._generating = Replica(self.arch, piece, self.groups.gen_tp, self.groups.gen_pp, weights)

    def check_replicas(self) -> None:
        """Compare the copies that ranks hold of the same weights: of data parallelism, and whole ones of tensor's.

        Raises ``UnequalWeightsError``; every rank of the role calls this.
        """
        with self.present():
            sums = bit_sums(self.flat.weights)
        names = list(self.flat.weights)
        require_equal_copies(names, sums, self.groups.dp)
        whole = [i for i, name in enumerate(names) if cut_dimension(name) is None]
        if whole:
            require_equal_copies([names[i] for i in whole], torch.stack([sums[i] for i in whole]), self.groups.tp)

    def to_training(self) -> None:
        """Give back what only generation needs: an update would make it wrong."""
        if self._generating is not None:
            self.transition.to_training(self.flat)
            self.host.let_go("parameters")
        self._generating = None

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        self.to_generation()
        assert self._generating is not None, "the transition makes it"
        return generate_waves(self._generating, batch, sampling, self.spec)

    def drafted(self) -> Drafted:
        return Drafted()

    def _stages(self, replica: Replica, recompute: str = "none") -> Stages:
        def run(entering: torch.Tensor, micro: Packed) -> torch.Tensor:
            step = Step(micro.positions, lengths=micro.lengths)
            return run_stage(replica.weights, self.arch, replica.piece, replica.tp, entering, step, recompute)

        return Stages(replica.piece, replica.pp, run, self.arch.hidden, self.dtype)

    def _micros(self, rows: TensorDict, first: int) -> list[Packed]:
        require_length(self.arch, rows["tokens"].shape[1])
        parts = spans(lengths_of(rows), self.spec.micro_batch, self.spec.token_budget)
        return [micro.to(self.device) for micro in pack(rows, first, parts)]

    def _forward(
        self, batch: TensorDict, output: Callable[[Replica, torch.Tensor, Packed], torch.Tensor]
    ) -> torch.Tensor | None:
        micros = self._micros(*sequences_of(batch))
        with self.present():
            x = self._training
            outputs = run_forward(self._stages(x), micros, lambda h, micro: output(x, h[0], micro))
        return None if outputs is None else in_order(outputs, micros)

    def _accumulate(self, term: LossTerm, sums: dict[str, torch.Tensor]) -> None:
        """Add a term's gradients, and its metrics as shares of their global mean."""
        counts = self.groups.dp.all_reduce(term.counts().to(self.device)).clamp(min=1.0)
        total, divisor = counts[0], counts[1]

        def loss(hidden: torch.Tensor, micro: Packed) -> torch.Tensor:
            found = term.loss(self._outputs(hidden[0], term, micro), micro.rows)
            for name, value in found.items():
                share = value.detach().double() / (divisor if name == "loss" else total)
                sums[name] = sums.get(name, torch.zeros_like(total)) + share
            return found["loss"] * (term.weight / divisor.float())

        stages = self._stages(self._training, self.spec.recompute)
        run_training(stages, self._micros(term.rows, term.first_target), loss)

    def _outputs(self, hidden: torch.Tensor, term: LossTerm, micro: Packed) -> dict[str, torch.Tensor]:
        if self.spec.value_head:
            return {"values": micro.spread(values_at(self._training, hidden[micro.before]))}
        log_probs, entropy = self._policy_outputs(self._training, hidden, micro, term.temperature)
        return {"log_probs": log_probs, "entropy": entropy}

    def _policy_outputs(
        self, replica: Replica, hidden: torch.Tensor, micro: Packed, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropy ``[b, R]`` from hidden states ``[N, h]``; the head runs before targets alone."""
        logits = local_logits(replica.head, hidden[micro.before], replica.tp)
        log_probs, entropy = log_probs_and_entropy(logits, micro.targets, replica.tp, temperature)
        return micro.spread(log_probs), micro.spread(entropy)


def values_at(replica: Replica, hidden: torch.Tensor) -> torch.Tensor:
    """The value head on hidden states, in fp32."""
    return torch.nn.functional.linear(hidden, replica.weights[SCORE])[..., 0].float()
