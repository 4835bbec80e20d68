"""A real server on a loopback port, in the test's event loop, and requests for it."""

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from patchloom_client.client import AsyncClient
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.served import ServedModel
from patchloom_service.server import Server
from PIL import Image

from bench.checkpoints import build_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@cache
def model_directory(family: str = "qwen2_5_vl") -> Path:
    """A checkpoint of a family with its real tokenizer, written once per process."""
    return build_checkpoint(family, ROOT / ".cache" / "checkpoints" / family)


@cache
def _model() -> ServedModel:
    return load_model(str(model_directory()), Config(), "tiny")


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Server, AsyncClient]]:
    """A server with settings over a free port's, and a client of it."""
    config = Config(**{"address": "127.0.0.1:0", "device": "cpu", "drain_timeout": 2.0, **settings})
    server = Server(config, {"tiny": _model()})
    port = await server.start()
    try:
        async with AsyncClient(f"127.0.0.1:{port}", timeout=60) as client:
            yield server, client
    finally:
        await server.stop()


def png(seed: int | None = 0, height: int = 56, width: int = 84) -> bytes:
    """A PNG of random pixels, or a small file of one colour where there is no seed."""
    shape = (height, width, 3)
    pixels = np.full(shape, 99, np.uint8)
    if seed is not None:
        pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def request(*images: bytes, options: Mapping[str, Any] | None = None) -> pb.PreprocessRequest:
    """A user message with a text and images."""
    made = PROTOCOLS["chat"]({"messages": [{"role": "user", "content": "look"}]})
    for data in images:
        made.conversation.messages[0].content.add().image.source.data = data
    apply_options(made, dict(options or {}))
    return made
