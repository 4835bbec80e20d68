"""A small agent session: a checkout page that breaks on a phone, told in the three dialects."""

import base64
import io
import json
from typing import Any

from PIL import Image, ImageDraw, ImageFont

Json = dict[str, Any]

SYSTEM = "You are a careful QA agent. Look at the pages yourself before you answer."
QUESTION = "Customers say that they cannot pay on their phones since the release. What is broken?"
THOUGHT = "I should see the page on a desktop and on a phone, and read the log, before I judge."
ANSWER = "The sticky cookie bar covers the Pay button on small screens. I zoom in to be sure."
TOOL = {
    "name": "browser_screenshot",
    "description": "Opens a page and returns a screenshot.",
    "parameters": {
        "type": "object",
        "properties": {"url": {"type": "string"}, "device": {"type": "string", "enum": ["desktop", "phone"]}},
        "required": ["url"],
    },
}
LOG_TOOL = {
    "name": "read_log",
    "description": "Returns the last lines of a log.",
    "parameters": {"type": "object", "properties": {"service": {"type": "string"}}, "required": ["service"]},
}
CALLS = (
    ("call_desktop", "browser_screenshot", {"url": "https://shop.example/checkout", "device": "desktop"}),
    ("call_phone", "browser_screenshot", {"url": "https://shop.example/checkout", "device": "phone"}),
    ("call_log", "read_log", {"service": "payments"}),
)
ZOOM = ("call_zoom", "browser_screenshot", {"url": "https://shop.example/checkout#pay", "device": "phone"})
LOG = "12:04:11 checkout rendered\n12:04:13 POST /pay never received"


def screenshots() -> dict[str, tuple[str, bytes]]:
    """Media type and encoded bytes by call id: PNG and JPEG, wide and tall."""
    return {
        "call_desktop": ("image/png", _encode(_page(1280, 720, covered=False), "PNG")),
        "call_phone": ("image/jpeg", _encode(_page(412, 892, covered=True), "JPEG")),
        "call_zoom": ("image/png", _encode(_page(412, 892, covered=True).crop((0, 640, 412, 892)), "PNG")),
    }


def chat_body() -> Json:
    """The session as a Chat Completions body."""
    shots = screenshots()
    messages: list[Json] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": THOUGHT,
            "tool_calls": [_chat_call(*call) for call in CALLS],
        },
        _chat_result("call_phone", "The phone view:", shots),
        {"role": "tool", "tool_call_id": "call_log", "content": LOG},
        _chat_result("call_desktop", "The desktop view:", shots),
        {"role": "assistant", "content": ANSWER, "tool_calls": [_chat_call(*ZOOM)]},
        _chat_result("call_zoom", "", shots),
    ]
    tools = [{"type": "function", "function": tool} for tool in (TOOL, LOG_TOOL)]
    return {"messages": messages, "tools": tools}


def responses_body() -> Json:
    """The same session as a Responses body."""
    shots = screenshots()
    items: list[Json] = [
        {"role": "user", "content": QUESTION},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]},
        *(_function_call(*call) for call in CALLS),
        _function_output("call_phone", "The phone view:", shots),
        {"type": "function_call_output", "call_id": "call_log", "output": LOG},
        _function_output("call_desktop", "The desktop view:", shots),
        {"role": "assistant", "content": [{"type": "output_text", "text": ANSWER, "annotations": []}]},
        _function_call(*ZOOM),
        _function_output("call_zoom", "", shots),
    ]
    tools = [{"type": "function", **tool} for tool in (TOOL, LOG_TOOL)]
    return {"instructions": SYSTEM, "input": items, "tools": tools}


