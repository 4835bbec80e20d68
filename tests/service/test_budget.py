import asyncio
import time
from contextlib import suppress

import pytest
from patchloom_service.budget import ByteBudget
from patchloom_service.errors import OutOfMemory


async def test_work_waits_until_its_memory_is_free():
    budget, order = ByteBudget(10), []

    async def work(name, size):
        async with budget.hold(size):
            order.append(name)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for name, size in (("a", 6), ("b", 6), ("c", 4)):
            group.create_task(work(name, size))
    assert order[0] == "a"
    assert sorted(order) == ["a", "b", "c"]


async def test_a_request_that_can_never_fit_is_refused():
    with pytest.raises(OutOfMemory, match="needs 11 bytes; at most 10"):
        async with ByteBudget(10).hold(11):
            pass


async def test_a_small_request_passes_a_large_one_but_not_without_end():
    budget = ByteBudget(10, max_overtakes=2)
    running = budget.hold(5)
    await running.__aenter__()
    large = asyncio.create_task(_enter(budget, 10))
    await asyncio.sleep(0)
    for _ in range(2):
        async with budget.hold(1):
            assert not large.done()
    late = asyncio.create_task(_enter(budget, 1))
    await asyncio.sleep(0)
    assert not late.done()
    await running.__aexit__(None, None, None)
    await large
    await late


async def test_a_cancelled_waiter_leaves_no_trace():
    budget = ByteBudget(10)
    async with budget.hold(10):
        waiter = asyncio.create_task(_enter(budget, 5))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with asyncio.timeout(1), budget.hold(10):
        pass


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_gives_the_memory_back():
    budget = ByteBudget(10)
    running = budget.hold(10)
    await running.__aenter__()
    waiter = asyncio.create_task(_enter(budget, 5))
    await asyncio.sleep(0)
    await running.__aexit__(None, None, None)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    async with asyncio.timeout(1), budget.hold(10):
        pass


async def _enter(budget, size):
    async with budget.hold(size):
        pass


async def test_taking_at_once_never_waits_and_never_passes_who_waits_too_often():
    budget = ByteBudget(10, max_overtakes=2)
    assert budget.try_take(6)
    assert not budget.try_take(5)
    large = asyncio.create_task(_enter(budget, 10))
    await asyncio.sleep(0)
    for _ in range(2):
        assert budget.try_take(1)
        budget.give(1)
    assert not budget.try_take(1)
    budget.give(6)
    await large
    assert budget.try_take(10)


async def test_bytes_given_on_other_threads_reach_who_waits_and_none_are_lost():
    budget, done = ByteBudget(8), []

    def work():
        for _ in range(300):
            while not budget.try_take(3):
                time.sleep(0)
            budget.give(3)

    async def wait(index):
        for turn in range(20):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0005 if turn % 3 == index % 3 else 10), budget.hold(4):
                    await asyncio.sleep(0)
        done.append(index)

    threads = [asyncio.to_thread(work) for _ in range(3)]
    await asyncio.gather(*threads, *(wait(index) for index in range(6)))
    assert sorted(done) == list(range(6))
    assert budget.try_take(8)
