"""A page that shows where each image of a conversation landed: timeline, messages, pictures, tokens."""

import base64
import html
import json
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.tensors import Response, Tensor

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
    return f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>{body}</html>"


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
    return f"<header><h1>patchloom</h1><p>Every image under the call that made it.</p><section class=facts>{cells}</section></header>"


def _timeline(spans: Sequence[_Span], total: int) -> str:
    parts = []
    for span in spans:
        width = 100 * (span.stop - span.start) / max(total, 1)
        label = f"{span.role}, {span.kind}, tokens {span.start}-{span.stop - 1}"
        text = f"<a href=#item{span.item}>{span.item}</a>" if span.kind == "run" else ""
        parts.append(f'<i class="{span.role} {span.kind}" style="width:{width:.4f}%" title="{label}">{text}</i>')
    legend = "".join(f'<span><i class="{role}"></i>{role}</span>' for role in ("system", "user", "assistant", "tool"))
    return (
        f"<section><h2>Timeline</h2><div class=timeline>{''.join(parts)}</div>"
        f"<p class=legend>{legend}<span><i class=run></i>placeholder run</span></p></section>"
    )


def _messages(response: Response) -> str:
    items = {item.path: item for item in response.message.items}
    cards = []
    for index, message in enumerate(response.message.messages):
        role = _ROLES[message.role]
        parts = [_part(response, part, items.get(f"messages[{index}].content[{p}]")) for p, part in enumerate(message.content)]
        thought = f"<p class=thought>{html.escape(message.reasoning)}</p>" if message.reasoning else ""
        calls = "".join(
            f"<p class=call><b>{html.escape(c.name)}</b> <code>{html.escape(c.arguments.decode())}</code>"
            f" <em>{html.escape(c.id)}</em></p>"
            for c in message.tool_calls
        )
        owner = f" <em>{html.escape(message.name)} · {html.escape(message.tool_call_id)}</em>" if role == "tool" else ""
        cards.append(f'<article class="{role}"><h3>{role}{owner}</h3>{thought}{"".join(parts)}{calls}</article>')
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
    caption = (
        f"<b>image {item.index}</b> {item.size.width}x{item.size.height} seen as {item.resized.width}x{item.resized.height}"
        f", grid {grid}, <b>{item.token_count}</b> tokens at {ranges}"
        + (f", from call <em>{html.escape(item.tool_call_id)}</em>" if item.tool_call_id else "")
    )
    shown = _picture(response, item)
    if shown is None:
        return f"<figure id=item{item.index}><figcaption>{caption}</figcaption></figure>"
    picture, cell = shown
    png = base64.b64encode(_png(picture)).decode("ascii")
    return (
        f'<figure id=item{item.index}><div class=picture>'
        f'<img alt="image {item.index} as the model sees it" src="data:image/png;base64,{png}">'
        f"{_grid_lines(cell)}</div><figcaption>{caption}</figcaption></figure>"
    )


def _picture(response: Response, item: pb.MediaItem) -> tuple[npt.NDArray[np.uint8], tuple[float, float]] | None:
    """The image as the model sees it, [h, w, 3], and the size of one token's cell as shares of its sides."""
    for piece in item.slices:
        tensor = response.tensors[piece.tensor]
        if tensor.expansion is not None and piece.axis == 0:
            rows = tensor.array[piece.start : piece.start + piece.count]
            return _assemble(tensor, rows, tuple(item.grid.shape))
    return None


def _assemble(
    tensor: Tensor, rows: npt.NDArray[np.uint8], grid: tuple[int, ...]
) -> tuple[npt.NDArray[np.uint8], tuple[float, float]]:
    assert tensor.expansion is not None
    expansion = tensor.expansion
    height, width = expansion.patch
    sides = {"c": 3, "t": 1, "y": height, "x": width}
    patches = rows.reshape(len(rows), *(sides[axis] for axis in expansion.columns))
    patches = patches.transpose(0, *(1 + expansion.columns.index(axis) for axis in "tyxc"))[:, 0]
    down, across = grid[-2:] if len(grid) > 1 and grid[-2] * grid[-1] == len(rows) else (1, len(rows))
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
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)) + chunk(b"IEND", b"")


