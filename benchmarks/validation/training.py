"""Published training steps, priced by the product's training call with the layout that the row gives."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.validation.devices import cluster_of, device_profile
from benchmarks.validation.gate import duplicates
from benchmarks.validation.gate_steps import check_degrees, check_step
from benchmarks.validation.guard import each
from benchmarks.validation.naive import passes_s
from benchmarks.validation.names import (
    NotPredicted,
    integer,
    is_empty,
    model_kind,
    number,
    per_rank,
    published_device,
    published_model,
    text_of,
    tokens_of,
)
from benchmarks.validation.rows import Row
from benchmarks.validation.trainers import Trainer, lora_rank, recompute_of, trainer_of
from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from profiles.units import GIB
from profiles.workload import LengthDistribution, Workload
from simulator.cost import memory
from simulator.cost.train import training_cost
from simulator.facts import Facts, RoleSpec
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from simulator.uncertainty import by_rule_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

    from profiles.models.shape import ModelShape

QUANTITIES = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "peak_mem_gib")

SQUAD_TOKENS = 200
"""Tokens of a sample of SQuAD with its paragraph, of which fine-tuning benchmarks pack many into a sequence."""

TOKENS_OF_A_PASS = 4096
"""Where a source does not give the micro-batch: sequences of it up to this many tokens, one at least."""


def predict(table: pd.DataFrame) -> list[Row]:
    """Every quantity of ``training.csv``-like rows."""
    return each(table, _rows_of, _predict, duplicates(table))


@dataclass(frozen=True)
class Step:
    """One optimizer step as the row describes it, and what had to be assumed."""

    facts: Facts
    shape: ModelShape
    layout: ParallelLayout
    seq_len: int
    global_batch: int
    num_gpus: int
    assumed: tuple[str, ...]


def _rows_of(cells: Mapping[str, Any]) -> list[Row]:
    rows = []
    for quantity in QUANTITIES:
        measured = number(cells.get(quantity))
        if measured is not None and measured > 0:
            rows.append(
                Row(
                    "training",
                    text_of(cells.get("id")),
                    quantity,
                    measured,
                    system=text_of(cells.get("system")),
                    level=text_of(cells.get("spec_level")),
                    device=text_of(cells.get("gpu_kind")),
                    schedule="sync",
                )
            )
    if not rows:
        nothing = Row("training", text_of(cells.get("id")), "step_time_s", float("nan"))
        return [nothing.without("the row publishes no step time, throughput or memory")]
    return rows


def _predict(cells: Mapping[str, Any], rows: list[Row]) -> Iterable[Row]:
    if all(row.reason for row in rows):  # nothing published, nothing to predict
        return rows
    return _predictions(cells, rows)


def _predictions(cells: Mapping[str, Any], rows: list[Row]) -> Iterable[Row]:
    device = published_device(text_of(cells.get("gpu_kind")))
    shape = published_model(text_of(cells.get("model")), trained=True)
    step = step_of(cells, device, shape)
    spec, tokens = step.facts.device.spec, float(step.global_batch * step.seq_len)
    check_degrees(shape, step.layout, step.num_gpus, spec)
    check_step(shape, spec, tokens, measured_step_s(cells, step), step.num_gpus)
    by_rule = by_rule_share(step.facts)
    rows = [replace(row, device=device, model_kind=model_kind(shape), by_rule=by_rule) for row in rows]
    seconds = step_seconds(step)
    words = "; ".join(step.assumed)
    plain = passes_s(spec, shape, tokens, step.num_gpus)
    for row in rows:
        if row.quantity == "step_time_s":
            yield row.with_prediction(seconds, words, plain)
        elif row.quantity == "tokens_per_s_per_gpu":
            yield _throughput(row, step, seconds, words, plain, windowed=_is_windowed(cells))
        elif row.quantity == "tflops_per_gpu":
            flop = step.global_batch * step.seq_len * model_flop_per_token(cells, shape, step.seq_len)
            yield row.with_prediction(flop / seconds / step.num_gpus / 1e12, words, flop / plain / step.num_gpus / 1e12)
        else:
            yield row.with_prediction(peak_bytes(step) / GIB, words)


def _is_windowed(cells: Mapping[str, Any]) -> bool:
    return "prime-rl" in text_of(cells.get("system")).lower() and number(cells.get("step_time_s")) is not None


def _throughput(row: Row, step: Step, seconds: float, words: str, plain: float, *, windowed: bool) -> Row:
    if windowed:
        return row.without("a windowed counter that includes warm-up; the step time of the same run is predicted")
    tokens = step.global_batch * step.seq_len / step.num_gpus
    return row.with_prediction(tokens / seconds, words, tokens / plain)


def measured_step_s(cells: Mapping[str, Any], step: Step) -> float | None:
    """The published time of a step, or the one that a published rate of tokens stands for."""
    seconds = number(cells.get("step_time_s"))
    if seconds is not None and seconds > 0:
        return seconds
    rate = number(cells.get("tokens_per_s_per_gpu"))
    if rate is not None and rate > 0:
        return step.global_batch * step.seq_len / step.num_gpus / rate
    flops = number(cells.get("tflops_per_gpu"))
    if flops is not None and flops > 0:
        flop = step.global_batch * step.seq_len * model_flop_per_token(cells, step.shape, step.seq_len)
        return flop / step.num_gpus / flops / 1e12
    return None


def step_of(cells: Mapping[str, Any], device_name: str, shape: ModelShape) -> Step:
    """The step that a row describes; ``NotPredicted`` says what is missing."""
    device, trainer = device_profile(device_name), trainer_of(cells)
    assumed: list[str] = []
    seq_len = _seq_len(cells, assumed)
    num_gpus = _required(cells, "num_gpus")
    layout = _layout(cells, trainer, num_gpus, seq_len, assumed)
    global_batch = _global_batch(cells, layout, assumed)
    layout = layout.model_copy(update={"micro_batch": min(layout.micro_batch, max(1, global_batch // layout.dp))})
    group = cluster_of(cells, device, num_gpus, assumed)
    per_pack = samples_of_a_pack(cells, seq_len)
    work = Workload(global_batch * per_pack, 1, 1, LengthDistribution.fixed(seq_len // per_pack - 1))
    built = replace(trainer.implementation, packed_tokens=seq_len if per_pack > 1 else None)
    facts = Facts(
        "grpo",
        {"actor": RoleSpec(shape)},
        work,
        group,
        device,
        load_training_engine(trainer.engine),
        load_generation_engine(default_engine("generation")),
        built,
    )
    return Step(facts, shape, layout, seq_len, global_batch, num_gpus, tuple(assumed))


def samples_of_a_pack(cells: Mapping[str, Any], seq_len: int) -> int:
    """Samples that share a sequence and do not attend to each other; 1 where the row packs none."""
    words = " ".join(text_of(cells.get(name)) for name in ("notes", "other_settings", "task")).lower()
    system = text_of(cells.get("system")).lower()
    squad = "squad" in words or "nemo" in system or "megatron" in system  # what their fine-tuning is measured on
    return max(1, round(seq_len / SQUAD_TOKENS)) if squad and "pack" in words else 1


# Long by what a layout says: a cell for each.
def _layout(
    cells: Mapping[str, Any], trainer: Trainer, num_gpus: int, seq_len: int, assumed: list[str]
) -> ParallelLayout:
    stated = any(not is_empty(cells.get(name)) for name in ("train_tp", "train_pp", "train_dp"))
    if num_gpus > 1 and not stated:
        raise NotPredicted("the parallel layout is not stated")
    tp, pp, cp, ep = (integer(cells.get(f"train_{name}"), 1) for name in ("tp", "pp", "cp", "ep"))
    dp = integer(cells.get("train_dp"), max(1, num_gpus // (tp * pp * cp)))
    if dp * tp * pp * cp != num_gpus:
        raise NotPredicted(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not the {num_gpus} GPUs of the row")
    micro = None if is_empty(cells.get("micro_batch")) else float(per_rank(cells.get("micro_batch"), dp, 1))
    if "torchtitan" in text_of(cells.get("system")).lower() and pp > 1:
        micro = _of_a_local_batch(cells, pp)
    if micro is None:
        micro = 1 if pp > 1 else max(1, TOKENS_OF_A_PASS * 4 // seq_len)
        assumed.append(f"micro-batch not stated: {micro:.0f}")
    # With pipeline stages FSDP keeps what it gathered from one micro-batch to the next.
    zero = 1 if pp > 1 else trainer.zero_stage
    level, words = recompute_of(text_of(cells.get("recompute")))
    if words:
        assumed.append(words)
    vpp = integer(cells.get("train_vpp"), 1)
    if number(cells.get("train_vpp")) is None and pp > 1:
        vpp = _interleaving(cells, pp, assumed)
    return ParallelLayout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        zero_stage=zero,
        micro_batch=int(micro),
        recompute=level,
    )


def _of_a_local_batch(cells: Mapping[str, Any], pp: int) -> float:
    """Sequences of a pipeline micro-batch of torchtitan.

    From release 0.1 on it is a setting, one sequence by default (``pipeline_parallel_microbatch_size``). Before, the
    local batch was split into a number of them, by default the ranks of the pipeline.
    """
    release = re.search(r"torchtitan\D*(\d+)\.(\d+)", text_of(cells.get("system")).lower())
    if release and (int(release[1]), int(release[2])) >= (0, 1):
        return 1.0
    return max(1.0, (number(cells.get("micro_batch")) or 1.0) // pp)


def _global_batch(cells: Mapping[str, Any], layout: ParallelLayout, assumed: list[str]) -> int:
    """Sequences per optimizer step; where not given, enough micro-batches to make the pipeline's ramp short."""
    stated = number(cells.get("global_batch"))
    if stated is not None:
        return int(stated)
    local, accumulated = number(cells.get("micro_batch")), number(cells.get("grad_accum"))
    if local is not None and (accumulated is not None or layout.pp == 1 or local > layout.micro_batch):
        return int(local * layout.dp * (accumulated or 1))
    guess = max(128, layout.dp * layout.pp * 4)
    assumed.append(f"global batch not stated: {guess}")
    return guess


