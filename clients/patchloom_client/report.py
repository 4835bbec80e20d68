"""A page that shows where each image of a conversation landed: timeline, messages, pictures, tokens."""

import base64
import html
import json
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.tensors import Expansion, Response

_ROLES = {
    pb.ROLE_SYSTEM: "system",
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
}
_ROLE_WORDS = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
}
_MAX_SIDE = 900  # pixels of an image on the page

_Picture: TypeAlias = tuple[npt.NDArray[np.uint8], tuple[float, float]]
"""An image [h, w, 3], and the height and width of one token's cell as shares of its sides."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Consecutive tokens of one kind: text, control, or the run of an item."""

    start: int
    stop: int
    role: str
    kind: str
    item: int = -1


def render_report(response: Response, tokens: Sequence[str], control: Collection[int]) -> str:
    """The page as HTML, without references to other files.

    `response` was asked for with encoding uint8 and show_messages. `tokens` is the text of every token,
    `control` the ids of the control tokens.
    """
    spans = list(_spans(response, tokens, frozenset(control)))
    message = response.message
    facts = {
        "model": message.model,
        "tokens": f"{len(tokens):,}",
        "images": str(len(message.items)),
        "in runs": f"{sum(item.token_count for item in message.items):,}",
        "fingerprint": message.fingerprint[:12],
    }
    body = "".join(
        (
            _header(facts),
            _timeline(spans, len(tokens)),
            _messages(response),
            _token_stream(spans, tokens),
        )
    )
    title = html.escape(f"Patchloom: {message.model}")
    style = files("patchloom_client").joinpath("report.css").read_text(encoding="utf-8")
    head = f"<meta charset=utf-8><title>{title}</title><style>{style}</style>"
    return f"<!doctype html><html lang=en>{head}{body}</html>"


def _spans(response: Response, tokens: Sequence[str], control: frozenset[int]) -> Iterator[_Span]:
    ids = response.message.token_ids
    runs = {r.offset: (r.length, item.index) for item in response.message.items for r in item.ranges}
    role, at, start, kind = "system", 0, 0, ""
    while at < len(ids):
        here = "run" if at in runs else "control" if ids[at] in control else "text"
        changed = _role(tokens, at, here, role)
        if kind and (here != kind or here == "run" or changed != role):
            yield _Span(start, at, role, kind)
            kind = ""
        role = changed
        if here == "run":
            length, item = runs[at]
            yield _Span(at, at + length, role, "run", item)
            at += length
            continue
        if not kind:
            start, kind = at, here
        at += 1
    if kind:
        yield _Span(start, at, role, kind)


def _role(tokens: Sequence[str], at: int, kind: str, role: str) -> str:
    """The role from token `at` on: a control token that names one, or stands before its name."""
    if "tool_response" in tokens[at]:
        return "user" if "/" in tokens[at] else "tool"
    if kind != "control":
        return role
    after = tokens[at + 1].strip().lower() if at + 1 < len(tokens) else ""
    for word in (re.sub(r"[^a-z]|message", "", tokens[at].lower()), after):
        if word in _ROLE_WORDS:
            return _ROLE_WORDS[word]
    return role


def _header(facts: dict[str, str]) -> str:
    cells = "".join(f"<div><b>{html.escape(v)}</b><span>{k}</span></div>" for k, v in facts.items())
    title = "<h1>patchloom</h1><p>Every image under the call that made it.</p>"
    return f"<header>{title}<section class=facts>{cells}</section></header>"


def _timeline(spans: Sequence[_Span], total: int) -> str:
    parts = []
    for span in spans:
        width = 100 * (span.stop - span.start) / max(total, 1)
        label = f"{span.role}, {span.kind}, tokens {span.start}-{span.stop - 1}"
        text = f"<a href=#item{span.item}>{span.item}</a>" if span.kind == "run" else ""
        style = f"width:{width:.4f}%"
        parts.append(f'<i class="{span.role} {span.kind}" style="{style}" title="{label}">{text}</i>')
    roles = dict.fromkeys(_ROLES.values())
    legend = "".join(f'<span><i class="{role}"></i>{role}</span>' for role in roles)
    return (
        f"<section><h2>Timeline</h2><div class=timeline>{''.join(parts)}</div>"
        f"<p class=legend>{legend}<span><i class=run></i>placeholder run</span></p></section>"
    )


def _messages(response: Response) -> str:
    items = {item.path: item for item in response.message.items}
    cards = []
    for index, message in enumerate(response.message.messages):
        role = _ROLES[message.role]
        parts = [
            _part(response, part, items.get(f"messages[{index}].content[{p}]"))
            for p, part in enumerate(message.content)
        ]
        thought = f"<p class=thought>{html.escape(message.reasoning)}</p>" if message.reasoning else ""
        calls = "".join(
            f"<p class=call><b>{html.escape(c.name)}</b> <code>{html.escape(c.arguments.decode())}</code>"
            f" <em>{html.escape(c.id)}</em></p>"
            for c in message.tool_calls
        )
        owner = html.escape(f"{message.name} · {message.tool_call_id}") if role == "tool" else ""
        title = f"<h3>{role} <em>{owner}</em></h3>"
        cards.append(f'<article class="{role}">{title}{thought}{"".join(parts)}{calls}</article>')
    return f"<section><h2>Conversation</h2>{''.join(cards)}</section>"


