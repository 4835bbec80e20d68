"""A cache bounded in bytes that computes each missing value once, however many ask for it."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

Value = TypeVar("Value")
_Key: TypeAlias = tuple[str, str]  # (namespace, key): what one namespace stored, another never sees


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the start. A miss is a value that had to be computed, a join a wait for one in the making."""

    hits: int
    misses: int
    joins: int
    evictions: int
    entries: int
    bytes: int


async def arrival(flight: Future[Value]) -> Value:
    """What another thread computes, waited for on the event loop; cancelling the wait ends only the wait."""
    return flight.result() if flight.done() else await asyncio.wrap_future(flight)


class Cache(Generic[Value]):
    """Least recently used values up to `capacity` bytes; 0 keeps nothing and still joins requests.

    Safe to use from any thread. Values are shared, so nobody may change them.
    """

    def __init__(self, capacity: int, size: Callable[[Value], int]) -> None:
        self._capacity, self._size = capacity, size
        self._lock = threading.Lock()
        self._values: OrderedDict[_Key, tuple[Value, int]] = OrderedDict()
        self._flights: dict[_Key, Future[Value]] = {}
        self._bytes = self._hits = self._misses = self._joins = self._evictions = 0

    def peek(self, namespace: str, key: str) -> Value | None:
        """The value, now the most recently used one, None where it is not there; counts nothing."""
        with self._lock:
            return self._find((namespace, key))

    def put(self, namespace: str, key: str, value: Value) -> None:
        """Keep a value, unless it is larger than the whole cache."""
        size = self._size(value)
        with self._lock:
            self._store((namespace, key), value, size)

    def counters(self) -> Counters:
        """A consistent reading."""
        with self._lock:
            return Counters(
                self._hits,
                self._misses,
                self._joins,
                self._evictions,
                len(self._values),
                self._bytes,
            )

    def get_or_compute(self, namespace: str, key: str, compute: Callable[[], Value]) -> Value:
        """The value, computed by the first thread that asks, waited for by the others.

        What `compute` raises reaches everyone who waits, and nothing is kept.
        """
        return self.get_or_lead(namespace, key, compute).result()

    def get_or_lead(self, namespace: str, key: str, compute: Callable[[], Value]) -> Future[Value]:
        """As `get_or_compute`, but does not wait for a value that another thread computes.

        The future cannot be cancelled; it is done unless another thread leads.
        """
        entry = namespace, key
        flight, leads = self._enter(entry)
        if leads:
            try:
                self._land(entry, flight, compute())
            except BaseException as error:
                self._fail(entry, flight, error)
                raise
        return flight

    def computing(self, namespace: str, key: str) -> bool:
        """Whether a thread computes the value now."""
        with self._lock:
            return (namespace, key) in self._flights

    def _enter(self, key: _Key) -> tuple[Future[Value], bool]:
        """The value to come or there already, and whether the caller has to compute it."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                self._joins += 1
                return flight, False
            flight = Future()
            flight.set_running_or_notify_cancel()
            found = self._find(key)
            if found is not None:
                self._hits += 1
                flight.set_result(found)
                return flight, False
            self._flights[key] = flight
            self._misses += 1
            return flight, True

    def _land(self, key: _Key, flight: Future[Value], value: Value) -> None:
        size = self._size(value)
        with self._lock:
            self._flights.pop(key, None)
            self._store(key, value, size)
        flight.set_result(value)

    def _fail(self, key: _Key, flight: Future[Value], error: BaseException) -> None:
        with self._lock:
            self._flights.pop(key, None)
        flight.set_exception(error)

    def _find(self, key: _Key) -> Value | None:
        entry = self._values.get(key)
        if entry is None:
            return None
        self._values.move_to_end(key)
        return entry[0]

    def _store(self, key: _Key, value: Value, size: int) -> None:
        if size > self._capacity:
            return
        previous = self._values.pop(key, None)
        self._bytes -= previous[1] if previous else 0
        self._values[key] = (value, size)
        self._bytes += size
        while self._bytes > self._capacity:
            _, (_, freed) = self._values.popitem(last=False)
            self._bytes -= freed
            self._evictions += 1
