"""Protects weight sync between pools: any layout on one side, any on the other, and every element arrives."""

import socket

import pytest
import torch

from benchmarks.rank_pool import run_on_ranks
from benchmarks.transition_cases import fill_whole, wrong_tensors
from executor.engines.torch_native.comms import CommClock
from executor.transition.architecture import Architecture
from executor.transition.megatron_layout import MegatronLayout
from executor.transition.native_layout import FsdpLayout, NativeLayout
from executor.transition.pool_link import LayoutLink, PoolLink, require_whole
from executor.transition.vllm_layout import VllmLayout
from profiles.errors import InputError
from simulator.groups import Degrees

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
GQA = Architecture("llama", hidden=8, num_layers=4, vocab=10, num_heads=4, num_kv_heads=2, head_dim=2, ffn=8)
PAIRS = [  # senders, how many of them hold the model once, receivers
    (MegatronLayout(GQA, Degrees(2, 2, 1, 2, 2)), 4, VllmLayout(GQA, Degrees(1, 2, 2, 1, 2))),
    (MegatronLayout(GQA, Degrees(1, 2, 2, 1, 2)), 2, VllmLayout(GQA, Degrees(2, 1, 2, 2, 1))),
    (FsdpLayout(GQA, 4), 4, NativeLayout(GQA, Degrees(1, 1, 4, 1, 2), "generation", transposed=False)),
]


def sync(rank, ports):
    wrong = []
    for (source, num, target), port in zip(PAIRS, ports, strict=True):
        sends, mine = rank < 4, rank % 4
        link = PoolLink(f"tcp://127.0.0.1:{port}", num, 4, sends, bucket_bytes=200)
        end = LayoutLink(mine, link, source, torch.device("cpu"), CommClock())
        layout = source if sends else target
        tensors = {stored.name: torch.full(stored.shape, -2.0) for stored in layout.stored(mine)}
        for _ in range(2):
            if sends:
                fill_whole(GQA, source, mine, tensors)
                end.send(tensors)
            else:
                end.receive(target, tensors)
        wrong.append((wrong_tensors(GQA, layout, mine, tensors), end.sent_bytes, end.received_bytes))
    return wrong


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_receivers_get_every_element_from_whatever_layout():
    found = run_on_ranks(8, sync, [free_port() for _ in PAIRS])
    for i in range(len(PAIRS)):
        assert not [rank for rank in range(8) if found[rank][i][0]]
        sent = sum(found[rank][i][1] for rank in range(4))
        assert all(found[rank][i][2] == sent for rank in range(4, 8))  # a broadcast: everybody hears everything


def test_senders_that_hold_only_a_part_are_refused():
    sizes = {name: torch.Size(tensor.shape).numel() for name, tensor in GQA.tensors().items()}
    require_whole(PAIRS[0][0], 4, sizes)
    with pytest.raises(InputError, match="the first 2 ranks hold"):
        require_whole(PAIRS[0][0], 2, sizes)
