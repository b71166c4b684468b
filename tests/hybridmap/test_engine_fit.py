"""Protects the fit of host costs: constants that made the times are found again, disturbed rows notwithstanding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor.measure.engine_step import CALLS, Probe
from executor.measure.probes import SMALL_WORK, tiny_config
from hybridmap.profiling.engine_files import write_engine_files
from hybridmap.profiling.engine_fit import Engines, fit_constants, fit_together
from hybridmap.profiling.engine_names import FOLDER, GENERATION, TRAINING
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.store import load_device

TRUE = {
    "training": {"element_wise_ratio": 2.0, "forward_s_per_layer": 2e-4, "forward_s_per_pass": 1e-4, "call_s": 1e-3,
                 "backward_s_per_layer": 8e-4, "backward_s_per_pass": 3e-4, "step_fixed_s": 2e-3},
    "generation": {"attention_ratio": 1.5, "element_wise_ratio": 3.0, "launch_s_per_layer": 1e-4,
                   "prefill_launch_s_per_layer": 3e-4, "host_s_per_step": 2e-4, "host_s_per_sequence": 1e-6,
                   "call_s": 5e-4},
}  # fmt: skip


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    """A device whose kernels cost what an A100's do, as a CPU: launching adds to them."""
    shipped = load_device("a100-80gb-sxm")
    device = replace(shipped, spec=replace(shipped.spec, kind="cpu"))
    write_engine_files(tmp_path, device, {})
    training = load_training_engine(str(tmp_path / FOLDER / TRAINING))
    return Engines(device, training, load_generation_engine(str(tmp_path / FOLDER / GENERATION)))


def rows(engines: Engines, kind: str) -> list[dict[str, object]]:
    configs = [tiny_config(layers=2, hidden=64), tiny_config(layers=4, hidden=64), tiny_config(layers=2, hidden=256)]
    found: list[dict[str, object]] = []
    for config in configs:
        for work in SMALL_WORK:
            for call in CALLS:
                row = Probe(config, *work).key("bf16", call)
                if (call == "generate_sequences") == (kind == "generation"):
                    found.append({**row, "latency_s": engines.price(row, kind, TRUE[kind])})
    return found


@pytest.mark.parametrize("kind", ["training", "generation"])
def test_constants_are_found_again(engines: Engines, kind: str) -> None:
    made = rows(engines, kind)
    fit = fit_constants(made, engines, kind)
    for row in made:
        assert engines.price(row, kind, fit.constants) == pytest.approx(row["latency_s"], rel=2e-3)
    assert max(fit.left_out.values()) < 0.02 and fit.rows == len(made)


def test_a_few_disturbed_rows_do_not_pull(engines: Engines) -> None:
    made = rows(engines, "training")
    random = np.random.default_rng(0)
    for i in random.choice(len(made), len(made) // 8, replace=False):
        made[i]["latency_s"] = float(made[i]["latency_s"]) * 1.6  # type: ignore[arg-type]
    fit = fit_constants(made, engines, "training")
    errors = [abs(engines.price(r, "training", fit.constants) / engines.price(r, "training", TRUE["training"]) - 1)
              for r in made]  # fmt: skip
    assert np.median(errors) < 0.02


def test_waiting_of_two_ranks_is_skew_and_meetings(engines: Engines) -> None:
    engines = replace(engines, training=replace(engines.training, meetings_per_step=4))
    slow = replace(engines, training=replace(engines.training, meeting_s=3e-4, start_skew_s=2e-3))
    made = []
    for call in ("generate_sequences", "update_actor"):
        row = {**Probe(tiny_config(layers=2, hidden=64), 64, 4, 1, 16, 2).key("bf16", call), "ranks": 2}
        made.append({**row, "latency_s": slow.price_on(row, 2)})
    skew_s, meeting_s = fit_together(made, engines)
    assert skew_s == pytest.approx(2e-3, rel=0.01) and meeting_s == pytest.approx(3e-4, rel=0.01)
