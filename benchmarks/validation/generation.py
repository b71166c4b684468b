"""Published inference rows, priced by a request-level run of the engine's scheduler with the layout of the row."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.validation.devices import device_profile
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
from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from profiles.hardware import ClusterGroup
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts, RoleSpec
from simulator.plan.plan import GenerationLayout
from simulator.serving.engine import serve_on
from simulator.serving.run import Load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

    from profiles.models.shape import ModelShape

Kind = Literal["closed", "offline", "static"]

REQUESTS_PER_SLOT = 10
"""Length of a closed loop where the source does not say: what the benchmark scripts of NVIDIA Dynamo send, 10 requests
per client, the first of which arrive all at once."""

# First version of the engines that each facts file stands for.
_ENGINES: dict[str, tuple[tuple[tuple[int, ...], str], ...]] = {
    "vllm": (((0, 0), "vllm@0.3.1"), ((0, 6), "vllm@0.12")),
    "sglang": (((0, 0), "sglang@0.5"),),
    "tensorrtllm": (((0, 0), "tensorrt-llm@0.6"), ((0, 8), "tensorrt-llm@0.10"), ((0, 18), "tensorrt-llm@1.0")),
}
_ALIASES = {"trtllm": "tensorrtllm", "trt": "tensorrtllm", "trtllmpytorch": "tensorrtllm"}
_SPECULATIVE = re.compile(r"speculat|medusa|eagle|draft model|lookahead decoding|\bmtp\b", re.IGNORECASE)
_DISAGGREGATED = re.compile(r"disagg|\bprefill workers?\b|\bdecode workers?\b", re.IGNORECASE)


def predict(table: pd.DataFrame) -> list[Row]:
    """Every quantity of ``generation.csv``-like rows."""
    return each(table, _rows_of, _predict)


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


def _rows_of(cells: Mapping[str, Any]) -> list[Row]:
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
        system=_system(cells),
        level=text_of(cells.get("spec_level")),
        device=text_of(cells.get("gpu_kind")),
    )
    rows = [replace(base, quantity=quantity, measured=measured) for quantity, measured in found.items()]
    return rows or [base.without("the row publishes no quantity that is predicted")]


def _predict(cells: dict[str, Any], rows: list[Row]) -> Iterable[Row]:
    if not rows[0].quantity:
        return rows
    run = _run_of(cells)
    served = serve_on(run.facts, run.shape, run.layout, run.load, run.precision)
    gpus = run.layout.tp * run.layout.pp
    values = {
        "ttft_ms": served.ttft_s * 1e3,
        "tpot_ms": served.tpot_s * 1e3,
        "latency_sum_ms": (served.ttft_s + (run.load.output_tokens - 1) * served.tpot_s) * 1e3,
        "throughput_tokens_per_s": served.throughput_tokens_per_s,
        "tokens_per_s_per_gpu": served.throughput_tokens_per_s / gpus,
    }
    note, kind = "; ".join(run.assumed), model_kind(run.shape)
    device = run.facts.device.name
    return [replace(row, model_kind=kind, device=device).with_prediction(values[row.quantity], note) for row in rows]


def _run_of(cells: Mapping[str, Any]) -> _Run:
    words = " ".join(text_of(cells.get(column)) for column in ("row_kind", "backend", "model", "notes"))
    if _SPECULATIVE.search(words):
        raise NotPredicted("speculative decoding is not modelled")
    if _DISAGGREGATED.search(words):
        raise NotPredicted("prefill and decode on engines of their own are not modelled")
    kind = _kind(cells)
    shape = published_model(text_of(cells.get("model")))
    device = device_profile(published_device(text_of(cells.get("gpu_kind"))))
    precision, assumed = _precision(cells)
    engine = load_generation_engine(_engine(cells))
    work = Workload(1, 1, 1, LengthDistribution.fixed(1), 1, 1, 0.0, None)
    layout, gpus = _layout(cells, kind, int(engine.max_num_seqs))
    group = ClusterGroup.of(device.spec, max(1, -(-gpus // device.spec.gpus_per_node)))
    trainer = load_training_engine(default_engine("training"))
    facts = Facts("grpo", {"actor": RoleSpec(shape, precision)}, work, group, device, trainer, engine)
    load, more = _load(cells, kind, layout)
    if kind == "static":  # the batch was chosen to fit; its cache holds it exactly
        need = load.num_requests * (load.input_tokens + load.output_tokens)
        layout = _with_cache(layout, facts, shape, need)
    return _Run(kind, facts, shape, layout, precision, load, (*assumed, *more))


def _with_cache(layout: GenerationLayout, facts: Facts, shape: ModelShape, tokens: int) -> GenerationLayout:
    """The layout with a cache that holds ``tokens``, with room to spare for rounding."""
    per_token = (
        2.0 * shape.kv_elements_per_token_per_layer * shape.num_attention_layers
    )  # no fewer than any split needs
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


def _precision(cells: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    text, notes = text_of(cells.get("precision")).lower(), text_of(cells.get("notes")).lower()
    model = text_of(cells.get("model")).lower()
    if re.search(r"int4|int8|awq|gptq|w4|fp4|w8a16|fp32", text):
        raise NotPredicted(f"no operator tables in {text_of(cells.get('precision'))}")
    assumed = () if "gpt-oss" not in model else ("MXFP4 experts are priced as FP8",)
    if "fp8" in text:
        scaled = "fp8_block" in notes or "block" in text or model.endswith("-fp8")
        return ("fp8_block" if scaled else "fp8"), assumed
    if text and not re.search(r"bf16|fp16|half|float16|bfloat16", text):
        raise NotPredicted(f"precision '{text[:40]}' is not known")
    return "bf16", assumed if text and "inferred" not in text else (*assumed, "precision taken as BF16")


def _engine(cells: Mapping[str, Any]) -> str:
    """The facts file of the newest version that is no newer than the row's."""
    name = re.sub(r"[^a-z]", "", _system(cells).lower())
    versions = _ENGINES.get(_ALIASES.get(name, name))
    if versions is None:
        raise NotPredicted(f"no facts of the engine '{_system(cells)}'")
    found = re.match(r"v?(\d+)(?:\.(\d+))?", text_of(cells.get("backend_version")))
    if not found:
        return versions[-1][1]
    version = (int(found[1]), int(found[2] or 0))
    return [file for first, file in versions if first <= version][-1]


