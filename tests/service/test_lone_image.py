"""A short request of one image is done on one thread: the same answer, the same errors, the same bounds."""

import asyncio
import threading

import pytest
from patchloom_client.errors import (
    ContentKeyNotFound,
    DeadlineExceeded,
    InvalidImage,
    LimitExceeded,
    PatchloomError,
)
from patchloom_service import batching, preprocessor
from patchloom_service.config import Config
from patchloom_service.errors import InvalidImage as InvalidServiceImage
from patchloom_service.types import (
    Conversation,
    ImagePart,
    MediaSource,
    Message,
    RenderOptions,
    Request,
    Role,
    SourceKind,
    TextPart,
    TokenPrompt,
    ToolCall,
)
from patchloom_service.workers import FairPool

from tests.support.servers import png, request, running

SHARED = {"transport": "shared_memory"}
MOST = Config().max_inflight_bytes
IMAGE = ImagePart(MediaSource(SourceKind.DATA, data=b"x"))


@pytest.fixture
def apart(monkeypatch):
    """As if no request were short: every one takes the way of several images."""

    def switch(on: bool) -> None:
        if on:
            monkeypatch.setattr(preprocessor, "_short_images", lambda request: 0)
        else:
            monkeypatch.undo()

    return switch


def comparable(response):
    message = type(response.message).FromString(response.message.SerializeToString())
    message.timings_ms.clear()
    for name in ("segment_hits", "segment_misses"):  # the models of tests share their tokenizer
        message.counters.ClearField(name)
    for tensor in message.tensors.values():
        tensor.ClearField("handle")
    return message, {name: tensor.array.tobytes() for name, tensor in response.tensors.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16", "positions": True, "shards": 2},
        {"encoding": "uint8", "show_messages": True},
        {"parity": "pillow12", "background": 0x102030},
    ],
    ids=["float32", "bfloat16", "uint8", "parity"],
)
@pytest.mark.parametrize("cached", [0, 1 << 20], ids=["no cache", "cache"])
async def test_the_answer_is_that_of_the_other_way(options, cached, apart):
    answers = []
    for on in (False, True):
        apart(on)
        async with running(pixel_cache_bytes=cached) as (_, client):
            for _ in range(2):  # the second from the cache, where there is one
                with await client.preprocess(request(png(3, 60, 91), options=options | SHARED)) as response:
                    answers.append(comparable(response))
    assert answers[0] == answers[2]
    assert answers[1] == answers[3]
    assert answers[0][1] == answers[1][1]


@pytest.mark.parametrize(
    ("image", "settings", "error"),
    [
        (png(1)[:200], {}, InvalidImage),
        (b"no image", {}, InvalidImage),
        (png(1, 200, 200), {"max_image_pixels": 1000}, PatchloomError),
        (png(1), {"max_prompt_tokens": 2}, LimitExceeded),
    ],
    ids=["damaged", "unknown", "too large", "too long"],
)
async def test_errors_name_the_place_and_leave_nothing(image, settings, error, apart):
    texts = []
    for on in (False, True):
        apart(on)
        async with running(**settings) as (server, client):
            with pytest.raises(error) as caught:
                await client.preprocess(request(image, options=SHARED))
            texts.append((caught.value.reason, caught.value.field_path, caught.value.message))
            assert len(server.transports.leases) == 0
            server.transports.sweep()
            assert server.transports.gauges()["patchloom_shm_bytes"] == 0
            assert server.preprocessor._engine._budget._free == MOST
    assert texts[0] == texts[1]


async def test_a_known_key_is_sent_without_pixels_and_a_missing_key_is_an_error():
    async with running() as (_, client):
        with await client.preprocess(request(png(1), options=SHARED)) as response:
            key = response.items[0].content_key
        known = {"known_content_keys": [key]}
        with await client.preprocess(request(png(1), options=SHARED | known)) as response:
            assert response.items[0].known
            assert "pixel_values" not in response.tensors
        by_key = request(png(1), options=SHARED)
        by_key.conversation.messages[0].content[1].image.source.content_key = key
        with await client.preprocess(by_key) as response:
            assert response.message.counters.decodes == 0
            assert response.tensors["pixel_values"].array.size
        by_key.conversation.messages[0].content[1].image.source.content_key = "0" * 64
        with pytest.raises(ContentKeyNotFound):
            await client.preprocess(by_key)


async def test_where_no_memory_is_free_at_once_it_waits_its_turn_elsewhere():
    async with running() as (server, client):
        budget = server.preprocessor._engine._budget
        await budget.take(MOST)
        task = asyncio.create_task(client.preprocess(request(png(1), options=SHARED)))
        await asyncio.sleep(0.3)
        assert not task.done()
        with await client.preprocess(request(options=SHARED)) as response:  # no thread is held meanwhile
            assert response.token_ids
        budget.give(MOST)
        with await task as response:
            assert response.tensors["pixel_values"].array.size


