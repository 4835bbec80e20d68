"""A scheduler loop before SGLang's Engine: ids and pixels go in as they are, nothing is tokenized twice.

Run it with SGLANG_MM_AVOID_RETOKENIZE=1, so that the engine keeps the ids.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from patchloom_client.client import AsyncClient
from patchloom_client.integrations import sglang
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_client.stream import Stream

Generate = Callable[..., Awaitable[Any]]


async def serve(address: str, bodies: Iterable[Mapping[str, Any]], generate: Generate) -> list[Any]:
    """The answers of `generate` (Engine.async_generate) to Chat Completions bodies."""
    async with AsyncClient(address) as client, client.stream() as stream:
        return await asyncio.gather(*(_answer(stream, body, generate) for body in bodies))


async def _answer(stream: Stream, body: Mapping[str, Any], generate: Generate) -> Any:
    request = PROTOCOLS["chat"](body)
    apply_options(request, {"transport": "shared_memory", "dtype": "bfloat16"})
    # The tensors are views of leased memory: the lease lasts until the engine has answered.
    with await stream.preprocess(request) as response:
        return await generate(**sglang.generate_arguments(response))
