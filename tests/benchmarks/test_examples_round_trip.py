"""Protects the examples' round trip: it takes every step of a job, and no step that goes wrong passes."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks import examples_round_trip as script
from benchmarks.examples_round_trip import COLUMNS, EXAMPLES, Answer, Cell, main

PPO = EXAMPLES / "ppo-7b-16xa100.yaml"
GRPO = EXAMPLES / "run" / "grpo-tiny.yaml"


@pytest.mark.slow
def test_every_step_of_an_example_and_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(PPO), str(GRPO), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    header, _, ppo, grpo, *remarks = printed.splitlines()
    assert all(column in header for column in COLUMNS)
    assert "the same" in ppo and "refused" in ppo  # NeMo-RL has no PPO, and says so below
    assert any("NeMo-RL" in line for line in remarks)
    assert grpo.split()[-1] == "yes" and "the same" in grpo and "but for" in grpo
    assert "ERROR" not in printed
    for name in (PPO.stem, GRPO.stem):
        written = {path.name for path in (tmp_path / name).iterdir()}
        assert {"plan.json", "timeline.json", "report.html", "read-back"} <= written

    plan = tmp_path / PPO.stem / "plan.json"
    content = json.loads(plan.read_text())
    assert not script.simulated(plan, content["iteration_s"]).wrong
    assert script.simulated(plan, content["iteration_s"] * 1.0001).wrong
    # as a file from before there were digests, else it counts as edited
    plan.write_text(json.dumps(content | {"facts_hash": "of other profiles", "digest": ""}))
    assert "prices changed" in script.simulated(plan, content["iteration_s"]).remark
    assert script.simulated(tmp_path / "nothing.json", 1.0).wrong


def test_a_job_that_cannot_be_planned_fails_the_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = yaml.safe_load(PPO.read_text())
    job["models"]["actor"], job["cluster"][0]["nodes"] = "llama-2-70b", 1
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(job))
    assert main([str(tmp_path / "large.yaml")]) == 1
    assert "ERROR large, planned: error: no plan fits" in capsys.readouterr().out


def answered(monkeypatch: pytest.MonkeyPatch, **answers: Answer) -> None:
    monkeypatch.setattr(script, "command", lambda name, *words: answers[name])


def test_a_refusal_has_a_reason_and_a_fault_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for answer, text in [
        (Answer(2, {"error": "verl has no such thing"}, ""), "refused"),
        (Answer(2, {}, ""), "error"),
        (Answer(1, {}, "Traceback"), "error"),
        (Answer(0, {"written": [str(tmp_path / "nothing.sh")], "cannot_follow": []}, ""), "error"),
        (
            Answer(0, {"written": [], "written_iteration_s": 2.0, "cannot_follow": [{"place": "reward"}]}, ""),
            "but for 1",
        ),
        (Answer(0, {"written": [], "written_iteration_s": 2.0, "cannot_follow": []}, ""), "all of it"),
    ]:
        answered(monkeypatch, export=answer)
        cell = script.exported(Path("plan.json"), tmp_path, "verl")
        assert cell.text == text
        assert cell.wrong is (text == "error")
        assert (cell.seconds is None) is (text in ("refused", "error"))


def test_an_export_is_read_back_as_it_says_of_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = {"response_length": {"mean": 299.6, "max": 1024}, "prompt_tokens": None}
    cluster = [{"device": "h100-80gb-sxm", "inter_node_gbps": 3200}]
    (tmp_path / "plan.json").write_text(json.dumps({"job": {"workload": work, "cluster": cluster}}))

    def read(seconds: float | None) -> Cell:
        run = {"fits": seconds is not None, "iteration_s": seconds, "why_not": [] if seconds else ["too large"]}
        answered(monkeypatch, **{"import": Answer(0, {"run": run, "notes": []}, "")})
        return script.read_back(PPO, tmp_path / "plan.json", 100.0)

    assert not read(101.0).wrong
    assert read(110.0).wrong and read(90.0).wrong
    assert read(None).wrong and "too large" in read(None).remark


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("profiles.models.catalogue.model_names", names)
    answer = script.command("models", "list")
    assert answer.status == 1
    assert "Traceback" in answer.why and "RuntimeError: a fault" in answer.why
