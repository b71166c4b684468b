"""Protects vLLM as a generation engine: memory comes and goes, samples follow their seeds and stop where they should,
grouped samples share their prompt, log-probs are those that the trainer computes, and drafts change none of this.
"""

import importlib.util
import json
from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict

from benchmarks.rank_pool import run_on_ranks
from executor.engines.model_spec import DraftSpec, ModelSpec, OptimizerConfig
from executor.engines.spec import EngineSpec
from executor.engines.vllm.cpu_setup import require_kernels
from executor.records import Drafted, Identity
from executor.rl.sampling import Sampling
from profiles.errors import NotYetError
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: the extra cpu-engines"),
]
PROMPT = 300
"""Tokens: more than one block of vLLM's cache on CPUs (128), or no prefix could be shared."""
GROUPS, SAMPLES, RESPONSE = 2, 4, 9
DRAFTED = 3
"""Tokens a step; a response is one of the prompt's own pass, and two steps' if all drafts are kept."""


def batch_of(first_uid=0):
    stream = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 16, (GROUPS, PROMPT), generator=stream).repeat_interleave(SAMPLES, 0)
    mask = torch.ones_like(prompts, dtype=torch.bool)
    mask[SAMPLES:, :7] = False  # the second prompt is shorter
    uid = torch.arange(first_uid, first_uid + len(prompts))
    return TensorDict({"uid": uid, "prompts": prompts, "prompt_mask": mask}, batch_size=[len(prompts)])


def loaded(rank, path, draft=None):
    """One engine, since a process has one."""
    spec = ModelSpec(path, optimizer=OptimizerConfig(1e-2), micro_batch=4, max_num_seqs=8, kv_cache_bytes=32 << 30)
    spec = replace(spec, draft=draft)
    engine = EngineSpec(spec, "torch-native", "vllm").build(Identity("A", rank, 1), "", Degrees(1, 1, 1, 1, 1)).engine
    engine.load()
    return engine


def watched(rank, path, saved):
    """Everything that the tests look at of an engine without drafts; its weights stay in ``saved``."""
    engine = loaded(rank, path)
    vllm, batch, seen = engine.generator, batch_of(), {}

    hits, generate = [], vllm._llm.generate  # noqa: SLF001

    def counting(*given, **options):
        outputs = generate(*given, **options)
        hits.append(sum(output.num_cached_tokens or 0 for output in outputs))
        return outputs

    vllm._llm.generate = counting  # noqa: SLF001

    def held():
        memory = vllm._memory  # noqa: SLF001
        storages = (*memory._weights, *memory._caches)  # noqa: SLF001
        engine_bytes = sum({s.data_ptr(): s.nbytes() for s in storages if s.nbytes()}.values())
        return engine_bytes, sum(tensor.untyped_storage().nbytes() for tensor in engine.trainer.tensors().values())

    seen["held"] = {"loaded": held()}
    engine.to_generation()
    seen["held"]["generating"] = held()
    seen["shards"] = tuple(
        sum(s.numel * 4 for s in side.stored(rank)) for side in (engine.plan.target, engine.plan.source)
    )
    free = Sampling(RESPONSE, seed=1)
    seen["sampled"] = engine.generate(batch, free)
    seen["hits"] = hits[-1]
    seen["again"] = engine.generate(batch.flip(0), free).flip(0)
    seen["other seed"] = engine.generate(batch, Sampling(RESPONSE, seed=2))
    seeds, drawn = [], Sampling(RESPONSE, seed=1, reproducible=False)
    vllm._llm.generate = lambda prompts, params, **options: (  # noqa: SLF001
        seeds.extend(each.seed for each in params),
        counting(prompts, params, **options),
    )[1]
    seen["at once"] = [engine.generate(batch_of(uid), drawn) for uid in (0, 0, 8)]
    seen["seeds at once"] = set(seeds)
    vllm._llm.generate = counting  # noqa: SLF001
    seen["greedy"] = engine.generate(batch, Sampling(RESPONSE, greedy=True))
    seen["stopped"] = engine.generate(batch, Sampling(RESPONSE, seed=1, end_tokens=(5,)))
    whole = TensorDict({**batch, **seen["sampled"]}, batch_size=batch.batch_size)
    seen["recomputed"] = engine.log_probs(whole, free.temperature)
    seen["held"]["scoring"] = held()
    engine.to_generation()
    seen["hits of new weights"] = (engine.generate(batch[:1], free), hits)[1][-1]
    seen["drafted"] = vllm.drafted()
    engine.to_training()
    engine.save(saved)
    return seen


