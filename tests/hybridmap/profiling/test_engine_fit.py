"""Protects the fit of host costs: constants that made the times are found again, disturbed rows notwithstanding."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from executor.profiling.engine_step import CALLS, Probe
from executor.profiling.probes import SMALL_WORK
from hybridmap.profiling.engine_files import write_engine_files
from hybridmap.profiling.engine_fit import MOST_RATIO, Engines, Together, fit_constants, fit_together, fit_wake
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.engine_names import FOLDER, GENERATION, TRAINING
from profiles.models.probe_models import is_ours, tiny_config
from profiles.records import Basis
from profiles.store import load_device
from tests.hybridmap.made_up_profile import HOST


@dataclass(frozen=True)
class Remembering(Engines):
    """Prices no row twice with the same constants: most tests fit the same rows."""

    known: dict[object, float] = field(default_factory=dict, init=False, compare=False)

    def price(self, row: Mapping[str, object], kind: str, constants: Mapping[str, float]) -> float:
        work = tuple(sorted((name, value) for name, value in row.items() if name != "latency_s"))
        asked = work, kind, tuple(sorted(constants.items()))
        if asked not in self.known:
            self.known[asked] = super().price(row, kind, constants)
        return self.known[asked]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """A device whose kernels cost what an A100's do, as a CPU: launching adds to them."""
    folder, shipped = tmp_path_factory.mktemp("engines"), load_device("a100-80gb-sxm")
    device = replace(shipped, spec=replace(shipped.spec, kind="cpu"))
    write_engine_files(folder, device, {})
    training = load_training_engine(str(folder / FOLDER / TRAINING))
    return Remembering(device, training, load_generation_engine(str(folder / FOLDER / GENERATION)))


def rows(engines: Engines, kind: str) -> list[dict[str, object]]:
    configs = [tiny_config(layers=2, hidden=64), tiny_config(layers=4, hidden=64), tiny_config(layers=2, hidden=256)]
    found: list[dict[str, object]] = []
    for config in configs:
        for work in SMALL_WORK:
            for call in CALLS:
                row = Probe(config, *work).key("bf16", call)
                if (call == "generate_sequences") == (kind == "generation"):
                    found.append({**row, "latency_s": engines.price(row, kind, HOST[kind])})
    return found


@pytest.mark.parametrize("kind", ["training", "generation"])
def test_constants_are_found_again(engines: Engines, kind: str) -> None:
    made = rows(engines, kind)
    fit = fit_constants(made, engines, kind)
    for row in made:
        assert engines.price(row, kind, fit.constants) == pytest.approx(row["latency_s"], rel=2e-3)
    assert max(fit.left_out.values()) < 0.02 and fit.rows == len(made)


def test_few_calls_of_a_gpu_that_wait_for_its_host_make_no_attention_of_it(engines: Engines) -> None:
    """Five, as a quick profile has: steps that differ by a third were told from attention, at ten times its table."""
    gpu = replace(engines.device, spec=replace(engines.device.spec, kind="gpu"))
    on_gpu = Remembering(gpu, engines.training, engines.generation)
    works = ((16, 128, 16, 8, 1), (32, 256, 8, 4, 2), (64, 64, 32, 16, 1), (8, 512, 16, 4, 1), (128, 128, 4, 32, 2))
    made = []
    for work, step_s in zip(works, (0.027, 0.036, 0.037, 0.031, 0.030), strict=True):
        row = Probe(tiny_config(layers=4, hidden=64), *work).key("bf16", "generate_sequences")
        made.append({**row, "latency_s": step_s * work[2]})
    fit = fit_constants(made, on_gpu, "generation")
    assert fit.constants["attention_ratio"] <= MOST_RATIO and fit.constants["element_wise_ratio"] <= MOST_RATIO


def test_each_constant_says_whether_it_was_measured_fitted_or_neither(engines: Engines, tmp_path: Path) -> None:
    assert {b for e in (engines.training, engines.generation) for b in e.bases.values()} == {
        Basis.MEASURED,
        Basis.ANALYTIC,
        Basis.ASSUMED,
    }
    write_engine_files(
        tmp_path, engines.device, {"engine_step": [*rows(engines, "training"), *rows(engines, "generation")]}
    )
    training = load_training_engine(str(tmp_path / FOLDER / TRAINING))
    generation = load_generation_engine(str(tmp_path / FOLDER / GENERATION))
    for kind, engine in (("training", training), ("generation", generation)):
        assert {engine.basis(name) for name in HOST[kind]} == {Basis.FITTED}
    assert training.basis("dispatch_s") is training.basis("meeting_s") is Basis.ASSUMED  # no row of either
    assert training.basis("grad_bytes_per_param") is Basis.MEASURED  # counted
    assert generation.basis("reload_bytes_per_s") is Basis.ANALYTIC


