"""Batches close at a size or after a wait, in the order of arrival; a failing one fails its own items."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest
from patchloom_service.batch_former import BatchFormer


@dataclass
class Item:
    name: str
    nbytes: int = 1
    result: Future[str] = field(default_factory=Future)


def former(run, max_bytes=100, wait=0.2, at_a_time=1):
    return BatchFormer(run, max_bytes, wait, at_a_time)


def recorder(batches):
    def run(batch):
        batches.append([item.name for item in batch])
        for item in batch:
            item.result.set_result(item.name)

    return run


def test_what_arrives_within_the_wait_runs_together_and_in_order():
    batches = []
    made = former(recorder(batches))
    items = [Item(name) for name in "abc"]
    made.submit(items[:2])
    made.submit(items[2:])
    assert [item.result.result(10) for item in items] == ["a", "b", "c"]
    assert batches == [["a", "b", "c"]]
    made.close()


def test_a_batch_closes_at_its_bytes_and_a_large_item_is_alone():
    batches = []
    made = former(recorder(batches), max_bytes=10, wait=0.05)
    items = [Item("a", 6), Item("b", 4), Item("c", 30), Item("d", 1), Item("e", 10)]
    made.submit(items)
    for item in items:
        item.result.result(10)
    assert batches == [["a", "b"], ["c"], ["d"], ["e"]]
    made.close()


def test_items_that_arrive_while_a_batch_runs_are_the_next_batch():
    batches, running, go = [], threading.Event(), threading.Event()
    record = recorder(batches)

    def run(batch):
        running.set()
        assert go.wait(10)
        record(batch)

    made = former(run, wait=0.0)
    items = [Item(name) for name in "abc"]
    made.submit(items[:1])
    assert running.wait(10)
    made.submit(items[1:2])
    made.submit(items[2:])
    go.set()
    for item in items:
        item.result.result(10)
    assert batches == [["a"], ["b", "c"]]
    made.close()


def test_an_error_reaches_the_items_of_its_batch_only():
    def run(batch):
        if batch[0].name == "bad":
            raise RuntimeError("broken")
        recorder([])(batch)

    made = former(run, max_bytes=1, wait=0.0)
    bad, good = Item("bad"), Item("good")
    made.submit([bad, good])
    assert good.result.result(10) == "good"
    with pytest.raises(RuntimeError, match="broken"):
        bad.result.result(10)
    made.close()


def test_a_cancelled_item_does_not_run():
    batches = []
    made = former(recorder(batches))
    items = [Item("a"), Item("b")]
    items[0].result.cancel()
    made.submit(items)
    items[1].result.result(10)
    assert batches == [["b"]]
    made.close()


def test_close_cancels_what_waits():
    running, go = threading.Event(), threading.Event()

    def run(batch):
        running.set()
        assert go.wait(10)
        recorder([])(batch)

    made = former(run, wait=0.0)
    first, second = Item("a"), Item("b")
    made.submit([first])
    assert running.wait(10)
    made.submit([second])
    threading.Timer(0.1, go.set).start()
    made.close()
    assert first.result.result(10) == "a"
    assert second.result.cancelled()