async def test_without_shared_memory_answers_come_inline_and_say_so(monkeypatch):
    async with running() as (server, client):
        monkeypatch.setattr(server.transports, "_arena", None)
        with await client.preprocess(request(png(1), options=SHARED)) as response:
            assert [w.reason for w in response.message.warnings] == ["TRANSPORT_FELL_BACK"]
            assert response.message.tensors["pixel_values"].WhichOneof("payload") == "inline"


async def test_a_deadline_ends_the_wait_while_the_thread_goes_on(monkeypatch):
    async with running(decode_threads=1) as (server, client):
        release = threading.Event()
        begun = server.preprocessor._normalize
        monkeypatch.setattr(
            server.preprocessor, "_normalize", lambda made: (release.wait(30), begun(made))[1]
        )
        with pytest.raises(DeadlineExceeded):
            await client.preprocess(request(png(1), options=SHARED), timeout=0.3)
        release.set()
        with await client.preprocess(request(png(2), options=SHARED)) as response:
            assert response.tensors["pixel_values"].array.size


def _request(*content, role=Role.USER, messages=1, tools=(), **fields):
    message = Message(role, content, **fields)
    empty = Message(Role.USER, (TextPart("a"),))
    others = (empty,) * (messages - 1)
    return Request("", Conversation((message, *others), tuple(tools), RenderOptions()))


@pytest.mark.parametrize(
    ("made", "images"),
    [
        (_request(TextPart("look"), IMAGE), 1),
        (_request(IMAGE, messages=32), 1),
        (_request(IMAGE, messages=33), 0),
        (_request(IMAGE, IMAGE), 2),
        (_request(TextPart("look")), 0),
        (_request(TextPart("a" * 70_000), IMAGE), 0),
        (_request(IMAGE, reasoning="a" * 70_000), 0),
        (_request(IMAGE, tools=({"name": "a"},)), 0),
        (_request(IMAGE, tool_calls=(ToolCall("1", "a", {}),)), 0),
        (Request("", TokenPrompt((1, 2, 3), (IMAGE,))), 1),
        (Request("", TokenPrompt((1, 2, 3), (IMAGE, IMAGE))), 2),
        (Request("", TokenPrompt((1,) * 70_000, (IMAGE,))), 0),
    ],
)
def test_short_requests_have_few_messages_and_little_text(made, images):
    assert preprocessor._short_images(made) == images


@pytest.mark.parametrize("images", [1, 2])
async def test_an_idle_decoder_takes_half_of_a_large_image_and_no_pixel_changes(images, monkeypatch):
    answers, given = [], []
    assist = FairPool.assist

    def counting(pool, function):
        wait = assist(pool, function)
        given.append(wait is not None)
        return wait

    monkeypatch.setattr(FairPool, "assist", counting)
    asked = request(*(png(seed, 450, 700) for seed in range(images)), options=SHARED | {"dtype": "float32"})
    for threads in (1, 2, 4):
        given.clear()
        async with running(decode_threads=threads, pixel_cache_bytes=0) as (_, client):
            for _ in range(3):
                with await client.preprocess(asked) as response:
                    answers.append(comparable(response))
        assert not any(given) if threads == 1 else threads == images or any(given)
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("together", [1, 2])
async def test_those_who_wait_for_one_image_leave_the_threads_to_others(monkeypatch, together):
    """`together` images of one slow file a request, in three requests, with two threads for images."""
    decoded, begun, gate = batching._decoded, threading.Event(), threading.Event()

    def slow(work, settings):
        if work.header.pixels > 100_000:
            begun.set()
            gate.wait(20)
        return decoded(work, settings)

    monkeypatch.setattr(batching, "_decoded", slow)
    async with running(decode_threads=2) as (server, client):
        same = request(*[png(1, 448, 448)] * together)
        first = asyncio.create_task(client.preprocess(same))
        await asyncio.to_thread(begun.wait, 20)
        others = [asyncio.create_task(client.preprocess(same)) for _ in range(3)]
        while server.preprocessor._active < 4:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(client.preprocess(request(png(2), png(3))), 10)
        gate.set()
        answers = await asyncio.gather(first, *others)
        assert [answer.message.counters.decodes for answer in answers] == [1, 0, 0, 0]
        assert len({answer.tensors["pixel_values"].array.tobytes() for answer in answers}) == 1


async def test_an_error_of_the_image_that_others_wait_for_names_each_ones_place(monkeypatch):
    begun, gate = threading.Event(), threading.Event()

    def broken(work, settings):
        begun.set()
        gate.wait(20)
        raise InvalidServiceImage("broken")

    monkeypatch.setattr(batching, "_decoded", broken)
    async with running(decode_threads=2) as (_, client):
        first = asyncio.create_task(client.preprocess(request(png(1, 448, 448))))
        await asyncio.to_thread(begun.wait, 20)
        second = asyncio.create_task(client.preprocess(request(png(1, 448, 448), png(1, 448, 448))))
        await asyncio.sleep(0.2)
        gate.set()
        found = await asyncio.gather(first, second, return_exceptions=True)
    assert [(type(error), error.field_path[:20]) for error in found] == [
        (InvalidImage, "messages[0].content["),
        (InvalidImage, "messages[0].content["),
    ]
