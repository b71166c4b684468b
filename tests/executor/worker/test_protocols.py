"""Protects data movement: whatever the degrees, nothing is lost, repeated or reordered on the way there and back."""

import itertools
from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from executor.batch import PADDING, ROW, drop_padding, from_wire, to_wire
from executor.worker import protocols
from executor.worker.futures import Future, FutureShare, Part, Source
from executor.worker.protocols import PROTOCOLS, Skip, add_protocol, register
from executor.worker.resolve import overlaps, resolve
from profiles.errors import InputError, UnknownNameError
from simulator.plan.groups import Degrees, generation_coordinates, training_coordinates


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


TRAINING = [(p, t, d) for p, t, d in itertools.product(range(1, 17), repeat=3) if p * t * d <= 16]
SPLITTING = {
    "3D_PROTO": lambda x: x.d,
    "3D_ALL_MICRO_DP": lambda x: x.num_replicas,
    "DP_PROTO": lambda x: x.num_ranks,
    "PIPELINE_AS_DATA": lambda x: x.p * x.d,
}


@st.composite
def degrees(draw: st.DrawFn) -> Degrees:
    p, t, d = draw(st.sampled_from(TRAINING))
    nested = draw(st.sampled_from(divisors(p))), draw(st.sampled_from(divisors(t)))
    return Degrees(p, t, d, *nested, draw(st.sampled_from([1, 1, 2, 3])))


def rows(num: int) -> TensorDict:
    return TensorDict({"uid": torch.arange(num), "x": torch.arange(2.0 * num).reshape(num, 2)}, batch_size=[num])


def same(a: TensorDict, b: TensorDict) -> bool:
    return sorted(a.keys()) == sorted(b.keys()) and all(torch.equal(a[key], b[key]) for key in a.keys())  # noqa: SIM118


@pytest.mark.parametrize("name", SPLITTING)
@given(x=degrees(), num=st.integers(1, 40))
def test_rows_come_back_whole_and_in_order(name, x, num):
    protocol, batch = PROTOCOLS[name], rows(num)
    inputs = protocol.distribute(batch, x)
    assert len(inputs) == x.num_ranks
    assert len({len(part) for part in inputs}) == 1  # SPMD: as many rows on every rank
    assert same(protocol.collect(inputs, x), batch)


@pytest.mark.parametrize("p_t_d", TRAINING)
def test_every_layout_of_up_to_sixteen_ranks_and_every_generation_layout_of_it(p_t_d):
    p, t, d = p_t_d
    for pg, tg in itertools.product(divisors(p), divisors(t)):
        x = Degrees(p, t, d, pg, tg)
        for batch in map(rows, (1, x.num_ranks, x.num_ranks + 1)):
            for name in SPLITTING:
                assert same(PROTOCOLS[name].collect(PROTOCOLS[name].distribute(batch, x), x), batch)


@pytest.mark.parametrize("name", SPLITTING)
@given(x=degrees(), num=st.integers(1, 40))
def test_shares_differ_by_what_the_protocol_splits_over(name, x, num):
    shares = [tuple(drop_padding(part)["uid"].tolist()) for part in PROTOCOLS[name].distribute(rows(num), x)]
    distinct = [share for share in dict.fromkeys(shares) if share]
    assert sorted(itertools.chain(*distinct)) == list(range(num))  # a partition: nothing twice among the takers
    assert len(distinct) <= SPLITTING[name](x)
    if num % SPLITTING[name](x) == 0:
        assert len(distinct) == SPLITTING[name](x)


