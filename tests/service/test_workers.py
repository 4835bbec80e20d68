import asyncio
import threading
import time

import pytest
from patchloom_service.config import Config
from patchloom_service.workers import FairPool, Workers, new_request


class Gate:
    """Keeps the only thread of a pool busy until it opens."""

    def __init__(self, pool):
        self._open = threading.Event()
        running = threading.Event()
        self.first = pool.submit(lambda: (running.set(), self._open.wait(10)))
        assert running.wait(10)

    def open(self):
        self._open.set()


@pytest.fixture
def pool():
    pool = FairPool("test", 1)
    yield pool
    pool.close()


async def submit(pool, order, name, count):
    new_request()
    return [pool.submit(lambda i=i: order.append(f"{name}{i}")) for i in range(count)]


async def test_a_small_request_is_not_stuck_behind_a_large_one(pool):
    order, gate = [], Gate(pool)
    large = await asyncio.create_task(submit(pool, order, "large", 4))
    small = await asyncio.create_task(submit(pool, order, "small", 1))
    gate.open()
    for future in large + small:
        await future
    assert order == ["large0", "small0", "large1", "large2", "large3"]


async def test_requests_take_turns_and_the_order_within_each_is_kept(pool):
    order, gate = [], Gate(pool)
    futures = []
    for name in "abc":
        futures += await asyncio.create_task(submit(pool, order, name, 2))
    gate.open()
    for future in futures:
        await future
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1"]


async def test_a_request_that_comes_late_does_not_get_the_turns_that_it_missed(pool):
    order = []
    for future in await asyncio.create_task(submit(pool, order, "early", 5)):
        await future
    gate = Gate(pool)
    first = await asyncio.create_task(submit(pool, order, "first", 3))
    second = await asyncio.create_task(submit(pool, order, "second", 3))
    gate.open()
    for future in first + second:
        await future
    assert order[5:] == ["first0", "second0", "first1", "second1", "first2", "second2"]


async def test_what_leads_to_pieces_runs_between_the_first_and_the_second_of_the_others(pool):
    order, gate = [], Gate(pool)

    async def lead(name):
        new_request()
        return [pool.submit(lambda: order.append(f"lead {name}"), lead=True)]

    futures = await asyncio.create_task(lead("late"))
    futures += await asyncio.create_task(submit(pool, order, "a", 2))
    futures += await asyncio.create_task(lead("later"))
    futures += await asyncio.create_task(submit(pool, order, "b", 2))
    gate.open()
    await asyncio.gather(*futures)
    assert order == ["a0", "b0", "lead late", "lead later", "a1", "b1"]


async def test_leading_takes_no_turn(pool):
    order, gate = [], Gate(pool)

    async def one():
        new_request()
        return [
            pool.submit(lambda: order.append("lead"), lead=True),
            pool.submit(lambda: order.append("first")),
        ]

    futures = await asyncio.create_task(one())
    futures += await asyncio.create_task(submit(pool, order, "b", 2))
    gate.open()
    await asyncio.gather(*futures)
    assert order == ["first", "b0", "lead", "b1"]


async def test_cancelled_work_is_never_begun_and_leaves_its_place(pool):
    order, gate = [], Gate(pool)
    gone = await asyncio.create_task(submit(pool, order, "gone", 3))
    kept = await asyncio.create_task(submit(pool, order, "kept", 1))
    for future in gone:
        future.cancel()
    await asyncio.sleep(0)
    gate.open()
    await kept[0]
    assert order == ["kept0"]


async def test_an_error_reaches_who_waits_and_the_thread_goes_on(pool):
    with pytest.raises(ZeroDivisionError):
        await pool.submit(lambda: 1 // 0)
    assert await pool.submit(lambda: 7) == 7


async def test_closing_cancels_what_waits():
    workers = Workers(Config(decode_threads=1))
    release, running = threading.Event(), threading.Event()
    first = asyncio.create_task(workers.decode(lambda: (running.set(), release.wait(10))))
    await asyncio.to_thread(running.wait, 10)
    second = asyncio.create_task(workers.decode(lambda: "never"))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(asyncio.to_thread(workers.close))
    await asyncio.sleep(0.01)
    release.set()
    await closing
    await first
    with pytest.raises(asyncio.CancelledError):
        await second


@pytest.fixture
def pair():
    pool = FairPool("test", 2)
    yield pool
    pool.close()


async def test_an_idle_thread_assists_one_that_works(pair):
    def work():
        names = [threading.current_thread().name]
        wait = pair.assist(lambda: names.append(threading.current_thread().name))
        assert wait is not None
        wait()
        return names

    first, second = await pair.submit(work)
    assert first != second


async def test_nobody_assists_where_all_threads_have_work(pair):
    gate = Gate(pair)
    assert await pair.submit(lambda: pair.assist(lambda: None)) is None
    gate.open()
    await gate.first


async def test_nobody_assists_where_work_waits(pool, pair):
    assert await pool.submit(lambda: pool.assist(lambda: None)) is None  # its only thread is the caller
    gates = [Gate(pair), Gate(pair)]
    waiting = pair.submit(lambda: 1)
    assert pair.assist(lambda: None) is None
    for gate in gates:
        gate.open()
    assert await waiting == 1


async def test_threads_assist_once_each_and_are_free_again_afterwards(pair):
    def work():
        release = threading.Event()
        while (wait := pair.assist(release.wait)) is None:  # the other thread is on its way back
            time.sleep(0.001)
        others = pair.assist(lambda: None)
        release.set()
        wait()
        return others

    for _ in range(3):
        assert await pair.submit(work) is None


async def test_a_fault_of_the_assisting_thread_reaches_the_wait(pair):
    with pytest.raises(ZeroDivisionError):
        await pair.submit(lambda: pair.assist(lambda: 1 // 0)())
    assert await asyncio.gather(pair.submit(lambda: 1), pair.submit(lambda: 2)) == [1, 2]


async def test_closing_waits_for_an_assisted_call_and_nobody_assists_afterwards(pair):
    asked, go_on, helped = threading.Event(), threading.Event(), []

    def work():
        asked.set()
        go_on.wait(10)
        return pair.assist(lambda: helped.append(1))

    first = asyncio.ensure_future(pair.submit(work))
    await asyncio.to_thread(asked.wait, 10)
    closing = asyncio.create_task(asyncio.to_thread(pair.close))
    while not pair._closed:
        await asyncio.sleep(0.005)
    go_on.set()
    await closing
    assert (await first, helped) == (None, [])


async def test_a_closed_pool_takes_nothing_and_may_be_closed_again(pair):
    pair.close()
    with pytest.raises(RuntimeError, match="closed"):
        pair.submit(lambda: 1)


async def test_work_that_raises_what_no_future_takes_ends_its_wait(pool):
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(pool.submit(lambda: next(iter(()))), 10)