def _token_stream(spans: Sequence[_Span], tokens: Sequence[str]) -> str:
    parts = []
    for span in spans:
        if span.kind == "run":
            parts.append(f'<a class="run {span.role}" href=#item{span.item}>image {span.item} × {span.stop - span.start}</a>')
            continue
        shown = (html.escape(t).replace("\n", "⏎\n") for t in tokens[span.start : span.stop])
        parts.extend(f'<span class="{span.kind} {span.role}">{text}</span>' for text in shown)
    return f"<section><h2>Tokens</h2><pre class=tokens>{''.join(parts)}</pre></section>"


_STYLE = """
:root{--bg:#f6f5f1;--ink:#1e2328;--soft:#6b7178;--card:#fff;--line:#dcd9d0;--system:#8a8f98;--user:#3b6fb6;
--assistant:#6b52a3;--tool:#2f8f6b;--run:#e0812d}
@media(prefers-color-scheme:dark){:root{--bg:#15181b;--ink:#e8e6e1;--soft:#9aa1a9;--card:#1e2226;--line:#33393f;
--system:#7d848d;--user:#6ea0e6;--assistant:#a58be0;--tool:#5cc39a;--run:#f0994a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:2.5rem 1.5rem 5rem;background:var(--bg);color:var(--ink);
font:15px/1.55 system-ui,sans-serif}
h1{font-size:2rem;letter-spacing:-.03em;margin:0}h2{font-size:1rem;color:var(--soft);font-weight:600;margin:2.2rem 0 .7rem}
header p{margin:.1rem 0 1.2rem;color:var(--soft)}
.facts{display:flex;flex-wrap:wrap;gap:.6rem}.facts div{background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:.55rem .9rem;max-width:100%}.facts b{display:block;overflow-wrap:anywhere}
.facts span{color:var(--soft);font-size:.8rem}
.timeline{display:flex;height:46px;border-radius:10px;overflow:hidden;background:var(--line)}
.timeline i{display:block;height:100%;opacity:.8;min-width:1px}.timeline i.control{opacity:1;filter:brightness(.7)}
.timeline i.run{min-width:14px;opacity:1;display:grid;place-items:center;border-left:2px solid var(--bg)}
.timeline a{color:#fff;font:600 13px system-ui;text-decoration:none}
.legend{display:flex;gap:1.1rem;flex-wrap:wrap;color:var(--soft);font-size:.85rem}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:3px;margin-right:.4em}
i.system{background:var(--system)}i.user{background:var(--user)}i.assistant{background:var(--assistant)}
i.tool{background:var(--tool)}i.run{background:repeating-linear-gradient(135deg,var(--run) 0 6px,#c66c1c 6px 12px)}
article{background:var(--card);border:1px solid var(--line);border-left:5px solid;border-radius:10px;
padding:.8rem 1.1rem;margin:.7rem 0}
article.system{border-left-color:var(--system)}article.user{border-left-color:var(--user)}
article.assistant{border-left-color:var(--assistant)}article.tool{border-left-color:var(--tool);margin-left:2.2rem}
article h3{font-size:.85rem;margin:0 0 .4rem;color:var(--soft)}article p{margin:.35rem 0;white-space:pre-wrap;overflow-wrap:anywhere}
em{font-style:normal;font-family:ui-monospace,monospace;font-size:.82em;color:var(--tool)}
code{font-family:ui-monospace,monospace;font-size:.88em}.thought{color:var(--soft);font-style:italic}
.call{background:var(--bg);border-radius:8px;padding:.4rem .7rem}
figure{margin:.8rem 0}.picture{position:relative;display:inline-block;max-width:100%;border-radius:8px;overflow:hidden;
border:1px solid var(--line);line-height:0}.picture img{max-width:100%;max-height:540px;width:auto;display:block}
.picture svg{position:absolute;inset:0;width:100%;height:100%;opacity:.35;transition:opacity .2s}
.picture svg path{stroke:#e0812d;stroke-width:1px;vector-effect:non-scaling-stroke;fill:none}
.picture:hover svg{opacity:0}
figcaption{color:var(--soft);font-size:.85rem;margin-top:.4rem}figcaption b{color:var(--ink)}
.tokens{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1rem;white-space:pre-wrap;
overflow-wrap:anywhere;font:12.5px/1.9 ui-monospace,monospace}
.tokens .text:nth-child(even){background:#8882}.tokens .control{background:var(--ink);color:var(--bg);border-radius:4px;padding:0 .3em}
.tokens .run{background:var(--run);color:#fff;border-radius:4px;padding:.1em .5em;text-decoration:none}
"""