@given(x=degrees(), num=st.integers(1, 20))
def test_broadcast_protocols_give_all_to_all_and_read_the_named_ranks(x, num):
    batch = rows(num)
    for name in ("ONE_TO_ALL", "3D_PP_ONLY"):
        assert all(same(part, batch) for part in PROTOCOLS[name].distribute(batch, x))
    labels = [training_coordinates(rank, x) for rank in range(x.num_ranks)]
    assert PROTOCOLS["ONE_TO_ALL"].collect(labels, x) == labels
    assert PROTOCOLS["3D_PP_ONLY"].collect(labels, x) == [(0, pp, 0) for pp in range(x.p)]
    assert PROTOCOLS["3D_PROTO"].collect(labels, x) == [(0, x.p - 1, dp) for dp in range(x.d)]
    assert PROTOCOLS["PIPELINE_AS_DATA"].collect(labels, x) == [(0, pp, dp) for dp in range(x.d) for pp in range(x.p)]


@given(x=degrees())
def test_generation_replicas_share_their_rows_and_answer_through_local_rank_zero(x):
    inputs = PROTOCOLS["3D_ALL_MICRO_DP"].distribute(rows(x.num_replicas), x)
    replicas: dict[tuple[int, int], set[int]] = {}
    for rank, part in enumerate(inputs):
        _, _, micro, copy = generation_coordinates(rank, x)
        replicas.setdefault((copy, micro), set()).add(int(part["uid"][0]))
    assert sorted(replicas) == [(copy, micro) for copy in range(x.d * x.c) for micro in range(x.dg)]
    assert [replicas[key] for key in sorted(replicas)] == [{i} for i in range(x.num_replicas)]
    labels = [generation_coordinates(rank, x) for rank in range(x.num_ranks)]
    collected = PROTOCOLS["3D_ALL_MICRO_DP"].collect(labels, x)
    assert collected == [(0, 0, micro, dp) for dp in range(x.d * x.c) for micro in range(x.dg)]


@given(x=degrees())
def test_all_to_all_and_rank_zero(x):
    each = list(range(x.num_ranks))
    assert PROTOCOLS["ALL_TO_ALL"].collect(PROTOCOLS["ALL_TO_ALL"].distribute(each, x), x) == each
    inputs = PROTOCOLS["RANK_ZERO"].distribute("value", x)
    assert inputs == ["value", *[Skip] * (x.num_ranks - 1)]
    assert PROTOCOLS["RANK_ZERO"].collect(inputs, x) == "value"


def test_all_to_all_wants_one_input_per_rank():
    with pytest.raises(InputError, match="a list of 4 inputs"):
        PROTOCOLS["ALL_TO_ALL"].distribute([1, 2], Degrees(1, 2, 2, 1, 2))


def future_of(*sources: Source) -> Future:
    return Future((Part(sources),))


def sources_of(batch: TensorDict, x: Degrees) -> tuple[list[Future], dict[str, int]]:
    """What the ranks of a model hold after a call, as futures over a store that counts what is pulled."""
    pulled: dict[str, int] = {}
    futures = []
    for rank, part in enumerate(PROTOCOLS["3D_PROTO"].distribute(batch, x)):
        out = drop_padding(part)
        futures.append(future_of(Source(("data", rank, out), ("record", rank, out))))
    return futures, pulled


class Record:
    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows


def test_six_steps_of_the_paper_actor_1_2_3_to_critic_2_1_2():
    """Section 1.4: three slices of the actor become two of the critic, and each critic rank pulls only its own."""
    actor, critic, batch = Degrees(1, 2, 3, 1, 2), Degrees(2, 1, 2, 2, 1), rows(12)
    futures, _ = sources_of(batch, actor)  # 1, 2: the actor ran; each rank's output has a future
    collected = protocols.PROTOCOLS["3D_PROTO"].collect(futures, actor)  # 3: to the controller, references only
    assert [source.data[1] for source in collected.parts[0].sources] == [0, 2, 4]
    shares = protocols.PROTOCOLS["3D_PROTO"].distribute(collected, critic)  # 4, 5: to the critic's data-parallel groups
    assert [(share.index, share.count) for share in shares] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    for rank, expected_uids, expected_ranks in [
        (0, range(6), [0, 2]),
        (1, range(6), [0, 2]),
        (2, range(6, 12), [2, 4]),
        (3, range(6, 12), [2, 4]),
    ]:
        pulled: list[int] = []

        def fetch(refs, pulled=pulled):
            pulled += [rank for kind, rank, _ in refs if kind == "data"]
            return [Record(len(out)) if kind == "record" else to_wire(out) for kind, _, out in refs]

        mine = resolve(shares[rank], fetch)  # 6: it re-cuts the slices
        assert mine["uid"].tolist() == list(expected_uids)
        assert pulled == expected_ranks


