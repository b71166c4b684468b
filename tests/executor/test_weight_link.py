"""Protects the transfer of weights between two pools: every slice arrives whole from any layout, in buckets.

Ranks are threads here: a link has process groups of its own, so one process can hold both ends.
"""

import itertools
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from executor.engines.torch_native.comms import CommClock
from executor.engines.torch_native.config import config_from
from executor.engines.torch_native.flat import FlatParameters, extents_of
from executor.engines.torch_native.resharding import training_slice
from executor.engines.torch_native.weight_link import LinkSpec, WeightLink, buckets_of
from executor.engines.torch_native.weights import Slice, cut_out, drawn, parameters_of
from simulator.groups import Degrees
from tests.executor.plans import TINY

CONFIG = config_from(json.loads(TINY.read_text()), "test")
CPU = torch.device("cpu")


def degrees(p, t, d=1):
    return Degrees(p, t, d, p, t)


def flat_of(config, rank, x, seed):
    """A rank's parameters; with a seed of their own, so that what did not arrive is seen."""
    piece = training_slice(rank, x)
    parameters = parameters_of(config, piece, value_head=False)
    values = {p.name: cut_out(drawn(p, config, seed), p, piece) for p in parameters}
    return FlatParameters(parameters, x.t, values, dtype=torch.float32, device=CPU, multiple=1, trained=False)


def transfer(config, senders, receivers, bucket_bytes):
    """Run both sides; what the receivers hold afterwards, in rank order."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    there = LinkSpec(address, senders, receivers, sends=True, bucket_bytes=bucket_bytes)

    def send(rank):
        link = WeightLink(rank, there, config, CPU, CommClock())
        for seed in (5, 7):  # twice: the second time must win
            link.send(flat_of(config, rank, senders, seed))

    def receive(rank):
        link = WeightLink(rank, replace(there, sends=False), config, CPU, CommClock())
        flat = flat_of(config, rank, receivers, 1)
        link.receive(flat.weights)
        link.receive(flat.weights)
        return flat

    with ThreadPoolExecutor(senders.num_ranks + receivers.num_ranks) as threads:
        sent = [threads.submit(send, 0)]
        time.sleep(0.05)  # who knocks before rank 0 is there waits a second or two
        sent += [threads.submit(send, rank) for rank in range(1, senders.num_ranks)]
        received = [threads.submit(receive, rank) for rank in range(receivers.num_ranks)]
        for future in sent:
            future.result(timeout=60)
        return [future.result(timeout=60) for future in received]


LAYOUTS = [degrees(1, 1), degrees(2, 1), degrees(1, 2), degrees(2, 2), degrees(1, 1, 2)]
FAMILIES = itertools.cycle([("llama", False, 20_000), ("qwen3", True, 1), ("qwen2", False, 1 << 30)])


@pytest.mark.parametrize(("senders", "receivers", "family"), [
    (*pair, family) for pair, family in zip(itertools.product(LAYOUTS, LAYOUTS), FAMILIES, strict=False)
])  # fmt: skip
def test_every_receiver_gets_its_slice_from_any_layout(senders, receivers, family):
    model_type, tied, bucket_bytes = family
    config = replace(CONFIG, model_type=model_type, tied_embeddings=tied)
    for rank, flat in enumerate(transfer(config, senders, receivers, bucket_bytes)):
        expected = flat_of(config, rank, receivers, 7)
        for name, weight in expected.weights.items():
            assert torch.equal(flat.weights[name], weight), (rank, name)


def test_buckets_hold_whole_parameters_in_order():
    table = extents_of(parameters_of(CONFIG, Slice(0, 1, 0, 1), value_head=False), 1)
    for most in (1, 2_000, 20_000):
        buckets = buckets_of(table, most)
        assert [extent for bucket in buckets for extent in bucket] == table
        assert len(buckets) > 1
        for bucket in buckets:
            assert len(bucket) == 1 or bucket[-1].stop - bucket[0].start <= most
    assert len(buckets_of(table, table[-1].stop)) == 1