def test_a_few_disturbed_rows_do_not_pull(engines: Engines) -> None:
    made = rows(engines, "training")
    random = np.random.default_rng(0)
    for i in random.choice(len(made), len(made) // 8, replace=False):
        made[i]["latency_s"] = float(made[i]["latency_s"]) * 1.6  # type: ignore[arg-type]
    fit = fit_constants(made, engines, "training")
    errors = [
        abs(engines.price(r, "training", fit.constants) / engines.price(r, "training", HOST["training"]) - 1)
        for r in made
    ]
    assert np.median(errors) < 0.02


def test_what_two_ranks_add_is_each_engines_own_and_meetings(engines: Engines) -> None:
    engines = replace(engines, training=replace(engines.training, meetings_per_step=4))
    slow = Engines(
        engines.device,
        replace(engines.training, meeting_s=3e-4, call_rank_s=2e-3),
        replace(engines.generation, call_rank_s=5e-3),
    )
    made = []
    for call in ("generate_sequences", "compute_values", "update_actor"):
        row = {**Probe(tiny_config(layers=2, hidden=64), 64, 4, 1, 16, 2).key("bf16", call), "ranks": 2}
        made.append({**row, "latency_s": slow.price_on(row, 2)})
    expected = Together(5e-3, 2e-3, 3e-4)
    for name in ("generation_rank_s", "training_rank_s", "meeting_s"):
        assert getattr(fit_together(made, engines), name) == pytest.approx(getattr(expected, name), rel=0.01)
    assert fit_together(made[1:], engines).generation_rank_s == pytest.approx(2e-3, rel=0.01), (
        "nothing says it is another"
    )
    assert fit_together([], engines) == Together(0.0, 0.0, 0.0)
    slower = [{**row, "latency_s": 1.3 * engines.price_on(row, 2) + 2e-3} for row in made[1:2]]
    alone = [{**row, "neighbours": 0, "latency_s": 1.3 * engines.price_on(row, 1)} for row in slower]
    assert fit_together(slower, engines, alone).training_rank_s == pytest.approx(2e-3, rel=0.01), (
        "its price is off, not its ranks"
    )


@pytest.mark.parametrize("kind", ["training", "generation"])
def test_waking_is_what_a_call_behind_a_controller_takes_longer_than_its_price(engines: Engines, kind: str) -> None:
    alone = [{**row, "neighbours": 0} for row in rows(engines, kind)[:4]]
    priced = replace(engines, **{kind: replace(getattr(engines, kind), **HOST[kind])})
    later = [
        {**row, "latency_s": row["latency_s"] + extra}
        for row, extra in zip(alone, (1e-3, 1e-3, 9e-3, 1e-3), strict=True)
    ]
    beside = [{**row, "neighbours": 1, "latency_s": 99.0} for row in alone]
    assert fit_wake([*later, *beside], priced, kind) == pytest.approx(1e-3)
    sooner = [{**row, "latency_s": row["latency_s"] * 0.5} for row in alone]
    assert fit_wake(sooner, priced, kind) == 0.0
    assert fit_wake(beside, priced, kind) is None


def test_models_that_the_profile_is_for_count_more(engines: Engines) -> None:
    made = rows(engines, "training")
    config = tiny_config(layers=3, hidden=96)
    asked = [Probe(config, *work).key("bf16", call) for work in SMALL_WORK for call in CALLS[1:]]
    slower = [{**row, "latency_s": 1.3 * engines.price(row, "training", HOST["training"])} for row in asked]
    ours = [row for row in made if is_ours(row)]
    assert ours and not any(is_ours(row) for row in slower)
    constants = fit_constants([*ours, *slower], engines, "training").constants
    off = [engines.price(row, "training", constants) / row["latency_s"] - 1.0 for row in slower]
    assert abs(float(np.median(off))) < 0.05
