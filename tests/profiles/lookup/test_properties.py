"""Protects what a search relies on, over sizes nobody wrote down: prices are positive and finite, more work is never
much cheaper, and better hardware is never slower.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.device import DeviceProfile
from profiles.records import Basis, Priced
from profiles.store import device_names, load_device

# Tables are noisy: the smaller problem may have met the slower kernel. GEMM kernels change most with size.
TOLERANCE, GEMM_TOLERANCE = 0.75, 0.70
SETTINGS = settings(max_examples=60, deadline=None)

Call = Callable[[DeviceProfile, np.ndarray, np.ndarray], Priced]
CALLS: dict[str, Call] = {
    "gemm m": lambda p, x, y: p.gemm(x, 512 + y, 4096),
    "gemm n": lambda p, x, y: p.gemm(y, 512 + x, 4096),
    "gemm k": lambda p, x, y: p.gemm(y, 4096, 512 + x),
    "prefill batch": lambda p, x, y: p.attention_prefill(x, y, 32, 8, 128),
    "prefill seq": lambda p, x, y: p.attention_prefill(y, x, 7, 1, 128),
    "decode batch": lambda p, x, y: p.attention_decode(x, y, 32, 8, 128),
    "decode context": lambda p, x, y: p.attention_decode(y, x, 5, 5, 80),
    "mla prefill": lambda p, x, y: p.mla_prefill(x, y, 16),
    "mla decode": lambda p, x, y: p.mla_decode(y, x, 24),
    "moe": lambda p, x, y: p.moe(x, 2048, 768, 8, 128, 1, 8),
    "moe absent": lambda p, x, y: p.moe(x, 3000, 900, 6, 100, 2, 2),
    "all_gather": lambda p, x, y: p.collective("all_gather", 1e3 * x, 8),
    "all_reduce": lambda p, x, y: p.collective("all_reduce", 1e3 * x, 6),
    "reduce_scatter": lambda p, x, y: p.collective("reduce_scatter", 1e3 * x, 24),
    "all_to_all": lambda p, x, y: p.collective("all_to_all", 1e3 * x, 4),
    "decode all-reduce": lambda p, x, y: p.decode_all_reduce(1e3 * x, 4),
    "memory bound": lambda p, x, y: p.memory_bound(1e3 * x, y),
    "host copy": lambda p, x, y: p.host_copy(1e3 * x),
}
sizes = st.lists(st.floats(1.0, 2e5), min_size=1, max_size=20)


@pytest.mark.parametrize("name", CALLS)
@SETTINGS
@given(x=sizes, y=st.floats(1.0, 2e4), device=st.sampled_from(device_names()))
def test_prices_are_positive_and_more_work_is_not_much_cheaper(
    name: str, x: list[float], y: float, device: str
) -> None:
    profile = load_device(device)
    less, more = (CALLS[name](profile, scale * np.array(x), np.full(len(x), y)) for scale in (1.0, 2.0))
    assert np.isfinite(less.s).all() and (less.s > 0).all()
    assert (more.s > (GEMM_TOLERANCE if name.startswith("gemm") else TOLERANCE) * less.s).all()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@SETTINGS
@given(
    x=sizes,
    y=st.floats(1.0, 2e4),
    field=st.sampled_from(["peak_flop_per_s", "memory_bytes_per_s", "nvlink_bytes_per_s", "pcie_bytes_per_s"]),
    faster=st.floats(1.0, 8.0),
)
def test_better_hardware_is_never_slower(call: Call, x: list[float], y: float, field: str, faster: float) -> None:
    profile = load_device("h100-80gb-sxm")
    old = getattr(profile.spec, field)
    new = {dtype: faster * rate for dtype, rate in old.items()} if isinstance(old, dict) else faster * old
    better = profile.with_spec(replace(profile.spec, **{field: new}))
    before, after = (call(p, np.array(x), np.full(len(x), y)) for p in (profile, better))
    assert (after.s <= before.s * (1 + 1e-9)).all()
    if faster > 1.0:
        assert (after.weakest == Basis.ANALYTIC).all()
        assert better.facts_hash != profile.facts_hash


@SETTINGS
@given(
    batch=st.integers(1, 4096),
    context=st.integers(1, 200_000),
    heads=st.integers(1, 128),
    group=st.integers(1, 16),
    head_dim=st.sampled_from([32, 64, 80, 96, 128, 192, 256, 512]),
    device=st.sampled_from(device_names()),
)
def test_any_head_layout_has_a_price(
    batch: int, context: int, heads: int, group: int, head_dim: int, device: str
) -> None:
    profile = load_device(device)
    kv_heads = max(1, heads // group)
    decode = profile.attention_decode(batch, context, heads, kv_heads, head_dim)
    prefill = profile.attention_prefill(batch, context, heads, kv_heads, head_dim)
    # Never faster than the memory or the tensor cores allow, within the noise and the boost of short runs.
    assert decode.s > 0.8 * 4 * batch * context * kv_heads * head_dim / 40e12
    assert prefill.s > 0.9 * 2 * batch * context**2 * heads * head_dim / profile.spec.peak("bf16")
