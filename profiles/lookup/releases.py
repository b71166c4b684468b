"""Whose table a file is, by its name, and which release of an engine is nearest to another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.lookup.table import TableCard

_FRAMEWORKS = {"trtllm": "tensorrt-llm"}
"""Engines whose name in the source of the tables is not ours."""


@dataclass(frozen=True)
class Borrowed:
    """Kernels of another engine that some releases of an engine run.

    Parameters
    ----------
    operator, dtype, parts
        What they compute, the number format, and the parts on which they run (a pattern of the driver's name).
    engine, first, before
        Family, the first release that runs them and the first that does not again (empty: there is none).
    owner
        Family whose tables hold them.
    source
        Where the engine chooses them.
    """

    operator: str
    dtype: str
    parts: str
    engine: str
    first: str
    before: str
    owner: str
    source: str

    def runs(self, operator: str, engine: str, release: str, dtype: str, part: str) -> bool:
        """Whether a release of an engine runs these kernels for an operator, a number format and a part."""
        if (operator, engine, dtype) != (self.operator, self.engine, self.dtype) or not re.search(self.parts, part):
            return False
        return _number(self.first) <= _number(release) and (not self.before or _number(release) < _number(self.before))


BORROWED = (
    Borrowed(
        *("moe", "fp8_block", r"\bG?H\d{2,3}\b", "vllm", "0.15", "0.17", "tensorrt-llm"),
        source="vLLM's fused_moe/oracle/fp8.py: FLASHINFER_CUTLASS (TensorRT-LLM's kernels) is the first that supports "
        "FP8 with block scales on Hopper; 0.14 takes DeepGEMM or Triton, 0.17 Triton where experts are sliced",
    ),
    Borrowed(
        *("moe", "mxfp4_mxfp8", r"\bG?B[23]00\b", "vllm", "0.10", "", "sglang"),
        source="vLLM's fused_moe/oracle/mxfp4.py: TensorRT-LLM's generated kernels through FlashInfer, as SGLang runs "
        "them; vLLM's own table holds them for DeepSeek-V4's shapes alone",
    ),
    Borrowed(
        *("moe", "mxfp4", r"\bG?H\d{2,3}\b|\bL40S\b", "sglang", "0.5", "", "vllm"),
        source="SGLang's server_args.py takes triton_kernel for gpt-oss before Blackwell: OpenAI's kernels, as vLLM "
        "and TensorRT-LLM do, whose tables agree; its own table was timed with others that take twice as long",
    ),
    Borrowed(
        *("moe", "nvfp4", r"\bG?B300\b", "tensorrt-llm", "1.0", "", "vllm"),
        source="its own table of B300 and GB300 was timed without its generated kernels: 40 to 60 us for one token and "
        "two to three times B200's time for thousands, where it is 20 us and the fastest on B200; vLLM runs those "
        "kernels through FlashInfer, as fast on B300 as on B200",
    ),
)

NEWEST_FIRST = {("moe", "vllm"), ("custom_all_reduce", "tensorrt-llm")}
"""Tables of which the newest prices every release. vLLM 0.19's experts were measured before their kernels had
configurations for many shapes (four-bit ones take 2.4 times as long as 0.24's and as SGLang's); among four GPUs
TensorRT-LLM 1.2.0rc5's all-reduce of 64 KiB takes 11 us, among eight 5, as 1.3's takes 4 and 5."""


def operator_of(name: str) -> str:
    """The operator that a table holds: ``gemm`` of ``gemm.sglang@0.5.14``.

    Parameters
    ----------
    name
        Of a table.

    Returns
    -------
    str
        Name of the common table of the operator.
    """
    return name.split(".", 1)[0]


def engine_of(name: str, card: TableCard) -> tuple[str, str]:
    """Engine and release that a table was measured on.

    Parameters
    ----------
    name, card
        Of the table; its sidecar, which says it for a common table.

    Returns
    -------
    tuple[str, str]
        Family and release; empty texts where nobody says so.
    """
    if "@" in name:
        family, release = name.split(".", 1)[1].split("@", 1)
        return family, release
    if not card.sources:
        return "", ""
    family, release = card.sources[0]
    return _FRAMEWORKS.get(family, family), release


def ordered(
    operator: str, cards: Mapping[str, TableCard], family: str, release: str, dtype: str = "", part: str = ""
) -> list[str]:
    """Tables that price an operator of an engine, nearest release first; of two as near, the newer one.

    Parameters
    ----------
    operator, cards
        Name of the common table, and every sidecar of the folder.
    family, release
        Of the engine.
    dtype, part
        Number format, and the device as its driver calls it: some releases run another engine's kernels for them.

    Returns
    -------
    list[str]
        Names of tables; those of borrowed kernels first.
    """
    own = {n: engine_of(n, card) for n, card in cards.items() if operator_of(n) == operator}

    def newest(whose: str) -> list[str]:
        names = [name for name, (owner, _) in own.items() if owner == whose]
        return sorted(names, key=lambda n: (_number(own[n][1]), _parts(own[n][1])), reverse=True)

    borrowed = [n for b in BORROWED if b.runs(operator, family, release, dtype, part) for n in newest(b.owner)]
    if (operator, family) in NEWEST_FIRST:
        return borrowed + newest(family)
    asked = _number(release)
    return borrowed + sorted(newest(family), key=lambda n: abs(_number(own[n][1]) - asked))


def _number(release: str) -> float:
    """Releases on a line; a candidate stands with its release, and a major release is a hundred minor ones apart."""
    major, minor, patch = (*_parts(release)[:3], 0, 0, 0)[:3]
    return 100.0 * major + minor + patch / 100.0


def _parts(release: str) -> list[int]:
    """Every number of a release: of candidates of one release the newer one has the larger last number."""
    return [int(part) for part in re.findall(r"\d+", release)]
