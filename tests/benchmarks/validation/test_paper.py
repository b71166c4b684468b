"""Protects the paper validation: no row is lost, whatever figure of a known kind it is, and every gap has a reason."""

from pathlib import Path

import pytest

from benchmarks.validation.paper import MAPPER_TIME, NO_BAR, ZERO, predict
from benchmarks.validation.paper_job import TOKENS, role_sizes
from profiles.errors import InputError

ROLES = ("actor", "critic", "reference", "reward", "cost")


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder


def test_a_figure_of_the_first_kind_gets_both_quantities(tmp_path: Path) -> None:
    text = "algorithm,model,num_gpus,system,tokens_per_s\nremax,7B,8,hybridflow,8000\nremax,7B,8,nemo-aligner,100\n"
    rows = predict(written(tmp_path, "paper_fig11_remax.csv", text))
    ours = {row.quantity: row for row in rows if row.system == "hybridflow"}
    assert set(ours) == {"tokens_per_s", "iteration_s"}
    assert ours["iteration_s"].measured == pytest.approx(TOKENS / 8000)
    assert ours["tokens_per_s"].predicted is not None
    assert ours["tokens_per_s"].predicted * (ours["iteration_s"].predicted or 0) == pytest.approx(TOKENS)
    assert ours["iteration_s"].id == "fig11:7B:8:hybridflow"
    assert all("ReMax" in row.reason for row in rows if row.system == "nemo-aligner")


def test_mixed_sizes_and_missing_bars_of_a_placement_figure(tmp_path: Path) -> None:
    text = (
        'algorithm,model,num_gpus,placement,tokens_per_s\nppo,"7B actor+ref, 13B critic+reward",16,colocate,5000\n'
        "ppo,7B,8,standalone,\nppo,7B,8,colocate,OOM\nppo,3B,8,colocate,10\nppo,7B,12,colocate,10\n"
    )
    rows = predict(written(tmp_path, "paper_fig13_mixed.csv", text))
    assert [row.predicted is not None for row in rows] == [True, True, False, False, False, False, False, False]
    assert [row.reason for row in rows[2:4]] == [NO_BAR, NO_BAR]
    assert "not 3B" in rows[4].reason
    assert "12 GPUs are not whole machines" in rows[6].reason


def test_transition_sweep_and_mapper_run_time(tmp_path: Path) -> None:
    written(
        tmp_path, "paper_fig14_transition.csv", "algorithm,model,num_gpus,system,transition_s\nppo,7B,16,openrlhf,8\n"
    )
    written(tmp_path, "paper_fig15_tp.csv", "model,num_gpus,t_g,generation_s,transition_s\n7B,16,8,86.6,0\n")
    written(tmp_path, "paper_fig16_mapper.csv", "model,num_gpus,seconds\n7B,8,11.5\n")
    transition, generation, zero, mapper = predict(tmp_path)
    assert transition.predicted == pytest.approx(8, rel=0.5)
    assert generation.relative_error == pytest.approx(0, abs=0.1)
    assert (zero.predicted, zero.reason) == (None, ZERO)
    assert (mapper.predicted, mapper.reason, mapper.measured) == (None, MAPPER_TIME, 11.5)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("13B", ("13B",) * 5),
        ("13B actor+ref, 70B critic+reward", ("13B", "70B", "13B", "70B", "70B")),
        ("13B actor/reference and 70B critic/RM", ("13B", "70B", "13B", "70B", "70B")),
        ("70b critic + reward, 13b actor", ("13B", "70B", "13B", "70B", "70B")),
    ],
)
def test_sizes_by_role(text: str, sizes: tuple[str, ...]) -> None:
    assert tuple(role_sizes(text, ROLES).values()) == sizes


def test_a_text_without_a_size_is_refused() -> None:
    with pytest.raises(InputError, match="names no model size"):
        role_sizes("large", ROLES)
