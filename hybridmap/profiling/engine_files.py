"""Engine files of the torch-native engine on a measured machine: counted constants, and fitted host costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmap.profiling.dispatch_facts import MEANINGS as OF_DISPATCH
from hybridmap.profiling.dispatch_facts import dispatch_seconds
from hybridmap.profiling.engine_fit import PROBE_KEYS, Engines, Fit, fit_constants, fit_together, fit_wake
from hybridmap.profiling.neighbour_facts import MEANINGS as OF_NEIGHBOURS
from hybridmap.profiling.neighbour_facts import neighbour_slowdowns
from profiles.atomic_write import write_atomically
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.engine_names import FOLDER, GENERATION, TRAINING, VERSION
from profiles.yaml_text import yaml_of
from simulator.plan.seal import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from profiles.device import DeviceProfile
    from profiles.records import ConstantBasis

    Row = Mapping[str, Any]

ADAM_TRAFFIC_BYTES = 76.0
"""Per parameter of a step: scale the gradient (8), Adam (28), publish (8), clear (4), norm in fp64 (28)."""
ACCUMULATE_BYTES = 12.0
"""Per parameter of a micro-batch: gradient and sum read, sum written, in fp32."""
NOT_MEASURED = "not measured"
"""Source of a constant that no row of this machine gave."""
FURTHER_RANK = "a call takes so much longer for each further rank"
MEETING = "ranks waiting for each other at a collective"

MEANINGS = {
    "attention_ratio": "decode attention with its mask and repeated KV heads over table attention_decode",
    "element_wise_ratio": "element-wise work over what its kernels' bytes take by the memory_ops table",
    "forward_s_per_layer": "Python and autograd of one layer's forward pass of a micro-batch",
    "backward_s_per_layer": "autograd of one layer's backward pass of a micro-batch",
    "forward_s_per_layer_sequence": "attention of a sequence in one layer's forward pass: each is launched by itself",
    "backward_s_per_layer_sequence": "the same, backward",
    "forward_s_per_pass": "the same as of a layer for embedding, masks, head and loss of a micro-batch",
    "backward_s_per_pass": "the same, backward",
    "call_s": "a call of a worker, however much it computes",
    "step_fixed_s": "an optimizer step, however many parameters it has",
    "launch_s_per_layer": "Python of one decoder layer of a decode step",
    "prefill_launch_s_per_layer": "Python of one decoder layer of a pass over prompts",
    "host_s_per_step": "a decode step: masks, sampling, bookkeeping",
    "host_s_per_sequence": "the same per running sequence",
}


@dataclass(frozen=True)
class EngineFits:
    """Fits of both files, for the report."""

    training: Fit
    generation: Fit


def write_engine_files(folder: Path, device: DeviceProfile, rows: Mapping[str, Sequence[Row]]) -> EngineFits:
    """Write both files into ``folder/engines``; ``rows`` by table, without failed ones."""
    out = folder / FOLDER
    training = _training_facts(rows) | _neighbour_facts(rows.get("neighbour_step", ()), device.spec.gpus_per_node)
    generation = _generation_facts(rows, device)
    write_atomically(out / TRAINING, _text(_training_file(training), rows))
    write_atomically(out / GENERATION, _text(_generation_file(generation), rows))
    fits = []
    for kind, name, facts in (("training", TRAINING, training), ("generation", GENERATION, generation)):
        engines = Engines(
            device, load_training_engine(str(out / TRAINING)), load_generation_engine(str(out / GENERATION))
        )
        fit = fit_constants(rows.get("engine_step", ()), engines, kind)
        facts |= {constant: _fitted(constant, value, fit) for constant, value in fit.constants.items()}
        make = _training_file if kind == "training" else _generation_file
        write_atomically(out / name, _text(make(facts), rows))
        fits.append(fit)
    _add_waking(out, device, training, generation, rows)
    together = rows.get("parallel_step", ())
    if together:
        engines = Engines(
            device, load_training_engine(str(out / TRAINING)), load_generation_engine(str(out / GENERATION))
        )
        found = fit_together(together, engines, rows.get("neighbour_step", ()))
        source = f"fit on {len(together)} calls of two ranks timed here"
        generation["call_rank_s"] = _fact(found.generation_rank_s, "s", FURTHER_RANK, source, "fitted")
        training["call_rank_s"] = _fact(found.training_rank_s, "s", FURTHER_RANK, source, "fitted")
        training["meeting_s"] = _fact(found.meeting_s, "s", MEETING, source, "fitted")
        write_atomically(out / TRAINING, _text(_training_file(training), rows))
        write_atomically(out / GENERATION, _text(_generation_file(generation), rows))
    return EngineFits(*fits)


def _fitted(name: str, value: float, fit: Fit) -> dict[str, Any]:
    errors = ", ".join(f"{call} {100 * error:.0f} %" for call, error in fit.left_out.items())
    source = f"fit on {fit.rows} calls timed here; median error of calls left out: {errors or 'not known'}"
    source = source if fit.rows else NOT_MEASURED
    return _fact(value, "ratio" if name.endswith("ratio") else "s", MEANINGS[name], source, "fitted")


def _fact(value: float, unit: str, meaning: str, source: str, basis: ConstantBasis = "measured") -> dict[str, Any]:
    if source == NOT_MEASURED:
        basis = "assumed"
    return {"value": float(value), "unit": unit, "meaning": meaning, "basis": basis, "source": source}


# Long by what the file says: a line for each fact.
def _training_facts(rows: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    ratio, backward, num = _attention_ratios(rows.get("attention_training", ()))
    counted = "counted in the engine's code"
    timed = f"median of {num} sizes of table attention_training" if num else NOT_MEASURED
    reserve = [float(row["memory_bytes"]) for row in rows.get("dispatch", ()) if row.get("memory_bytes")]
    held = min(reserve) if reserve else 0.0  # of a process that did nothing before
    item = 2 if any(row["dtype"] in ("bf16", "fp16") for row in rows.get("engine_step", ())) else 4
    return {
        "attention_ratio": _fact(ratio, "ratio", "attention with an explicit mask over the causal kernel", timed),
        "attention_backward_ratio": _fact(backward, "ratio", "attention backward over forward", timed),
        "memory_reserve_bytes": _fact(held, "bytes", "a rank that holds no model", "smallest peak of dispatch runs"),
        "param_bytes": _fact(item, "bytes", "parameters", counted),
        "grad_bytes_per_param": _fact(4, "bytes", "gradient sum in fp32", counted),
        "grad_reduce_bytes_per_param": _fact(4, "bytes", "gradient bytes on the wire", counted),
        "optimizer_bytes_per_param": _fact(12, "bytes", "fp32 master copy and two moments", counted),
        "optimizer_traffic_bytes_per_param": _fact(
            ADAM_TRAFFIC_BYTES, "bytes", "memory traffic of one optimizer step per owned parameter", counted
        ),
        "accumulate_bytes_per_param": _fact(
            ACCUMULATE_BYTES, "bytes", "memory traffic of adding a micro-batch's gradient to the sum", counted
        ),
        "overlap_dp": _fact(0, "bool", "gradients are reduced after the backward pass", counted),
        "overlap_tp": _fact(0, "bool", "all-reduces of tensor parallelism run alone", counted),
        "network_efficiency": _fact(1, "ratio", "share of the network's rate", NOT_MEASURED),
        "small_reduces_per_step": _fact(4, "calls", "all-reduces of counts, norms and metrics in a step", counted),
        "export_s_per_tensor": _fact(0, "s", "no weights are handed over by name", counted),
        "meetings_per_step": _fact(4, "meetings", "collectives of a step before which ranks computed", counted),
        "meeting_s": _fact(0.0, "s", MEETING, NOT_MEASURED),
        "call_rank_s": _fact(0.0, "s", FURTHER_RANK, NOT_MEASURED),
        "wake_s": _waking(rows, generation=False),
        **_dispatch_facts(rows.get("dispatch", ())),
    }


def _dispatch_facts(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    found = dispatch_seconds(rows)
    out = {}
    for name, meaning in OF_DISPATCH.items():
        seconds, count = found.get(name, (0.0, 0))
        over = "launchers" if name.endswith("per_sample") else "batch sizes"
        source = f"median of table dispatch, number of {over}: {count}" if count else NOT_MEASURED
        out[name] = _fact(seconds, "s", meaning, source)
    return out


def _neighbour_facts(rows: Sequence[Row], num_cores: int) -> dict[str, dict[str, Any]]:
    out = {}
    for name, (ratio, probes) in neighbour_slowdowns(rows, num_cores).items():
        source = f"median of {probes} probes of table neighbour_step" if probes else NOT_MEASURED
        out[name] = _fact(ratio, "ratio", OF_NEIGHBOURS[name], source)
    return out


def _add_waking(
    out: Path,
    device: DeviceProfile,
    training: dict[str, Any],
    generation: dict[str, Any],
    rows: Mapping[str, Sequence[Row]],
) -> None:
    """Replace what probes that waited say of ``wake_s`` by what calls of a run behind a controller say."""
    engines = Engines(device, load_training_engine(str(out / TRAINING)), load_generation_engine(str(out / GENERATION)))
    for kind, name, facts in (("training", TRAINING, training), ("generation", GENERATION, generation)):
        wake_s = fit_wake(rows.get("neighbour_step", ()), engines, kind)
        if wake_s is not None:
            source = "calls of a run behind a controller, table neighbour_step, over the price of the same alone"
            facts["wake_s"] = _fact(wake_s, "s", "a call after its rank had waited", source, "fitted")
        make = _training_file if kind == "training" else _generation_file
        write_atomically(out / name, _text(make(facts), rows))


def _waking(rows: Mapping[str, Sequence[Row]], *, generation: bool) -> dict[str, Any]:
    """What a call takes longer after a rank waited for its controller."""
    names = sorted(PROBE_KEYS - {"idle_ms"} | {"call"})
    mine = [r for r in rows.get("engine_step", ()) if (r["call"] == "generate_sequences") == generation]
    warm = {tuple(r[n] for n in names): float(r["latency_s"]) for r in mine if not r["idle_ms"]}
    cold = {tuple(r[n] for n in names): float(r["latency_s"]) for r in mine if r["idle_ms"]}
    waits = [max(seconds - warm[probe], 0.0) for probe, seconds in cold.items() if probe in warm]
    source = f"median of {len(waits)} pairs of rows of table engine_step" if waits else NOT_MEASURED
    return _fact(float(np.median(waits)) if waits else 0.0, "s", "a call after its rank had waited", source)


def _attention_ratios(rows: Sequence[Row]) -> tuple[float, float, int]:
    """Masked over causal forward, backward over forward (masked), and from how many sizes."""
    by_size: dict[tuple[int, ...], dict[tuple[str, str], float]] = {}
    for row in rows:
        size = tuple(int(row[name]) for name in ("head_dim", "heads", "kv_heads", "batch", "seq"))
        by_size.setdefault(size, {})[(str(row["direction"]), str(row["mask"]))] = float(row["latency_s"])
    masked = [s[("forward", "masked")] / s[("forward", "causal")] for s in by_size.values() if _has_forward(s)]
    backward = [
        max(s[("both", "masked")] / s[("forward", "masked")] - 1.0, 0.0)
        for s in by_size.values()
        if ("both", "masked") in s and ("forward", "masked") in s
    ]
    if not masked or not backward:
        return 1.0, 2.5, 0
    return float(np.median(masked)), float(np.median(backward)), len(by_size)


def _has_forward(times: Mapping[tuple[str, str], float]) -> bool:
    return ("forward", "masked") in times and ("forward", "causal") in times


def _generation_facts(rows: Mapping[str, Sequence[Row]], device: DeviceProfile) -> dict[str, Any]:
    counted, none = "counted in the engine's code", "the engine has none"
    return {
        "wake_s": _waking(rows, generation=True),
        "max_num_seqs": _fact(1 << 20, "sequences", "sequences of one replica in flight", "no limit of its own"),
        "max_batched_tokens": _fact(1 << 30, "tokens", "tokens of one pass over prompts", "no limit of its own"),
        "kernels_per_layer": _fact(
            6, "kernels", "small kernels of a layer; launching is apart", "counted as fused", "assumed"
        ),
        "admits_with_output": _fact(0, "share", "of a response that needs room at the start", none),
        "keeps_for_running": _fact(0, "share", "of running responses that room is kept for", none),
        "kv_memory_share": _fact(0.9, "share", "of memory that weights and cache may fill", counted),
        "kv_share_of_free": _fact(0, "flag", "whether that is of what is free", counted),
        "front_end_s": _fact(0, "s", "from a request to the engine", none),
        "front_end_s_per_prompt_token": _fact(0, "s", "the same per prompt token", none),
        "transition_fixed_s": _fact(0, "s", "hand-over of weights apart from bytes", counted),
        "reload_bytes_per_s": _fact(
            device.spec.memory_bytes_per_s / 2,
            "bytes/s",
            "putting gathered weights together",
            "half the measured bandwidth",
            "analytic",
        ),
        "memory_reserve_bytes": _fact(0, "bytes", "beside the trainer's, in whose process it runs", counted),
    }


def _text(document: Mapping[str, Any], rows: Mapping[str, Sequence[Row]]) -> str:
    """An engine's file, which says of which measurements it is."""
    return yaml_of({"schema_version": 1, "computed_from": fingerprint(repr(rows)), **document})


def _training_file(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "training",
        "engine": "torch-native",
        "version": VERSION,
        "note": "The embedded engine on this machine; measured by hybridmap profile.",
        "zero_stages": [0, 1],
        "sequence_parallel": False,
        "head_on_responses": True,
        "scoring_layouts": True,
        "facts": dict(facts),
    }


def _generation_file(facts: Mapping[str, Any]) -> dict[str, Any]:
    needed = ("launch_s_per_layer", "prefill_launch_s_per_layer", "host_s_per_step", "host_s_per_sequence")
    known = {name: _fact(0.0, "s", MEANINGS[name], NOT_MEASURED) for name in needed}
    return {
        "kind": "generation",
        "engine": "torch-native-generate",
        "version": VERSION,
        "note": "Generation of the embedded engine on this machine; measured by hybridmap profile.",
        "cuda_graphs": False,
        "prefix_sharing": False,
        "shares_weights": True,
        "scheduler": "prefill-first",
        "static_batches": True,
        "first_token_in_prefill": True,
        "facts": {**known, **facts},
    }
