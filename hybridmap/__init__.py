"""hybridmap: which models of an RL post-training job share which GPUs, and how each is parallelised.

    import hybridmap as hm

    job = hm.load_job("job.yaml")
    result = hm.plan(job)       # hm.InfeasibleError says what would fit
    result.to_pandas()          # the best plan and its rivals
    result.timeline.to_pandas()
    hm.plot_timeline(result.timeline).show()

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
    plot_memory,
    plot_timeline,
    read_plan,
    robust,
    simulate,
    trace,
    what_if,
    write_plan,
    write_report,
)
from hybridmap.version import __version__
from profiles.errors import (
    FileFormatError,
    HybridmapError,
    InfeasibleError,
    InputError,
    NoBasisError,
    NotYetError,
    UnknownNameError,
)

__all__ = [
    "FileFormatError",
    "HybridmapError",
    "InfeasibleError",
    "InputError",
    "NoBasisError",
    "NotYetError",
    "UnknownNameError",
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
    "plot_memory",
    "plot_timeline",
    "read_plan",
    "robust",
    "simulate",
    "trace",
    "what_if",
    "write_plan",
    "write_report",
]
