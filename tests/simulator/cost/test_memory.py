"""Protects memory per GPU: numbers by hand, the paper's bytes per parameter, and that more splitting needs less."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.models.catalogue import load_model
from simulator.cost import activations, engine_memory, memory, parameters
from simulator.facts import LORA_TARGETS, Implementation, LossHead
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import MOE, TINY, make_facts, workload

LLAMA = load_model("llama-2-7b")
PARAMS = 6_738_415_616


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def resident(model: str = "llama-2-7b", trained: bool = True, **degrees: object) -> dict[str, float]:
    facts = make_facts(model=model)
    classes = memory.resident_bytes(facts, load_model(model), "lm", one(**degrees), trained)
    return {name: float(size[0]) for name, size in classes.items()}


def test_llama_7b_on_eight_ranks_by_hand() -> None:
    """2 bytes of weights, 4 of gradients and 12 of optimizer states per parameter, over t = 8."""
    assert resident(tp=8) == {
        "parameters": PARAMS * 2 / 8,
        "gradients": PARAMS * 4 / 8,
        "optimizer": PARAMS * 12 / 8,
    }
    assert resident(tp=8, trained=False) == {"parameters": PARAMS * 2 / 8}


def test_zero_stages_shard_optimizer_then_gradients_then_parameters() -> None:
    for stage, over in ((0, (1, 1, 1)), (1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))):
        found = resident(dp=4, zero_stage=stage)
        by_hand = [PARAMS * b / d for b, d in zip((2, 4, 12), over, strict=True)]
        assert [found["parameters"], found["gradients"], found["optimizer"]] == by_hand, stage


@pytest.mark.parametrize(
    ("model", "fewest"), [("llama-2-7b", 3.4), ("llama-2-13b", 6.5), ("codellama-34b", 16.9), ("llama-2-70b", 34.5)]
)
def test_bytes_per_parameter_and_the_papers_lower_bounds(model: str, fewest: float) -> None:
    """18 bytes of a trained parameter and 2 of a frozen one: PPO needs at least so many GPUs of 80 GB."""
    shape = load_model(model)
    trained = sum(resident(model).values()) / shape.num_params
    frozen = sum(resident(model, trained=False).values()) / shape.num_params
    assert (trained, frozen) == (18.0, 2.0)
    gpus = shape.num_params * (2 * trained + 2 * frozen) / 80e9
    assert round(gpus, 1) == fewest


def test_pipeline_stages_hold_their_layers_and_the_larger_end() -> None:
    layer = LLAMA.layer_params // LLAMA.num_layers
    for pp, layers in ((2, 16), (5, 7), (32, 1)):
        found = parameters.params_per_gpu(LLAMA, "lm", *(np.asarray([x]) for x in (1, pp, 1)))
        assert found[0] == layers * layer + LLAMA.embedding_params
    scalar = parameters.params_per_gpu(LLAMA, "scalar", *(np.asarray([1]) for _ in range(3)))
    assert scalar[0] == LLAMA.num_params_of("scalar")


def test_expert_parallelism_spreads_whole_experts() -> None:
    shape = load_model(MOE)
    assert shape.moe is not None
    experts = shape.num_layers * shape.moe.num_experts * shape.expert_params
    alone, spread, sliced = (
        parameters.params_per_gpu(shape, "lm", np.asarray([tp]), np.asarray([1]), np.asarray([ep]))[0]
        for tp, ep in ((1, 1), (1, 4), (4, 1))
    )
    assert alone == shape.num_params
    assert spread == shape.num_params - experts * 3 / 4
    assert sliced == shape.num_params / 4


def test_without_sequence_parallelism_each_rank_keeps_hidden_states_whole() -> None:
    """4 h of 2 bytes on every rank (1 h with full recomputation), the rest of 32.1 h over 8."""
    layouts = Layouts.of([ParallelLayout(dp=1, tp=8, recompute=r) for r in ("none", "full")])
    found = activations.activation_bytes_per_token(LLAMA, layouts, sequence_parallel=False) / LLAMA.hidden
    assert found.tolist() == [8 + (32.125 - 8) / 8, 2.0]
    facts = make_facts(work=workload(128, 1024, 1024, minibatches=1), training="deepspeed@0.19")
    assert not facts.training.sequence_parallel
    split = replace(facts, training=replace(facts.training, sequence_parallel=True))
    one_rank = one(tp=8, recompute="none")
    more = memory.training_bytes(facts, LLAMA, one_rank, logits=True)["activations"]
    assert more > 2 * memory.training_bytes(split, LLAMA, one_rank, logits=True)["activations"]


def training(layouts: Layouts, **facts: object) -> dict[str, float]:
    given_facts = make_facts(work=workload(128, 1024, 1024, minibatches=1))
    given_facts = replace(given_facts, **facts)  # type: ignore[arg-type]
    classes = memory.training_bytes(given_facts, LLAMA, layouts, logits=True)
    return {name: float(size[0]) for name, size in classes.items()}


def test_a_training_step_by_hand() -> None:
    tokens = 2 * 2048
    found = training(one(tp=8, micro_batch=2))
    assert found == {"activations": 32.125 * 4096 / 8 * tokens * 32, "logits": tokens * 32000 / 8 * 10}
    assert "logits" not in {k for k, v in training(one(), implementation=Implementation("fused")).items() if v}


def test_the_first_pipeline_stage_keeps_up_to_pp_micro_batches() -> None:
    single, four = (training(one(pp=pp))["activations"] for pp in (1, 4))
    assert four == single  # a quarter of the layers, four micro-batches in flight
    few = training(Layouts.of([ParallelLayout(dp=64, pp=4)]))["activations"]  # only two samples per rank
    assert few == single / 2


def test_full_recomputation_keeps_inputs_one_whole_layer_and_its_gradients() -> None:
    found = training(one(recompute="full"))["activations"]
    assert found == 2048 * (32 * 2 * 4096 + 2 * 32.125 * 4096)
    headless = Implementation(loss_head="fused")
    two = training(one(recompute="full", pp=2), implementation=headless)["activations"]
    assert two == 2048 * (2 * 16 * 2 * 4096 + 2 * 32.125 * 4096), "one layer is recomputed at a time, on any stage"


@pytest.mark.parametrize(
    ("head", "per_logit"),
    [("parallel", 2 + 4 + 4), ("unfused", 2 + 4 + 4 + 4 + 2), ("in-place", 2), ("fused", 0), ("fp32", 0)],
)
def test_logits_alive_at_the_loss_by_head(head: LossHead, per_logit: int) -> None:
    """Heads that work in chunks keep none. A forward pass keeps bf16 and fp32 logits of whole heads."""
    built = Implementation(loss_head=head)
    assert training(one(tp=4, micro_batch=2), implementation=built)["logits"] == 2 * 2048 * 32000 / 4 * per_logit
    facts = replace(make_facts(work=workload(128, 1024, 1024, minibatches=1)), implementation=built)
    scoring = memory.inference_bytes(facts, LLAMA, one(tp=4, micro_batch=2), logits=True)
    assert scoring["logits"] == 2 * 2048 * 32000 / 4 * (6 if per_logit else 0)
    assert memory.inference_bytes(facts, LLAMA, one(tp=4), logits=False)["logits"] == 0


def test_a_pipelines_fullest_stage_is_the_first_or_the_one_with_the_logits() -> None:
    """The first of four stages holds the inputs of eight layers for four micro-batches, the last for one and logits."""
    layouts = one(pp=4, recompute="full")
    whole, headless = (training(layouts, implementation=Implementation(loss_head=x)) for x in ("unfused", "fused"))
    assert headless["activations"] - whole["activations"] == 3 * 2048 * 8 * 2 * 4096
    assert headless["logits"] == 0
    assert whole["activations"] + whole["logits"] > headless["activations"]


def test_a_pack_is_as_long_as_it_is_packed() -> None:
    """A micro-batch of packs holds their tokens, not the longest samples."""
    padded, packed = (training(one(tp=8), implementation=Implementation(packed_tokens=n)) for n in (None, 4096))
    assert packed["activations"] == 2 * padded["activations"]
    assert packed["logits"] == 2 * padded["logits"]


def test_fsdp_gathers_two_layers_and_the_ends_with_their_gradients() -> None:
    """Two layers and the embedding and head: bf16 copies and gradients and what the wire takes; frozen ones bf16."""
    ends = 2 * LLAMA.embedding_params + LLAMA.hidden
    alive = 2 * (PARAMS - ends) / 32 + ends
    assert training(one(zero_stage=3))["gathered parameters"] == pytest.approx(alive * (2 + 2 + 4))
    assert training(one(zero_stage=3, tp=2))["gathered parameters"] == pytest.approx(alive * (2 + 2 + 4) / 2)
    frozen = training(one(zero_stage=3), implementation=Implementation(lora_rank=8))
    assert frozen["gathered parameters"] == pytest.approx(alive * 2)
    assert "gathered parameters" not in training(one())


def adapters(model: str, rank: int = 16, fused: bool = False, **degrees: object) -> float:
    targets = degrees.pop("targets", LORA_TARGETS)
    built = Implementation(lora_rank=rank, lora_targets=targets)  # type: ignore[arg-type]
    return float(parameters.adapter_params(load_model(model), built, fused, one(**degrees))[0])


@pytest.mark.parametrize(
    ("model", "linears"),
    [
        # query, key, value, output, gate, up, down; (in, out) of each
        ("llama-2-7b", 32 * [*4 * [(4096, 4096)], *3 * [(4096, 11008)]]),
        ("llama-3.1-8b", 32 * [*2 * [(4096, 4096)], *2 * [(4096, 1024)], *3 * [(4096, 14336)]]),
        ("qwen3-30b-a3b", 48 * [*2 * [(2048, 4096)], *2 * [(2048, 512)], *128 * 3 * [(2048, 768)]]),
    ],
)
def test_adapters_are_two_thin_matrices_beside_every_linear(model: str, linears: list[tuple[int, int]]) -> None:
    assert adapters(model) == sum(16 * (k + n) for k, n in linears)
    assert adapters(model, rank=64) == 4 * adapters(model)
    assert adapters(model, tp=2, pp=4) == adapters(model) / 8


def test_adapters_of_fused_layers_share_a_factor_and_only_targets_have_them() -> None:
    queries, rest = 4096 + 4096 + 2 * 1024, 4096 + 4096 + 4096 + 3 * 14336 + 4096
    assert adapters("llama-3.1-8b", fused=True) == 32 * 16 * (queries + rest)
    assert adapters("llama-3.1-8b", fused=True, targets=("qkv",)) == 32 * 16 * queries
    per_layer = adapters("llama-3.1-8b", targets=("gate_up", "down"))
    assert per_layer == 32 * 16 * 3 * (4096 + 14336)


def test_adapters_of_several_runs_lie_beside_each_other() -> None:
    one_run, four = (
        memory.resident_bytes(
            replace(make_facts(), implementation=Implementation(lora_rank=16, lora_adapters=n)),
            LLAMA,
            "lm",
            one(),
            True,
        )
        for n in (1, 4)
    )
    assert four["optimizer"] == 4 * one_run["optimizer"]
    assert (four["parameters"] - one_run["parameters"])[0] == pytest.approx(2.0 * 3 * one_run["optimizer"][0] / 12)


def test_adapters_of_experts_are_where_the_experts_are() -> None:
    attention = 48 * 16 * (2 * (2048 + 4096) + 2 * (2048 + 512))
    experts = 48 * 128 * 16 * 3 * (2048 + 768)
    assert adapters("qwen3-30b-a3b", dp=8, ep=8) == pytest.approx(attention + experts / 8)


def test_shared_experts_have_adapters_too() -> None:
    attention, routed, shared = 4 * (2048 + 2048), 60 * 3 * (2048 + 1408), 3 * (2048 + 5632)
    assert adapters(MOE) == 24 * 16 * (attention + routed + shared)


def test_only_adapters_have_gradients_and_optimizer_states() -> None:
    """The base keeps what the engine keeps of a trained role's parameters; ZeRO 3 shards all three."""
    facts = make_facts(training="fsdp@2.13")
    lora = replace(facts, implementation=Implementation(lora_rank=16))
    found = memory.resident_bytes(lora, LLAMA, "lm", one(dp=4, zero_stage=3), trained=True)
    count = adapters("llama-2-7b")
    assert {k: float(v[0]) for k, v in found.items()} == {
        "parameters": (PARAMS + count) * 4 / 4,
        "gradients": count * 4 / 4,
        "optimizer": count * 8 / 4,
    }
    frozen = memory.resident_bytes(lora, LLAMA, "lm", one(dp=4, zero_stage=3), trained=False)
    assert {k: float(v[0]) for k, v in frozen.items()} == {"parameters": PARAMS * 2 / 4}


