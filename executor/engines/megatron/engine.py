"""The Megatron-Core training engine: holds a shard, runs passes, takes optimizer steps. It does not generate itself."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from executor.checkpoint.shards import EngineState, on_host
from executor.checks import require_equal_stored
from executor.collectives import CommClock, join_world, make_groups, sum_out
from executor.engines.layout_state import Held, chunks_to_read, chunks_to_write
from executor.engines.megatron.session import ParallelSizes, megatron_session
from executor.engines.native.heads import log_probs_and_entropy
from executor.engines.offload import HostMemory, OnHost, spans_of
from executor.engines.saving import save_model
from executor.records import WeightsMoved
from executor.rl.context_parallel import chunks_of_sequence, part_of
from executor.rl.packing import in_order, lengths_of, pack, padded_lengths, spans
from executor.rl.sequences import sequences_of
from executor.weights.architecture import read_architecture
from executor.weights.checkpoint import fill, reader_of
from executor.weights.megatron_layout import MegatronLayout
from profiles.errors import InputError
from simulator.plan.groups import copy_of_weights, training_coordinates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk
    from executor.engines.entry import LayoutOptions
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity
    from executor.rl.loss_terms import LossTerm
    from executor.rl.packing import Packed
    from simulator.plan.groups import Degrees


class MegatronEngine(OnHost):
    """``TrainingEngine`` of ``executor.engines.interfaces``."""

    def __init__(
        self, identity: Identity, address: str, degrees: Degrees, spec: ModelSpec, options: LayoutOptions
    ) -> None:
        self.identity, self.address, self.degrees, self.spec, self.options = identity, address, degrees, spec, options
        self.clock, self.host = CommClock(), HostMemory({}, ())
        self.device = torch.device(spec.device)
        self.num_steps = 0

    def load(self) -> None:
        require_installed()
        dtype = self.spec.torch_dtype
        arch = read_architecture(self.spec.path, has_score=self.spec.value_head)
        self.layout = MegatronLayout(arch, self.degrees, self.options.vpp, self.options.ep)
        self.arch, self.dtype = arch, dtype
        read = reader_of(arch, self.spec.path, self.spec.seed)
        timeout_s = self.spec.collective_timeout_s
        join_world(self.identity, self.address, self.device, alone=True, timeout_s=timeout_s)
        self.groups = make_groups(self.identity.rank, self.degrees, self.clock)
        with self.session():
            self._build()
            fill(arch, self.layout.stored(self.identity.rank), self.tensors(), read)
            self._wrap()
        parameters = spans_of(self.tensors().values())
        states = {"parameters": lambda: parameters}
        if self.optimizer is not None:
            states["optimizer"] = lambda: self._optimizer_states(parameters)
        self.host = HostMemory(states, [name for name in self.spec.offload if name in states])
        self.host.send_away()

    def _optimizer_states(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        from executor.engines.megatron.optimizer import state_tensors

        known = {tensor.data_ptr() for tensor in parameters}
        return [found for found in spans_of(state_tensors(self.optimizer)) if found.data_ptr() not in known]

    @contextmanager
    def session(self) -> Iterator[None]:
        """Megatron's globals for this model's degrees."""
        with megatron_session(ParallelSizes.of(self.degrees, self.options.vpp, self.options.ep)):
            yield

    def _build(self) -> None:
        from executor.engines.megatron.model import build_chunks, transformer_config

        self.config = transformer_config(
            self.arch,
            self.layout,
            self.dtype,
            sequence_parallel=self.options.sequence_parallel,
            recompute=self.options.recompute,
            device=self.device,
        )
        self.modules = [
            m.to(device=self.device, dtype=self.dtype)
            for m in build_chunks(self.arch, self.layout, self.config, self.groups.cp)
        ]
        self.chunks: list[Any] = self.modules

    def _wrap(self) -> None:
        """Megatron's own data parallelism and optimizer around a model whose weights are set."""
        self.optimizer: Any = None
        if self.spec.optimizer is None:
            for module in self.modules:
                module.requires_grad_(False)
                module.eval()
            return
        from executor.engines.megatron.optimizer import cuts_states, wrap

        self.cuts_states = cuts_states(self.spec, self.degrees)
        self.chunks, self.optimizer = wrap(self.modules, self.config, self.spec, self.degrees)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters of this rank by the names of the layout."""
        return {f"{i}:{name}": p.data for i, m in enumerate(self.modules) for name, p in m.named_parameters()}

    def weights(self) -> dict[str, torch.Tensor]:
        """What passes read, by name: the same."""
        return self.tensors()

    def lasting_weights(self) -> dict[str, torch.Tensor]:
        return self.weights()

    def weights_moved(self) -> WeightsMoved:
        return WeightsMoved()

    def check_replicas(self) -> None:
        """Compare the copies of data and context parallel ranks; ``UnequalWeightsError``. Every rank calls this."""
        with self.present():
            require_equal_stored(self.layout, self.identity.rank, self.tensors(), self.groups.copies)

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout; every rank calls this."""
        with self.present():
            save_model(self, folder)

    def saved_state(self) -> EngineState:
        if self.optimizer is None:
            return EngineState()
        degrees, rank = self.degrees, self.identity.rank
        alike: Sequence[int] = range(degrees.num_ranks)
        if self.cuts_states:
            alike = [other for other in alike if copy_of_weights(other, degrees) == copy_of_weights(rank, degrees)]
        with self.session(), self.host.present("parameters", "optimizer"):
            chunks = on_host(chunks_to_write(self.layout, rank, self._held(), alike))
        return EngineState(chunks, {"optimizer_steps": self.num_steps})

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        if self.optimizer is None:
            return
        from executor.engines.megatron.optimizer import expect_states, publish_masters

        self.num_steps = counters["optimizer_steps"]
        with self.session(), self.host.present("parameters", "optimizer", changed=True), torch.no_grad():
            expect_states(self.optimizer, self.num_steps)
            fill(chunks_to_read(self.layout, self.identity.rank, self._held()))
            publish_masters(self.optimizer, self.chunks)

    def _held(self) -> list[Held]:
        from executor.engines.megatron.optimizer import held_states

        names = {p: f"{i}:{name}" for i, module in enumerate(self.modules) for name, p in module.named_parameters()}
        return held_states(self.optimizer, names)

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        return self._forward(batch, lambda logits, micro: self._policy_outputs(logits, micro, temperature)[0])

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, self._values_at)

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        return self._forward(batch, self._scores_at)

    def update(self, terms: tuple[LossTerm, ...]) -> dict[str, float] | None:
        sums: dict[str, torch.Tensor] = {}
        with self.session(), self.host.present("parameters", "optimizer", changed=True):
            for chunk in self.chunks:
                chunk.zero_grad_buffer()
            self.optimizer.zero_grad()
            for term in terms:
                self._accumulate(term, sums)
            self._reduce_gradients()
            assert self.spec.optimizer is not None, "a frozen model is never updated"
            self.spec.optimizer.set_rate(self.optimizer.param_groups, self.num_steps)
            _, norm, _ = self.optimizer.step()
        self.num_steps += 1
        if not self._is_last:
            return None
        names = sorted(sums)
        totals = self.groups.dp.all_reduce(torch.stack([sums[name] for name in names]))
        return dict(zip(names, totals.tolist(), strict=True)) | {"grad_norm": float(norm or 0.0)}

    @property
    def _is_last(self) -> bool:
        return training_coordinates(self.identity.rank, self.degrees)[1] == self.degrees.p - 1

    def _reduce_gradients(self) -> None:
        from megatron.core.distributed import finalize_model_grads

        finalize_model_grads(self.chunks)

    def _accumulate(self, term: LossTerm, sums: dict[str, torch.Tensor]) -> None:
        """Add a term's gradients, and its metrics as shares of their global mean."""
        counts = self.groups.dp.all_reduce(term.counts().to(self.device)).clamp(min=1.0)
        total, divisor = counts[0], counts[1]

        def loss(logits: torch.Tensor, micro: Packed) -> torch.Tensor:
            found = term.loss(self._outputs(logits, term, micro), micro.rows)
            for name, value in found.items():
                share = value.detach().double() / (divisor if name == "loss" else total)
                sums[name] = sums.get(name, torch.zeros_like(total)) + share
            return found["loss"] * (term.weight / divisor.float())

        from executor.engines.megatron.passes import run_passes

        run_passes(self.chunks, self._micros(term.rows, term.first_target), loss, train=True)

    def _forward(
        self, batch: TensorDict, output: Callable[[torch.Tensor, Packed], torch.Tensor]
    ) -> torch.Tensor | None:
        from executor.engines.megatron.passes import run_passes

        micros = self._micros(*sequences_of(batch))
        with self.session(), self.present(), torch.no_grad():
            outputs = run_passes(self.chunks, micros, output, train=False)
        if not self._is_last:
            return None
        return in_order(outputs, micros)

    def _micros(self, rows: TensorDict, first: int) -> list[Packed]:
        """Micro-batches: of one size for the stages of a pipeline; for ranks that share experts of one number, too."""
        degrees, lengths = self.degrees, lengths_of(rows)
        each = chunks_of_sequence(degrees.c)
        parts, padded = spans(lengths, self.spec.micro_batch, self.spec.token_budget), padded_lengths(rows, each)
        num, widest = len(parts), max(sum(padded[i] for i in part) for part in parts)
        if self.options.ep > 1:
            most = torch.tensor([num, widest]).to(self.device, non_blocking=True)
            num, widest = self.groups.dp.all_reduce(most, op=dist.ReduceOp.MAX).tolist()
            parts = spans(lengths, self.spec.micro_batch, self.spec.token_budget, num)  # shorter, if it had fewer
        if self.options.vpp > 1:
            num = -(-num // degrees.p) * degrees.p
        multiple = each * (degrees.t if self.config.sequence_parallel else 1)
        size = widest if degrees.p > 1 or self.options.ep > 1 else 0
        micros = pack(rows, first, parts, multiple=multiple, size=size, num=num, each=each)
        return [part_of(micro, self.groups.cp.index, self.groups.cp.size).to(self.device) for micro in micros]

    def _outputs(self, logits: torch.Tensor, term: LossTerm, micro: Packed) -> dict[str, torch.Tensor]:
        if self.spec.value_head:
            return {"values": self._values_at(logits, micro)}
        log_probs, entropy = self._policy_outputs(logits, micro, term.temperature)
        return {"log_probs": log_probs, "entropy": entropy}

    def _policy_outputs(
        self, logits: torch.Tensor, micro: Packed, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropy ``[b, R]`` from this rank's columns of the logits; padded columns never count."""
        before = logits[micro.before].float()
        begin = self.groups.tp.index * logits.shape[-1]
        if begin + logits.shape[-1] > self.arch.vocab:
            padded = torch.arange(begin, begin + logits.shape[-1], device=logits.device) >= self.arch.vocab
            before = before.masked_fill(padded, -1e30)
        log_probs, entropy = log_probs_and_entropy(before, micro.targets, self.groups.tp, temperature)
        return self._joined(micro.spread(log_probs)), self._joined(micro.spread(entropy))

    def _values_at(self, scores: torch.Tensor, micro: Packed) -> torch.Tensor:
        """Values ``[b, R]`` from the score of every token ``[N / c, 1]``."""
        return self._joined(micro.spread(scores[micro.before, 0].float()))

    def _scores_at(self, scores: torch.Tensor, micro: Packed) -> torch.Tensor:
        """The score ``[b]`` of each row's last token."""
        found = scores[micro.last.clamp(min=0), 0].float()
        return self._joined(torch.where(micro.last >= 0, found, 0.0))

    def _joined(self, found: torch.Tensor) -> torch.Tensor:
        """What ranks that share sequences found, each zero where another rank has the token.

        All of them then take the whole loss, and each the gradients of its own tokens: those add up like any copies'.
        """
        return sum_out(found, self.groups.cp)


def require_installed() -> None:
    """Raise ``InputError`` where Megatron-Core is missing."""
    import importlib.util

    if importlib.util.find_spec("megatron") is None:
        raise InputError(
            "the plan trains with Megatron-Core, which is not installed: pip install megatron-core==0.16.1"
        )
