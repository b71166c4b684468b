"""Published inference rows, priced by a request-level run of the engine's scheduler with the layout of the row."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.validation.devices import device_profile
from benchmarks.validation.drafts import stated_speculation
from benchmarks.validation.gate import check_generation, check_running, contradicted, duplicates
from benchmarks.validation.guard import each
from benchmarks.validation.names import (
    NotPredicted,
    integer,
    model_kind,
    number,
    published_device,
    published_model,
    text_of,
)
from benchmarks.validation.rows import Row
from benchmarks.validation.sweeps import (
    is_performance_overview,
    launched_engine,
    requests_of,
    shortest_share,
    system_of,
)
from profiles.engine_facts import default_engine, load_training_engine
from profiles.hardware import ClusterGroup
from profiles.workload import LengthDistribution, Workload
from simulator.cost.formats import weight_bytes
from simulator.facts import Facts, RoleSpec
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from simulator.serving.engine import kv_tokens, serve_on, tokens_of_a_sequence
from simulator.serving.run import Load
from simulator.uncertainty import by_rule_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

    from profiles.models.shape import ModelShape

Kind = Literal["closed", "offline", "static"]

_ONE_TOKEN = "a response of one token has no time per token after the first"

REQUESTS_PER_SLOT = 10
"""Length of a closed loop where the source does not say: what the benchmark scripts of NVIDIA Dynamo send, 10 requests
per client, the first of which arrive all at once."""

_BLOCK_SCALED = re.compile(r"deepseek-v3|qwen3|minimax-m2|glm-[45]")
"""Models whose vendor's FP8 checkpoint has scales of blocks."""

_DISAGGREGATED = re.compile(r"disagg|\bprefill workers?\b|\bdecode workers?\b", re.IGNORECASE)


def predict(table: pd.DataFrame) -> list[Row]:
    """Every quantity of ``generation.csv``-like rows."""
    return each(table, rows_of, predict_row, {**contradicted(table), **duplicates(table)})


@dataclass(frozen=True)
class _Run:
    """A row as the simulator takes it, and what had to be assumed."""

    kind: Kind
    facts: Facts
    shape: ModelShape
    layout: GenerationLayout
    precision: str
    load: Load
    assumed: tuple[str, ...]


def rows_of(cells: Mapping[str, Any]) -> list[Row]:
    """Every quantity that a record publishes, and the latency sum where it has both of its parts."""
    values = {
        q: number(cells.get(q)) for q in ("ttft_ms", "tpot_ms", "throughput_tokens_per_s", "tokens_per_s_per_gpu")
    }
    found = {q: v for q, v in values.items() if v is not None and v > 0}
    output = number(cells.get("output_len"))
    if "ttft_ms" in found and "tpot_ms" in found and output is not None and output >= 1:
        found["latency_sum_ms"] = found["ttft_ms"] + (output - 1) * found["tpot_ms"]
    base = Row(
        "generation",
        text_of(cells.get("id")),
        "",
        float("nan"),
        system=system_of(cells),
        level=text_of(cells.get("spec_level")),
        device=text_of(cells.get("gpu_kind")),
    )
    rows = [replace(base, quantity=quantity, measured=measured) for quantity, measured in found.items()]
    return rows or [base.without("the row publishes no quantity that is predicted")]


def predict_row(cells: Mapping[str, Any], rows: list[Row]) -> Iterable[Row]:
    """The quantities of one record, whatever others of its table say; raises as the product does."""
    if not rows[0].quantity:
        return rows
    run = _run_of(cells)
    served = serve_on(run.facts, run.shape, run.layout, run.load, run.precision)
    gpus = run.layout.tp * run.layout.pp
    ttft_s, tpot_s = served.ttft_s, served.tpot_s
    if text_of(cells.get("time_stat")).lower().startswith("median"):
        ttft_s, tpot_s = served.ttft_median_s, served.tpot_median_s
    values = {
        "ttft_ms": ttft_s * 1e3,
        "tpot_ms": tpot_s * 1e3,
        "latency_sum_ms": (ttft_s + (run.load.output_tokens - 1) * tpot_s) * 1e3,
        "throughput_tokens_per_s": served.throughput_tokens_per_s,
        "tokens_per_s_per_gpu": served.throughput_tokens_per_s / gpus,
    }
    note, kind = "; ".join(run.assumed), model_kind(run.shape)
    rows = [
        replace(row, model_kind=kind, device=run.facts.device.name, by_rule=by_rule_share(run.facts)) for row in rows
    ]
    found = [row.with_prediction(values[row.quantity], note) for row in rows]
    if run.load.output_tokens > 1:
        return found
    return [row.without(_ONE_TOKEN) if row.quantity == "tpot_ms" else row for row in found]


