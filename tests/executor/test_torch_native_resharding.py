"""Protects the transition without processes: for every layout, what a micro-DP group holds makes the generation shard.

Every rank's buffer is built as the engine builds it, and the assembled weights are compared with slices of the whole
parameters.
"""

import json
from dataclasses import replace

import pytest
import torch

from executor.engines.torch_native.flat import extents_of
from executor.engines.torch_native.resharding import assemble, generation_slice, training_slice
from executor.engines.torch_native.weights import cut_out, drawn, parameters_of
from executor.transition.architecture import architecture_of
from simulator.groups import Degrees, micro_dp_groups
from tests.executor.plans import TINY

POWERS = (1, 2, 4)
LAYOUTS = [
    Degrees(p, t, 2, pg, tg) for p in POWERS for t in POWERS for pg in POWERS for tg in POWERS
    if p % pg == 0 and t % tg == 0
]  # fmt: skip
CONFIG = architecture_of(json.loads(TINY.read_text()) | {"num_hidden_layers": 4, "num_key_value_heads": 4}, "test")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_generation_shard_is_assembled_exactly(family, tied):
    config = replace(CONFIG, model_type=family, tied=tied)
    for x in LAYOUTS:
        for group in micro_dp_groups(x)[: x.pg * x.tg]:
            tables = [extents_of(parameters_of(config, training_slice(r, x), value_head=False), x.t) for r in group]
            buffers = []
            for rank, table in zip(group, tables, strict=True):
                buffer = torch.zeros(table[-1].stop + 3)  # longer than needed, as gathered buffers are
                for extent in table:
                    mine = cut_out(drawn(extent.parameter, config, 1), extent.parameter, training_slice(rank, x))
                    buffer[extent.start : extent.stop] = mine.flatten()
                buffers.append(buffer)
            pieces = {generation_slice(rank, x) for rank in group}
            assert len(pieces) == 1  # the group shares one generation shard
            piece = pieces.pop()
            weights = assemble(buffers, tables, piece, config)
            for parameter in parameters_of(config, piece, value_head=False):
                assert torch.equal(weights[parameter.name], cut_out(drawn(parameter, config, 1), parameter, piece)), (
                    x,
                    parameter.name,
                )
