"""Deterministic inputs for benchmarks: photo-like and screenshot-like pictures, encoded."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from patchloom_client.protocols import PROTOCOLS
from patchloom_proto import preprocess_pb2 as pb
from PIL import Image, ImageDraw, ImageFont

SIZES = {"480p": (480, 640), "1080p": (1080, 1920), "12MP": (3000, 4000)}


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A named encoded picture."""

    name: str
    data: bytes


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Smooth structure at several scales with sensor-like noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    picture = np.zeros((height, width, 3), np.float32)
    for scale in (900, 310, 95, 28):
        for channel in range(3):
            a, b, phase = rng.uniform(-1, 1, 3)
            picture[..., channel] += np.sin((a * x + b * y) / scale * 6 + phase * 9) * scale**0.5
    picture = (picture - picture.min()) / (np.ptp(picture) + 1e-6) * 235 + 10
    picture += rng.normal(0, 3.0, picture.shape).astype(np.float32)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def screenshot(height: int, width: int, seed: int = 0) -> Image.Image:
    """Flat areas, boxes and text, as a page in a browser."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), "#f4f5f8")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=14)
    for _ in range(width * height // 40000):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        w, h = int(rng.integers(60, 420)), int(rng.integers(20, 160))
        shade = tuple(int(v) for v in rng.integers(190, 256, 3))
        draw.rounded_rectangle((x, y, x + w, y + h), 6, fill=shade, outline="#c8ccd8")
        words = " ".join(f"w{int(v):x}" for v in rng.integers(0, 1 << 20, 6))
        draw.text((x + 8, y + 6), words, fill="#23283a", font=font)
    return image


def encode(image: Image.Image, form: str, quality: int = 85) -> bytes:
    """The picture as a file."""
    buffer = io.BytesIO()
    options = {"quality": quality} if form in ("JPEG", "WEBP") else {}
    image.save(buffer, form, **options)
    return buffer.getvalue()


def single_images() -> list[EncodedImage]:
    """The pictures of the single-image table."""
    found = []
    for name, (height, width) in SIZES.items():
        found.append(EncodedImage(f"{name} JPEG photo", encode(photo(height, width), "JPEG")))
        found.append(EncodedImage(f"{name} PNG screenshot", encode(screenshot(height, width), "PNG")))
        if name == "1080p":
            found.append(EncodedImage(f"{name} PNG photo", encode(photo(height, width), "PNG")))
            found.append(EncodedImage(f"{name} WebP photo", encode(photo(height, width), "WEBP")))
    return found


def request_of(images: Sequence[bytes], text: str = "look") -> pb.PreprocessRequest:
    """One user message with a text and images."""
    request = PROTOCOLS["normalized"]({"messages": [{"role": "user", "content": text}]})
    for data in images:
        request.conversation.messages[0].content.add().image.source.data = data
    return request
