"""Protects what is seen of something long: a bar on a terminal, lines elsewhere, nothing beside a document."""

import sys

import pytest

from hybridmap.profiling.progress import ProfileBar
from hybridmap.text.run import RunView

METRICS = {"reward": 0.5, "iteration_s": 2.0, "seconds/training": 1.5}


def shown(capsys: pytest.CaptureFixture[str], *, quiet: bool = False) -> tuple[str, str]:
    with RunView(2, quiet=quiet) as run, ProfileBar(60.0, quiet=quiet) as profile:
        run.show(0, METRICS)
        profile.show("gemm", "bf16")
        profile.show("gemm", "fp32")
    assert run.rows == [METRICS]
    return capsys.readouterr()


def test_a_terminal_sees_bars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out, err = shown(capsys)
    assert out == ""
    assert "1/2" in err
    assert "2 rows" in err


def test_elsewhere_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys)
    assert "reward 0.500  2.00 s (training 1.50)" in out + err
    assert (out + err).count("gemm") == 1


def test_one_document_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, quiet=True) == ("", "")
