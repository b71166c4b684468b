"""A plan that slime can follow as arguments of slime 0.3.1: its own, Megatron-Core's and SGLang's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Default, Settings
from hybridmap.exports.recompute import recomputed_modules
from hybridmap.exports.verl.layouts import last_stage_layers
from hybridmap.exports.weights import utilization
from simulator.plan.algorithms import ALGORITHMS as RECORDS

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from profiles.models.shape import ModelShape
    from simulator.plan.plan import ParallelLayout

_ARGUMENTS = "slime/utils/arguments.py"
ALGORITHM: dict[str, Default] = {
    "advantage-estimator": Default("grpo", f"{_ARGUMENTS}:940", "the job's algorithm says so"),
    "use-kl-loss": Default(False, f"{_ARGUMENTS}:970", "the job has a reference, for a KL term"),
    "eps-clip-high": Default(None, f"{_ARGUMENTS}:889", "the job's algorithm is dapo"),
    "use-rollout-logprobs": Default(False, f"{_ARGUMENTS}:1042", "the job says implementation: {old_log_prob: engine}"),
    "normalize-advantages": Default(False, f"{_ARGUMENTS}:993", "slime asks for it with REINFORCE++ (:1790)"),
}
"""What slime 0.3.1 does about the algorithm by itself; another value is written where a job asks for it alone."""


def slime_settings(source: Source) -> Settings:
    """Every argument that the plan decides; one without a value is ``True``."""
    out = Settings()
    _work(source, out)
    _placement(source, out)
    _training(source, out)
    _engine(source, out)
    return out


def is_asynchronous(source: Source) -> bool:
    """Whether the next batch is generated while one trains: slime's ``train_async.py``."""
    return source.plan.schedule != "sync"


def _work(source: Source, out: Settings) -> None:
    work, algorithm = source.facts.workload, RECORDS[source.facts.algorithm]
    out.put(
        {
            "rollout-batch-size": work.prompts,
            "n-samples-per-prompt": work.samples_per_prompt,
            "rollout-max-prompt-len": work.prompt_length,
            "rollout-max-response-len": work.response.maximum,
            "global-batch-size": work.minibatch_samples,
            "advantage-estimator": algorithm.estimators["slime"],
        }
    )
    if source.has("reference"):
        out.put({"use-kl-loss": True})
    if algorithm.estimators["slime"] == "reinforce_plus_plus":
        out.put({"normalize-advantages": True})
    if algorithm.clip_high is not None:
        out.put({"eps-clip-high": algorithm.clip_high})
    if source.old_log_prob_by_engine:
        out.put({"use-rollout-logprobs": True})


def _placement(source: Source, out: Settings) -> None:
    nodes, gpus = source.nodes(source.plan.pool_of("actor"))
    out.put({"actor-num-nodes": nodes, "actor-num-gpus-per-node": gpus})
    out.put({"num-gpus-per-node": source.facts.group.gpus_per_node})
    if source.actor.separate_generation:
        out.put({"rollout-num-gpus": source.plan.generation_pool_of("actor").num_gpus})
    else:
        out.put({"colocate": True})


def _training(source: Source, out: Settings) -> None:
    layout = source.actor.training
    assert layout is not None, "the actor is trained"
    out.put(
        {
            "tensor-model-parallel-size": layout.tp,
            "pipeline-model-parallel-size": layout.pp,
            "context-parallel-size": layout.cp,
            "expert-model-parallel-size": layout.ep,
            "expert-tensor-parallel-size": 1 if layout.ep > 1 else layout.tp,
        }
    )
    if layout.tp > 1 and layout.sequence_parallel:
        out.put({"sequence-parallel": True})
    layers = source.facts.roles["actor"].shape.num_layers
    if layout.vpp > 1:
        out.put({"num-layers-per-virtual-pipeline-stage": layers // (layout.pp * layout.vpp)})
    last = last_stage_layers(layers, layout.pp)
    if last is not None:
        out.put({"decoder-last-pipeline-num-layers": last})
    out.put(_recompute(layout, source.facts.roles["actor"].shape))
    _batches(source, layout, out)


def _recompute(layout: ParallelLayout, shape: ModelShape) -> dict[str, Any]:
    if layout.recompute == "none":
        return {}
    if layout.recompute == "full":
        return {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    return {"recompute-granularity": "selective", "recompute-modules": recomputed_modules(shape)}


def _batches(source: Source, layout: ParallelLayout, out: Settings) -> None:
    tokens = source.tokens_of(layout)
    if tokens is None:
        out.put({"micro-batch-size": layout.micro_samples})
        return
    scoring = source.actor.inference or layout
    out.put(
        {
            "use-dynamic-batch-size": True,
            "max-tokens-per-gpu": -(-tokens // layout.cp),
            "log-probs-max-tokens-per-gpu": -(-(source.tokens_of(scoring) or tokens) // layout.cp),
            "balance-data": True,
        }
    )


def _engine(source: Source, out: Settings) -> None:
    layout = source.actor.generation
    assert layout is not None, "the actor generates"
    out.put(
        {
            "rollout-num-gpus-per-engine": layout.tp * layout.pp,
            "sglang-mem-fraction-static": utilization(source, static=True),
            "sglang-max-running-requests": layout.max_num_seqs,
        }
    )
    rare = _drafts(source)
    if layout.pp > 1:
        rare["sglang-pp-size"] = layout.pp
    if layout.ep > 1:
        rare["sglang-ep-size"] = layout.ep
    if layout.attention_dp > 1:
        rare |= {"sglang-dp-size": layout.attention_dp, "sglang-enable-dp-attention": True}
    out.put(rare)


def _drafts(source: Source) -> dict[str, Any]:
    """Drafts by the model's own layers, as slime's recipe has them (scripts/run-deepseek-r1.sh:129)."""
    tokens = source.draft_tokens
    if not tokens:
        return {}
    return {
        "sglang-speculative-algorithm": "EAGLE",
        "sglang-speculative-num-steps": tokens,
        "sglang-speculative-eagle-topk": 1,
        "sglang-speculative-num-draft-tokens": tokens + 1,
    }