@given(source=degrees(), target=degrees(), num=st.integers(1, 40))
def test_resharding_between_any_two_models_equals_distributing_the_batch_itself(source, target, num):
    batch = rows(num)
    futures, _ = sources_of(batch, source)
    collected = protocols.PROTOCOLS["3D_PROTO"].collect(futures, source)

    def fetch(refs):
        return [Record(len(out)) if kind == "record" else to_wire(out) for kind, _, out in refs]

    for share, expected in zip(
        protocols.PROTOCOLS["3D_PROTO"].distribute(collected, target),
        protocols.PROTOCOLS["3D_PROTO"].distribute(batch, target),
        strict=True,
    ):
        assert same(resolve(share, fetch), expected)


def test_columns_of_two_futures_meet_row_by_row_and_must_line_up():
    def future(batch: TensorDict, *cuts: int) -> Future:
        pieces = batch.split(list(cuts))
        return future_of(*(Source(("data", 0, piece), ("record", 0, piece)) for piece in pieces))

    def fetch(refs):
        return [Record(len(out)) if kind == "record" else to_wire(out) for kind, _, out in refs]

    batch = rows(6)
    both = future(batch.select("uid"), 1, 5) | future(batch.select("x"), 3, 3)
    assert same(resolve(FutureShare(both.parts, 1, 2), fetch), batch[3:6])
    with pytest.raises(InputError, match=r"do not line up: they have \[6, 5\] rows"):
        resolve(FutureShare((future(batch, 6) | future(batch[:5], 5)).parts), fetch)


def test_a_reader_waits_for_and_gets_only_the_columns_it_reads():
    def fetch(refs):
        assert all(rank != "slow" for _, rank, _ in refs)
        return [Record(len(out)) if kind == "record" else to_wire(out) for kind, _, out in refs]

    def future(rank: str, batch: TensorDict, *columns: str) -> Future:
        return future_of(Source(("data", rank, batch), ("record", rank, batch))).having(frozenset(columns) or None)

    batch = rows(4)
    both = future("fast", batch, "uid", "x") | future("slow", batch, "values")
    assert resolve(FutureShare(both.reading(frozenset({"x"})).parts), fetch, frozenset({"x"})).keys() == {"x"}
    unknown = future("fast", batch) | future("fast", batch.select("uid"))
    assert resolve(FutureShare(unknown.reading(frozenset({"x"})).parts), fetch, frozenset({"x"})).keys() == {"x"}
    with pytest.raises(InputError, match="no input has any of the columns z"):
        resolve(FutureShare(unknown.parts), fetch, frozenset({"z"}))


def test_overlaps_counts_rows_inside_each_source():
    assert overlaps([4, 4, 4], 0, 6) == [(0, 0, 4), (1, 0, 2)]
    assert overlaps([4, 4, 4], 6, 12) == [(1, 2, 4), (2, 0, 4)]
    assert overlaps([0, 3], 0, 3) == [(1, 0, 3)]


def test_padding_is_marked_and_is_a_copy_of_the_last_row():
    parts = PROTOCOLS["DP_PROTO"].distribute(rows(5), Degrees(1, 1, 4, 1, 1))
    assert [part["uid"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 4], [4, 4]]
    assert [part[PADDING].tolist() for part in parts] == [[False] * 2, [False] * 2, [False, True], [True, True]]


