"""hybridmap: which models of an RL post-training job share which GPUs, and how each is parallelised.

    import hybridmap as hm

    job = hm.load_job("job.yaml")
    result = hm.plan(job)
    result.timeline.to_pandas()

The same steps as the commands, with typed records and DataFrames; ``hybridmap.api`` documents each. The solver and
the profile tables are imported on first use, so that ``import hybridmap`` costs nothing.
"""

from __future__ import annotations

from hybridmap.api import (
    compare,
    devices,
    explain,
    export,
    fit,
    frontier,
    import_verl,
    load_job,
    make_job,
    memory,
    models,
    plan,
    plan_for,
    plan_record,
    read_plan,
    robust,
    simulate,
    trace,
    what_if,
    write_plan,
    write_report,
)
from hybridmap.version import __version__

__all__ = [
    "__version__",
    "compare",
    "devices",
    "explain",
    "export",
    "fit",
    "frontier",
    "import_verl",
    "load_job",
    "make_job",
    "memory",
    "models",
    "plan",
    "plan_for",
    "plan_record",
    "read_plan",
    "robust",
    "simulate",
    "trace",
    "what_if",
    "write_plan",
    "write_report",
]
