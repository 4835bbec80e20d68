"""The dialects together: one conversation, one request, and nothing but typed errors for anything else."""

import copy
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_client.errors import InvalidArgument, PatchloomError
from patchloom_client.protocols import PROTOCOLS
from patchloom_proto import preprocess_pb2 as pb
from pydantic import TypeAdapter

HISTORIES = Path(__file__).parents[2] / "data" / "histories"
NAMES = sorted(path.stem for path in HISTORIES.glob("*.json"))
DIALECTS = ("chat", "responses", "messages")
PNG = "iVBORw0KGgo="


def history(name):
    return json.loads((HISTORIES / f"{name}.json").read_text())


def convert(dialect, body):
    return PROTOCOLS[dialect](body)


def messages(dialect, *turns, **fields):
    key = "input" if dialect == "responses" else "messages"
    return list(convert(dialect, {key: list(turns), **fields}).conversation.messages)


@pytest.mark.parametrize("name", NAMES)
def test_a_history_converts_to_the_same_bytes_from_every_protocol(name):
    bodies = history(name)
    requests = {dialect: convert(dialect, body) for dialect, body in bodies.items()}
    wanted = requests["normalized"].SerializeToString(deterministic=True)
    assert len(requests["normalized"].conversation.messages) > 0
    for request in requests.values():
        assert request.SerializeToString(deterministic=True) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_conversion_leaves_its_input_alone(name):
    for dialect, body in history(name).items():
        before = copy.deepcopy(body)
        convert(dialect, body)
        assert body == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_as_many_images_leave_a_converter_as_entered_it(name, dialect):
    body = history(name)[dialect]
    entered = json.dumps(body).count({"messages": '"source"'}.get(dialect, '"image_url":'))
    if dialect == "chat":
        entered = json.dumps(body).count('"url":')
    left = sum(
        part.HasField("image")
        for message in convert(dialect, body).conversation.messages
        for part in message.content
    )
    assert left == entered


def check(sdk_type, value):
    """Validates a value by an SDK's type; the adapter must outlive the lazily validated iterables."""
    adapter = TypeAdapter(sdk_type)
    exhaust(adapter.validate_python(value))


def test_results_out_of_order_keep_their_ids_and_their_order():
    body = history("parallel_out_of_order")["chat"]
    converted = convert("chat", body).conversation.messages
    calls = [call.id for message in converted for call in message.tool_calls]
    results = [
        (message.tool_call_id, [part.WhichOneof("part") for part in message.content])
        for message in converted
        if message.role == pb.ROLE_TOOL
    ]
    assert calls == ["call_a", "call_b", "call_c"]
    assert results == [
        ("call_c", ["text"]),
        ("call_a", ["text", "image", "text"]),
        ("call_b", ["image"]),
    ]


