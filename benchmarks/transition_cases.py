"""Transitions to try: architectures and layouts, fixed and at random, and one trial on one rank.

Used by ``benchmarks/transition.py`` and by the tests.
"""

from __future__ import annotations

import random
import time
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from benchmarks.architectures import architecture
from benchmarks.data_sliced_layout import DataSlicedLayout
from executor.collectives import CommClock, own_group
from executor.weights.counting_collectives import CountingCollectives
from executor.weights.in_place import SharedWeights
from executor.weights.megatron_layout import MegatronLayout
from executor.weights.memory_meter import MemoryMeter
from executor.weights.move import Resharder, view_of
from executor.weights.native_layout import FsdpLayout, NativeLayout, WholeLayout
from executor.weights.plan import TransferPlan, plan_transfers
from executor.weights.vllm_layout import VllmLayout
from profiles.errors import InputError
from simulator.plan.groups import BUCKET_ELEMENTS, Degrees, TransitionMethod, gather_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout

Source = Literal["native", "megatron", "fsdp"]
Target = Literal["native", "vllm"]


@dataclass(frozen=True)
class Case:
    """One transition: a model, its training layout, its generation layout, a method."""

    arch: Architecture
    degrees: Degrees
    source: Source = "native"
    target: Target = "native"
    method: TransitionMethod = "hybridflow"
    vpp: int = 1
    ep: int = 1
    bucket_elements: int = BUCKET_ELEMENTS

    def layouts(self) -> tuple[Layout, Layout]:
        """Both layouts; ``InputError`` if the model does not divide."""
        source: Layout
        if self.source == "megatron":
            source = MegatronLayout(self.arch, self.degrees, self.vpp, self.ep)
        elif self.source == "fsdp":
            source = FsdpLayout(self.arch, self.degrees.num_ranks, self.degrees.t)
        else:
            source = NativeLayout(self.arch, self.degrees, "training")
        if self.target == "vllm":
            return source, VllmLayout(self.arch, self.degrees)
        return source, NativeLayout(self.arch, self.degrees, "generation")

    def plan(self) -> TransferPlan:
        """The transfer plan; ``InputError`` with the reason if there is none."""
        source, target = self.layouts()
        groups = []
        if self.source != "fsdp" and (self.degrees.nests or self.method == "ds-chat"):
            groups = gather_groups(self.method, self.degrees)
        if self.method == "ds-chat" and self.source != "fsdp":
            source = DataSlicedLayout(source, self.degrees)
        return plan_transfers(self.arch, source, target, groups, bucket_elements=self.bucket_elements)


@dataclass(frozen=True)
class Outcome:
    """What one rank saw. ``wrong`` names tensors that did not arrive whole and equal; ``times_s`` of all repeats."""

    received_bytes: int = 0
    sent_bytes: int = 0
    peak_bytes: int = 0
    held_bytes: int = 0
    redundant_bytes: int = 0
    seconds: float = 0.0
    by_cause: dict[str, int] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    refused: str = ""
    times_s: tuple[float, ...] = ()