def test_kv_cache_per_token() -> None:
    def kv(model: str, tp: int, pp: int = 1) -> float:
        return float(engine_memory.kv_bytes_per_token(load_model(model), np.asarray([tp]), np.asarray([pp]))[0])

    assert kv("llama-2-7b", 1) == 524_288  # 2 x 32 layers x 4096 x 2 bytes
    assert kv("llama-2-7b", 8) == 524_288 / 8
    assert kv("llama-2-7b", 1, 4) == 524_288 / 4
    assert kv("llama-2-70b", 1) == 2 * 80 * 1024 * 2
    assert kv("llama-2-70b", 16) == kv("llama-2-70b", 8)  # 8 KV heads are replicated beyond 8 ranks
    assert kv("deepseek-v3", 8) == kv("deepseek-v3", 1) == 61 * (512 + 64) * 2


def test_generation_weights_and_workspace() -> None:
    layouts = GenerationLayouts(*np.asarray([[4, 1, 1], [1, 4, 1], [1, 1, 4], [64, 64, 64]]))
    found = engine_memory.generation_weight_bytes(LLAMA, layouts, 2.0)
    layer = LLAMA.layer_params // LLAMA.num_layers
    assert found.tolist() == [PARAMS * 2, PARAMS * 2 / 4, (8 * layer + LLAMA.embedding_params) * 2]
    facts = make_facts()
    more = GenerationLayouts(layouts.dp, layouts.tp, layouts.pp, layouts.max_num_seqs * 2)
    grown = engine_memory.generation_working_bytes(facts, LLAMA, more) - engine_memory.generation_working_bytes(
        facts, LLAMA, layouts
    )
    assert grown == pytest.approx(64 * 32000 * 10 / np.asarray([1, 4, 1]))


