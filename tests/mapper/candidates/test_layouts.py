"""Protects the search space: every layout in it is one the checker accepts, and nothing that should be in it is out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.candidates import layouts
from mapper.candidates.layouts import (
    EVERY,
    MICRO_BATCHES,
    cross,
    degrees,
    generation_layouts,
    loads,
    stage_counts,
    tensor_degrees,
)
from profiles.models.catalogue import load_model
from tests.builders import MOE, make_facts, workload


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8, 16, 24])
@pytest.mark.parametrize("model", ["llama-2-7b", "qwen2.5-7b", MOE])
def test_every_spread_fits_on_the_gpus_and_is_possible(model: str, num_gpus: int) -> None:
    facts, shape = make_facts(model=model, nodes=3), load_model(model)
    found = degrees(facts, shape, num_gpus, 1024)
    assert found
    assert len(set(found)) == len(found)
    for dp, tp, pp, cp, ep in found:
        assert dp * tp * pp * cp <= num_gpus
        assert tp <= facts.group.nvlink_domain_gpus
        assert shape.max_tensor_parallel_ok(tp)
        assert dp in loads(1024, num_gpus // (tp * pp))
        assert pp in stage_counts(shape.num_layers)
        per_stage = -(-shape.num_layers // pp)
        assert shape.num_layers - (pp - 1) * per_stage > 0, "a pipeline stage is empty"
        assert cp == 1
        assert ep == 1 or (shape.moe is not None and shape.moe.num_experts % ep == 0 and (dp * cp * tp) % ep == 0)
    if model == MOE and num_gpus >= 4:
        assert {ep for *_, ep in found} > {1}


def test_a_dense_model_in_full_on_one_node() -> None:
    found = degrees(make_facts(), load_model("llama-2-7b"), 4, 1024)
    assert found == [
        (1, 1, 1, 1, 1),
        (2, 1, 1, 1, 1),
        (3, 1, 1, 1, 1),
        (4, 1, 1, 1, 1),
        (1, 1, 2, 1, 1),
        (2, 1, 2, 1, 1),
        (1, 1, 3, 1, 1),
        (1, 1, 4, 1, 1),
        (1, 2, 1, 1, 1),
        (2, 2, 1, 1, 1),
        (1, 2, 2, 1, 1),
        (1, 4, 1, 1, 1),
    ]


@given(st.integers(1, 900), st.integers(0, 1000), st.sampled_from([1, 8, EVERY]))
def test_every_load_appears_with_the_fewest_and_the_most_ranks_that_have_it(
    samples: int, most: int, all_to: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "EVERY", all_to)
        found = loads(samples, most)
    ranks_of: dict[int, list[int]] = {}
    for ranks in range(1, min(samples, most) + 1):
        ranks_of.setdefault(-(-samples // ranks), []).append(ranks)
    for ranks in ranks_of.values():
        assert {min(ranks), max(ranks)} <= set(found)
    ends = {r for ranks in ranks_of.values() for r in (min(ranks), max(ranks))}
    rest = set(found) - ends - set(range(all_to + 1))
    assert all(r & (r - 1) == 0 or r % 8 == 0 for r in rest), "what else there is divides engines"
    assert set(range(1, min(samples, most, all_to) + 1)) <= set(found)
    assert found == sorted(set(found))
    assert {2**i for i in range(10) if 2**i <= min(samples, most)} <= set(found)


@given(st.integers(1, 150))
def test_every_size_of_the_fullest_stage_appears_with_the_fewest_stages(layers: int) -> None:
    possible = [p for p in range(1, layers + 1) if layers - (p - 1) * -(-layers // p) > 0]
    fewest: dict[int, int] = {}
    for stages in possible:
        fewest[-(-layers // stages)] = min(stages, fewest.get(-(-layers // stages), stages))
    assert stage_counts(layers) == sorted(fewest.values())
    assert {p for p in possible if layers % p == 0} <= set(stage_counts(layers)), "even stages are the fewest"


def test_heads_limit_tensor_parallelism() -> None:
    facts = make_facts()
    assert tensor_degrees(facts, load_model("llama-2-7b"), 8) == [1, 2, 4, 8]
    assert tensor_degrees(facts, load_model("qwen2.5-7b"), 8) == [1, 2, 4]  # 28 heads
    assert tensor_degrees(facts, load_model("llama-2-7b"), 6) == [1, 2, 4]  # a role may leave GPUs idle


def test_no_rank_without_a_sample() -> None:
    found = degrees(make_facts(nodes=2), load_model("llama-2-7b"), 16, 2)
    assert {dp for dp, *_ in found} == {1, 2}


def test_a_role_with_calls_of_several_sizes_gets_the_loads_of_each_and_no_idle_rank_in_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """35 ranks train 128 samples no faster than 32, but score 1,024 faster."""
    monkeypatch.setattr(layouts, "EVERY", 1)
    facts, shape = make_facts(nodes=6), load_model("llama-2-7b")
    alone, both = ({dp for dp, *_ in degrees(facts, shape, 48, *s)} for s in ((128,), (128, 1024)))
    assert 35 not in alone
    assert 35 in both
    assert both == alone | set(loads(1024, 48))
    assert max(dp for dp, *_ in degrees(facts, shape, 48, 16, 1024)) == 16


def test_context_parallelism_from_long_contexts_on() -> None:
    long = make_facts(work=workload(128, 2048, 14336, minibatches=1))
    short = make_facts(work=workload(128, 2048, 14335, minibatches=1))
    shape = load_model("llama-2-7b")
    assert {cp for *_, cp, _ in degrees(long, shape, 8, 128)} == {1, 2, 4, 8}
    assert {cp for *_, cp, _ in degrees(short, shape, 8, 128)} == {1}


def test_cross_pairs_everything_once_and_no_micro_batch_larger_than_needed() -> None:
    spread = [(4, 2, 1, 1, 1), (1, 8, 1, 1, 1)]
    layouts, owner = cross(spread, (1, 3), (0, 2), np.asarray([3, 32]))
    assert len(layouts) == 2 * 2 * (3 + 6)
    first = layouts.take(np.flatnonzero(owner == 0))
    assert set(first.micro_batch.tolist()) == {1, 2, 4}  # 4 holds all 3 samples; 8 would change nothing
    assert set(layouts.take(np.flatnonzero(owner == 1)).micro_batch.tolist()) == set(MICRO_BATCHES)
    assert np.all(layouts.num_gpus == 8)
    assert len({layouts.record(i) for i in range(len(layouts))}) == len(layouts)


def test_a_replica_of_many_samples_may_still_hold_few_at_once() -> None:
    """Or a model whose KV cache barely fits would look infeasible only because there are many prompts."""
    found = generation_layouts(make_facts(work=workload(65536)), load_model("llama-2-7b"), 8)
    assert min(found.max_num_seqs[found.tp == 8]) == 1
