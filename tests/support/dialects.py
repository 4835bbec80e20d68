"""One conversation, written as the body of each dialect: for tests that hold in all three."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from PIL import Image

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG of one colour; no two colours of a test share their set of channel values."""

    height: int
    width: int
    colour: tuple[int, int, int]

    @property
    def data(self) -> bytes:
        """The file."""
        return _png(self)

    @property
    def base64(self) -> str:
        """The file in base64."""
        return base64.b64encode(self.data).decode()

    @property
    def uri(self) -> str:
        """The file as a data URI."""
        return f"data:image/png;base64,{self.base64}"


@cache
def _png(picture: Picture) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (picture.width, picture.height), picture.colour).save(file, "PNG")
    return file.getvalue()


def picture(index: int) -> Picture:
    """The picture number `index`, of 60: its colour and its size are its own."""
    colour = (4 * index + 3, (90 + 7 * index) % 256, (252 - 3 * index) % 256)
    return Picture(28 + 4 * (index % 10), 28 + 4 * (index // 10), colour)


Content = "Sequence[str | Picture] | str | None"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    id: str
    name: str = "look"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """A tool result; its content is a string, parts, or nothing."""

    id: str
    content: Content = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the user (`content`), or of the assistant with its calls and their results as they arrive."""

    role: str
    content: Content = None
    calls: Sequence[Call] = ()
    results: Sequence[Result] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation. `tools` are (name, description, JSON schema)."""

    turns: Sequence[Turn]
    system: str = ""
    tools: Sequence[tuple[str, str, Mapping[str, Any]]] = ()

    def pictures(self) -> list[tuple[str, Picture]]:
        """The call id and the picture of each image in wire order; "" for an image of the user."""
        found: list[tuple[str, Picture]] = []
        for turn in self.turns:
            for owner, content in [("", turn.content), *((r.id, r.content) for r in turn.results)]:
                found += [(owner, part) for part in content or () if isinstance(part, Picture)]
        return found


def write(session: Session, dialect: str) -> Body:
    """The body of a dialect: chat, responses or messages."""
    return {"chat": _chat, "responses": _responses, "messages": _anthropic}[dialect](session)


DIALECTS = ("chat", "responses", "messages")


def _parts(content: Content, text: Any, image: Any) -> Any:
    """A string stays one; parts become blocks."""
    if content is None or isinstance(content, str):
        return content
    return [text(part) if isinstance(part, str) else image(part) for part in content]


def _chat(session: Session) -> Body:
    def text(value: str) -> Body:
        return {"type": "text", "text": value}

    def image(value: Picture) -> Body:
        return {"type": "image_url", "image_url": {"url": value.uri}}

    messages: list[Body] = []
    if session.system:
        messages.append({"role": "system", "content": session.system})
    for turn in session.turns:
        message: Body = {"role": turn.role, "content": _parts(turn.content, text, image)}
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _json(call.arguments)},
                }
                for call in turn.calls
            ]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": result.id, "content": _parts(result.content or "", text, image)}
            for result in turn.results
        ]
    tools = [
        {"type": "function", "function": {"name": n, "description": d, "parameters": dict(p)}}
        for n, d, p in session.tools
    ]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _responses(session: Session) -> Body:
    def text(value: str) -> Body:
        return {"type": "input_text", "text": value}

    def image(value: Picture) -> Body:
        return {"type": "input_image", "image_url": value.uri, "detail": "auto"}

    items: list[Body] = []
    for turn in session.turns:
        if turn.role == "user":
            items.append({"role": "user", "content": _parts(turn.content, text, image)})
            continue
        if turn.content:
            block = {"type": "output_text", "text": turn.content, "annotations": []}
            items.append(
                {
                    "type": "message",
                    "id": f"msg_{len(items)}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [block],
                }
            )
        items += [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": _json(c.arguments)}
            for c in turn.calls
        ]
        items += [
            {
                "type": "function_call_output",
                "call_id": result.id,
                "output": [] if result.content is None else _parts(result.content, text, image),
            }
            for result in turn.results
        ]
    body: Body = {"input": items}
    if session.system:
        body["instructions"] = session.system
    if session.tools:
        body["tools"] = [
            {"type": "function", "name": n, "description": d, "parameters": dict(p), "strict": False}
            for n, d, p in session.tools
        ]
    return body


def _anthropic(session: Session) -> Body:
    def text(value: str) -> Body:
        return {"type": "text", "text": value}

    def image(value: Picture) -> Body:
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": value.base64},
        }

    messages: list[Body] = []
    for turn in session.turns:
        if turn.role == "user":
            content = _parts(turn.content, text, image)
            if messages and messages[-1]["role"] == "user":
                messages[-1]["content"] += [text(content)] if isinstance(content, str) else content
            else:
                messages.append({"role": "user", "content": content})
            continue
        blocks = [text(turn.content)] if isinstance(turn.content, str) and turn.content else []
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
            for call in turn.calls
        ]
        messages.append({"role": "assistant", "content": blocks})
        results = []
        for result in turn.results:
            block: Body = {"type": "tool_result", "tool_use_id": result.id}
            if result.content is not None:
                block["content"] = _parts(result.content, text, image)
            results.append(block)
        if results:
            messages.append({"role": "user", "content": results})
    body: Body = {"max_tokens": 1024, "messages": messages}
    if session.system:
        body["system"] = session.system
    if session.tools:
        body["tools"] = [{"name": n, "description": d, "input_schema": dict(p)} for n, d, p in session.tools]
    return body


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
