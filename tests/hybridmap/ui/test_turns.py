"""Protects visitors from each other: whatever one asks for in a row, one search of theirs runs at a time."""

import asyncio

from hybridmap.ui.turns import Turns


def test_one_at_a_time_and_what_is_overtaken_never_starts():
    began, running, most = [], 0, 0

    async def search(number):
        nonlocal running, most
        began.append(number)
        running += 1
        most = max(most, running)
        for _ in range(200):  # long enough for all of them to be asked for
            await asyncio.sleep(0)
        running -= 1
        return number

    async def visit():
        turns = Turns()
        return await asyncio.gather(*(turns.newest(search, number) for number in range(50)))

    answers = asyncio.run(visit())
    assert (began, most) == ([49], 1) or (began, most) == ([0, 49], 1)
    assert answers[-1] == 49 and answers[1:-1] == [None] * 48


def test_another_visitor_does_not_wait():
    async def visits():
        busy, free, never = Turns(), Turns(), asyncio.Event()
        stuck = asyncio.create_task(busy.newest(never.wait))
        await asyncio.sleep(0)
        found = await free.newest(asyncio.sleep, 0, "answered")
        never.set()
        return found, await stuck

    assert asyncio.run(visits()) == ("answered", True)
