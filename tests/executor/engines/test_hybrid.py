"""Protects the hybrid engine on four ranks, our own decoder generating: weights equal after each transition, memory
given back on both sides, bytes as Table 2 and the weight map say, and training that does not notice.
"""

import json

import pytest
import torch
from tensordict import TensorDict

from benchmarks.rank_pool import run_on_ranks
from executor.engines.base import Objective, Sampling
from executor.engines.hybrid_choice import HybridSpec
from executor.engines.native.engine import ModelSpec
from executor.engines.native.optimizer import OptimizerConfig
from executor.records import Identity
from executor.rl.sequences import sequences_of
from executor.weights.plan import EVEN
from simulator.plan.groups import Degrees, generation_replica, transition_shares
from tests.executor.plans import TINY

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ONE = Degrees(1, 1, 1, 1, 1)
CASES = [  # training engine, degrees, method
    ("torch-native", Degrees(2, 2, 1, 1, 1), "hybridflow"),
    ("torch-native", Degrees(1, 4, 1, 1, 2), "hybridflow"),
    ("torch-native", Degrees(1, 2, 2, 1, 1), "hybridflow-v"),
    ("torch-native", Degrees(1, 2, 2, 1, 1), "ds-chat"),
    ("torch-native", Degrees(1, 1, 4, 2, 2), "hybridflow"),
    ("torch-native+offload", Degrees(1, 2, 2, 1, 1), "hybridflow"),
    ("fsdp2", Degrees(1, 1, 4, 1, 1), "hybridflow"),
    ("fsdp2", Degrees(1, 1, 4, 1, 4), "hybridflow"),
    ("fsdp2", Degrees(1, 2, 2, 1, 1), "hybridflow"),
    ("fsdp2", Degrees(1, 4, 1, 1, 2), "hybridflow"),
    ("fsdp2+offload", Degrees(1, 2, 2, 2, 2), "hybridflow"),
]


def likelihood(outputs, part):
    return {"loss": -(outputs["log_probs"] * part["target_mask"]).sum()}


def prompts():
    stream = torch.Generator().manual_seed(0)
    return TensorDict(
        {
            "uid": torch.arange(8),
            "prompts": torch.randint(0, 16, (8, 3), generator=stream),
            "prompt_mask": torch.ones(8, 3, dtype=torch.bool),
        },
        batch_size=[8],
    )


def engine_of(rank, num, path, training, x, method):
    training, _, offload = training.partition("+")
    away = ("parameters", "optimizer") if offload else ()
    spec = ModelSpec(path, optimizer=OptimizerConfig(1e-2), micro_batch=4, max_num_seqs=8, offload=away)
    made = HybridSpec(spec, training, "torch-native", method=method).build(Identity("A", rank, num), "", x)
    made.load()
    return made


def rounds(engine, rank, x, num=3):
    """Generate, learn from what was generated; tokens and losses of each round, and the last report."""
    found = []
    for _ in range(num):
        mine = prompts().split(8 // x.num_replicas)[generation_replica(rank, x)]
        engine.to_generation()
        storages = [tensor.untyped_storage() for tensor in engine.trainer.tensors().values()]
        awake = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        out = engine.generate(mine, Sampling(4, seed=1))
        everyone = [None] * x.num_ranks
        torch.distributed.all_gather_object(everyone, (generation_replica(rank, x), out["responses"]))
        responses = torch.cat([tokens for _, tokens in sorted(dict(everyone).items())])
        batch = prompts()
        batch["responses"], batch["response_mask"] = responses, torch.ones_like(responses, dtype=torch.bool)
        part, first = sequences_of(batch.split(8 // x.d)[rank // (x.p * x.t)])
        step = engine.update((Objective(part, first, likelihood),))
        found.append((responses.tolist(), step))
    return found, engine.report, awake, engine.weights_moved(), engine.plan.conversion_elements(rank) * 4


def on_ranks(rank, path):
    return [rounds(engine_of(rank, 4, path, *case), rank, case[1]) for case in CASES]


def alone(rank, path):
    return rounds(engine_of(rank, 1, path, "torch-native", ONE, "hybridflow"), rank, ONE)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps(json.loads(TINY.read_text()) | {"num_hidden_layers": 4, "num_key_value_heads": 4}))
    return run_on_ranks(1, alone, str(file))[0], run_on_ranks(4, on_ranks, str(file))


@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{e}-{x.p}{x.t}{x.d}-{x.pg}{x.tg}-{m}" for e, x, m in CASES])
def test_tokens_and_losses_are_those_of_one_process(i, found):
    one, four = found
    for rank in range(4):
        for (tokens, step), (theirs, expected) in zip(four[rank][i][0], one[0], strict=True):
            assert tokens == theirs
            if step is not None:
                assert step == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("i", range(len(CASES)))
def test_bytes_are_counted_and_known(i, found):
    _, x, method = CASES[i]
    for rank in range(4):
        _, report, awake, moved, expected_bucket = found[1][rank][i]
        assert moved == (report.received_bytes, report.sent_bytes, report.bucket_bytes, report.peak_bytes)
        assert report.bucket_bytes == expected_bucket
        assert sum(report.by_cause.values()) == report.received_bytes
        assert report.peak_bytes >= report.training_bytes + report.generation_bytes
        if report.path == "general":
            assert report.reason
        engine, _, offload = CASES[i][0].partition("+")
        assert awake >= report.kept_bytes  # a flat buffer is padded
        # the training shard gives its memory back where it can be sliced out again, or waits in host memory
        assert (awake == report.kept_bytes == 0) == (bool(offload) or (engine != "fsdp2" and x.nests))
        if x.nests and x.p == 1 and (engine != "fsdp2" or x.d == 1):
            h, f, layers, vocab = 64, 128, 4, 16
            cut = layers * (4 * h * h + 3 * h * f) + 2 * vocab * h
            assert report.by_cause[EVEN] == 4 * cut * transition_shares(method, x).moved


def test_weights_that_differ_are_noticed(found, tmp_path):
    with pytest.raises(Exception, match="differs from what was trained"):
        run_on_ranks(1, spoiled, str(TINY))


def spoiled(rank, path):
    engine = engine_of(rank, 1, path, "torch-native", ONE, "hybridflow")
    engine._way_back = None  # noqa: SLF001 - the trainer stays awake, to be compared with
    engine.to_generation()
    next(iter(engine.generator.tensors().values())).add_(1e-3)
    engine.require_equal_weights()