def _layout(cells: Mapping[str, Any], kind: Kind, most: int) -> tuple[GenerationLayout, int]:
    """The engine's layout. ``tp`` counts the GPUs of one attention copy, so a stage has ``tp x attention_dp``."""
    tp, pp = (integer(cells.get(name), 1) for name in ("tp", "pp"))
    copies, ep, experts_tp = (integer(cells.get(name), 1) for name in ("attention_dp", "moe_ep", "moe_tp"))
    gpus = integer(cells.get("num_gpus"), tp * pp * copies)
    stage = gpus // pp if gpus in (tp * pp, tp * pp * copies) else max(tp * copies, ep * experts_tp)
    if min(tp, pp, copies, ep, experts_tp) < 1 or stage % copies or stage % ep:
        raise NotPredicted(f"the degrees do not divide: tp {tp}, pp {pp}, attention_dp {copies}, moe_ep {ep}")
    slots = integer(cells.get("max_batch"), 0) * copies or integer(cells.get("concurrency"), 0) or most
    slots = max(slots, integer(cells.get("concurrency"), 1)) if kind != "offline" else slots
    layout = GenerationLayout(dp=1, tp=stage, pp=pp, ep=ep, attention_dp=copies, max_num_seqs=slots, kv_cache_bytes=0)
    return layout, stage * pp


def _load(cells: Mapping[str, Any], kind: Kind, layout: GenerationLayout) -> tuple[Load, tuple[str, ...]]:
    prompt, response = (integer(cells.get(name), 0) for name in ("input_len", "output_len"))
    if prompt < 1 or response < 1:
        raise NotPredicted("the lengths of prompt and response are not stated")
    together = integer(cells.get("concurrency"), 0)
    requests = integer(cells.get("num_requests"), 0)
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


def _system(cells: Mapping[str, Any]) -> str:
    return text_of(cells.get("backend")) or text_of(cells.get("system"))
