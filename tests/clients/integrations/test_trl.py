"""Tool results of training loops: images stay images, results stay in call order."""

import asyncio
import base64
import inspect
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from patchloom_client.errors import InvalidArgument
from patchloom_client.integrations.trl import (
    assert_no_image_as_text,
    call_tools,
    environment_tools,
    make_tool_result,
    typed_messages,
    typed_tool,
)
from patchloom_client.protocols import PROTOCOLS
from patchloom_proto import preprocess_pb2 as pb
from PIL import Image

RED = Image.new("RGB", (3, 2), "red")
WAV = b"RIFF\x04\0\0\0WAVE"
EXAMPLE = Path(__file__).parents[3] / "clients" / "examples" / "trl_tool_loop.py"


def text(value):
    return {"type": "text", "text": value}


def encoded(image, form="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def image_part(data, media_type="image/png"):
    return {"type": "image", "data": base64.b64encode(data).decode(), "media_type": media_type}


def pixels(part):
    return Image.open(io.BytesIO(base64.b64decode(part["data"])))


def refusal(payload, kind="auto"):
    with pytest.raises(InvalidArgument) as caught:
        make_tool_result(payload, kind)
    return caught.value


@pytest.mark.parametrize(
    ("payload", "parts"),
    [
        (None, []),
        ([], []),
        ((), []),
        ("", [text("")]),
        ("<PIL.Image>", [text("<PIL.Image>")]),
        ("data:image/png;base64,AAAA", [text("data:image/png;base64,AAAA")]),
        (3, [text("3")]),
        (1.5, [text("1.5")]),
        (True, [text("true")]),
        ({"b": 1, "ä": [2.0]}, [text('{"b": 1, "ä": [2.0]}')]),
        (["a", "b"], [text("a"), text("b")]),
        (("a", 3), [text("a"), text("3")]),
        ([text("a")], [text("a")]),
        ([{"name": "f", "output": "r"}], [{"type": "structured", "value": [{"name": "f", "output": "r"}]}]),
        ({"type": "image", "url": "https://h/x"}, [{"type": "image", "url": "https://h/x"}]),
        (WAV, [{"type": "audio", "data": base64.b64encode(WAV).decode(), "format": "wav"}]),
    ],
)
def test_a_result_becomes_parts_by_its_type(payload, parts):
    assert make_tool_result(payload) == parts


@pytest.mark.parametrize(
    ("form", "media_type"),
    [
        ("PNG", "image/png"),
        ("JPEG", "image/jpeg"),
        ("GIF", "image/gif"),
        ("BMP", "image/bmp"),
        ("TIFF", "image/tiff"),
        ("WEBP", "image/webp"),
    ],
)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_of_an_image_stay_those_bytes(form, media_type, wrap):
    data = encoded(RED, form)
    assert make_tool_result(wrap(data)) == [image_part(data, media_type)]
    assert make_tool_result(wrap(data), "image") == [image_part(data, media_type)]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK", "YCbCr"])
def test_a_pillow_image_of_any_common_mode_keeps_its_pixels(mode):
    image = RED.convert("L").convert("I").convert(mode) if mode == "I;16" else RED.convert(mode)
    (part,) = make_tool_result(image)
    expected = image.convert("RGB") if mode in ("CMYK", "YCbCr") else image
    assert pixels(part).convert("RGBA").tobytes() == expected.convert("RGBA").tobytes()
    assert part["media_type"] == "image/png"


def test_an_opened_file_keeps_its_orientation():
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    RED.save(buffer, "JPEG", exif=exif)
    (part,) = make_tool_result(Image.open(buffer))
    assert pixels(part).size == RED.size
    assert pixels(part).getexif()[0x0112] == 6


def test_a_tuple_of_text_and_image_keeps_its_order():
    assert make_tool_result(("before", RED, "after")) == [
        text("before"),
        image_part(encoded(RED)),
        text("after"),
    ]


@pytest.mark.parametrize("key", ["image", "data"])
@pytest.mark.parametrize("source", [RED, encoded(RED)])
def test_a_block_may_hold_an_image_object_or_bytes(key, source):
    block = {"type": "image", key: source, "detail": "high"}
    (part,) = make_tool_result([block])
    assert part == {**image_part(encoded(RED)), "detail": "high"}


def test_an_object_with_images_becomes_parts_in_key_order():
    payload = {"text": "two pages", "before": RED, "after": [RED], "url": "u", "image": RED}
    assert make_tool_result(payload) == [
        text("two pages"),
        text("before:"),
        image_part(encoded(RED)),
        text("after:"),
        image_part(encoded(RED)),
        text('{"url":"u"}'),
        image_part(encoded(RED)),
    ]


@pytest.mark.parametrize(
    ("payload", "kind", "parts"),
    [
        ({"a": 1}, "text", [text('{"a": 1}')]),
        ([1, 2], "text", [text("[1, 2]")]),
        ("data:image/png;base64,AA", "image", [{"type": "image", "data_uri": "data:image/png;base64,AA"}]),
        ("https://h/x", "image", [{"type": "image", "url": "https://h/x"}]),
        ({"a": 1}, "structured", [{"type": "structured", "value": {"a": 1}}]),
        (None, "image", []),
    ],
)
def test_a_kind_insists(payload, kind, parts):
    assert make_tool_result(payload, kind) == parts


class Widget:
    pass


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (Widget(), "auto"),
        ([Widget()], "auto"),
        ({"a": Widget()}, "auto"),
        ({"a": {"deep": RED}}, "auto"),
        ([{"a": {"deep": RED}}], "auto"),
        (b"no image", "auto"),
        (b"", "auto"),
        (float("nan"), "auto"),
        ({"type": "video", "video": "x"}, "auto"),
        ({"type": "text", "text": RED}, "auto"),
        ({"type": "image", "image": WAV}, "auto"),
        ({"type": "image", "image": [RED]}, "auto"),
        ({"type": "image", "image": RED, "data": encoded(RED)}, "auto"),
        (RED, "text"),
        (encoded(RED), "text"),
        (3, "image"),
        (WAV, "image"),
        (encoded(RED), "audio"),
        ("x", "structured"),
        ("x", "picture"),
        (Image.new("F", (1, 1)), "image"),
    ],
)
def test_what_is_no_content_is_refused_and_never_printed(payload, kind):
    error = refusal(payload, kind)
    assert "0x" not in str(error)
    assert "PIL." not in str(error)


