"""An agent's history, turn by turn: screenshots come back with every request and one of them is new.

The peer is transformers' image processor on all images of the turn, decoding included; it knows no earlier
turn. Ours is the whole pipeline on the request, ids included, with every image but the last in the cache.
CPU time of the process, all threads. The last turn is taken several times, of ours each time with another
new screenshot: the first takes fresh memory for its output, the others what it gave back. The first of both
is left out.
"""

import asyncio
import time
from pathlib import Path

from patchloom_client.protocols import apply_options
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.preprocessor import Preprocessor

from bench.local import pipeline, read
from bench.peers import Peer
from bench.table import Row
from bench.workloads import encode, request_of, screenshot

TURNS = 15
_LAST = 4
_LEAST = 20.0


def run(model_dir: Path, peers: list[Peer]) -> list[Row]:
    """The last turn per peer: all pixels sent, and only those that the executor does not know."""
    shots = [encode(screenshot(1080, 1920, seed), "PNG") for seed in range(TURNS + _LAST - 1)]
    rows = []
    for peer in peers:
        theirs = peer.batches(model_dir, [shots[:TURNS]], repeats=_LAST)[0][1:]
        for known in (False, True):
            ours = asyncio.run(_turns(model_dir, peer.parity, shots, known))[1:]
            what = "new pixels sent" if known else "all pixels sent"
            rows.append(Row(f"agent turn {TURNS}, {what} vs {peer.name}", ours, theirs, _LEAST))
    return rows


async def _turns(model_dir: Path, parity: str, shots: list[bytes], known: bool) -> list[float]:
    """CPU seconds of the last turn, per new screenshot."""
    with pipeline(model_dir, parity=parity, pixel_cache_bytes=1 << 30) as preprocessor:
        keys: list[str] = []
        for turn in range(1, TURNS):
            _, keys = await _timed(preprocessor, shots[:turn], keys if known else [])
        times = []
        for new in shots[TURNS - 1 :]:
            seconds, _ = await _timed(preprocessor, [*shots[: TURNS - 1], new], keys if known else [])
            times.append(seconds)
    return times


async def _timed(preprocessor: Preprocessor, shots: list[bytes], known: list[str]) -> tuple[float, list[str]]:
    message = _turn(shots)
    apply_options(message, {"known_content_keys": known})
    start = time.process_time()
    result = await preprocessor.preprocess(read(message))
    seconds = time.process_time() - start
    preprocessor.recycle(result)
    return seconds, [item.content_key for item in result.items]


def _turn(shots: list[bytes]) -> pb.PreprocessRequest:
    """A user's task and the screenshots so far, each in a message of its own."""
    request = request_of(shots[:1], "book the cheapest flight")
    for number, shot in enumerate(shots[1:], 2):
        for role, text in ((pb.ROLE_ASSISTANT, f"click {number}"), (pb.ROLE_USER, f"screen {number}")):
            message = request.conversation.messages.add(role=role)
            message.content.add().text.text = text
        message.content.add().image.source.data = shot
    return request
