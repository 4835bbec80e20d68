"""A scheduler loop before vLLM's token-in endpoint: count first, then send pixels, then forget them."""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from patchloom_client.client import AsyncClient
from patchloom_client.integrations import vllm
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_client.stream import Stream

Engine = Callable[[dict[str, Any]], Awaitable[Any]]


async def serve(address: str, bodies: Iterable[Mapping[str, Any]], engine: Engine) -> list[Any]:
    """The engine's answers to Chat Completions bodies, all in flight over one stream."""
    async with AsyncClient(address) as client, client.stream() as stream:
        return await asyncio.gather(*(_answer(stream, body, engine) for body in bodies))


async def _answer(stream: Stream, body: Mapping[str, Any], engine: Engine) -> Any:
    request = PROTOCOLS["chat"](body)
    apply_options(request, {"transport": "shared_memory", "dtype": "bfloat16"})
    with await stream.preprocess(request) as response:
        made = vllm.generate_body(response, {"max_tokens": body.get("max_tokens", 128)})
    return await engine(made)


def over_http(url: str) -> Engine:
    """An engine at `url`."""

    def post(body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode("utf-8")
        request = urllib.request.Request(
            f"{url}/inference/v1/generate", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    return lambda body: asyncio.to_thread(post, body)


if __name__ == "__main__":
    print(asyncio.run(serve(sys.argv[1], json.load(sys.stdin), over_http(sys.argv[2]))))
