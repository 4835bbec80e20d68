import asyncio
import threading

import pytest
from patchloom_service.errors import InvalidImage
from patchloom_service.media.cache import Cache, Counters, arrival


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


def test_an_error_reaches_every_waiter():
    values = cache()

    def fail() -> bytes:
        while values.counters().joins < 2:
            pass
        raise InvalidImage("broken")

    def ask() -> None:
        with pytest.raises(InvalidImage) as caught:
            values.get_or_compute("n", "a", fail)
        errors.append(str(caught.value))

    errors: list[str] = []
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["broken"] * 3
    assert values.counters().entries == 0


async def test_a_thread_that_comes_second_does_not_wait_but_the_event_loop_may():
    values, started, finish = cache(), threading.Event(), threading.Event()

    def compute() -> bytes:
        started.set()
        finish.wait(10)
        return b"x"

    leading = asyncio.create_task(asyncio.to_thread(values.get_or_lead, "n", "a", compute))
    await asyncio.to_thread(started.wait, 10)
    assert values.computing("n", "a")
    second = values.get_or_lead("n", "a", never)
    assert not second.done()
    waits = [asyncio.create_task(arrival(second)) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()  # ends its own wait, not the computation
    finish.set()
    assert await waits[1] == (await leading).result() == b"x"
    assert not values.computing("n", "a")
    assert await arrival(values.get_or_lead("n", "a", never)) == b"x"


async def test_an_error_reaches_who_waits_on_the_event_loop():
    values, started, finish = cache(), threading.Event(), threading.Event()

    def fail() -> bytes:
        started.set()
        finish.wait(10)
        raise ValueError("broken")

    leading = asyncio.create_task(asyncio.to_thread(values.get_or_lead, "n", "a", fail))
    await asyncio.to_thread(started.wait, 10)
    waiting = asyncio.create_task(arrival(values.get_or_lead("n", "a", fail)))
    finish.set()
    for task in (leading, waiting):
        with pytest.raises(ValueError, match="broken"):
            await task