def drafting(rank, path, saved):
    """What tests look at of an engine for which a copy of the model drafts."""
    engine = loaded(rank, path, DraftSpec(saved, DRAFTED))
    batch, seen, drafted = batch_of(), {}, {}

    def generate(name, sampling, rows=batch):
        seen[name] = engine.generate(rows, sampling)
        drafted[name] = engine.drafted()

    generate("greedy", Sampling(RESPONSE, greedy=True))
    warm = Sampling(RESPONSE, temperature=0.7, seed=1)
    generate("sampled", warm)
    generate("again", warm, batch.flip(0))
    seen["asked again"] = engine.drafted()
    generate("stopped", replace(warm, end_tokens=(5,)))
    whole = TensorDict({**batch, **seen["sampled"]}, batch_size=batch.batch_size)
    seen["recomputed"] = engine.log_probs(whole, warm.temperature)  # the engine's memory goes, and comes again
    generate("after training", Sampling(RESPONSE, greedy=True))
    return seen | {"drafted": drafted}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A ``config.json``, and the folder for weights that are drawn by it."""
    file = tmp_path_factory.mktemp("model") / "config.json"
    changes = {"head_dim": 32, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": None}
    file.write_text(json.dumps(json.loads(TINY.read_text()) | changes))
    return str(file), str(file.parent / "saved")


@pytest.fixture(scope="module")
def seen(files):
    return run_on_ranks(1, watched, *files)[0]


@pytest.fixture(scope="module")
def drafted(seen, files):
    return run_on_ranks(1, drafting, *files)[0]


def test_heads_that_a_cpu_has_no_kernel_for_are_refused():
    require_kernels(32)
    with pytest.raises(NotYetError, match="heads of 16 cannot run on vLLM without a GPU, which has kernels for 32, 64"):
        require_kernels(16)


def test_memory_is_given_back_between_stages(seen):
    """Weights and KV cache while it generates and at no other time; the trainer's the other way round."""
    weights, shard = seen["shards"]
    engine, trainer = seen["held"]["generating"]
    assert engine > weights
    assert trainer == 0
    for stage in ("loaded", "scoring"):
        engine, trainer = seen["held"][stage]
        assert engine == 0
        assert trainer >= shard > 0


def test_the_cache_is_no_larger_than_it_can_be_used(seen):
    """32 GiB were given; 8 sequences of 512 tokens in 2 layers of 2 heads of 32 take 8 MiB, and a block each."""
    cache_bytes = seen["held"]["generating"][0] - seen["shards"][0]
    assert 8 * 512 * 2 * 2 * 2 * 32 * 4 <= cache_bytes <= 8 * 640 * 2 * 2 * 2 * 32 * 4


def test_tokens_follow_the_seed_and_the_sample_and_nothing_else(seen):
    sampled = seen["sampled"]["responses"]
    assert torch.equal(seen["again"]["responses"], sampled)  # in another order
    assert not torch.equal(seen["other seed"]["responses"], sampled)
    assert len({tuple(row) for row in sampled[:SAMPLES].tolist()}) > 1  # samples of one prompt differ
    greedy = seen["greedy"]["responses"]
    assert (greedy[:SAMPLES] == greedy[0]).all()


def test_samples_drawn_at_once_differ_and_follow_the_seed_of_their_call(seen):
    first, again, later = (out["responses"] for out in seen["at once"])
    assert seen["seeds at once"] == {None}  # vLLM draws one by one as soon as a request has a seed
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, seen["sampled"]["responses"])
    assert len({tuple(row) for row in first[:SAMPLES].tolist()}) > 1
    assert (seen["at once"][0]["log_probs"] < 0).all()


def test_a_response_ends_with_its_end_token(seen):
    free, stopped = seen["sampled"]["responses"], seen["stopped"]
    ended = 0
    for tokens, found, mask in zip(free, stopped["responses"], stopped["response_mask"], strict=True):
        places = (tokens == 5).nonzero().flatten().tolist()
        length = places[0] + 1 if places else RESPONSE
        ended += length < RESPONSE
        assert mask.tolist() == [i < length for i in range(RESPONSE)]
        assert torch.equal(found[:length], tokens[:length])  # up to there, what is drawn without an end
    assert ended


def test_samples_of_a_group_share_their_prompt(seen):
    """All but the first of a group find its whole blocks; new weights find nothing of the old ones'."""
    assert seen["hits"] >= GROUPS * (SAMPLES - 1) * 256
    assert seen["hits of new weights"] == 0


def test_log_probs_are_those_of_the_trainer(seen):
    assert torch.allclose(seen["sampled"]["log_probs"], seen["recomputed"], atol=1e-4)


def test_drafts_change_no_greedy_token(seen, drafted):
    """Nor do they after the engine's memory was away: what drafts is as it was, whoever brings the policy's weights."""
    for name in ("greedy", "after training"):
        assert torch.equal(drafted[name]["responses"], seen["greedy"]["responses"])
        assert drafted["drafted"][name] == Drafted(2 * GROUPS * SAMPLES, (2 * GROUPS * SAMPLES,) * DRAFTED)
    assert seen["drafted"] == drafted["asked again"] == Drafted()  # counted once, and nothing where nobody drafts


def test_samples_beside_drafts_follow_their_seed_and_the_policy(drafted):
    """Tokens are others than without drafts, of the same distribution: the trainer's log-probs, at its temperature."""
    sampled = drafted["sampled"]
    assert torch.equal(drafted["again"]["responses"].flip(0), sampled["responses"])
    assert torch.allclose(sampled["log_probs"], drafted["recomputed"], atol=1e-4)
    assert len({tuple(row) for row in sampled["responses"][:SAMPLES].tolist()}) > 1
    steps, kept = drafted["drafted"]["sampled"]
    assert steps > kept[0] > kept[2]
    for free, mask in zip(sampled["responses"], drafted["stopped"]["response_mask"], strict=True):
        places = (free == 5).nonzero().flatten().tolist()
        assert int(mask.sum()) == (places[0] + 1 if places else RESPONSE)
