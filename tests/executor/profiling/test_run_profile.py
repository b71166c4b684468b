"""Protects measuring itself: operations compute what they say, a kill loses one row at most, failures are rows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from executor.profiling import dispatch, timing
from executor.profiling.attention import decode_case, prefill_case, training_case
from executor.profiling.cases import Case
from executor.profiling.collectives import GLOO_KINDS, measure_collectives
from executor.profiling.engine_step import CALLS, measure_probe
from executor.profiling.gemm import gemm_case
from executor.profiling.journal import Journal
from executor.profiling.memory_ops import MEMORY_OPS, copy_case
from executor.profiling.probes import parallel_probes, probes_for
from executor.profiling.request import Request
from executor.profiling.run_parts import RUN_PARTS, collective_bytes
from executor.profiling.run_profile import Profiler
from executor.profiling.timing import Precision, measure
from profiles.models.hf_config import shape_from_hf_config
from profiles.models.probe_models import tiny_config
from tests.work import Clock

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
FAST = Precision(half_width=0.5, min_repeats=3, max_repeats=5, min_s=0.0, max_s=0.05)
CONFIG = tiny_config(layers=1, hidden=32)
HEADER = {"device_string": "test"}


def request(**changes: object) -> Request:
    given = {"device": "cpu", "dtype": "fp32", "models": (shape_from_hf_config(CONFIG, "t", "t"),), "budget_s": 2.0}
    return Request(**{**given, "precision": FAST, **changes})  # type: ignore[arg-type]


def test_gemm_is_the_product_of_its_sizes() -> None:
    run = gemm_case("fp32", 3, 5, 7).make(CPU, 2)
    assert run(1).shape == (3, 5)  # type: ignore[attr-defined]


def test_attention_cases_have_the_shapes_of_their_keys() -> None:
    assert prefill_case("fp32", 8, 4, 2, 3, 6).make(CPU, 1)(0).shape == (3, 4, 6, 8)  # type: ignore[attr-defined]
    assert decode_case("fp32", 8, 4, 2, 3, 6).make(CPU, 1)(0).shape == (3, 4, 1, 8)  # type: ignore[attr-defined]
    masked = training_case("fp32", "forward", "masked", 8, 4, 2, 3, 6).make(CPU, 1)(0)
    assert masked.shape == (3, 4, 6, 8)  # type: ignore[attr-defined]
    gradients = training_case("fp32", "both", "causal", 8, 4, 2, 3, 6).make(CPU, 1)(0)
    assert [tuple(g.shape) for g in gradients] == [(3, 4, 6, 8), (3, 2, 6, 8), (3, 2, 6, 8)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", sorted(MEMORY_OPS))
def test_every_memory_operation_runs(op: str) -> None:
    case = MEMORY_OPS[op]("fp32", 1 << 14)
    assert measure(case.make(CPU, 2), CPU, FAST, 2).median_s > 0
    assert 0.5 * (1 << 14) <= case.key["num_bytes"] <= 4 * (1 << 14)


def test_copies_move_their_bytes() -> None:
    run = copy_case("host_to_device", 64).make(CPU, 1)
    assert run(0).numel() == 64  # type: ignore[attr-defined]


def test_an_operation_takes_what_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock.module)
    for seconds in (1e-6, 0.001, 0.004):
        assert measure(lambda i, s=seconds: clock.sleep(s), CPU, FAST).median_s == pytest.approx(seconds)


def test_tables_are_filled_and_a_second_run_measures_nothing(tmp_path: Path) -> None:
    seen: list[str] = []
    for _ in range(2):
        with Journal(tmp_path / "j", HEADER) as journal:
            parts = ("memory", "copy", "gemm", "attention")
            Profiler(request(parts=parts, budget_s=60.0, target=1.0), journal, lambda p, w: seen.append(w)).run()
    assert len(seen) == len(journal.rows) == len(set(seen))
    tables = {row["table"] for row in journal.rows}
    assert tables == {"memory_ops", "copy", "gemm", "attention_prefill", "attention_decode", "attention_training"}


def test_a_row_says_what_share_of_a_core_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits has none of it, as one whose core others have."""
    clock = Clock()
    with monkeypatch.context() as patched:
        patched.setattr(timing, "time", clock.module)
        for seconds, share in ((0.0, 0.0), (0.001, 0.5), (0.002, 1.0)):

            def run(i: int, worked_s: float = seconds) -> None:
                clock.work(worked_s)
                clock.sleep(0.002 - worked_s)

            assert measure(run, CPU, FAST).cpu_share == pytest.approx(share)
    with Journal(tmp_path / "j", HEADER) as journal:
        Profiler(request(parts=("copy",), budget_s=0.0), journal, lambda p, w: None).run()
        kept = journal.of("copy")
    assert {row["kind"] for row in kept} == {"host_to_device"}, "prices look it up, so it is there however late it is"
    assert all(0 < row["cpu_share"] <= 1.1 for row in kept)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [True, False])
