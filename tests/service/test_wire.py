"""Results and requests to messages and back."""

import numpy as np
import pytest
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.config import Config
from patchloom_service.errors import InvalidMessage, LimitExceeded
from patchloom_service.result import Expansion, Result, Tensor
from patchloom_service.wire import (
    events,
    read_lease_time,
    read_request,
    serialize_chunked,
    serialize_response,
    write_response,
)
from patchloom_service.wire.read import is_light

from tests.support.servers import png, request


def result(**tensors):
    return Result(
        model="m",
        ids=np.arange(5, dtype=np.int32),
        items=(),
        fingerprint="f",
        tensors={name: Tensor(*value) for name, value in tensors.items()},
    )


def large(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 1176)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 13, 14, 100])
def test_a_serialized_response_is_the_message_of_the_result(rows):
    levels = large(rows).view(np.uint8).reshape(rows, -1)
    made = result(
        pixel_values=("float32", large(rows)),
        image_grid_thw=("int64", np.ones((1, 3), np.int64)),
        levels=("uint8", levels, Expansion("bfloat16", (rows, 9), "cthw", (14, 14), 2, 2)),
    )
    serialized = serialize_response(made, lambda array: None)
    assert pb.PreprocessResponse.FromString(serialized) == write_response(made)


def test_a_fallen_back_response_says_so_when_serialized():
    made = result(pixel_values=("float32", large(40)))
    read = pb.PreprocessResponse.FromString(serialize_response(made, lambda array: None, fell_back=True))
    assert [warning.reason for warning in read.warnings] == ["TRANSPORT_FELL_BACK"]


LONG = "a" * 1000


@pytest.mark.parametrize(
    "write",
    [
        lambda r: r.conversation.messages[0].content.add().text,
        lambda r: r.conversation.messages[0].content.add().thinking,
    ],
)
def test_the_text_of_every_part_counts(write):
    made = request(png(0, 300, 300))
    limits = Config(max_text_bytes=900)
    assert read_request(made, limits=limits).prompt.messages[0].content[0].text == "look"
    write(made).text = LONG
    with pytest.raises(LimitExceeded, match="bytes of text; at most 900 are allowed"):
        read_request(made, limits=limits)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: setattr(r.conversation.messages[0], "reasoning", LONG),
        lambda r: setattr(r.conversation.messages[0], "name", LONG),
        lambda r: r.conversation.messages[0].tool_calls.add(name="f", arguments=b"[" * 1000),
        lambda r: r.conversation.tools.append(b"{" * 1000),
        lambda r: setattr(r.render, "template_kwargs", b"{" * 1000),
        lambda r: setattr(r.conversation.messages[0].content.add().structured, "json", b"{" * 1000),
    ],
)
def test_all_other_text_counts_before_it_is_parsed(change):
    made = request()
    change(made)
    with pytest.raises(LimitExceeded, match="at most 900"):
        read_request(made, limits=Config(max_text_bytes=900))


@pytest.mark.parametrize(
    "fill",
    [
        lambda made: made.conversation.messages.extend([pb.Message(role=2)] * 5000),
        lambda made: made.conversation.messages[0].content.extend([pb.ContentPart()] * 5000),
        lambda made: made.warnings.extend([pb.Warning()] * 5000),
        lambda made: made.output.known_content_keys.extend([""] * 5000),
        lambda made: setattr(made.conversation.messages[0], "reasoning", "\U0001f600" * 30_000),
        lambda made: setattr(made.conversation.messages[0], "name", "\u00e9" * 60_000),
    ],
)
def test_thousands_of_empty_things_and_wide_characters_count_too(fill):
    made = request(png())
    fill(made)
    with pytest.raises(LimitExceeded, match="bytes of text"):
        read_request(made, limits=Config(max_text_bytes=100_000))
    assert not is_light(made) or made.conversation.messages[0].reasoning or made.conversation.messages[0].name


def test_a_light_request_is_short_in_all_its_parts():
    assert is_light(request(png()))
    for change in (
        lambda made: made.conversation.tools.append(b"{}"),
        lambda made: setattr(made.render, "template_kwargs", b" " * 5000),
        lambda made: made.conversation.messages[0].tool_calls.add(),
        lambda made: made.conversation.messages[0].content.add().structured.SetInParent(),
        lambda made: made.warnings.extend([pb.Warning()] * 33),
        lambda made: made.tokens.SetInParent(),
    ):
        made = request(png())
        change(made)
        assert not is_light(made)


def test_token_ids_and_items_are_counted_before_they_are_read():
    made = pb.PreprocessRequest()
    made.tokens.token_ids.extend([1] * 11)
    with pytest.raises(LimitExceeded, match="11 tokens; at most 10") as caught:
        read_request(made, limits=Config(max_prompt_tokens=10))
    assert caught.value.field_path == "tokens.token_ids"
    with pytest.raises(LimitExceeded, match="3 media items; at most 2") as caught:
        read_request(request(b"1", b"2", b"3"), limits=Config(max_items=2))
    assert caught.value.field_path == "messages"


@pytest.mark.parametrize("seconds", [86401, 10**11, 2**62])
def test_a_lease_of_more_than_a_day_is_refused(seconds):
    made = request()
    made.output.lease_time.seconds = seconds
    with pytest.raises(InvalidMessage, match="at most 86400 seconds") as caught:
        read_request(made)
    assert caught.value.field_path == "output.lease_time"
    renewal = pb.RenewLeasesRequest()
    renewal.lease_time.seconds = seconds
    with pytest.raises(InvalidMessage, match="at most 86400 seconds"):
        read_lease_time(renewal, "lease_time")


def test_events_of_a_stream_are_what_protobuf_writes():
    made = result(
        pixel_values=("float32", np.arange(70_000, dtype=np.float32).reshape(-1, 7)),
        image_grid_thw=("int64", np.ones((1, 3), np.int64)),
    )
    serialized, announced = serialize_chunked(made, lambda array: None, least=1000)
    response = pb.PreprocessResponse.FromString(serialized)
    assert [name for name, _ in announced] == ["pixel_values"]
    assert response.tensors["pixel_values"].chunked == 280_000
    assert len(response.tensors["image_grid_thw"].inline) == 24
    ready = events.tensors_ready("a", serialized)
    assert pb.PreprocessStreamResponse.FromString(ready) == pb.PreprocessStreamResponse(
        request_id="a", tensors_ready=response
    )
    tokens = pb.PreprocessStreamResponse.FromString(events.tokens_ready("b", serialized))
    assert (tokens.request_id, tokens.tokens_ready) == ("b", response)
    content = made.tensors["pixel_values"].array.tobytes()
    expected = [
        pb.PreprocessStreamResponse(
            request_id="c",
            chunk=pb.TensorChunk(tensor="pixel_values", offset=at, data=content[at : at + 99_999]),
        )
        for at in range(0, len(content), 99_999)
    ]
    pieces = list(events.chunks("c", "pixel_values", made.tensors["pixel_values"], 99_999))
    assert pieces == [message.SerializeToString() for message in expected]
