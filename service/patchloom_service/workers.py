"""Thread pools beside the event loop: rendering and pixel work never run on it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from patchloom_service.config import Config

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers:
    """The pools of a service; `close` waits for what runs and drops what waits."""

    def __init__(self, config: Config) -> None:
        self._render = ThreadPoolExecutor(config.render_threads, "render")
        self._decode = ThreadPoolExecutor(config.decode_threads, "decode")
        self._kernel = ThreadPoolExecutor(config.kernel_threads, "kernel")

    async def render(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs text work: normalize, probe, render, tokenize, expand."""
        return await _run(self._render, function, *args, **kwargs)

    async def decode(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs the decoding and resizing of one image."""
        return await _run(self._decode, function, *args, **kwargs)

    async def kernel(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs a kernel that writes to an output."""
        return await _run(self._kernel, function, *args, **kwargs)

    def close(self) -> None:
        """Ends the pools."""
        for pool in (self._render, self._decode, self._kernel):
            pool.shutdown(wait=True, cancel_futures=True)


async def _run(pool: Executor, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: function(*args, **kwargs))