def _interleaving(cells: Mapping[str, Any], pp: int, assumed: list[str]) -> int:
    """Model chunks per stage where the row does not give them: about two layers each, the median of rows that do."""
    settings = text_of(cells.get("other_settings")).lower()
    if "1f1b" in settings and "interleaved" not in settings:
        return 1
    if "preset" in text_of(cells.get("config_basis")).lower():
        return 1  # the preset has been read, and interleaves nothing
    if "torchtitan" in text_of(cells.get("system")).lower():
        return 2  # stages of a rank where its configuration sets no layers per stage
    layers = published_model(text_of(cells.get("model")), trained=True).num_layers
    vpp = max(1, round(layers / pp / 2))
    if vpp > 1:
        assumed.append(f"interleaving not stated: {vpp} chunks of about 2 layers per stage")
    return vpp


def _seq_len(cells: Mapping[str, Any], assumed: list[str]) -> int:
    stated = tokens_of(cells.get("seq_len"))
    if stated is None:
        if "torchtitan" not in text_of(cells.get("system")).lower():
            raise NotPredicted("the sequence length is not stated")
        assumed.append("sequence length not stated: 8192, the default of its configurations")
    return integer(stated, 8192)


def _required(cells: Mapping[str, Any], column: str) -> int:
    if number(cells.get(column)) is None:
        raise NotPredicted(f"{column} is not stated")
    return integer(cells.get(column), 0)


