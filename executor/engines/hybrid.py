"""The 3D hybrid engine: one engine trains, another generates, on the same ranks; the transition joins them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from executor.collectives import own_group
from executor.engines.offload import spans_of
from executor.engines.wrapped import WrappedTrainer
from executor.records import WeightsMoved
from executor.weights.adapters import LearnedOnly
from executor.weights.checksum import require_generated
from executor.weights.counting_collectives import CountingCollectives
from executor.weights.memory_meter import MemoryMeter
from executor.weights.move import Resharder
from executor.weights.mover import MoveLog
from executor.weights.native_layout import FsdpLayout
from executor.weights.plan import TransferPlan, plan_transfers
from simulator.plan.groups import gather_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from tensordict import TensorDict

    from executor.collectives import Group
    from executor.engines.entry import MakeGenerator
    from executor.engines.interfaces import GenerationEngine, TrainingEngine
    from executor.records import Drafted
    from executor.rl.sampling import Sampling
    from executor.weights.mover import WeightMover
    from simulator.plan.groups import Degrees


class HybridEngine(WrappedTrainer):
    """``Trainer`` and ``Generator`` of ``executor.engines.interfaces``, made of an engine for each.

    ``make_generator`` makes the generation engine from the loaded trainer's architecture, type and clock.

    The generation engine's memory is given back whenever the model trains or scores. Where each training shard lies
    inside the rank's generation shard, the trainer's memory is given back while it generates, too: going back is to
    copy the slice, without communication. Until all ranks have their weights both are there.

    Of a model with adapters the generation engine gets the base once and keeps it; after that adapters alone move.
    """

    generator: GenerationEngine
    plan: TransferPlan

    def __init__(self, degrees: Degrees, trainer: TrainingEngine, make_generator: MakeGenerator) -> None:
        super().__init__(trainer)
        self.degrees = degrees
        self._make_generator = make_generator
        self._is_generating, self._has_base = False, False
        self._log = MoveLog()
        self._asleep: list[tuple[torch.UntypedStorage, int]] = []

    def load(self) -> None:
        self.trainer.load()
        trainer, rank = self.trainer, self.trainer.identity.rank
        self.generator = self._make_generator(trainer.arch, trainer.dtype, trainer.clock)
        self.plan = self._planned()  # a pair that cannot be is refused before the engine starts
        back = self._plan_back()
        with self._on_host(trainer.tensors() if back is not None else {}):
            self.generator.load()
            self.generator.release()
        self.collectives = CountingCollectives(
            own_group(rank, [list(range(self.degrees.num_ranks))], self.trainer.clock)
        )
        groups = [list(group) for group in self.plan.gathers]
        group: Group | None = own_group(rank, groups, self.trainer.clock) if groups else None
        self._forth: WeightMover = Resharder(self.plan, rank, self.collectives, group)
        self._learned: WeightMover | None = None
        if trainer.arch.adapters is not None:
            parts = (LearnedOnly(trainer.layout), LearnedOnly(self.generator.layout))
            self._learned = Resharder(plan_transfers(trainer.arch, *parts), rank, self.collectives)
        self._back: WeightMover | None = Resharder(back, rank, self.collectives) if back is not None else None

    @contextmanager
    def _on_host(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Lend the generation engine the room of weights that sleep while it works: it starts with all it will have."""
        spans = spans_of(tensors.values())
        copies = [span.to("cpu", copy=True) for span in spans]
        for span in spans:
            span.untyped_storage().resize_(0)
        yield
        for span, copy in zip(spans, copies, strict=True):
            span.untyped_storage().resize_(copy.nbytes)
            span.copy_(copy)

    def _planned(self) -> TransferPlan:
        """The transfer plan: gathers where a group holds what its members need, else the general way."""
        degrees, trainer = self.degrees, self.trainer
        groups: list[list[int]] = []
        if isinstance(trainer.layout, FsdpLayout) and degrees.d > 1:
            # a training shard is a few rows of everything, which no layout of generation has, but the whole model
            groups = [list(range(degrees.num_ranks))] if degrees.tg * degrees.pg == 1 else []
        elif degrees.nests:
            groups = gather_groups("hybridflow", degrees)
        return plan_transfers(trainer.arch, trainer.layout, self.generator.layout, groups)

    def _plan_back(self) -> TransferPlan | None:
        """How training shards come out of generation shards without communication; ``None`` where they do not.

        Experts' weights change their form in some engines, so they are not read back; offloaded ones need not be, and
        a base beside adapters stays. FSDP's shards are fp32, whatever generation runs in.
        """
        trainer = self.trainer
        is_offloaded = "parameters" in trainer.spec.offload
        stays = trainer.arch.num_experts or trainer.arch.adapters is not None or not self.generator.keeps_tensors
        if is_offloaded or stays or isinstance(trainer.layout, FsdpLayout):
            return None
        back = plan_transfers(trainer.arch, self.generator.layout, trainer.layout)
        return back if back.is_local else None

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        self.to_generation()
        return self.generator.generate(batch, sampling)

    def drafted(self) -> Drafted:
        return self.generator.drafted()

    def to_generation(self) -> None:
        if self._is_generating:
            return
        with self.trainer.present():
            self._transition()
        if self._back is not None:
            self._send_trainer_to_sleep()
        self.generator.ready()

    def _transition(self) -> None:
        source, count = self.trainer.tensors(), self.collectives.count
        count.sent_bytes = count.received_bytes = 0
        if not self._has_base:
            self.generator.restore()
        target = self.generator.tensors()
        mover = self._learned if self._has_base and self._learned is not None else self._forth
        try:
            with MemoryMeter([*source.values(), *target.values()]) as meter:
                shards_bytes = meter.peak_bytes
                mover.move(source, target)
            self.collectives.agree(self.trainer.device, ok=True)
        except Exception:  # the trainer's weights were only read; what arrived of the others is worth nothing
            self.generator.release()
            self._has_base = False
            raise
        bucket_bytes = meter.peak_bytes - shards_bytes
        self._log.note(WeightsMoved(count.received_bytes, count.sent_bytes, bucket_bytes, meter.peak_bytes))
        self._is_generating, self._has_base = True, self._learned is not None
        if self.trainer.spec.check_weights:
            self.require_equal_weights()

    def to_training(self) -> None:
        """Give the generation engine's memory back, and have the trainer's.

        Its cache goes first: the plan gave it the room in which the trainer's shard lies.
        """
        if self._is_generating:
            self.generator.release_cache()
            self._wake_trainer()
            if not self._has_base:
                self.generator.release()
            self._is_generating = False

    def _send_trainer_to_sleep(self) -> None:
        for tensor in self.trainer.tensors().values():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                self._asleep.append((storage, storage.nbytes()))
                storage.resize_(0)

    def _wake_trainer(self) -> None:
        if not self._asleep:
            return
        assert self._back is not None, "a trainer sleeps only where there is a way back"
        for storage, size in self._asleep:
            storage.resize_(size)
        self._asleep = []
        self._back.move(self.generator.tensors(), self.trainer.tensors())

    def weights_moved(self) -> WeightsMoved:
        return self._log.take()

    def require_equal_weights(self) -> None:
        """Raise ``UnequalWeightsError`` for the first tensor in which a generation replica differs from the trainer."""
        trained = (self.trainer.layout, self.trainer.tensors())
        require_generated(
            self.trainer.arch, self.trainer.identity, trained, (self.generator.layout, self.generator.tensors())
        )