def whole_tensor(arch: Architecture, name: str, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose every element can be told from the others: its place, offset by its name."""
    shape = arch.tensors()[name].shape
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.int32) + zlib.crc32(name.encode()) % (1 << 20)
    return values.to(dtype).view(shape)


def fill_whole(arch: Architecture, layout: Layout, rank: int, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set a rank's tensors to those values, its padding to a value that is none of them."""
    for stored in layout.stored(rank):
        if stored.padding:
            tensors[stored.name].fill_(-1)
        for region in stored.regions:
            some = tensors[stored.name]
            whole = whole_tensor(arch, region.name, some.dtype)
            view_of(some, region, region.box).copy_(whole[tuple(slice(a, b) for a, b in region.box)])


def wrong_tensors(arch: Architecture, layout: Layout, rank: int, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of local tensors of which some box is not what it should be."""
    wrong = []
    for stored in layout.stored(rank):
        for region in stored.regions:
            some = tensors[stored.name]
            whole = whole_tensor(arch, region.name, some.dtype)[tuple(slice(a, b) for a, b in region.box)]
            if not torch.equal(view_of(some, region, region.box), whole):
                wrong.append(stored.name)
    return wrong


def run_case(case: Case, rank: int) -> Outcome:
    """Move one model on this rank, and look at what arrived. All ranks run the same case."""
    try:
        plan = case.plan()
    except InputError as error:
        return Outcome(refused=str(error))
    clock, num = CommClock(), case.degrees.num_ranks
    collectives = CountingCollectives(own_group(rank, [list(range(num))], clock))
    group = own_group(rank, [list(g) for g in plan.gathers], clock) if plan.gathers else None
    base, target_layout = case.layouts()
    local = {stored.name: torch.empty(stored.shape) for stored in base.stored(rank)}
    fill_whole(case.arch, base, rank, local)
    source = plan.source.tensors(rank, local) if isinstance(plan.source, DataSlicedLayout) else local
    target = {stored.name: torch.full(stored.shape, -2.0) for stored in target_layout.stored(rank)}
    mover = Resharder(plan, rank, collectives, group)
    with MemoryMeter([*local.values(), *target.values()]) as meter:
        started_s = time.perf_counter()
        mover.move(source, target)
        seconds = time.perf_counter() - started_s
    wrong = wrong_tensors(case.arch, target_layout, rank, target) + wrong_tensors(case.arch, base, rank, local)
    return _outcome(plan, rank, collectives, meter, seconds, wrong)


class InPlace:
    """The pure form on one rank: training shards are views of the buffer. ``ds-chat`` starts from ZeRO-3 shards.

    The two comparison methods gather the whole model; ``redundant_bytes`` is then what stays of the training shard
    beside the generation shard. All ranks make the same one, and call ``once`` equally often.
    """

    def __init__(self, case: Case, rank: int, dtype: torch.dtype = torch.float32) -> None:
        self.case, self.rank = case, rank
        source, target = whole_gather_layouts(case)
        self.plan = plan_transfers(
            case.arch, source, target, gather_groups(case.method, case.degrees), bucket_elements=case.bucket_elements
        )
        clock = CommClock()
        self.collectives = CountingCollectives(own_group(rank, [list(range(case.degrees.num_ranks))], clock))
        gathers = [list(g) for g in self.plan.gathers]
        self.group = own_group(rank, gathers, clock) if gathers else None
        self.weights = SharedWeights(self.plan, rank, dtype)
        self._scratch = torch.empty(self.weights.num_staged, dtype=dtype)  # of a trainer: its gradients' memory
        fill_whole(case.arch, source, rank, self.weights.training)
        self.times_s: list[float] = []
        self._meter: MemoryMeter | None = None

    def once(self) -> None:
        """One transition, between two barriers. The first one makes memory grow, and is metered; then it stays so."""
        self.collectives.count.sent_bytes = self.collectives.count.received_bytes = 0
        self.collectives.agree(torch.device("cpu"), ok=True)
        started_s = time.perf_counter()
        with MemoryMeter([*self.weights.held, self._scratch]) as meter:
            self.weights.to_generation(self.collectives, self.group, self._scratch)
        self.collectives.agree(torch.device("cpu"), ok=True)
        self.times_s.append(time.perf_counter() - started_s)
        self._meter = self._meter or meter

    def outcome(self) -> Outcome:
        """What the transitions did here, all tensors compared."""
        assert self._meter is not None, "outcome() follows once()"
        case, weights = self.case, self.weights
        wrong = wrong_tensors(case.arch, self.plan.target, self.rank, weights.generation)
        wrong += wrong_tensors(case.arch, self.plan.source, self.rank, weights.training)
        kept = 0 if case.method == "hybridflow" else sum(tensor.nbytes for tensor in weights.training.values())
        found = _outcome(
            self.plan, self.rank, self.collectives, self._meter, min(self.times_s), wrong, self._scratch.nbytes
        )
        redundant = weights.redundant_bytes + kept
        return replace(found, held_bytes=weights.held_bytes, redundant_bytes=redundant, times_s=tuple(self.times_s))


def whole_gather_layouts(case: Case) -> tuple[Layout, Layout]:
    """Where a method starts and what it gathers: a generation shard, or the whole model."""
    x = case.degrees
    if case.method == "ds-chat":
        return FsdpLayout(case.arch, x.num_ranks), WholeLayout(case.arch, x.num_ranks, frozenset(range(x.num_ranks)))
    if case.method == "hybridflow-v":
        x = Degrees(x.p, x.t, x.d, 1, 1)
    return NativeLayout(case.arch, x, "training"), NativeLayout(case.arch, x, "generation")


def _outcome(
    plan: TransferPlan,
    rank: int,
    collectives: CountingCollectives,
    meter: MemoryMeter,
    seconds: float,
    wrong: list[str],
    lent_bytes: int = 0,
) -> Outcome:
    size, peak_bytes = 4, meter.peak_bytes - lent_bytes
    causes = {cause: n * size for cause, n in plan.received_elements(rank).items()}
    return Outcome(
        collectives.count.received_bytes, collectives.count.sent_bytes, peak_bytes, 0, 0, seconds, causes, tuple(wrong)
    )


# Long by what a case draws.
def random_case(seed: int, num_ranks: int) -> Case:
    """An architecture and two layouts at random; some of them cannot be, and are then refused."""
    draw = random.Random(seed)
    shapes = [
        (p, t, num_ranks // (p * t))
        for p in range(1, num_ranks + 1)
        for t in range(1, num_ranks + 1)
        if num_ranks % (p * t) == 0
    ]
    source: Source = draw.choice(["native", "megatron", "megatron", "fsdp"])
    p, t, d = draw.choice([shape for shape in shapes if shape[0] == 1 or source != "fsdp"])
    pg, tg, _ = draw.choice(shapes)
    family: Any = draw.choice(["llama", "qwen2", "qwen3", "qwen3_moe", "mixtral"])
    moe, widest = family in ("qwen3_moe", "mixtral"), max(t, tg)
    vpp = draw.choice([1, 2]) if source == "megatron" and p > 1 else 1
    ep = draw.choice([1, 2]) if source == "megatron" and moe and p == 1 and d % 2 == 0 else 1
    kv = draw.choice([1, 2, 3, 4, widest, 2 * widest])
    arch = architecture(
        family,
        hidden=draw.choice([4, 6, 8]),
        num_layers=draw.choice([max(p * vpp, pg) * draw.randint(1, 2), draw.randint(1, 8)]),
        vocab=draw.choice([7, 16, 24, 65]),
        num_heads=kv * draw.choice([1, 2, 4]),
        num_kv_heads=kv,
        head_dim=draw.choice([2, 4]),
        ffn=draw.choice([8, 16, 24]),
        tied=draw.random() < 0.4,
        num_experts=draw.choice([2, 4]) if moe else 0,
        experts_per_token=1 if moe else 0,
    )
    x = Degrees(p, t, d, pg, tg)
    method: TransitionMethod = draw.choice(["hybridflow", "hybridflow", "hybridflow-v", "ds-chat"])
    target: Target = draw.choice(["native", "vllm"])
    return Case(arch, x, source, target, method, vpp, ep, draw.choice([16, 200, 1 << 20]))
