"""Protects the light install: every file by its hash, what pyproject.toml asks for, at the versions of the tests."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pins(name: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([\w.+]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in found}


def test_every_pin_of_the_light_install_has_hashes() -> None:
    entries = re.split(r"\n(?=\w)", (ROOT / "requirements.txt").read_text(encoding="utf-8"))
    assert [entry for entry in entries[1:] if "--hash=sha256:" not in entry] == []
    assert len(entries) > 20


def test_the_light_install_is_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.split(r"[<>=;\[ ]", entry)[0] for entry in project["dependencies"]}
    assert asked <= set(pins("requirements.txt"))


def test_it_has_the_versions_that_the_tests_passed_with() -> None:
    light, tested = pins("requirements.txt"), pins("constraints.txt")
    assert {name: version for name, version in light.items() if tested.get(name, version) != version} == {}