def test_an_error_flag_means_the_same_in_chat_and_anthropic():
    (chat,) = messages("chat", {"role": "tool", "tool_call_id": "a", "content": "x", "is_error": True})
    block = {"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}
    assert messages("messages", {"role": "user", "content": [block]}) == [chat]


THOUGHTS = [{"type": "thinking", "thinking": value, "signature": "s"} for value in ("a", "b")]
SUMMARY = [{"type": "summary_text", "text": value} for value in ("a", "b")]
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAID = {"type": "text", "text": "ok"}


@pytest.mark.parametrize(
    ("dialect", "turns"),
    [
        ("chat", [{"role": "assistant", "content": [*THOUGHTS, SAID], "tool_calls": [CALLED]}]),
        (
            "messages",
            [
                {
                    "role": "assistant",
                    "content": [*THOUGHTS, SAID, {"type": "tool_use", "id": "c", "name": "f", "input": {}}],
                }
            ],
        ),
        (
            "responses",
            [
                {"type": "reasoning", "id": "r", "summary": SUMMARY},
                {"role": "assistant", "content": "ok"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            ],
        ),
    ],
)
def test_two_blocks_of_thinking_are_the_same_reasoning_in_every_dialect(dialect, turns):
    assert messages(dialect, *turns) == [
        pb.Message(
            role=pb.ROLE_ASSISTANT,
            reasoning="a\nb",
            content=[pb.ContentPart(text=pb.TextPart(text="ok"))],
            tool_calls=[pb.ToolCall(id="c", name="f", arguments=b"{}")],
        )
    ]


def test_converters_import_no_array_image_or_transport_library():
    code = (
        "import sys, patchloom_client.protocols;"
        "print([n for n in ('torch', 'numpy', 'PIL', 'grpc', 'pydantic') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def exhaust(value):
    """Reads lazily validated iterables to their end, so that every entry is checked."""
    if isinstance(value, dict):
        for item in value.values():
            exhaust(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            exhaust(item)


@pytest.mark.parametrize("name", NAMES)
def test_histories_are_what_the_openai_sdk_sends_as_responses(name):
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    body = {**history(name)["responses"], "stream": False}
    check(ResponseCreateParamsNonStreaming, body)


@pytest.mark.parametrize("name", NAMES)
def test_histories_are_what_the_anthropic_sdk_sends(name):
    from anthropic.types import MessageParam, ToolParam

    body = history(name)["messages"]
    for message in body["messages"]:
        check(MessageParam, message)
    for tool in body.get("tools", []):
        check(ToolParam, tool)


@pytest.mark.parametrize("name", NAMES)
def test_histories_are_what_the_openai_sdk_sends_as_chat(name):
    """Images in tool messages are an extension of engines: the SDK's type takes text there."""
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

    body = history(name)["chat"]
    for message in body["messages"]:
        if message["role"] == "tool" and isinstance(message["content"], list):
            texts = [part for part in message["content"] if part["type"] == "text"]
            message = {**message, "content": texts}
        check(ChatCompletionMessageParam, message)
    for tool in body.get("tools", []):
        check(ChatCompletionToolParam, tool)


def sdk_fields(dialect):
    """The top-level fields that the SDK of a dialect can send."""
    if dialect == "messages":
        from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as Params
    elif dialect == "chat":
        from openai.types.chat.completion_create_params import (
            CompletionCreateParamsNonStreaming as Params,
        )
    else:
        from openai.types.responses.response_create_params import (
            ResponseCreateParamsNonStreaming as Params,
        )
    return sorted(set(inspect.get_annotations(Params)) | set(Params.__annotations__))


def minimal(dialect):
    return {
        "input" if dialect == "responses" else "messages": [{"role": "user", "content": "hi"}],
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_field_of_the_sdk_is_read_ignored_or_refused_but_never_unknown(dialect):
    fields = sdk_fields(dialect)
    assert {"model", "tools"} <= set(fields)
    outcomes = {field: outcome(dialect, {**minimal(dialect), field: 1}) for field in fields}
    unknown = {field: left for field, left in outcomes.items() if left not in ("", field, "NOT_TRUNCATED")}
    assert unknown == {}


def outcome(dialect, body):
    """Where a body is refused, else the reason of its first warning, else nothing."""
    try:
        request = convert(dialect, body)
    except InvalidArgument as error:
        return error.field_path
    return next((warning.reason for warning in request.warnings), "")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_sampling_fields_are_ignored_and_an_unknown_field_gives_a_warning(dialect):
    request = convert(dialect, {**minimal(dialect), "temperature": 0.5, "stream": True, "frobnicate": 1})
    assert list(request.warnings) == [
        pb.Warning(
            reason="UNKNOWN_FIELD",
            field_path="frobnicate",
            message="this field is not known and was left out",
        )
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("field", ["chat_template", "documents"])
def test_fields_that_change_the_prompt_elsewhere_are_refused(dialect, field):
    with pytest.raises(InvalidArgument) as caught:
        convert(dialect, {**minimal(dialect), field: "x"})
    assert (caught.value.reason, caught.value.field_path) == ("UNSUPPORTED_CONTENT", field)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_extensions_of_engines_become_options(dialect):
    request = convert(
        dialect,
        {
            **minimal(dialect),
            "model": "qwen",
            "chat_template_kwargs": {"enable_thinking": False, "n": 3},
            "mm_processor_kwargs": {"min_pixels": 3136, "max_pixels": 12845056},
            "add_generation_prompt": False,
            "continue_final_message": True,
            "patchloom": {"template_kwargs": {"n": 4}, "dtype": "bf16"},
        },
    )
    assert request.model == "qwen"
    assert request.render == pb.RenderOptions(
        add_generation_prompt=False,
        continue_final_message=True,
        template_kwargs=b'{"enable_thinking":false,"n":4}',
    )
    assert request.image_options == pb.ImageOptions(min_pixels=3136, max_pixels=12845056)
    assert request.output == pb.OutputOptions(dtype=pb.DTYPE_BFLOAT16)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_unknown_processor_option_is_refused_by_name(dialect):
    with pytest.raises(InvalidArgument) as caught:
        convert(dialect, {**minimal(dialect), "mm_processor_kwargs": {"do_resize": False}})
    assert caught.value.field_path == "mm_processor_kwargs.do_resize"


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("chat", {"reasoning_effort": "high"}),
        ("responses", {"reasoning": {"effort": "high"}}),
        ("messages", {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}}),
    ],
)
def test_reasoning_effort_is_read_and_patchloom_overrides_it(dialect, fields):
    body = {**minimal(dialect), **fields}
    assert convert(dialect, body).render.reasoning_effort == "high"
    body["patchloom"] = {"reasoning_effort": 0.5}
    assert convert(dialect, body).render.reasoning_effort == "0.5"


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer", "default": 1}, "a": {}}}
TOOLS = {
    "chat": {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
    },
    "responses": {
        "type": "function",
        "strict": True,
        "parameters": SCHEMA,
        "name": "f",
        "description": "d",
    },
    "messages": {
        "strict": True,
        "input_schema": SCHEMA,
        "description": "d",
        "name": "f",
        "cache_control": {"type": "ephemeral"},
    },
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_tool_gives_the_same_bytes_in_every_dialect(dialect):
    request = convert(dialect, {**minimal(dialect), "tools": [TOOLS[dialect]]})
    assert list(request.conversation.tools) == [
        b'{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object",'
        b'"properties":{"b":{"type":"integer","default":1},"a":{}}},"strict":true}}'
    ]
    assert not request.warnings


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["web_search", "computer_20250124", "custom_grammar", "mcp"])
def test_a_tool_that_is_no_function_is_refused_by_name(dialect, kind):
    with pytest.raises(InvalidArgument) as caught:
        convert(dialect, {**minimal(dialect), "tools": [TOOLS[dialect], {"type": kind, "name": "x"}]})
    assert (caught.value.reason, caught.value.field_path) == ("UNSUPPORTED_CONTENT", "tools[1]")
    assert kind in caught.value.message


def images(dialect, block):
    (message,) = messages(dialect, {"role": "user", "content": [block]})
    return list(message.content)


@pytest.mark.parametrize(
    ("dialect", "block"),
    [
        ("chat", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
        ("chat", {"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"}),
        ("chat", {"type": "image", "image": f"data:image/png;base64,{PNG}"}),
        ("chat", {"type": "image", "base64": PNG, "media_type": "image/png"}),
        ("responses", {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}),
        (
            "responses",
            {"type": "input_image", "detail": None, "image_url": f"data:image/png;base64,{PNG}"},
        ),
        (
            "messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ),
        ("normalized", {"type": "image", "data": PNG, "media_type": "image/png"}),
        ("normalized", {"type": "image", "data_uri": f"data:image/png;base64,{PNG}"}),
        ("normalized", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
    ],
)
def test_every_spelling_of_an_image_gives_the_same_part(dialect, block):
    image = pb.ImagePart(source=pb.MediaSource(data=b"\x89PNG\r\n\x1a\n"), media_type="image/png")
    assert images(dialect, block) == [pb.ContentPart(image=image)]


@pytest.mark.parametrize(
    ("dialect", "block"),
    [
        (
            "chat",
            {
                "type": "image_url",
                "image_url": {"url": "https://h/x.png", "detail": "high", "min_pixels": 4},
            },
        ),
        ("chat", {"type": "image", "url": "https://h/x.png", "detail": "high", "min_pixels": 4}),
        (
            "responses",
            {
                "type": "input_image",
                "image_url": "https://h/x.png",
                "detail": "high",
                "min_pixels": 4,
            },
        ),
        (
            "messages",
            {
                "type": "image",
                "source": {"type": "url", "url": "https://h/x.png"},
                "detail": "high",
                "min_pixels": 4,
            },
        ),
        ("normalized", {"type": "image", "url": "https://h/x.png", "detail": "high", "min_pixels": 4}),
    ],
)
def test_size_options_of_an_image_are_the_same_in_every_dialect(dialect, block):
    image = pb.ImagePart(
        source=pb.MediaSource(url="https://h/x.png"),
        options=pb.ImageOptions(detail=pb.IMAGE_DETAIL_HIGH, min_pixels=4),
    )
    assert images(dialect, block) == [pb.ContentPart(image=image)]


@pytest.mark.parametrize(
    ("dialect", "block"),
    [
        ("chat", {"type": "image", "content_key": "ab" * 32}),
        ("responses", {"type": "input_image", "content_key": "ab" * 32}),
        ("messages", {"type": "image", "content_key": "ab" * 32}),
        ("normalized", {"type": "image", "content_key": "ab" * 32}),
    ],
)
def test_a_content_key_stands_for_an_image_in_every_dialect(dialect, block):
    source = pb.MediaSource(content_key="ab" * 32)
    assert images(dialect, block) == [pb.ContentPart(image=pb.ImagePart(source=source))]


@pytest.mark.parametrize("address", ["/etc/hostname", "/tmp/secret.png", "file:///tmp/secret.png"])
@pytest.mark.parametrize(
    ("dialect", "block", "where"),
    [
        ("chat", {"type": "image_url", "image_url": {"url": "ADDRESS"}}, "image_url.url"),
        ("chat", {"type": "image", "image": "ADDRESS"}, "image"),
        ("chat", {"type": "image", "path": "ADDRESS"}, "path"),
        ("responses", {"type": "input_image", "image_url": "ADDRESS"}, "image_url"),
        ("messages", {"type": "image", "source": {"type": "url", "url": "ADDRESS"}}, "source.url"),
        ("normalized", {"type": "image", "url": "ADDRESS"}, "url"),
    ],
)
def test_a_path_is_refused_and_never_opened(dialect, block, where, address):
    block = json.loads(json.dumps(block).replace("ADDRESS", address))
    key = "input" if dialect == "responses" else "messages"
    with pytest.raises(InvalidArgument) as caught:
        images(dialect, block)
    assert caught.value.reason == "UNSUPPORTED_CONTENT"
    assert caught.value.field_path == f"{key}[0].content[0].{where}"


@pytest.mark.parametrize("payload", ["A" * 2_000_001, "!?" * 1_000_000, "é" * 100_000])
@pytest.mark.parametrize(
    ("dialect", "block"),
    [
        ("chat", {"type": "image_url", "image_url": {"url": "data:image/png;base64,PAYLOAD"}}),
        ("chat", {"type": "image_url", "image_url": {"url": "PAYLOAD"}}),
        ("chat", {"type": "PAYLOAD"}),
        ("chat", {"type": "text", "PAYLOAD": 1}),
        ("responses", {"type": "input_image", "image_url": "data:PAYLOAD"}),
        ("responses", {"type": "input_image", "image_url": "PAYLOAD:x"}),
        ("messages", {"type": "image", "source": {"type": "base64", "data": "PAYLOAD"}}),
        ("messages", {"type": "image", "source": {"type": "PAYLOAD"}}),
        ("normalized", {"type": "text", "text": "x", "PAYLOAD": 1}),
    ],
)
def test_no_error_repeats_a_payload(dialect, block, payload):
    block = json.loads(json.dumps(block).replace("PAYLOAD", payload))
    with pytest.raises(PatchloomError) as caught:
        images(dialect, block)
    said = str(caught.value)
    assert len(said) <= 1024
    assert payload[:64] not in said


@pytest.mark.parametrize("dialect", PROTOCOLS)
@pytest.mark.parametrize("body", [None, [], "x", 3, {1: 2}, {}])
def test_a_body_that_is_no_request_is_refused(dialect, body):
    with pytest.raises(InvalidArgument):
        convert(dialect, body)


VOCABULARY = """
    role content type text user assistant tool system developer image_url url image input_image output
    input_text output_text message function_call function_call_output call_id name arguments function
    tool_calls tool_call_id tool_use tool_result tool_use_id input source base64 data media_type thinking
    reasoning summary summary_text reasoning_text redacted_thinking is_error detail min_pixels messages
    instructions tools patchloom token_ids media computer_call_output computer_screenshot search_result
    input_audio format wav data:image/png;base64,AAAA https://h/x.png structured value id custom
"""
WORDS = st.sampled_from(VOCABULARY.split())
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | WORDS
    | st.text(max_size=5)
    | st.text(st.characters(categories=["Cs"]), max_size=2)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)
BODIES = st.dictionaries(WORDS, VALUES, max_size=5)
BLOCKS = st.fixed_dictionaries({"type": WORDS}, optional={"text": VALUES, "content": VALUES}).flatmap(
    lambda block: BODIES.map(lambda more: {**more, **block})
)
CONTENT = st.none() | st.text(max_size=3) | st.lists(BLOCKS | VALUES, max_size=3)
TURNS = st.lists(
    st.builds(lambda more, turn: {**more, **turn}, BODIES, st.fixed_dictionaries(
        {}, optional={"role": WORDS, "type": WORDS, "content": CONTENT, "output": CONTENT}
    )),
    max_size=3,
)  # fmt: skip


@pytest.mark.parametrize("dialect", PROTOCOLS)
@settings(max_examples=100, deadline=None)
@given(BODIES, TURNS)
def test_any_json_converts_or_raises_a_typed_error_in_its_own_words(dialect, body, turns):
    body = {**body, ("input" if dialect == "responses" else "messages"): turns}
    before = copy.deepcopy(body)
    said = ""
    try:
        pb.PreprocessRequest.FromString(convert(dialect, body).SerializeToString())
    except InvalidArgument as error:
        said = str(error)
    assert len(said) <= 1024
    assert repr(body) == repr(before)


def places(value, path=()):
    """The path of every value inside a body."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in entries:
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))
        else:
            yield (*path, key)


def replaced(value, path, new):
    """A copy of a body with another value at a path."""
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


@pytest.mark.parametrize("dialect", [*DIALECTS, "normalized"])
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_real_history_with_one_wrong_value_converts_or_raises_a_typed_error(dialect, data):
    body = data.draw(st.sampled_from(REAL))[dialect]
    body = replaced(body, data.draw(st.sampled_from(list(places(body)))), data.draw(VALUES | WORDS))
    assert len(outcome(dialect, body)) <= 1024


REAL = [history(name) for name in NAMES]