def _part(response: Response, part: pb.ContentPart, item: pb.MediaItem | None) -> str:
    if item is not None:
        return _figure(response, item)
    kind = part.WhichOneof("part")
    if kind == "structured":
        return f"<p><code>{html.escape(json.dumps(json.loads(part.structured.json)))}</code></p>"
    text = part.thinking.text if kind == "thinking" else part.text.text
    return f"<p>{html.escape(text)}</p>" if text else ""


def _figure(response: Response, item: pb.MediaItem) -> str:
    ranges = ", ".join(f"{r.offset}-{r.offset + r.length - 1}" for r in item.ranges)
    grid = " x ".join(map(str, item.grid.shape))
    seen = f"{item.size.width}x{item.size.height} seen as {item.resized.width}x{item.resized.height}"
    caller = f", from call <em>{html.escape(item.tool_call_id)}</em>" if item.tool_call_id else ""
    caption = (
        f"<b>image {item.index}</b> {seen}, grid {grid}, <b>{item.token_count}</b> tokens at {ranges}{caller}"
    )
    shown = _picture(response, item)
    if shown is None:
        return f"<figure id=item{item.index}><figcaption>{caption}</figcaption></figure>"
    picture, cell = shown
    png = base64.b64encode(_png(picture)).decode("ascii")
    return (
        f"<figure id=item{item.index}><div class=picture>"
        f'<img alt="image {item.index} as the model sees it" src="data:image/png;base64,{png}">'
        f"{_grid_lines(cell)}</div><figcaption>{caption}</figcaption></figure>"
    )


def _picture(response: Response, item: pb.MediaItem) -> _Picture | None:
    """The image as the model sees it; None where its rows are not whole patches in order."""
    for piece in item.slices:
        tensor = response.tensors[piece.tensor]
        rows = tensor.array[piece.start : piece.start + piece.count]
        if tensor.expansion is None or piece.axis != 0 or not len(rows):
            continue
        height, width = tensor.expansion.patch
        if rows[0].size == 3 * height * width:
            return _assemble(tensor.expansion, rows, tuple(item.grid.shape))
    return None


def _assemble(expansion: Expansion, rows: npt.NDArray[np.uint8], grid: tuple[int, ...]) -> _Picture:
    height, width = expansion.patch
    sides = {"c": 3, "t": 1, "y": height, "x": width}
    patches = rows.reshape(len(rows), *(sides[axis] for axis in expansion.columns))
    patches = patches.transpose(0, *(1 + expansion.columns.index(axis) for axis in "tyxc"))[:, 0]
    whole = len(grid) > 1 and grid[-2] * grid[-1] == len(rows)
    down, across = grid[-2:] if whole else (1, len(rows))
    merge = expansion.merge
    blocks = patches.reshape(down // merge, across // merge, merge, merge, height, width, 3)
    picture = blocks.transpose(0, 2, 4, 1, 3, 5, 6).reshape(down * height, across * width, 3)
    step = -(-max(picture.shape[:2]) // _MAX_SIDE)
    return np.ascontiguousarray(picture[::step, ::step]), (merge / down, merge / across)


def _grid_lines(cell: tuple[float, float]) -> str:
    """Lines between the tokens, as an SVG pattern stretched over the picture."""
    down, across = round(1 / cell[0]), round(1 / cell[1])
    lines = [f"M0 {y}H{across}" for y in range(1, down)] + [f"M{x} 0V{down}" for x in range(1, across)]
    return f'<svg viewBox="0 0 {across} {down}" preserveAspectRatio=none><path d="{"".join(lines)}"/></svg>'


def _png(picture: npt.NDArray[np.uint8]) -> bytes:
    """An RGB array [h, w, 3] as a PNG file."""
    height, width = picture.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = picture.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _token_stream(spans: Sequence[_Span], tokens: Sequence[str]) -> str:
    parts = []
    for span in spans:
        if span.kind == "run":
            label = f"image {span.item} × {span.stop - span.start}"
            parts.append(f'<a class="run {span.role}" href=#item{span.item}>{label}</a>')
            continue
        shown = (html.escape(t).replace("\n", "⏎\n") for t in tokens[span.start : span.stop])
        parts.extend(f'<span class="{span.kind} {span.role}">{text}</span>' for text in shown)
    return f"<section><h2>Tokens</h2><pre class=tokens>{''.join(parts)}</pre></section>"
