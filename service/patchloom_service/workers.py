"""Thread pools beside the event loop: rendering and pixel work never run on it.

Each pool takes turns between requests, so that one image does not wait for the hundred of another request.
"""

import asyncio
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
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
        return await self._render.submit(lambda: function(*args, **kwargs))

    async def decode(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs the decoding and resizing of one image, and what is to be done on the same thread."""
        return await self._decode.submit(lambda: function(*args, **kwargs))

    async def lead(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs the text work of a request of images, after the first images of those that came before."""
        return await self._decode.submit(lambda: function(*args, **kwargs), lead=True)

    async def kernel(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs a kernel that writes to an output."""
        return await self._kernel.submit(lambda: function(*args, **kwargs))

    def assist_decoder(self, function: Callable[[], object]) -> Callable[[], object] | None:
        """Has a decoding thread that is idle help the calling one: see FairPool.assist."""
        return self._decode.assist(function)

    def close(self) -> None:
        """Ends the pools."""
        for pool in (self._render, self._decode, self._kernel):
            pool.close()


class FairPool:
    """Threads that serve requests in turn: the n-th piece of a request waits for the n-th of the others.

    A request that arrives starts at the present turn (start-time fair queueing, with equal costs). What leads
    to pieces takes no turn: it runs between the first pieces of the others and their second. Work whose
    future is cancelled before its turn is never begun.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[_Piece] = []
        self._assists: deque[_Assist] = deque()
        self._turn = 0
        self._busy = 0
        self._closed = False
        # One token for each piece that waits. Unlike a condition, a queue's wait makes no lock of its own.
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], _T], lead: bool = False) -> "asyncio.Future[_T]":
        """The result to come, on the running event loop. Runs for the request of the current context.

        RuntimeError once the pool is closed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        turns = _request.get() or _Turns()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the pool {self._name} is closed")
            turn = max(self._turn, turns.last.get(self._name, 0)) + 1
            if not lead:
                turns.last[self._name] = turn
            heapq.heappush(self._waiting, (turn, lead, next(self._numbers), loop, future, function))
        self._tokens.put(True)
        return future

    def assist(self, function: Callable[[], object]) -> Callable[[], object] | None:
        """Begins a call on an idle thread and returns what waits for its end; None where all have work.

        For work of the pool that can be shared. What the call raises, the wait raises.
        """
        with self._lock:
            idle = len(self._threads) - self._busy - len(self._assists)
            if self._closed or self._waiting or idle <= 0:
                return None
            assist = _Assist(function)
            self._assists.append(assist)
            self._tokens.put(True)
        return assist.wait

    def close(self) -> None:
        """Cancels what waits, then waits for what runs."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for *_, loop, future, _ in waiting:
            _tell(loop, future.cancel)
        for _ in self._threads:
            self._tokens.put(False)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while self._tokens.get():
            with self._lock:
                begin = self._next()
                self._busy += 1
            begin()
            del begin  # or its work would live until the next
            with self._lock:
                self._busy -= 1

    def _next(self) -> Callable[[], object]:
        """What is due, under the lock."""
        if self._assists:
            return self._assists.popleft().run
        if not self._waiting:  # it was cancelled by `close`
            return lambda: None
        work = heapq.heappop(self._waiting)
        self._turn = max(self._turn, work[0] - 1)
        return partial(_work, *work[3:])


class _Assist:
    """A call that another thread makes."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Makes it."""
        _, self._error = _outcome(self._function)
        self._over.set()

    def wait(self) -> None:
        """Waits for its end and raises what it raised."""
        self._over.wait()
        if self._error is not None:
            raise self._error


_Piece = tuple[int, bool, int, asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


def _work(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", function: Callable[[], Any]
) -> None:
    if not future.cancelled():
        _tell(loop, _settle, future, *_outcome(function))


def _outcome(function: Callable[[], _T]) -> tuple[_T | None, BaseException | None]:
    try:
        return function(), None
    except StopIteration as error:  # which no future takes
        return None, RuntimeError(f"the work raised {error!r}")
    except BaseException as error:  # noqa: BLE001 - it belongs to who waits
        return None, error


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: Any) -> None:
    """Calls on the loop, if it still runs."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