def step_seconds(step: Step) -> float:
    """Predicted seconds of an optimizer step."""
    cost = training_cost(step.facts, step.shape, "lm", Layouts.of([step.layout]))
    return float(cost.time.s[0])


def peak_bytes(step: Step) -> float:
    """Memory that the trainer's allocator holds at the peak of a step, without context and network buffers."""
    layouts = Layouts.of([step.layout])
    resident = memory.resident_bytes(step.facts, step.shape, "lm", layouts, trained=True)
    transient = memory.training_bytes(step.facts, step.shape, layouts, logits=True)
    return float(np.sum(memory.total(resident) + memory.total(transient)))


def model_flop_per_token(cells: Mapping[str, Any], shape: ModelShape, seq_len: int) -> float:
    """Model FLOPs per trained token as the source counts them: 6 per matrix parameter, attention over all pairs.

    Megatron's weak-scaling tables count the whole attention matrix; sources since 2025 count the causal half. Frozen
    weights have no gradient: 4 per parameter beside adapters. Samples of a pack attend within themselves.
    """
    half = 1.0 if "readme" in text_of(cells.get("source")).lower() else 0.5
    matrices = shape.active_params_per_token - shape.embedding_params * (not shape.tied_embeddings)
    attended = seq_len / samples_of_a_pack(cells, seq_len)
    attention = 12.0 * shape.num_layers * shape.q_width * attended * half
    return (4.0 if lora_rank(text_of(cells.get("task"))) else 6.0) * matrices + attention
