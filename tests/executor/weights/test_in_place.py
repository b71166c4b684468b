"""Protects the memory of the in-place transition against the allocator itself: growing and shrinking never holds a
tensor in two sizes at once, and training tensors keep their values at every moment.
"""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.architectures import architecture
from executor.engines.native.transition import in_place_plan
from executor.weights.in_place import SharedWeights
from simulator.plan.groups import Degrees

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = dict(hidden=64, num_layers=4, vocab=256, num_heads=8, num_kv_heads=4, head_dim=8, ffn=128)
GQA = architecture("llama", **SIZES)
LAYOUTS = [Degrees(1, 4, 1, 1, 2), Degrees(2, 2, 1, 1, 1), Degrees(4, 1, 2, 2, 1), Degrees(4, 2, 1, 1, 2)]


def allocated(prof):
    """Bytes of the allocator after each of its events, in their order."""
    found, nodes = [], list(prof.profiler.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.typed[0].name == "Allocation":
            found.append((node.start_time_ns, node.typed[1].total_allocated, node.typed[1].alloc_size))
    first = min(found)
    return [total - (first[1] - first[2]) for _, total, _ in sorted(found)]


@pytest.mark.parametrize("x", LAYOUTS, ids=str)
def test_the_allocator_never_holds_more_than_the_generation_shard(x):
    plan, scratch = in_place_plan(GQA, x), torch.empty(1 << 20)
    shards = [sum(s.numel for s in layout.stored(0)) * 4 for layout in (plan.source, plan.target)]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        weights = SharedWeights(plan, 0, torch.float32)
        for memory in weights.pieces:
            memory.resize(scratch, grown=True)
        weights.to_training(scratch)
    bytes_ = allocated(prof)
    assert (bytes_[-1], max(bytes_)) == tuple(shards)


@pytest.mark.parametrize("x", LAYOUTS, ids=str)
def test_training_tensors_keep_their_values_and_take_turns_in_scratch(x):
    weights = SharedWeights(in_place_plan(GQA, x), 0, torch.float32)
    for i, tensor in enumerate(weights.training.values()):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + i)
    before = {name: tensor.clone() for name, tensor in weights.training.items()}
    scratch = torch.full((weights.num_staged,), float("nan"))
    for memory in weights.pieces:
        memory.resize(scratch, grown=True)
        assert all(torch.equal(tensor, before[name]) for name, tensor in weights.training.items())
    weights.to_training(scratch)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.training.items())
