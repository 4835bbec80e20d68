"""Thread pools beside the event loop: rendering and pixel work never run on it.

Each pool takes turns between requests, so that one image does not wait for the hundred of another request.
"""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from patchloom_service.config import Config

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Turns:
    """The place of a request in each pool's order: the turn of its last piece of work."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}


_request: ContextVar[_Turns | None] = ContextVar("patchloom_request", default=None)


def new_request() -> None:
    """Work that this task and its children ask for from now on belongs to a request of its own."""
    _request.set(_Turns())


class Workers:
    """The pools of a service; `close` waits for what runs and drops what waits."""

    def __init__(self, config: Config) -> None:
        self._render = FairPool("render", config.render_threads)
        self._decode = FairPool("decode", config.decode_threads)
        self._kernel = FairPool("kernel", config.kernel_threads)

    async def render(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs text work: normalize, probe, render, tokenize, expand."""
        return await asyncio.wrap_future(self._render.submit(lambda: function(*args, **kwargs)))

    async def decode(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs the decoding and resizing of one image."""
        return await asyncio.wrap_future(self._decode.submit(lambda: function(*args, **kwargs)))

    async def kernel(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs a kernel that writes to an output."""
        return await asyncio.wrap_future(self._kernel.submit(lambda: function(*args, **kwargs)))

    def close(self) -> None:
        """Ends the pools."""
        for pool in (self._render, self._decode, self._kernel):
            pool.close()


class FairPool:
    """Threads that serve requests in turn: the n-th piece of a request waits for the n-th of the others.

    A request that arrives starts at the present turn (start-time fair queueing, with equal costs). Work
    whose future is cancelled before its turn is never begun.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []
        self._turn = 0

    def submit(self, function: Callable[[], _T]) -> "Future[_T]":
        """The result to come. Runs for the request of the current context."""
        future: Future[_T] = Future()
        turns = _request.get() or _Turns()
        with self._lock:
            turn = max(self._turn, turns.last.get(self._name, 0)) + 1
            turns.last[self._name] = turn
            heapq.heappush(self._waiting, (turn, next(self._numbers), future, function))
        self._pool.submit(self._run_next)
        return future

    def close(self) -> None:
        """Cancels what waits, then waits for what runs."""
        with self._lock:
            for _, _, future, _ in self._waiting:
                future.cancel()
        self._pool.shutdown(wait=True)

    def _run_next(self) -> None:
        with self._lock:
            turn, _, future, function = heapq.heappop(self._waiting)
            self._turn = max(self._turn, turn - 1)
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - it belongs to who waits
            future.set_exception(error)
        else:
            future.set_result(result)
