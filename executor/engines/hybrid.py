"""The 3D hybrid engine: one engine trains, another generates, on the same ranks; the transition joins them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from executor.collectives import own_group
from executor.engines.saving import save_model
from executor.records import WeightsMoved
from executor.weights.checksum import require_equal, sums_of_stored
from executor.weights.counting_collectives import Wire
from executor.weights.memory_meter import MemoryMeter
from executor.weights.move import move
from executor.weights.native_layout import DataSlicedLayout, FsdpLayout
from executor.weights.plan import TransferPlan, plan_transfers
from executor.weights.report import TransitionReport
from simulator.plan.groups import TransitionMethod, gather_groups, transition_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk, EngineState
    from executor.collectives import Group
    from executor.engines.base import Objective, Sampling
    from executor.engines.interfaces import Generator, Trainer
    from executor.records import Identity
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


class HybridEngine:
    """See ``executor.engines.base.Engine``.

    ``make_generator`` makes the generation engine from the loaded trainer's architecture, type and clock.

    The generation engine's memory is given back whenever the model trains or scores. Where each training shard lies
    inside the rank's generation shard, the trainer's memory is given back while it generates, too: going back is to
    copy the slice, without communication. Until all ranks have their weights both are there.
    """

    def __init__(
        self,
        identity: Identity,
        degrees: Degrees,
        trainer: Any,
        make_generator: Any,
        *,
        method: TransitionMethod = "hybridflow",
        check_weights: bool = True,
    ) -> None:
        self.identity, self.degrees, self.method = identity, degrees, method
        self.trainer: Trainer = trainer
        self._make_generator = make_generator
        self.check_weights = check_weights
        self.report: TransitionReport | None = None
        self._generating = False
        self._transitions = 0
        self._asleep: list[tuple[Any, int]] = []
        self._told = 0

    @property
    def comm_s(self) -> float:
        return self.trainer.clock.seconds

    @property
    def host_s(self) -> float:
        """Seconds of copies between device and host for offload so far."""
        return float(getattr(self.trainer, "host_s", 0.0))

    @property
    def host_bytes(self) -> int:
        """Bytes of those copies."""
        return int(getattr(self.trainer, "host_bytes", 0))

    def load(self) -> None:
        self.trainer.load()
        trainer = self.trainer
        self.generator: Generator = self._make_generator(trainer.arch, trainer.dtype, trainer.clock)
        self.plan, self.reason = self._planned()  # a pair that cannot be is refused before the engine starts
        self._way_back = self._slices()
        self.generator.load()
        self.generator.release()
        rank, world = self.identity.rank, self.degrees.num_ranks
        self.wire = Wire(own_group(rank, [list(range(world))], self.trainer.clock))
        groups = [list(group) for group in self.plan.gathers]
        self._group: Group | None = own_group(rank, groups, self.trainer.clock) if groups else None

    def _planned(self) -> tuple[TransferPlan, str]:
        """The transfer plan, and why it is the general one if it is."""
        x, trainer = self.degrees, self.trainer
        reason, groups = "", []
        if self._shards_rows:
            whole = x.tg * x.pg == 1
            groups = [list(range(x.num_ranks))] if whole else []
            reason = "" if whole else "FSDP shards are cut over data-parallel ranks, in no generation shard's order"
        elif x.nests or self.method == "ds-chat":
            groups = gather_groups(self.method, x)
        else:
            reason = f"generation t_g {x.tg} p_g {x.pg} does not nest in training t {x.t} p {x.p}"
        self.source_layout: Layout = trainer.layout
        if self.method == "ds-chat" and not self._shards_rows:
            self.source_layout = DataSlicedLayout(trainer.layout, x)
        return plan_transfers(trainer.arch, self.source_layout, self.generator.layout, groups), reason

    @property
    def _shards_rows(self) -> bool:
        """Whether a training shard is a few rows of everything, which no layout of generation has."""
        return isinstance(self.trainer.layout, FsdpLayout) and self.degrees.d > 1

    @property
    def _offloaded(self) -> bool:
        return "parameters" in self.trainer.spec.offload

    def _slices(self) -> TransferPlan | None:
        """How training shards come out of generation shards without communication; ``None`` where they do not.

        Experts' weights change their form in some engines, so they are not read back; offloaded ones need not be.
        FSDP's shards are fp32, whatever generation runs in.
        """
        trainer = self.trainer
        if self._offloaded or trainer.arch.num_experts or isinstance(trainer.layout, FsdpLayout):
            return None
        back = plan_transfers(trainer.arch, self.generator.layout, trainer.layout)
        return back if back.is_local else None

    def _send_trainer_to_sleep(self) -> None:
        for tensor in self.trainer.tensors().values():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                self._asleep.append((storage, storage.nbytes()))
                storage.resize_(0)

    def _wake_trainer(self) -> None:
        if not self._asleep:
            return
        assert self._way_back is not None
        for storage, size in self._asleep:
            storage.resize_(size)
        self._asleep = []
        target = self.trainer.tensors()
        with torch.no_grad():
            for stored in self.trainer.layout.stored(self.identity.rank):
                if stored.padding:
                    target[stored.name].zero_()
            move(self._way_back, self.identity.rank, self.generator.tensors(), target, self.wire, None)

    def _source(self) -> dict[str, torch.Tensor]:
        tensors = self.trainer.tensors()
        if isinstance(self.source_layout, DataSlicedLayout):
            return self.source_layout.tensors(self.identity.rank, tensors)
        return tensors

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        self._to_training()
        return self.trainer.log_probs(batch, temperature)

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        self._to_training()
        return self.trainer.values(batch)

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        self._to_training()
        return self.trainer.scores(batch)

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None:
        self._to_training()
        return self.trainer.update(objectives)

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        self.to_generation()
        return self.generator.generate(batch, sampling)

    def to_generation(self) -> None:
        if self._generating:
            return
        with self.trainer.present():
            self._transition()
        self.generator.ready()
        if self._way_back is not None:
            self._send_trainer_to_sleep()

    def _transition(self) -> None:
        rank, started_s = self.identity.rank, time.perf_counter()
        source = self._source()
        self.wire.count.sent_bytes = self.wire.count.received_bytes = 0
        self.generator.restore()
        target = self.generator.tensors()
        try:
            with MemoryMeter([*source.values(), *target.values()]) as meter:
                shards_bytes = meter.peak_bytes
                move(self.plan, rank, source, target, self.wire, self._group)
            self.wire.agree(ok=True)
        except Exception:  # the trainer's weights were only read; what arrived of the others is worth nothing
            self.generator.release()
            raise
        held = sum(tensor.nbytes for tensor in target.values())
        self.report = TransitionReport(
            path=self._path,
            received_bytes=self.wire.count.received_bytes,
            sent_bytes=self.wire.count.sent_bytes,
            peak_bytes=meter.peak_bytes,
            bucket_bytes=meter.peak_bytes - shards_bytes,
            training_bytes=sum(tensor.nbytes for tensor in source.values()),
            generation_bytes=held,
            seconds=time.perf_counter() - started_s,
            by_cause=self._by_cause(),
            kept_bytes=0 if self._way_back or self._offloaded else sum(tensor.nbytes for tensor in source.values()),
            reason=self.reason,
        )
        self._generating = True
        self._transitions += 1
        if self.check_weights:
            self.require_equal_weights()

    @property
    def num_steps(self) -> int:
        """Optimizer steps that the trained weights have seen."""
        return self.trainer.num_steps

    def check_replicas(self) -> None:
        """Compare the copies that ranks hold of the trained weights, where the trainer has copies."""
        self._to_training()
        if (check := getattr(self.trainer, "check_replicas", None)) is not None:
            check()

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout; every rank calls this."""
        self._to_training()
        with self.trainer.present():
            save_model(self.trainer, folder)

    def saved_state(self) -> EngineState:
        self._to_training()
        return self.trainer.saved_state()

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        self._to_training()
        self.trainer.load_state(fill, counters)

    def weights_moved(self) -> WeightsMoved:
        """What the transition moved, if there was one since this was last asked."""
        if self.report is None or self._told == self._transitions:
            return WeightsMoved()
        self._told = self._transitions
        x = self.report
        return WeightsMoved(x.received_bytes, x.sent_bytes, x.bucket_bytes, x.peak_bytes)

    @property
    def _path(self) -> str:
        if self.plan.is_local:
            return "local"
        return "gather" if self.plan.gathers else "general"

    def _by_cause(self) -> dict[str, int]:
        size = self.trainer.dtype.itemsize
        return {cause: n * size for cause, n in self.plan.received_elements(self.identity.rank).items()}

    def table_2_bytes(self) -> int | None:
        """What Table 2 says this rank receives for the tensors that are evenly sharded; ``None`` for a general way."""
        if not self.plan.gathers or self._shards_rows:
            return None
        moved = transition_shares(self.method, self.degrees).moved * self.plan.even_elements
        assert moved.denominator == 1, "evenly sharded tensors divide"
        return int(moved) * self.trainer.dtype.itemsize

    def _to_training(self) -> None:
        if self._generating:
            self._wake_trainer()
            self.generator.release()
            self._generating = False

    def require_equal_weights(self) -> None:
        """Raise ``UnequalWeightsError`` for the first tensor in which a generation replica differs from the trainer."""
        rank, arch = self.identity.rank, self.trainer.arch
        mine = sums_of_stored(self.trainer.layout.stored(rank), self.trainer.tensors(), arch)
        theirs = sums_of_stored(self.generator.layout.stored(rank), self.generator.tensors(), arch)
        everyone: list[Any] = [(mine, theirs)]
        if self.degrees.num_ranks > 1:
            everyone = [None] * self.degrees.num_ranks
            dist.all_gather_object(everyone, (mine, theirs))
        trained = {box: value for found, _ in everyone for box, value in found.items()}
        require_equal(arch, trained, [found for _, found in everyone])
