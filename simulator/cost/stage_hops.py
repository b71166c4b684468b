"""Messages between pipeline stages: which of them leave a node, and what they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Ints, Priced, where
from simulator.cost.comms import domain_bandwidth, network_basis

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from simulator.facts import Facts


def pipeline_hops(
    facts: Facts, num_bytes: ArrayLike, width: Ints, stages: Ints, replicas: Ints, passes: ArrayLike
) -> Priced:
    """Time that tensors take from stage to stage, one way.

    The first passes every border between stages, then the slowest border paces the others. Replicas lie one after
    another from the first GPU of a domain; the one that leaves most domains counts.

    Parameters
    ----------
    num_bytes
        Bytes of one tensor per GPU.
    width, stages, replicas
        GPUs of a stage, stages, and pipelines beside each other.
    passes
        How many tensors follow each other; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape; zero for a single stage.
    """
    borders = np.maximum(stages - 1, 0)
    leaving = borders_across(facts, width, stages, replicas)
    inside, across = (point_to_point(facts, num_bytes, far) for far in (False, True))
    through = across * leaving + inside * (borders - leaving)
    more = np.where(borders > 0, np.maximum(np.asarray(passes) - 1.0, 0.0), 0.0)
    return through + where(leaving > 0, across, inside) * more


def borders_across(facts: Facts, width: Ints, stages: Ints, replicas: Ints) -> Ints:
    """At how many borders between stages some GPU's next one is in another NVLink domain.

    Stages are ``width`` neighbours, and replicas follow each other without gaps.

    Parameters
    ----------
    width, stages, replicas
        GPUs of a stage, stages, and pipelines; shapes broadcast.

    Returns
    -------
    Ints
        Borders of the replica with most of them, the broadcast shape.
    """
    domain = facts.group.nvlink_domain_gpus
    columns = np.broadcast_arrays(width, stages, replicas)
    w, p, d = (np.asarray(column, dtype=np.int64).ravel() for column in columns)
    out = np.where(w >= domain, p - 1, 0)  # as far apart as a domain is large
    left = np.flatnonzero((w < domain) & (p > 1) & (w * p * d > domain))
    if len(left):
        different = np.minimum(d[left], domain)  # later replicas lie like earlier ones
        kinds, of = np.unique((w[left] * 2**20 + p[left]) * 2**20 + different, return_inverse=True)
        out[left] = _most_borders(domain, kinds // 2**40, kinds // 2**20 % 2**20, kinds % 2**20)[of]
    return out.reshape(columns[0].shape)


def _most_borders(domain: int, width: Ints, stages: Ints, replicas: Ints) -> Ints:
    """``borders_across`` replica by replica, for stages narrower than a domain, ``[K]``.

    The border behind the stage that starts at GPU ``x`` of its domain is crossed by those of its GPUs that lie within
    ``width`` of the domain's end.
    """
    stage = np.arange(int(stages.max()) - 1)
    most = np.zeros_like(width)
    for replica in range(int(replicas.max())):
        start = (replica * stages[:, None] + stage) * width[:, None] % domain
        crossed = (start + 2 * width[:, None] > domain) & (stage < stages[:, None] - 1)
        most = np.maximum(most, np.where(replica < replicas, crossed.sum(axis=1), 0))
    return np.asarray(most, dtype=np.int64)


def point_to_point(facts: Facts, num_bytes: ArrayLike, across: ArrayLike) -> Priced:
    """One transfer of every GPU to its partner at once: bytes over the link, plus its latency.

    Parameters
    ----------
    num_bytes
        Bytes of one transfer.
    across
        Whether the partner is in another domain, where all GPUs of one share its NICs; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape; analytic, no table covers it.
    """
    b, far = np.broadcast_arrays(np.asarray(num_bytes, dtype=np.float64), np.asarray(across, dtype=np.bool_))
    spec, group = facts.device.spec, facts.group
    nic = domain_bandwidth(facts) / group.nvlink_domain_gpus
    inside = b / spec.nvlink_bytes_per_s + 5e-6  # NCCL send/recv launch inside a node, about 5 us
    seconds = np.where(far, b / nic + spec.inter_node_latency_s, inside)
    return Priced.of(seconds, np.where(far, network_basis(facts), Basis.ANALYTIC))
