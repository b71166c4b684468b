"""Job files with a ``run:`` section, read as the command line will."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from executor.run_config import parse_run
from hybridmap.job.load import load_job
from simulator.plan.plan import Plan

if TYPE_CHECKING:
    from executor.run_config import RunConfig
    from simulator.facts import Facts


def read_job(path: Path, scratch: Path) -> tuple[Facts, Plan, RunConfig]:
    """Facts, plan and run section; the job part goes through the face's own reader, from a copy in ``scratch``."""
    document = yaml.safe_load(path.read_text())
    config = parse_run(document.pop("run"), f"{path}: run", path.parent)
    document["models"] = {role: str(path.parent / model) for role, model in document["models"].items()}
    copy = scratch / path.name
    copy.write_text(yaml.safe_dump(document))
    return load_job(copy).facts(), Plan.model_validate_json(Path(config.plan or "").read_text()), config
