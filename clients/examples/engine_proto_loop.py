"""A scheduler loop before an engine behind SMG's gRPC proto: pixels go by their place in shared memory."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from patchloom_client.client import AsyncClient
from patchloom_client.integrations import engine_proto
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_client.stream import Stream

Generate = Callable[[list[int], dict[str, Any]], Awaitable[Any]]


async def serve(address: str, bodies: Iterable[Mapping[str, Any]], generate: Generate) -> list[Any]:
    """The answers of `generate(ids, fields)`, which sends GenerateRequest with MultimodalInputs(**fields)."""
    async with AsyncClient(address) as client, client.stream() as stream:
        return await asyncio.gather(*(_answer(stream, body, generate) for body in bodies))


async def _answer(stream: Stream, body: Mapping[str, Any], generate: Generate) -> Any:
    request = PROTOCOLS["chat"](body)
    apply_options(request, {"transport": "shared_memory", "dtype": "bfloat16"})
    with await stream.preprocess(request) as response:
        ids = response.token_ids
        fields = engine_proto.vllm_inputs(response) if response.items else {}
        # The engine maps the segment by its name; the lease lasts until its first answer.
        return await generate(ids, fields)
