"""Protects weight sync between pools: any layout on one side, any on the other, every element arrives and is sent once.

Ranks are threads here: a link has process groups of its own, so one process can hold both ends.
"""

import itertools
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from benchmarks.architectures import architecture
from benchmarks.transition_cases import fill_whole, wrong_tensors
from executor.checks import UnequalWeightsError
from executor.collectives import CommClock
from executor.weights import link as link_module
from executor.weights.checksum import require_equal, sums_of_stored
from executor.weights.link import PoolBroadcast, PoolLink, parts_to_send
from executor.weights.megatron_layout import MegatronLayout
from executor.weights.native_layout import FsdpLayout, NativeLayout
from executor.weights.regions import volume
from executor.weights.vllm_layout import VllmLayout
from profiles.errors import InputError
from simulator.plan.groups import Degrees
from tests.work import HANGS_S

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
SIZES = dict(hidden=8, num_layers=4, vocab=16, num_heads=4, num_kv_heads=4, head_dim=2, ffn=8)
GQA = architecture("llama", **SIZES)
TIED = architecture("qwen3", **SIZES, tied=True)
EXPERTS = architecture("qwen3_moe", **SIZES, num_experts=4, experts_per_token=2)


def degrees(p, t, d=1):
    return Degrees(p, t, d, p, t)


def native(arch, x):
    return NativeLayout(arch, x, "training", transposed=False)


NATIVE_ONE = native(GQA, degrees(1, 1))
NATIVE = [degrees(1, 1), degrees(2, 1), degrees(1, 2), degrees(2, 2), degrees(1, 1, 2)]
PAIRS = [  # senders, receivers
    (GQA, MegatronLayout(GQA, degrees(2, 2)), VllmLayout(GQA, degrees(1, 2, 2))),
    (GQA, MegatronLayout(GQA, degrees(1, 2, 2)), VllmLayout(GQA, degrees(2, 1, 2))),
    (GQA, MegatronLayout(GQA, degrees(2, 1), vpp=2), VllmLayout(GQA, degrees(1, 4))),
    (GQA, FsdpLayout(GQA, 4), VllmLayout(GQA, degrees(1, 2, 2))),
    (TIED, MegatronLayout(TIED, degrees(2, 2)), VllmLayout(TIED, degrees(2, 1))),
    (TIED, FsdpLayout(TIED, 2), native(TIED, degrees(2, 2))),
    (GQA, FsdpLayout(GQA, 4, t=2), VllmLayout(GQA, degrees(1, 2))),
    (EXPERTS, MegatronLayout(EXPERTS, degrees(1, 2, 2), ep=2), VllmLayout(EXPERTS, degrees(1, 2))),
    *(
        (arch, native(arch, a), native(arch, b))
        for (a, b), arch in zip(itertools.product(NATIVE, NATIVE), itertools.cycle([GQA, TIED]), strict=False)
    ),
]