# Long by what a run needs of a row: a line for each.
def _run_of(cells: Mapping[str, Any]) -> _Run:
    words = " ".join(text_of(cells.get(column)) for column in ("row_kind", "backend", "model", "notes"))
    if _DISAGGREGATED.search(words):
        raise NotPredicted("prefill and decode on engines of their own are not modelled")
    kind = _kind(cells)
    shape = published_model(text_of(cells.get("model")))
    device = device_profile(published_device(text_of(cells.get("gpu_kind"))))
    precision, assumed = _precision(cells, shape)
    engine = launched_engine(cells, latent=shape.mla is not None)
    work = Workload(1, 1, 1, LengthDistribution.fixed(1), 1, 1, 0.0, None)
    layout, gpus = _layout(cells, kind, int(engine.max_num_seqs))
    group = ClusterGroup.of(device.spec, max(1, -(-gpus // device.spec.gpus_per_node)))
    trainer = load_training_engine(default_engine("training"))
    drafts, about_drafts = stated_speculation(cells)
    roles = {"actor": RoleSpec(shape, precision)}
    facts = Facts("grpo", roles, work, group, device, trainer, engine, speculation=drafts)
    weights = weight_bytes(shape, GenerationLayouts.of([layout]), precision)
    given = 1.0 if drafts is None else drafts.tokens_per_step
    check_generation(cells, shape, device.spec, layout, precision, weights, given)
    load, more = _load(cells, kind, layout)
    load = replace(
        load,
        shortest_share=shortest_share(cells),
        front_end_s=engine.front_end_s,
        front_end_s_per_prompt_token=engine.front_end_s_per_prompt_token,
    )
    if kind == "closed":
        longest = load.input_tokens + load.output_tokens
        longest += tokens_of_a_sequence(facts, shape, layout, precision, longest)
        check_running(cells, load, kv_tokens(facts, shape, layout, precision) // longest)
    if kind == "static":  # the batch was chosen to fit; its cache holds it exactly
        longest = load.input_tokens + load.output_tokens
        need = load.num_requests * (longest + tokens_of_a_sequence(facts, shape, layout, precision, longest))
        layout = _with_cache(layout, facts, shape, need)
    return _Run(kind, facts, shape, layout, precision, load, (*assumed, *about_drafts, *more))


def _with_cache(layout: GenerationLayout, facts: Facts, shape: ModelShape, tokens: int) -> GenerationLayout:
    """The layout with a cache that holds ``tokens``, with room to spare for rounding."""
    per_token = 2.0 * shape.kv_elements_per_token  # no fewer than any split needs
    return layout.model_copy(update={"kv_cache_bytes": int(tokens * per_token * 2)})


def _kind(cells: Mapping[str, Any]) -> Kind:
    """What the row measured, from its words; a row with latencies and a concurrency is a closed loop."""
    words = text_of(cells.get("row_kind")).lower()
    if "static" in words or "fixed batch" in words:
        return "static"
    if "offline" in words or "throughput" in words or "infinite" in words:
        return "offline"
    if "closed" in words or "concurrency" in words or number(cells.get("concurrency")):
        return "closed"
    raise NotPredicted(f"neither a load nor a batch is stated (row_kind '{words}')")


def _precision(cells: Mapping[str, Any], shape: ModelShape) -> tuple[str, tuple[str, ...]]:
    """Number format of the weights: the row's, in the form in which the model's checkpoint has it."""
    text, notes = text_of(cells.get("precision")).lower(), text_of(cells.get("notes")).lower()
    own = shape.weights.experts if shape.weights and shape.moe else shape.weights.dense_mlp if shape.weights else ""
    if re.search(r"int8|w8a16|fp32|w4a8", text):
        raise NotPredicted(f"no operator tables in {text_of(cells.get('precision'))}")
    if re.search(r"int4|awq|gptq|w4a16", text):
        return "int4", ()
    if "fp4" in text:
        kind = "mxfp4" if own == "mxfp4" or ("mxfp4" in text and "nvfp4" not in text) else "nvfp4"
        return kind, () if own == kind or "nvfp4" in text + notes else (f"FP4 taken as {kind.upper()}",)
    if "fp8" in text and own == "mxfp4":
        return own, ("FP8 activations and cache; the experts' weights are MXFP4",)
    if "fp8" in text:
        blocks = "fp8_block" in notes or "block" in text or own == "fp8_block"
        blocks = blocks or text_of(cells.get("model")).lower().endswith("-fp8") or bool(_BLOCK_SCALED.match(shape.name))
        blocks = blocks and not is_performance_overview(cells)
        return ("fp8_block" if blocks else "fp8"), ()
    if text and not re.search(r"bf16|fp16|half|float16|bfloat16", text):
        raise NotPredicted(f"precision '{text[:40]}' is not known")
    return "bf16", () if text and "inferred" not in text else ("precision taken as BF16",)


def _layout(cells: Mapping[str, Any], kind: Kind, most: int) -> tuple[GenerationLayout, int]:
    """The engine's layout. ``tp`` counts the GPUs of one attention copy, so a stage has ``tp x attention_dp``."""
    tp, pp = (integer(cells.get(name), 1) for name in ("tp", "pp"))
    copies, ep, experts_tp = (integer(cells.get(name), 1) for name in ("attention_dp", "moe_ep", "moe_tp"))
    gpus = integer(cells.get("num_gpus"), tp * pp * copies)
    stage = gpus // pp if gpus in (tp * pp, tp * pp * copies) else max(tp * copies, ep * experts_tp)
    if min(tp, pp, copies, ep, experts_tp) < 1 or stage % copies or stage % ep:
        raise NotPredicted(f"the degrees do not divide: tp {tp}, pp {pp}, attention_dp {copies}, moe_ep {ep}")
    slots = integer(cells.get("max_batch"), 0) * copies or integer(cells.get("concurrency"), 0) or most * copies
    slots = max(slots, integer(cells.get("concurrency"), 1)) if kind != "offline" else slots
    layout = GenerationLayout(dp=1, tp=stage, pp=pp, ep=ep, attention_dp=copies, max_num_seqs=slots, kv_cache_bytes=0)
    return layout, stage * pp


def _load(cells: Mapping[str, Any], kind: Kind, layout: GenerationLayout) -> tuple[Load, tuple[str, ...]]:
    prompt, response = (integer(cells.get(name), 0) for name in ("input_len", "output_len"))
    if prompt < 1 or response < 1:
        raise NotPredicted("the lengths of prompt and response are not stated")
    together = integer(cells.get("concurrency"), 0)
    requests = requests_of(cells, (prompt, response))
    if kind == "static":
        batch = together or layout.max_num_seqs
        return Load(prompt, response, batch, batch), ()
    if kind == "offline":
        assumed = () if requests else (f"{REQUESTS_PER_SLOT} requests per sequence in flight",)
        requests = requests or REQUESTS_PER_SLOT * (together or layout.max_num_seqs)
        return Load(prompt, response, requests, requests), assumed
    if together < 1:
        raise NotPredicted("the number of requests in flight is not stated")
    assumed = () if requests else (f"{REQUESTS_PER_SLOT} requests per client",)
    return Load(prompt, response, together, requests or REQUESTS_PER_SLOT * together), assumed