def test_an_empty_batch_is_refused():
    with pytest.raises(InputError, match="without rows"):
        PROTOCOLS["DP_PROTO"].distribute(rows(0), Degrees(1, 1, 2, 1, 1))


def test_users_add_protocols_and_names_are_unique():
    def reverse(value, x):
        return list(reversed(protocols.split(value, x.num_ranks)))

    mine = add_protocol("REVERSED", reverse, lambda outputs, _x: protocols.concat(list(reversed(outputs))))
    try:
        x = Degrees(1, 2, 2, 1, 2)
        assert same(mine.collect(mine.distribute(rows(7), x), x), rows(7))

        @register(protocol="REVERSED")
        def method(self, batch):
            return batch

        assert method.registration.protocol is mine
        with pytest.raises(InputError, match="exists already"):
            add_protocol("REVERSED", reverse, mine.collect)
    finally:
        del PROTOCOLS["REVERSED"]
    with pytest.raises(UnknownNameError, match=r"unknown transfer protocol .3D_PROTOL.; known: 3D_ALL"):
        register(protocol="3D_PROTOL")


def test_there_are_eight():
    assert len(PROTOCOLS) == 8


@given(num=st.integers(0, 5))
def test_the_form_between_processes_keeps_every_column_exactly(num):
    batch = rows(num)
    batch["half"] = batch["x"].bfloat16()
    batch["flag"] = batch["uid"] > 1
    assert same(from_wire(to_wire(batch)), batch)
    assert same(from_wire(to_wire(batch), slice(1, 3)), batch[1:3])


class Told:
    """A record that names its rows' tokens."""

    def __init__(self, batch: TensorDict) -> None:
        self.num_rows, self.row_tokens = len(batch), array("q", batch["length"].tolist())


@given(
    lengths=st.lists(st.integers(1, 90), min_size=4, max_size=30),
    writers=st.integers(1, 4),
    first=st.integers(2, 4),
    second=st.integers(2, 4),
    steps=st.integers(1, 3),
)
def test_rows_dealt_by_tokens_line_up_with_rows_in_order_and_with_those_of_other_dealings(
    lengths, writers, first, second, steps
):
    """Rows written in order are read by dealt ranks, whose answers are read by others, and by one in order."""
    batch = rows(len(lengths))
    batch["length"] = torch.tensor(lengths)

    def fetch(references):
        return [to_wire(value) if kind == "data" else Told(value) for kind, value in references]

    def future(parts: list[TensorDict], columns: set[str]) -> Future:
        made = tuple(Source(("data", part), ("record", part)) for part in parts)
        return Future((Part(made, frozenset(columns)),))

    written = [drop_padding(part) for part in PROTOCOLS["DP_PROTO"].distribute(batch, Degrees(1, 1, writers, 1, 1))]
    given = future([part for part in written if len(part)], {"uid", "x", "length", "response_mask"})
    seen = given
    for num in (first, second):
        dealing = seen.dealing(num, steps)
        shares = [resolve(FutureShare(seen.parts, i, num, dealing), fetch) for i in range(num)]
        assert len({len(share) for share in shares}) == 1  # SPMD: as many rows on every rank
        assert all(torch.equal(share["uid"], share[ROW]) for share in shares)
        answers = [drop_padding(share.exclude("uid")) for share in shares]
        for answer in answers:
            answer[f"twice{num}"] = 2 * answer["x"]
        seen |= future(answers, {f"twice{num}"}).dealt(dealing)
    whole = resolve(FutureShare(seen.parts), fetch)
    assert torch.equal(whole["uid"], batch["uid"])
    assert torch.equal(whole["x"], batch["x"])
    assert torch.equal(whole[f"twice{second}"], 2 * batch["x"])
    third = [drop_padding(resolve(FutureShare(seen.parts, i, 3), fetch))[f"twice{first}"] for i in range(3)]
    assert torch.equal(torch.cat(third), 2 * batch["x"])