def test_results_come_in_call_order_whether_sync_or_async():
    started = []

    async def slow(n):
        started.append(n)
        await asyncio.sleep(0.02)
        return (f"slow {n}", RED)

    def quick(n):
        started.append(n)
        return f"quick {n}"

    calls = [
        {"id": f"c{n}", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(
            [("slow", '{"n": 0}'), ("quick", {"n": 1}), ("slow", {"n": 2}), ("quick", {"n": 3})]
        )
    ]
    messages = asyncio.run(call_tools(calls, {"slow": slow, "quick": quick}))
    image = image_part(encoded(RED))
    contents = [
        [text("slow 0"), image],
        [text("quick 1")],
        [text("slow 2"), image],
        [text("quick 3")],
    ]
    names = ["slow", "quick", "slow", "quick"]
    assert messages == [
        {"role": "tool", "name": name, "tool_call_id": f"c{n}", "content": content}
        for n, (name, content) in enumerate(zip(names, contents, strict=True))
    ]
    assert started == [0, 1, 2, 3]


def test_a_failing_or_unknown_tool_gives_an_error_result_in_its_place():
    def broken():
        raise ValueError("no page")

    calls = [
        {"function": {"name": "missing"}},
        {"id": "b", "function": {"name": "broken", "arguments": ""}},
        {"id": "c", "function": {"name": "broken", "arguments": "{"}},
    ]
    messages = asyncio.run(call_tools(calls, {"broken": broken}))
    assert [message["content"][0]["text"] for message in messages] == [
        "LookupError: no tool named 'missing'; there are broken",
        "ValueError: no page",
        "InvalidMessage: arguments: not JSON: Expecting property name enclosed in double quotes"
        " at character 1",
    ]
    assert all(message["is_error"] for message in messages)
    assert "tool_call_id" not in messages[0]


def test_a_result_that_is_no_content_is_the_fault_of_the_loop_not_of_the_tool():
    with pytest.raises(InvalidArgument):
        asyncio.run(call_tools([{"function": {"name": "f"}}], {"f": Widget}))


class Environment:
    def reset(self):
        return "start"

    def look(self):
        return RED

    def _hidden(self):
        return None


def test_the_public_methods_of_an_environment_are_its_tools():
    environment = Environment()
    assert environment_tools(environment) == {"look": environment.look}
    (message,) = asyncio.run(call_tools([{"function": {"name": "look"}}], environment_tools(environment)))
    assert message["content"] == [image_part(encoded(RED))]


def test_a_typed_tool_gives_trl_blocks_and_keeps_its_signature():
    def look(url: str) -> Image.Image:
        """Looks."""
        return url, RED

    async def look_later(url: str):
        return {"image": RED}

    tool = typed_tool(look)
    assert (tool.__name__, tool.__doc__) == ("look", "Looks.")
    assert inspect.signature(tool) == inspect.signature(look)
    blocks = tool("u")
    assert blocks[0] == text("u")
    assert blocks[1]["type"] == "image"
    assert blocks[1]["image"].tobytes() == RED.tobytes()
    later = typed_tool(look_later)
    assert inspect.iscoroutinefunction(later)
    assert asyncio.run(later("u"))[0]["image"].tobytes() == RED.tobytes()


def test_a_trl_history_converts_with_its_images():
    messages = [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}],
        },
        {"role": "tool", "name": "f", "content": [{"type": "image", "image": RED}, text("done")]},
    ]
    request = PROTOCOLS["chat"]({"messages": typed_messages(messages)})
    image = pb.ImagePart(source=pb.MediaSource(data=encoded(RED)), media_type="image/png")
    assert request.conversation.messages[2] == pb.Message(
        role=pb.ROLE_TOOL,
        name="f",
        content=[pb.ContentPart(image=image), pb.ContentPart(text=pb.TextPart(text="done"))],
    )
    assert messages[2]["content"][0]["image"] is RED


