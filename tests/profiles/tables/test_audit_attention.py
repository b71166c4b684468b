"""Protects the shipped attention tables: a newer part is no slower than the one before on the same shape and kernel.

Each release of an engine is held against the same release on the part before. Up to a twentieth of the shapes may take
more than 1.25 times as long: small ones are launches, and two parts were measured on two machines. What exceeds that is
listed with its share, its median and what is known of it, so that a worse import fails; it is what the engines were
measured at, and no row is replaced.
"""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from profiles.lookup.table import read_card, read_table
from profiles.store import DATA

PREDECESSORS = {
    "h200-sxm": "h100-80gb-sxm",
    "b200-sxm": "h200-sxm",
    "gb200": "b200-sxm",
    "b300-sxm": "b200-sxm",
    "gb300": "gb200",
}
"""H100 after A100 is not held: no release of an engine was measured on both."""
KINDS = (
    "attention_prefill",
    "attention_decode",
    "attention_prefill_window",
    "attention_decode_window",
    "mla_prefill",
    "mla_decode",
    "sparse_prefill",
    "sparse_decode",
)
SLOWER, SHARE, MEDIAN = 1.25, 0.05, 1.04
"""Ratio of times, the share of shapes that may exceed it, and the median ratio at most."""
SHORT = "prompts of 16 and 32 tokens"
WIDE = "prompts of 16 and 32 tokens, and heads of 192 elements, for which the release has no kernel of the part"
OTHER = "another kernel than Hopper's: short prompts, heads of 192 and 256 elements, FP8 caches"
SPLIT = "another kernel than Hopper's: small batches and FP8 caches"
MLA = "one release, 1.6 times B200's time on GB200 and B300 alike; GB300's later one is at B200's: not explained"
SPARSE = "short prompts, up to 2,048 tokens: not explained"
KNOWN = {
    ("h200-sxm", "sparse_prefill.sglang@0.5.14"): (
        0.31,
        1.04,
        "layers that share an indexer, up to 2,048 tokens: not explained",
    ),
    ("b200-sxm", "attention_prefill"): (0.06, 1.04, SHORT),
    ("b200-sxm", "attention_prefill.vllm@0.24.0"): (0.08, 1.04, WIDE),
    ("b200-sxm", "attention_prefill.sglang@0.5.14"): (0.36, 1.04, OTHER),
    ("b200-sxm", "attention_prefill_window"): (0.07, 1.04, SHORT),
    ("b200-sxm", "attention_prefill_window.sglang@0.5.14"): (0.43, 1.08, OTHER),
    ("b200-sxm", "attention_decode.sglang@0.5.14"): (0.15, 1.04, OTHER),
    ("b200-sxm", "attention_decode.tensorrt-llm@1.3.0rc20"): (0.23, 1.04, SPLIT),
    ("b200-sxm", "attention_decode_window.sglang@0.5.14"): (0.09, 1.04, OTHER),
    ("b200-sxm", "attention_decode_window.tensorrt-llm@1.3.0rc20"): (0.30, 1.11, SPLIT),
    ("b200-sxm", "mla_prefill.sglang@0.5.14"): (0.07, 1.04, "prompts of 1 and 16 tokens"),
    ("b200-sxm", "sparse_prefill"): (0.08, 1.04, SPARSE),
    ("gb200", "mla_prefill"): (0.95, 1.65, MLA),
    ("gb200", "mla_prefill.vllm@0.24.0"): (0.95, 1.65, MLA),
    ("gb200", "mla_decode"): (0.80, 1.65, MLA),
    ("gb200", "mla_decode.vllm@0.24.0"): (0.83, 1.80, MLA),
    ("gb200", "sparse_prefill"): (0.45, 1.04, SPARSE),
    ("gb200", "sparse_prefill.sglang@0.5.14"): (0.81, 2.00, SPARSE),
    ("gb200", "sparse_decode.sglang@0.5.14"): (0.06, 1.04, "not explained"),
    ("b300-sxm", "mla_prefill"): (0.96, 1.65, MLA),
    ("b300-sxm", "mla_prefill.vllm@0.24.0"): (0.96, 1.65, MLA),
    ("b300-sxm", "mla_decode"): (0.80, 1.65, MLA),
    ("b300-sxm", "mla_decode.vllm@0.24.0"): (0.83, 1.80, MLA),
    ("gb300", "sparse_prefill"): (0.07, 1.04, SPARSE),
}
"""Share of shapes over ``SLOWER``, the median ratio, and why: at most these."""


@cache
def rows(path_name: str) -> pd.DataFrame:
    """A table with its shape as columns and its seconds."""
    path = DATA / path_name
    table = read_table(path, read_card(path.with_suffix(".yaml")))
    columns = {
        name: np.array(table.names[name])[column] if name in table.names else column
        for name, column in table.data.items()
    }
    return pd.DataFrame(columns)


def release(path_name: str) -> tuple[tuple[str, str], ...]:
    return read_card((DATA / path_name).with_suffix(".yaml")).sources


def cases() -> list[tuple[str, str]]:
    """Part and table, where the part before has the same table of the same release."""
    return [
        (part, path.name)
        for part, before in PREDECESSORS.items()
        for kind in KINDS
        for path in sorted((DATA / part).glob(f"{kind}.*parquet"))
        if (DATA / before / path.name).is_file() and release(f"{part}/{path.name}") == release(f"{before}/{path.name}")
    ]


def ratios(part: str, name: str) -> pd.Series:
    """Seconds over those of the part before, of every shape that both have."""
    new, old = rows(f"{part}/{name}"), rows(f"{PREDECESSORS[part]}/{name}")
    shape = [column for column in new if column != "latency_s"]
    both = new.merge(old, on=shape, suffixes=("", "_before"))
    return both["latency_s"] / both["latency_s_before"]


@pytest.mark.parametrize(("part", "name"), cases())
def test_a_newer_part_is_no_slower(part: str, name: str) -> None:
    found = ratios(part, name)
    share, median, _ = KNOWN.get((part, name.removesuffix(".parquet")), (SHARE, MEDIAN, ""))
    assert len(found) > 1000
    assert (found > SLOWER).mean() <= share
    assert found.median() <= median


def test_what_is_known_is_not_better_by_now() -> None:
    """A share that an import has mended leaves the list."""
    held = {(part, name.removesuffix(".parquet")) for part, name in cases()}
    assert set(KNOWN) <= held
    for part, table in KNOWN:
        found = ratios(part, f"{table}.parquet")
        assert (found > SLOWER).mean() > SHARE or found.median() > MEDIAN, (part, table)
