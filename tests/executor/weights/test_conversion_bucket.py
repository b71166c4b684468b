"""Protects the price of memory in a transition: what the executor's plan holds besides its shards is what the simulator
says, on published models.
"""

import pytest

from executor.weights.architecture import architecture_of
from executor.weights.megatron_layout import MegatronLayout
from executor.weights.native_layout import FsdpLayout
from executor.weights.plan import plan_transfers
from executor.weights.vllm_layout import VllmLayout
from profiles.models.catalogue import load_model, model_config
from simulator.cost.handover import conversion_bucket_bytes
from simulator.plan.groups import BUCKET_ELEMENTS, Degrees, gather_groups
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout
from tests.builders import make_facts
from tests.executor.transfers import conversion_elements

LAYOUTS = [  # nested and others; stages that meet in one, slices that meet in one, neither
    Degrees(1, 4, 1, 1, 2),
    Degrees(2, 2, 1, 1, 2),
    Degrees(4, 1, 1, 1, 1),
    Degrees(1, 2, 2, 1, 1),
    Degrees(4, 1, 1, 2, 1),
    Degrees(1, 2, 2, 1, 4),
    Degrees(4, 1, 1, 1, 4),
    Degrees(2, 2, 2, 1, 2),
]


@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen2.5-7b"])
@pytest.mark.parametrize("x", LAYOUTS, ids=str)
def test_the_price_is_what_the_plan_holds(model, x):
    arch = architecture_of(dict(model_config(model)), model)
    groups = gather_groups("hybridflow", x) if x.nests else []
    plan = plan_transfers(arch, MegatronLayout(arch, x), VllmLayout(arch, x), groups)
    held = max(conversion_elements(plan, rank) for rank in range(x.num_ranks)) * 2
    training = Layouts.of([ParallelLayout(dp=x.d, tp=x.t, pp=x.p)])
    engine = GenerationLayouts.of(
        [GenerationLayout(dp=x.num_replicas, tp=x.tg, pp=x.pg, max_num_seqs=1, kv_cache_bytes=0)]
    )
    (bound,) = conversion_bucket_bytes(make_facts(), load_model(model), training, engine, "bf16")
    assert held <= bound
    assert held == bound or bound == BUCKET_ELEMENTS * 2
    assert held > 0.9 * bound


@pytest.mark.parametrize(
    ("fsdp", "x"),
    [
        (False, Degrees(1, 8, 1, 1, 4)),
        (False, Degrees(2, 2, 2, 1, 1)),
        (False, Degrees(1, 2, 4, 1, 4)),
        (True, Degrees(1, 1, 8, 1, 1)),
        (True, Degrees(1, 1, 8, 1, 8)),
        (True, Degrees(1, 1, 8, 1, 4)),
    ],
)
def test_eight_billion_weights_go_to_vllm_within_their_shard_and_a_bucket(fsdp, x):
    """Of Megatron's or FSDP2's shards: 1.2 generation shards and 128 MiB are what a rank holds besides, at most."""
    arch = architecture_of(dict(model_config("llama-3.1-8b")), "llama-3.1-8b")
    source = FsdpLayout(arch, x.num_ranks, x.t) if fsdp else MegatronLayout(arch, x)
    meets = [list(range(x.num_ranks))] if fsdp and x.tg == 1 else []
    target = VllmLayout(arch, x)
    plan = plan_transfers(arch, source, target, meets if fsdp or not x.nests else gather_groups("hybridflow", x))
    for rank in {0, x.num_ranks - 1}:
        shard = sum(stored.numel for stored in target.stored(rank))
        assert sum(plan.received_elements(rank).values()) <= shard
        assert conversion_elements(plan, rank) <= 0.2 * shard + BUCKET_ELEMENTS