def test_tool_results_of_every_kind_convert_in_chat_and_normalized():
    payloads = ["a", ("b", RED), WAV, [{"name": "f", "output": 1}], {"c": 1}, None]
    messages = [
        {"role": "tool", "tool_call_id": str(n), "content": make_tool_result(payload)}
        for n, payload in enumerate(payloads)
    ]
    chat, normalized = (
        PROTOCOLS[name]({"messages": messages}).conversation for name in ("chat", "normalized")
    )
    assert chat == normalized
    kinds = [[part.WhichOneof("part") for part in message.content] for message in chat.messages]
    assert kinds == [["text"], ["text", "image"], ["audio"], ["structured"], ["text"], []]


def tool(content):
    return [{"role": "user", "content": "x"}, {"role": "tool", "content": content}]


@pytest.mark.parametrize(
    "content",
    [
        str(RED),
        repr(Widget()),
        f"result: {Widget()!r}",
        str({"image": RED}),
        str(encoded(RED)),
        str(encoded(RED, "JPEG")),
        str(RED.getbands),
        [text("ok"), text(str(RED))],
        [{"name": "f", "output": {"deep": [str(RED)]}}],
        [str(RED)],
        RED,
        encoded(RED),
        [{"type": "text", "text": RED}],
        [{"type": "text", "text": encoded(RED)}],
        [RED],
    ],
    ids=range(15),
)
def test_an_image_or_object_as_tool_text_is_refused(content):
    with pytest.raises(InvalidArgument) as caught:
        assert_no_image_as_text(tool(content))
    assert caught.value.reason == "INVALID_MESSAGE"
    assert caught.value.field_path.startswith("messages[1].content")


@pytest.mark.parametrize("content", [RED, [{"type": "text", "text": RED}], [text("a"), encoded(RED)]])
def test_an_image_object_as_user_text_is_refused(content):
    with pytest.raises(InvalidArgument):
        assert_no_image_as_text({"messages": [{"role": "user", "content": content}]})


@pytest.mark.parametrize(
    "messages",
    [
        tool("plain"),
        tool(None),
        tool([{"type": "image", "image": RED}, text("0x7f is a number; PIL is a library")]),
        tool([{"type": "image", "data": encoded(RED)}]),
        [{"role": "user", "content": f"what does {RED} mean?"}],
        [{"role": "assistant"}],
    ],
)
def test_images_in_image_parts_and_words_of_people_pass(messages):
    assert_no_image_as_text(messages)
    assert_no_image_as_text({"messages": messages})


def test_the_integration_imports_neither_pillow_nor_torch():
    code = (
        "import sys, patchloom_client.integrations.trl as trl; trl.make_tool_result('x');"
        "print(json.dumps([n for n in ('PIL', 'torch', 'trl', 'numpy') if n in sys.modules]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", "import json;" + code], capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout) == []


def test_the_example_ends_with_a_screenshot_beside_its_text():
    example = runpy.run_path(str(EXAMPLE))
    messages = asyncio.run(example["rollout"]())
    request = example["to_request"](messages)
    kinds = [
        [part.WhichOneof("part") for part in message.content]
        for message in request.conversation.messages
        if message.role == pb.ROLE_TOOL
    ]
    assert kinds == [["text"], ["text", "image"]]