degrees = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4, 8]),
        "micro_batch": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 2, 4]),
        "zero_stage": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
    }
)


@settings(max_examples=60)
@given(degrees, st.sampled_from(["llama-2-7b", "tiny", MOE]))
def test_monotone_in_micro_batch_and_tensor_parallelism(at: dict[str, object], model: str) -> None:
    shape = TINY if model == "tiny" else load_model(model)
    facts = make_facts(model=shape)

    def transient(**changes: object) -> float:
        layouts = one(**{**at, **changes})
        return float(memory.total(memory.training_bytes(facts, shape, layouts, logits=True))[0])

    def kept(**changes: object) -> float:
        layouts = one(**{**at, **changes})
        return float(memory.total(memory.resident_bytes(facts, shape, "lm", layouts, trained=True))[0])

    assert transient(micro_batch=int(str(at["micro_batch"])) * 2) >= transient()
    assert transient(tp=int(str(at["tp"])) * 2) < transient()
    assert kept(tp=int(str(at["tp"])) * 2) < kept()
    assert kept(zero_stage=min(3, int(str(at["zero_stage"])) + 1)) <= kept()
    assert transient(recompute="none") >= transient(recompute="selective")
    scoring = [
        float(memory.total(memory.inference_bytes(facts, shape, one(**{**at, "micro_batch": b}), logits=True))[0])
        for b in (1, 2, 4, 8)
    ]
    assert scoring == sorted(scoring)
