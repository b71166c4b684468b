"""What a plain plan is: layouts that people choose by hand, defined here and nowhere else.

* Tensor, pipeline, context and expert degrees are powers of two; data parallelism takes what the pool has left.
* Tensor-parallel groups stay in a node; context parallelism from ``LONG_CONTEXT_TOKENS`` on alone (shorter ones are not
  listed); no interleaved pipelines, no copies to score on, nothing in host memory.
* A role that only scores has at most ``SCORING_STAGES`` pipeline stages. Other roles have no pipeline where the pool's
  roles fit without (``mapper.search.plain``), in training and in engines, each for itself. An engine fits where it has
  room to work in: for all sequences it ever has at once, or for a cache as large as its weights.
* Engines run a power of two of sequences, or all they have at once; experts and attention copies are spread over
  all of an engine's stage or not at all.
* Pools are whole nodes that the role uses whole; on a single node powers of two of its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import GENERATOR
from profiles.units import DTYPE_BYTES
from simulator.cost.engine_memory import generation_weight_bytes
from simulator.cost.kv_budget import longest_bytes, sequences_per_replica

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mapper.candidates.table import RoleTable
    from profiles.records import Ints
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts, Layouts

    Mask = NDArray[np.bool_]

SCORING_STAGES = 2
"""Pipeline stages of a role that only scores."""


@dataclass(frozen=True, eq=False)
class StagesNeeded:
    """The most pipeline stages that a pool's roles may have, in training and in engines, by its GPUs; ``[S]``.

    One where they fit without a pipeline.
    """

    sizes: Ints
    training: Ints
    engine: Ints


def plain_rows(facts: Facts, table: RoleTable) -> Mask:
    """Which rows of a table, on the GPUs of ``facts``, a plain plan may have if their pipelines are short enough."""
    x, group, node = table.layouts, facts.group, facts.group.gpus_per_node
    plain = _plain_pool(table.num_gpus, node, group.nodes) & (table.offload == 0)
    for layouts in (x.training, x.inference):
        if layouts is not None:
            plain = plain & _plain_degrees(layouts, node) & (layouts.num_gpus == table.num_gpus)
    if x.training is not None and x.inference is not None:
        plain = plain & _same_degrees(x.training, x.inference)
    if x.training is None and x.inference is not None:
        plain = plain & (x.inference.pp <= SCORING_STAGES)
    if x.generation is not None:
        plain = plain & plain_engine(facts, x.generation) & (x.generation.num_gpus == table.num_gpus)
    return np.asarray(plain, dtype=np.bool_)


def stages(table: RoleTable) -> tuple[Ints, Ints]:
    """Pipeline stages of each row: of a role that trains, and of its engine; one where there is none."""
    x, one = table.layouts, np.ones(len(table), dtype=np.int64)
    return (one if x.training is None else x.training.pp), (one if x.generation is None else x.generation.pp)


def cramped_rows(facts: Facts, role: str, table: RoleTable) -> Mask:
    """Which rows have an engine without room to work in, whose decode steps read more weights than cache.

    It holds neither all the sequences that it could have at once nor, with each at its longest, as much as its weights.
    """
    x = table.layouts.generation
    if x is None:
        return np.zeros(len(table), dtype=np.bool_)
    spec = facts.roles["actor" if role == GENERATOR else role]
    cache = longest_bytes(facts, spec.shape, x) * x.max_num_seqs / x.attention_dp
    weights = generation_weight_bytes(spec.shape, x, DTYPE_BYTES[spec.precision])
    return np.asarray(~_all_at_once(facts, x) & (cache < weights), dtype=np.bool_)


def is_power_of_two(number: Ints) -> Mask:
    """Elementwise."""
    return np.asarray((number & (number - 1)) == 0, dtype=np.bool_)


def _plain_pool(num_gpus: Ints, per_node: int, nodes: int) -> Mask:
    whole = num_gpus % per_node == 0
    return np.asarray(whole | is_power_of_two(num_gpus) if nodes == 1 else whole, dtype=np.bool_)


def _plain_degrees(x: Layouts, per_node: int) -> Mask:
    powers = is_power_of_two(x.tp) & is_power_of_two(x.pp) & is_power_of_two(x.cp) & is_power_of_two(x.ep)
    return np.asarray(powers & (x.tp <= per_node) & (x.vpp == 1), dtype=np.bool_)


def _same_degrees(a: Layouts, b: Layouts) -> Mask:
    return np.asarray((a.dp == b.dp) & (a.tp == b.tp) & (a.pp == b.pp) & (a.cp == b.cp), dtype=np.bool_)


def plain_engine(facts: Facts, x: GenerationLayouts) -> Mask:
    """Which engine layouts a plain plan may have if their pipelines are short enough."""
    whole = ((x.ep == 1) | (x.ep == x.tp)) & ((x.attention_dp == 1) | (x.attention_dp == x.tp))
    powers = is_power_of_two(x.tp) & is_power_of_two(x.pp) & (is_power_of_two(x.max_num_seqs) | _all_at_once(facts, x))
    return np.asarray(powers & whole & (x.tp <= facts.group.gpus_per_node), dtype=np.bool_)


def _all_at_once(facts: Facts, x: GenerationLayouts) -> Mask:
    most = np.minimum(sequences_per_replica(facts, x), int(facts.generation.max_num_seqs))
    return np.asarray(x.max_num_seqs >= most, dtype=np.bool_)
