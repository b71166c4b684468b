"""Time of modules of sparse latent attention (DeepSeek-V3.2, GLM-5): projections, indexer, attention to the picked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.lookup.mla import MlaLookup, mla_projection_weights
from profiles.lookup.pricing import MLA_MODULE_LAUNCH_S
from profiles.units import DTYPE_BYTES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec
    from profiles.lookup.table import Table
    from profiles.records import Floats

KINDS = {7168: "deepseek_v32", 6144: "glm_moe_dsa"}
"""Models of the tables by their hidden width."""

_TOPK, _INDEX_WIDTH, _INDEX_FLOP = 2048.0, 128.0, 2.0 * 64 * 128
_LATENT, _VALUE, _HIDDEN = 576.0, 512.0, 7168.0


class SparseLookup(MlaLookup):
    """Prefill or decode modules of one model, with an indexer in the layer.

    Parameters
    ----------
    table, reference, length
        As of ``MlaLookup``; the rows say the model (``kind``) and whether the layer has an indexer of its own.
    kind
        The model.
    """

    def __init__(self, table: Table, reference: DeviceSpec, length: str, kind: str) -> None:
        rows = table.split("kind", "indexer", "kv_dtype", "dtype", "heads")
        own = {key[2:]: part for key, part in rows.items() if key[:2] == (kind, "full")}
        super().__init__(table, reference, length, covers_projections=True, rows=own)

    def _floor(self, spec: DeviceSpec, b: Floats, x: Floats, heads: ArrayLike, dtype: str, kv_dtype: str) -> Floats:
        """As of ``MlaLookup``, but a query reads ``topk`` tokens at most, and scores all of them before."""
        h = np.asarray(heads, dtype=np.float64)
        picked = np.minimum(x, _TOPK)
        if self._length == "seq":
            tokens, pairs = b * x, b * x * x / 2.0
            read = b * (picked * picked / 2.0 + (x - picked) * picked)
            flop = 2.0 * read * h * (_LATENT + _VALUE)
            num_bytes = 2.0 * tokens * h * (_LATENT + _VALUE)
        else:
            tokens, pairs, read = b, b * x, b * picked
            flop = 2.0 * read * h * (_LATENT + _VALUE)
            num_bytes = DTYPE_BYTES[kv_dtype] * read * _LATENT
        attention = np.maximum(flop / spec.peak("bf16"), num_bytes / spec.memory_bytes_per_s)
        indexer = np.maximum(_INDEX_FLOP * pairs / spec.peak("bf16"), _INDEX_WIDTH * pairs / spec.memory_bytes_per_s)
        weights = mla_projection_weights(h)
        compute = 2.0 * tokens * weights / spec.peak(dtype)
        stream = (DTYPE_BYTES[dtype] * weights + 4.0 * tokens * _HIDDEN) / spec.memory_bytes_per_s
        return np.asarray(attention + indexer + np.maximum(compute, stream) + MLA_MODULE_LAUNCH_S, dtype=np.float64)


class SparseLookups:
    """The modules of every model of one table.

    Parameters
    ----------
    table, reference, length
        As of ``MlaLookup``.
    """

    def __init__(self, table: Table, reference: DeviceSpec, length: str) -> None:
        self.of_kind = {kind: SparseLookup(table, reference, length, kind) for kind in KINDS.values()}
        self.least_s = min(one.least_s for one in self.of_kind.values())
