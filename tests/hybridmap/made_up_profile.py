"""The journal of a machine that never was: each operation takes a fixed time and its work over a rate, undisturbed."""

from __future__ import annotations

import json
from pathlib import Path

from executor.profiling.dispatch import dispatch_key
from executor.profiling.engine_step import CALLS, Probe
from executor.profiling.parallel_step import CALLS as PARALLEL_CALLS
from executor.profiling.probes import SMALL_WORK
from hybridmap.profiling.device_file import write_device_file
from hybridmap.profiling.engine_files import write_engine_files
from hybridmap.profiling.engine_fit import Engines
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.engine_names import FOLDER, GENERATION, TRAINING
from profiles.models.gemm_shapes import head_shapes, powers_of_two
from profiles.models.hf_config import shape_from_hf_config
from profiles.models.probe_models import tiny_config
from profiles.store import load_device
from profiles.tables.write import PARTS, write_table

ROOT = Path(__file__).parents[2]
CONFIG = json.loads((ROOT / "examples" / "run" / "tiny-config.json").read_text())
ABOUT = {
    "device_string": "Made-up CPU",
    "cores": 4,
    "threads_per_rank": 1,
    "memory_bytes": 1 << 34,
    "dtype": "fp32",
    "torch": "0",
    "command": "none",
    "date": "2026-01-01",
}
FLOP_PER_S, BYTES_PER_S, WIRE_BYTES_PER_S, COPY_BYTES_PER_S = 5e10, 1e10, 1e9, 4e9
CALL_S, COLLECTIVE_S, DISPATCH_S = 2e-6, 2e-4, 1e-8
HOST = {
    "training": {
        "element_wise_ratio": 2.0,
        "forward_s_per_layer": 2e-4,
        "forward_s_per_pass": 1e-4,
        "call_s": 1e-3,
        "backward_s_per_layer": 8e-4,
        "forward_s_per_layer_sequence": 6e-6,
        "backward_s_per_layer_sequence": 1e-5,
        "backward_s_per_pass": 3e-4,
        "step_fixed_s": 2e-3,
    },
    "generation": {
        "attention_ratio": 1.5,
        "element_wise_ratio": 3.0,
        "launch_s_per_layer": 1e-4,
        "prefill_launch_s_per_layer": 3e-4,
        "host_s_per_step": 2e-4,
        "host_s_per_sequence": 1e-6,
        "call_s": 5e-4,
    },
}


def row(key, latency_s, spread=0.02, cpu_share=None):
    """A measured row, its median known to within ``spread``."""
    times = {"latency_s": latency_s, "low_s": latency_s * (1 - spread), "high_s": latency_s * (1 + spread)}
    return {**key, **times, "repeats": 20, "outliers": 0, "error": "", "cpu_share": cpu_share}


def failed(key, error):
    return {**key, "latency_s": None, "repeats": 0, "outliers": 0, "error": error}


def operators():
    """Tables of one rank's operators, its copies and collectives of two ranks."""
    sizes = powers_of_two(16, 512)
    shapes = head_shapes(shape_from_hf_config(CONFIG, "t", "t"), (1, 2))
    grid = [(b, s) for b in powers_of_two(1, 256) for s in powers_of_two(4, 64)]
    heads = [{"head_dim": dim, "heads": q, "kv_heads": kv} for dim, q, kv in sorted(shapes)]

    def work(flop):
        return CALL_S + flop / FLOP_PER_S

    def moved(num_bytes, rate=BYTES_PER_S):
        return CALL_S + num_bytes / rate

    def sent(num_bytes):
        return COLLECTIVE_S + num_bytes / 2 / WIRE_BYTES_PER_S

    return {
        "gemm": [
            row({"dtype": "fp32", "m": m, "n": n, "k": k}, work(2.0 * m * n * k), cpu_share=1.0)
            for m in powers_of_two(1, 4096)
            for n in sizes
            for k in sizes
        ],
        "attention_prefill": [
            row({**h, "batch": b, "seq": s}, work(4.0 * b * s * s * h["heads"] * h["head_dim"]), cpu_share=0.99)
            for h in heads
            for b, s in grid
        ],
        "attention_decode": [
            row({"kv_dtype": "fp32", **h, "batch": b, "context": s}, work(4.0 * b * s * h["heads"] * h["head_dim"]))
            for h in heads
            for b, s in grid
        ],
        "attention_training": [
            row({"direction": d, "mask": m, **h, "batch": b, "seq": s}, (1 if m == "causal" else 1.2) * work(k * b * s))
            for h in heads
            for b, s in ((64, 8), (8, 128))
            for d, k in (("forward", 1e4), ("both", 3e4))
            for m in ("causal", "masked")
        ],
        "memory_ops": [
            row({"op": "element_wise", "dtype": "fp32", "num_bytes": n}, moved(n)) for n in powers_of_two(1024, 1 << 26)
        ],
        "copy": [
            row({"kind": "host_to_device", "num_bytes": n}, moved(n, COPY_BYTES_PER_S))
            for n in powers_of_two(4096, 1 << 24)
        ],
        "collective": [
            row({"dtype": "fp32", "kind": kind, "gpus": 2, "num_bytes": n}, sent(n))
            for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
            for n in powers_of_two(16, 1 << 24)
        ],
        "dispatch": [
            row({**dispatch_key(launcher, 128, ranks, ranks), "part": part}, DISPATCH_S)
            for launcher, ranks in (("local", 1), ("ray", 1), ("ray", 4))
            for part in PARTS
        ],
    }


def journal(scratch):
    """All tables: what calls of the engine take follows from those of its operators and from ``HOST``."""
    rows = operators()
    write_device_file(scratch, ABOUT, rows, "cpu")
    for table, found in rows.items():
        write_table(scratch, table, found, ABOUT)
    device = load_device(scratch)
    write_engine_files(scratch, device, {})
    engines = Engines(
        device,
        load_training_engine(str(scratch / FOLDER / TRAINING)),
        load_generation_engine(str(scratch / FOLDER / GENERATION)),
    )

    def priced(key, times=1.0):
        kind = "generation" if key["call"] == "generate_sequences" else "training"
        return row(key, times * engines.price(key, kind, HOST[kind]))

    models = [CONFIG, tiny_config(layers=4, hidden=64), tiny_config(layers=2, hidden=256)]
    probes = [Probe(config, *work) for work in SMALL_WORK[:5] for config in models]
    rows["engine_step"] = [priced(probe.key("fp32", call)) for probe in probes for call in CALLS]
    beside = Probe(CONFIG, 192, 4, 3, 48, 2)
    rows["neighbour_step"] = [
        priced({**beside.key("fp32", call), "neighbours": n})
        for n in (0, 1)
        for call in CALLS
        if n == 0 or call != "generate_sequences"
    ]
    parallel = Probe(CONFIG, 192, 4, 1, 32, 2)
    rows["parallel_step"] = [priced({**parallel.key("fp32", call), "ranks": 2}, 0.6) for call in PARALLEL_CALLS]
    return rows