def transfer(arch, source, target, bucket_bytes):
    """Two rounds; the second must win. Per sender what it sent, per receiver tensors, bytes, and its checksums."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    there = PoolLink(address, degrees(1, 1, source.num_ranks), degrees(1, 1, target.num_ranks), True, bucket_bytes)

    def blank(layout, rank):
        return {stored.name: torch.full(stored.shape, -2.0) for stored in layout.stored(rank)}

    def send(rank):
        link = PoolBroadcast(rank, there, arch, source, torch.device("cpu"), CommClock())
        tensors = blank(source, rank)
        link.move(tensors, {})
        fill_whole(arch, source, rank, tensors)
        link.move(tensors, {})
        return link.log.take().sent_bytes

    def receive(rank):
        receives, cpu = replace(there, sends=False), torch.device("cpu")
        link = PoolBroadcast(rank, receives, arch, source, cpu, CommClock(), target=target)
        tensors = blank(target, rank)
        link.move({}, tensors)
        link.move({}, tensors)
        received_bytes = link.log.take().received_bytes
        assert received_bytes > 0 == link.log.take().received_bytes
        return tensors, received_bytes, link.sums

    with ThreadPoolExecutor(source.num_ranks + target.num_ranks) as threads:
        sent = [threads.submit(send, 0)]
        time.sleep(0.05)  # who knocks before rank 0 is there waits a second or two
        sent += [threads.submit(send, rank) for rank in range(1, source.num_ranks)]
        received = [threads.submit(receive, rank) for rank in range(target.num_ranks)]
        return [f.result(timeout=HANGS_S) for f in sent], [f.result(timeout=HANGS_S) for f in received]


@pytest.mark.parametrize(("i", "bucket_bytes"), [(i, (200, 1, 1 << 30)[i % 3]) for i in range(len(PAIRS))])
def test_every_receiver_gets_every_element_from_any_layout(i, bucket_bytes):
    arch, source, target = PAIRS[i]
    sent, received = transfer(arch, source, target, bucket_bytes)
    sums = []
    trained = received[0][2]
    for rank, (tensors, received_bytes, theirs) in enumerate(received):
        assert theirs == trained
        assert wrong_tensors(arch, target, rank, tensors) == []
        assert received_bytes == sum(sent)  # a broadcast: everybody hears everything
        sums.append(sums_of_stored(target.stored(rank), tensors, arch))
    require_equal(arch, trained, sums)
    next(iter(received[0][0].values())).reshape(-1)[0] += 1
    sums[0] = sums_of_stored(target.stored(0), received[0][0], arch)
    with pytest.raises(UnequalWeightsError, match=r"differs from what was trained|than its peers"):
        require_equal(arch, trained, sums)


@pytest.mark.parametrize("i", range(len(PAIRS)))
def test_every_element_is_sent_once(i):
    arch, source, _ = PAIRS[i]
    parts = [stored for mine in parts_to_send(arch, source) for stored in mine]
    size = sum(volume(tuple((0, n) for n in tensor.shape)) for tensor in arch.tensors().values())
    assert sum(stored.numel - stored.padding for stored in parts) == size


def test_ranks_that_hold_only_a_part_are_refused():
    class Half:
        num_ranks = 2

        def stored(self, rank):
            return PAIRS[0][1].stored(rank)

    with pytest.raises(InputError, match="the ranks that train hold"):
        parts_to_send(GQA, Half())


class NotedChannel:
    """Of a link's process groups what is asked of them, in order; nothing moves."""

    def __init__(self, happened):
        self.happened, self.num = happened, 0

    def broadcast(self, tensors, _options):
        number, self.num = self.num, self.num + 1
        self.happened.append(f"start {number}")
        tensors[0].fill_(-2 if tensors[0].is_floating_point() else 0)
        return SimpleNamespace(wait=lambda: self.happened.append(f"wait {number}"))


@pytest.mark.parametrize("sends", [True, False])
def test_a_bucket_is_on_its_way_while_the_one_before_is_worked_on(sends, monkeypatch):
    happened, source, target = [], NATIVE_ONE, NATIVE_ONE
    monkeypatch.setattr(link_module, "open_store", lambda *_: None)
    monkeypatch.setattr(PoolBroadcast, "_join", lambda *_: NotedChannel(happened))
    link = PoolLink("127.0.0.1:1", degrees(1, 1), degrees(1, 1), sends, bucket_bytes=256)
    made = PoolBroadcast(0, link, GQA, source, torch.device("cpu"), CommClock(), target=None if sends else target)
    unpack = made._unpack  # noqa: SLF001
    monkeypatch.setattr(made, "_unpack", lambda *given: (happened.append("unpack"), unpack(*given)))
    tensors = {stored.name: torch.zeros(stored.shape) for stored in source.stored(0)}
    made.move(*((tensors, {}) if sends else ({}, tensors)))
    last = int(happened[-1 if sends else -2].split()[1]) - 1  # behind it the checksums
    assert last > 4
    for number in range(last):
        next_starts = happened.index(f"start {number + 1}")
        assert next_starts < happened.index(f"wait {number}")
    under_way = [sum((e[:5] == "start") - (e[:4] == "wait") for e in happened[: i + 1]) for i in range(len(happened))]
    assert max(under_way) == 2


def test_a_transfer_that_stands_still_ends_at_its_time_limit():
    """The other pool has joined and sends nothing: without the limit both would wait for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    cpu, target = torch.device("cpu"), NATIVE_ONE
    ends = [PoolLink(address, degrees(1, 1), degrees(1, 1), sends) for sends in (True, False)]

    def joined(end):
        options = {"timeout_s": 2.0, "target": None if end.sends else target}
        return PoolBroadcast(0, end, GQA, NATIVE_ONE, cpu, CommClock(), **options)

    with ThreadPoolExecutor(2) as threads:
        _, receives = threads.map(joined, ends)
        tensors = {stored.name: torch.zeros(stored.shape) for stored in target.stored(0)}
        moved = threads.submit(receives.move, {}, tensors)
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            moved.result(HANGS_S)
