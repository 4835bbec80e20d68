import asyncio
import threading

import pytest
from patchloom_service.errors import InvalidImage
from patchloom_service.media.cache import Cache, Counters


def cache(capacity: int = 10) -> Cache[bytes]:
    return Cache(capacity, len)


def never() -> bytes:
    raise AssertionError("computed again")


def test_a_value_is_computed_once():
    values = cache()
    assert values.get_or_compute("n", "a", lambda: b"1") == b"1"
    assert values.get_or_compute("n", "a", never) == b"1"
    assert values.counters() == Counters(hits=1, misses=1, joins=0, evictions=0, entries=1, bytes=1)


def test_the_least_recently_used_value_goes_first():
    values = cache(10)
    values.put("n", "a", b"aaaa")
    values.put("n", "b", b"bbbb")
    assert values.peek("n", "a") == b"aaaa"
    values.put("n", "c", b"cccc")
    assert (values.peek("n", "a"), values.peek("n", "b"), values.peek("n", "c")) == (b"aaaa", None, b"cccc")
    assert values.counters().bytes == 8
    assert values.counters().evictions == 1


def test_a_replaced_value_is_counted_once():
    values = cache(10)
    values.put("n", "a", b"aaaa")
    values.put("n", "a", b"aa")
    assert (values.peek("n", "a"), values.counters().bytes) == (b"aa", 2)


def test_a_value_larger_than_the_cache_is_returned_and_not_kept():
    values = cache(3)
    values.put("n", "a", b"aaa")
    assert values.get_or_compute("n", "b", lambda: b"bbbb") == b"bbbb"
    assert (values.peek("n", "a"), values.peek("n", "b")) == (b"aaa", None)


def test_what_one_namespace_stored_another_never_sees():
    values = cache()
    values.put("one", "a", b"1")
    assert values.peek("two", "a") is None


def test_threads_that_ask_together_share_one_computation():
    values, ready, computed = cache(), threading.Barrier(8), []

    def compute() -> bytes:
        computed.append(1)
        while values.counters().joins < 7:
            pass
        return b"x"

    def ask() -> None:
        ready.wait()
        answers.append(values.get_or_compute("n", "a", compute))

    answers: list[bytes] = []
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, computed) == ([b"x"] * 8, [1])


def test_an_error_is_raised_and_nothing_kept():
    values = cache()

    def fail() -> bytes:
        raise InvalidImage("broken")

    with pytest.raises(InvalidImage):
        values.get_or_compute("n", "a", fail)
    assert values.get_or_compute("n", "a", lambda: b"1") == b"1"


async def test_an_error_reaches_every_waiter():
    values = cache()

    async def fail() -> bytes:
        await asyncio.sleep(0.01)
        raise InvalidImage("broken")

    asked = [values.get_or_compute_async("n", "a", fail) for _ in range(3)]
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(error) for error in errors] == ["broken"] * 3
    assert values.counters().entries == 0


async def test_a_cancelled_waiter_harms_nobody():
    values, go = cache(), asyncio.Event()

    async def compute() -> bytes:
        await go.wait()
        return b"x"

    first = asyncio.create_task(values.get_or_compute_async("n", "a", compute))
    await asyncio.sleep(0)
    second = asyncio.create_task(values.get_or_compute_async("n", "a", compute))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    go.set()
    assert await second == b"x"
    assert first.cancelled()
    assert values.peek("n", "a") == b"x"


async def test_a_computation_that_nobody_waits_for_is_cancelled():
    values, cancelled = cache(), asyncio.Event()

    async def compute() -> bytes:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return b"x"

    only = asyncio.create_task(values.get_or_compute_async("n", "a", compute))
    await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait_for(cancelled.wait(), 5)

    async def again() -> bytes:
        return b"y"

    assert await values.get_or_compute_async("n", "a", again) == b"y"


async def test_a_coroutine_joins_the_computation_of_a_thread():
    values, started, go = cache(), threading.Event(), threading.Event()

    def compute() -> bytes:
        started.set()
        assert go.wait(5)
        return b"x"

    async def other() -> bytes:
        raise AssertionError("computed again")

    thread = asyncio.create_task(asyncio.to_thread(values.get_or_compute, "n", "a", compute))
    await asyncio.to_thread(started.wait, 5)
    joined = asyncio.create_task(values.get_or_compute_async("n", "a", other))
    await asyncio.sleep(0)
    go.set()
    assert [await thread, await joined] == [b"x", b"x"]