def messages_body() -> Json:
    """The same session as an Anthropic Messages body."""
    shots = screenshots()
    log = {"type": "tool_result", "tool_use_id": "call_log", "content": LOG}
    messages: list[Json] = [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": THOUGHT, "signature": ""},
                *(_tool_use(*call) for call in CALLS),
            ],
        },
        {
            "role": "user",
            "content": [
                _tool_result("call_phone", "The phone view:", shots),
                log,
                _tool_result("call_desktop", "The desktop view:", shots),
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": ANSWER}, _tool_use(*ZOOM)]},
        {"role": "user", "content": [_tool_result("call_zoom", "", shots)]},
    ]
    tools = [
        {"name": t["name"], "description": t["description"], "input_schema": t["parameters"]}
        for t in (TOOL, LOG_TOOL)
    ]
    return {"system": SYSTEM, "messages": messages, "tools": tools}


def _data_uri(shot: tuple[str, bytes]) -> str:
    return f"data:{shot[0]};base64,{base64.b64encode(shot[1]).decode('ascii')}"


def _chat_call(call_id: str, name: str, arguments: Json) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _chat_result(call_id: str, text: str, shots: dict[str, tuple[str, bytes]]) -> Json:
    parts: list[Json] = [{"type": "text", "text": text}] if text else []
    parts.append({"type": "image_url", "image_url": {"url": _data_uri(shots[call_id])}})
    return {"role": "tool", "tool_call_id": call_id, "content": parts}


def _function_call(call_id: str, name: str, arguments: Json) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)}


def _function_output(call_id: str, text: str, shots: dict[str, tuple[str, bytes]]) -> Json:
    parts: list[Json] = [{"type": "input_text", "text": text}] if text else []
    parts.append({"type": "input_image", "image_url": _data_uri(shots[call_id])})
    return {"type": "function_call_output", "call_id": call_id, "output": parts}


def _tool_use(call_id: str, name: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _tool_result(call_id: str, text: str, shots: dict[str, tuple[str, bytes]]) -> Json:
    media_type, data = shots[call_id]
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}
    parts: list[Json] = [{"type": "text", "text": text}] if text else []
    parts.append({"type": "image", "source": source})
    return {"type": "tool_result", "tool_use_id": call_id, "content": parts}


def _encode(image: Image.Image, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **({"quality": 90} if form == "JPEG" else {}))
    return buffer.getvalue()


def _page(width: int, height: int, covered: bool) -> Image.Image:
    """A checkout page; `covered` lays a cookie bar over the Pay button."""
    image = Image.new("RGB", (width, height), "#f7f7fb")
    draw = ImageDraw.Draw(image)
    big, small = ImageFont.load_default(size=26), ImageFont.load_default(size=16)
    draw.rectangle((0, 0, width, 64), fill="#22304a")
    draw.text((20, 18), "shop.example", fill="white", font=big)
    left, right = width // 12, width - width // 12
    draw.rounded_rectangle((left, 100, right, height - 150), 14, fill="white", outline="#d8dbe6")
    for row, (name, price) in enumerate(
        (("Walking shoes", "89.00"), ("Wool socks", "12.50"), ("Shipping", "4.90"))
    ):
        y = 130 + row * 56
        draw.text((left + 24, y), name, fill="#22304a", font=small)
        draw.text((right - 24, y), price, fill="#22304a", font=small, anchor="ra")
        draw.line((left + 24, y + 36, right - 24, y + 36), fill="#e9ebf2")
    draw.text((right - 24, 310), "Total 106.40", fill="#22304a", font=big, anchor="ra")
    pay = (left, height - 124, right, height - 72)
    draw.rounded_rectangle(pay, 12, fill="#2f8f6b")
    draw.text(((left + right) // 2, height - 98), "Pay now", fill="white", font=big, anchor="mm")
    if covered:
        draw.rectangle((0, height - 136, width, height), fill="#3a3a3a")
        draw.text((20, height - 120), "We value your privacy.", fill="white", font=small)
        draw.rounded_rectangle((20, height - 80, width - 20, height - 36), 8, fill="#e0812d")
        draw.text((width // 2, height - 58), "Accept all cookies", fill="white", font=small, anchor="mm")
    return image
