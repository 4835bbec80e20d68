"""Patchloom's own options: every name, its values, and what is refused."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from patchloom_client.errors import InvalidMessage
from patchloom_client.protocols import OPTIONS, apply_options
from patchloom_proto import preprocess_pb2 as pb


def applied(**options):
    request = pb.PreprocessRequest()
    apply_options(request, options)
    return request


def refusal(**options):
    with pytest.raises(InvalidMessage) as caught:
        applied(**options)
    return caught.value.field_path, caught.value.message


def test_every_option_lands_in_its_field():
    request = applied(
        parity="aten_u8",
        dtype="float32",
        encoding="uint8",
        literals="reject",
        tool_results="hoist",
        add_generation_prompt=False,
        continue_final_message=True,
        template_kwargs={"enable_thinking": False},
        reasoning_effort="high",
        now="2026-01-01T00:00:00Z",
        min_pixels=3136,
        max_pixels=12845056,
        detail="auto",
        background="#ff8000",
        positions=True,
        known_content_keys=["a", "b"],
        shards=8,
        transport="shared_memory",
        expected_fingerprint="f",
        show_messages=True,
        lease_time=1.5,
    )
    assert request == pb.PreprocessRequest(
        render=pb.RenderOptions(
            add_generation_prompt=False,
            continue_final_message=True,
            template_kwargs=b'{"enable_thinking":false}',
            reasoning_effort="high",
            now=Timestamp(seconds=1767225600),
            literals=pb.LITERAL_POLICY_REJECT,
            tool_results=pb.TOOL_RESULT_POLICY_HOIST,
        ),
        image_options=pb.ImageOptions(detail=pb.IMAGE_DETAIL_AUTO, min_pixels=3136, max_pixels=12845056),
        output=pb.OutputOptions(
            parity=pb.PARITY_ATEN_U8,
            dtype=pb.DTYPE_FLOAT32,
            encoding=pb.ENCODING_UINT8,
            transport=pb.TRANSPORT_SHARED_MEMORY,
            positions=True,
            known_content_keys=["a", "b"],
            shards=8,
            background=0xFF8000,
            show_messages=True,
            lease_time=Duration(seconds=1, nanos=500_000_000),
        ),
        expected_fingerprint="f",
    )


def test_the_options_are_the_fields_of_the_contract():
    fields = {
        field.name
        for message in (pb.RenderOptions, pb.ImageOptions, pb.OutputOptions)
        for field in message.DESCRIPTOR.fields
    }
    assert set(OPTIONS) == fields | {"expected_fingerprint"}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float32", pb.DTYPE_FLOAT32),
        ("fp32", pb.DTYPE_FLOAT32),
        ("bfloat16", pb.DTYPE_BFLOAT16),
        ("bf16", pb.DTYPE_BFLOAT16),
        ("float16", pb.DTYPE_FLOAT16),
        ("fp16", pb.DTYPE_FLOAT16),
    ],
)
def test_a_dtype_has_two_spellings(name, dtype):
    assert applied(dtype=name).output.dtype == dtype


@pytest.mark.parametrize(
    ("value", "seconds", "nanos"),
    [
        ("2026-01-01T01:00:00+01:00", 1767225600, 0),
        ("2026-01-01", 1767225600, 0),
        ("2026-01-01T00:00:00.25", 1767225600, 250_000_000),
        (1767225600, 1767225600, 0),
        (0.5, 0, 500_000_000),
    ],
)
def test_now_is_a_time_or_seconds_and_utc_without_a_zone(value, seconds, nanos):
    assert applied(now=value).render.now == Timestamp(seconds=seconds, nanos=nanos)


@pytest.mark.parametrize(
    ("value", "text"), [("high", "high"), (0.9, "0.9"), (1, "1"), (0, "0"), ("0.25", "0.25")]
)
def test_an_effort_is_a_name_or_a_number(value, text):
    assert applied(reasoning_effort=value).render.reasoning_effort == text


@pytest.mark.parametrize(
    ("value", "number"), [("#ffffff", 0xFFFFFF), ("000080", 0x80), (0x102030, 0x102030), (0, 0)]
)
def test_a_background_is_a_colour_or_its_number(value, number):
    request = applied(background=value)
    assert request.output.HasField("background")
    assert request.output.background == number


def test_null_leaves_an_option_as_it_is_and_later_options_win():
    request = applied(dtype="fp32", template_kwargs={"a": 1, "b": 2})
    apply_options(request, {"dtype": None, "template_kwargs": '{"b": 3, "c": 4}', "shards": 2})
    assert request.output == pb.OutputOptions(dtype=pb.DTYPE_FLOAT32, shards=2)
    assert request.render.template_kwargs == b'{"a":1,"b":3,"c":4}'


def test_an_unknown_option_is_refused_with_the_list():
    path, message = refusal(dtyp="fp32")
    assert path == "patchloom.dtyp"
    assert message == f"unknown option; known are {', '.join(OPTIONS)}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("parity", "pillow"),
        ("dtype", "uint8"),
        ("dtype", ["fp32"]),
        ("encoding", 1),
        ("literals", "LITERAL"),
        ("tool_results", "drop"),
        ("add_generation_prompt", "true"),
        ("continue_final_message", 1),
        ("template_kwargs", [1]),
        ("template_kwargs", "{"),
        ("reasoning_effort", 1.5),
        ("reasoning_effort", True),
        ("reasoning_effort", float("nan")),
        ("now", "yesterday"),
        ("now", -1),
        ("now", 1e12),
        ("now", float("nan")),
        ("now", "0001-01-01T00:00:00Z"),
        ("now", True),
        ("min_pixels", 0),
        ("max_pixels", 1.5),
        ("max_pixels", 2**64),
        ("max_pixels", True),
        ("detail", "medium"),
        ("background", "white"),
        ("background", "#fff"),
        ("background", 0x1000000),
        ("positions", "x"),
        ("known_content_keys", "abc"),
        ("shards", -1),
        ("transport", "pigeon"),
        ("expected_fingerprint", 3),
        ("show_messages", "yes"),
        ("lease_time", 0),
        ("lease_time", "10"),
        ("lease_time", float("inf")),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_at_its_option(name, value):
    assert refusal(**{name: value})[0] == f"patchloom.{name}"


def test_the_path_of_the_command_line_is_its_own():
    with pytest.raises(InvalidMessage) as caught:
        apply_options(pb.PreprocessRequest(), {"shards": "x"}, "--")
    assert caught.value.field_path == "--.shards"