def test_collectives_begin_with_the_ends(device: str, quick: bool) -> None:
    """What there is no time for lies between them, and is interpolated."""
    sizes = collective_bytes(device, quick)
    assert sizes[:2] == [max(sizes), min(sizes)] and len(set(sizes)) == len(sizes)
    assert max(sizes) >= 1 << 24


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_no_price_can_do_without_is_measured_without_time_for_it(tmp_path: Path) -> None:
    """Of collectives the largest and the smallest size, and the time between calls of each launcher."""
    with Journal(tmp_path / "j", HEADER) as journal:
        Profiler(request(parts=("collective", "dispatch"), budget_s=0.0), journal, lambda p, w: None).run()
        sizes = {(row["kind"], row["num_bytes"]) for row in journal.of("collective") if not row["error"]}
        dispatch = {(row["launcher"], row["ranks"]) for row in journal.of("dispatch") if not row["error"]}
    assert sizes == {(kind, size) for kind in GLOO_KINDS for size in (16, 1 << 24)}
    assert dispatch == {("local", 1), ("ray", 1)}


def test_nothing_is_measured_for_gpus_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU: no plan of more ranks runs there, so none is asked for and none fails."""
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(dispatch, "measure_dispatch", lambda key, iterations: asked.append(key) or ({}, 0))
    with Journal(tmp_path / "j", HEADER) as journal:
        profiler = Profiler(request(device="cuda", parts=()), journal, lambda p, w: None)
        profiler.deadline_s = float("inf")
        RUN_PARTS["dispatch"](profiler)
        RUN_PARTS["parallel"](profiler)
    assert {(key["launcher"], key["ranks"]) for key in asked} == {("local", 1), ("ray", 1)}


@pytest.mark.parametrize("quick", [True, False])
def test_what_lies_between_calls_is_measured_at_two_batch_sizes(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a second one no price could say what a row of a batch takes, also where there is no time left."""
    asked = []
    monkeypatch.setattr(dispatch, "measure_dispatch", lambda key, iterations: asked.append(key) or ({}, 0))
    with Journal(tmp_path / "j", HEADER) as journal:
        profiler = Profiler(request(parts=(), quick=quick), journal, lambda p, w: None)
        RUN_PARTS["dispatch"](profiler)
    for launcher in ("local", "ray"):
        assert len({key["samples"] for key in asked if key["launcher"] == launcher}) == 2


def test_a_failed_measurement_is_a_row_and_the_profile_goes_on(tmp_path: Path) -> None:
    def make(device: torch.device, copies: int):  # type: ignore[no-untyped-def]
        raise RuntimeError("no kernel for this\nand more")

    with Journal(tmp_path / "j", HEADER) as journal:
        profiler = Profiler(request(), journal, lambda p, w: None)
        assert profiler.case(Case("gemm", {"dtype": "x", "m": 1, "n": 1, "k": 1}, make)) is None
        assert profiler.case(gemm_case("fp32", 2, 2, 2)) is not None
    assert [row["error"] for row in journal.of("gemm")] == ["RuntimeError: no kernel for this", ""]


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/executor/profiling")
from test_run_profile import HEADER, request
from executor.profiling.journal import Journal
from executor.profiling.run_profile import Profiler
with Journal(Path(sys.argv[1]), HEADER) as journal:
    Profiler(request(parts=("gemm",), budget_s=60.0, target=0.0), journal, lambda p, w: print(w, flush=True)).run()
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_loses_one_row_at_most(tmp_path: Path, kind: signal.Signals) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "j")]
    env = {**os.environ, "PYTHONPATH": str(root)}
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # however these tests were started
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=root, env=env, **pipes, **heard) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(8)]
        process.send_signal(kind)
        told += process.stdout.readlines()
        process.wait()
    with Journal(tmp_path / "j", HEADER) as journal:
        kept = len(journal.rows)
        assert kept >= len(told) >= 8  # every row that was reported is on disk
        again: list[str] = []
        Profiler(request(parts=("gemm",), budget_s=0.2, target=0.0), journal, lambda p, w: again.append(w)).run()
    assert not {line.decode().strip() for line in told} & set(again)


@pytest.mark.slow
def test_collectives_are_measured_between_processes() -> None:
    keys = [
        {"dtype": "fp32", "kind": kind, "gpus": 2, "num_bytes": 1024}
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "nonsense")
    ]
    found = list(measure_collectives(keys, 2, "cpu", FAST, 1))
    assert [key for key, _ in found] == keys
    assert all(not isinstance(result, str) and result.median_s > 1e-6 for _, result in found)


def test_an_engine_probe_times_every_call() -> None:
    (probe, *_) = probes_for(request(configs=(CONFIG,)))
    rows = list(measure_probe(probe, "fp32", CPU, FAST))
    assert [key["call"] for key, _ in rows] == list(CALLS)
    assert all(found.median_s > 1e-5 and key["layers"] == 1 for key, found in rows)
    faster = [found.median_s for _, found in measure_probe(probe, "fp32", CPU, FAST, lambda: 1e6)]
    assert max(faster) < 1e-5, "on a core that takes so many times as long as the profile's"


def test_probes_differ_in_what_constants_hang_on() -> None:
    probes = probes_for(request(configs=(CONFIG,)))
    for name in ("samples", "prompt", "response", "micro_batch", "minibatches"):
        assert len({getattr(probe, name) for probe in probes}) > 1
    waits = {probe.idle_ms for probe in probes_for(request(configs=(CONFIG,), launchers=("local",)))}
    assert len(waits) == 2, "without runs behind a controller some probes wait instead"
    assert len({probe.config["num_hidden_layers"] for probe in probes}) > 1
    assert all(probe.samples % 4 == 0 and probe.response == 1 for probe in parallel_probes(request()))
