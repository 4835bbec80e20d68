"""Step 3.7: windows of the image first, the whole of it last, each resized to its own square."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from patchloom_kernels.layout import PatchLayout, Piece, Resample

from patchloom_service.errors import SizeRefused
from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    RunToken,
    Size,
    TensorPiece,
)
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import (
    CLIP_MEAN,
    CLIP_STD,
    ConfigRefused,
    ImageConfig,
    read_image_config,
)
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.squares import padded_to_square
from patchloom_service.models.tile_rows import tiles_with_counts
from patchloom_service.models.tokens import require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"Step3p7ForConditionalGeneration": "step3p7"}
IMAGE, START, END = "<im_patch>", "<im_start>", "<im_end>"
WINDOW_START, WINDOW_END, NEWLINE = "<patch_start>", "<patch_end>", "<patch_newline>"
_DEFAULTS = {
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "size": {"height": 728, "width": 728},
    "patch_size": 504,
    "max_image_size": 3024,
    "vision_patch_size": 14,
    "downsampler_stride": 4,
}
_KEYS = ("size", "patch_size", "max_image_size", "vision_patch_size", "downsampler_stride")


@dataclass(frozen=True, slots=True)
class _Rule:
    """Sides in pixels: of the whole, of a window, and the longest that an image keeps."""

    whole: int
    window: int
    longest: int
    resample: Resample


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Parts of a run."""

    whole: tuple[RunToken, ...]
    window: tuple[RunToken, ...]
    newline: RunToken


@dataclass(frozen=True, slots=True)
class _Windows:
    """An image enlarged or shrunk to `size`, cut into a grid of windows of side `side`."""

    size: Size
    side: int
    grid: tuple[int, int]


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    size = image.extra["size"]
    whole = size.get("height")
    if not whole or whole != size.get("width"):
        raise ConfigRefused(f"size needs equal height and width, got {dict(size)}")
    rule = _Rule(whole, image.extra["patch_size"], image.extra["max_image_size"], image.resample)
    return ModelSpec(
        family="step3p7",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: IMAGE},
        structural=(START, END, WINDOW_START, WINDOW_END, NEWLINE),
        plan_image=partial(_plan, rule, _tokens(checkpoint, image, rule)),
        layout=tiles_with_counts,
        table=image.table,
        settings=image.settings(),
        oracle="transformers Step3p7Processor (torchvision backend)",
    )


def _tokens(checkpoint: Checkpoint, image: ImageConfig, rule: _Rule) -> _Tokens:
    stride = image.extra["vision_patch_size"] * image.extra["downsampler_stride"]
    token = require_token(checkpoint, IMAGE, "image_token_id")

    def framed(start: str, side: int, end: str) -> tuple[RunToken, ...]:
        frame = [RunToken(require_token(checkpoint, text), placeholder=False) for text in (start, end)]
        return frame[0], RunToken(token, (side // stride) ** 2), frame[1]

    return _Tokens(
        whole=framed(START, rule.whole, END),
        window=framed(WINDOW_START, rule.window, WINDOW_END),
        newline=RunToken(require_token(checkpoint, NEWLINE), placeholder=False),
    )


def _plan(rule: _Rule, tokens: _Tokens, size: Size, options: ImageOptions, item_count: int) -> MediaPlan:
    refuse_pixel_bounds("Step 3.7", options)
    padded = padded_to_square(size, (0, 0, 0), centred=False) if _extreme(size) else ()
    source = padded[-1].canvas if padded else size
    kept = _kept(rule, source)
    windows = _windows(rule, kept)
    pieces = [TensorPiece("pixel_values", _whole(rule, padded, source, kept))]
    if windows:
        cut = _cut(rule, padded, source, windows)
        pieces += [TensorPiece("pixel_values_local", piece) for piece in cut]
    grid = windows.grid if windows else (0, 0)
    run = tuple(_run(tokens, grid))
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.TILES, grid),
        token_count=sum(token.count for token in run if token.placeholder),
        run=run,
        size=size,
        resized=windows.size if windows else (rule.whole, rule.whole),
        pieces=tuple(pieces),
    )


def _extreme(size: Size) -> bool:
    """Narrow images are padded to a square first."""
    return min(size) < 32 and max(size[1] / size[0], size[0] / size[1]) > 4


def _kept(rule: _Rule, size: Size) -> Size:
    """The size within `longest`."""
    if max(size) <= rule.longest:
        return size
    scale = rule.longest / max(size)
    kept = int(size[0] * scale), int(size[1] * scale)
    if min(kept) < 1:
        raise SizeRefused(
            f"{size[0]}x{size[1]} (height x width) has no pixel left at {rule.longest} pixels on the longer "
            f"side; an aspect ratio under {rule.longest} is allowed"
        )
    return kept


def _windows(rule: _Rule, size: Size) -> _Windows | None:
    """How an image of `size` is cut (Step3p7ImageProcessor._plan_patches in transformers)."""
    short, long = min(size), max(size)
    if long <= rule.whole:
        side = short if long / short > 1.5 else 0
    else:
        side = min(short, rule.window) if long / short > 4 else rule.window
    if not side:
        return None
    height, width = (_snapped(length, side) for length in size)
    return _Windows((height, width), side, (max(1, height // side), max(1, width // side)))


def _snapped(length: int, side: int) -> int:
    """The nearest multiple of a window that has at least a fifth of it in excess; shorter lengths stay."""
    if length < side:
        return length
    return side * (length // side + (length % side > 0.2 * side))


def _whole(rule: _Rule, padded: tuple[Piece, ...], source: Size, kept: Size) -> Piece:
    """The whole image, by way of its kept size."""
    square = (rule.whole, rule.whole)
    via = padded
    if kept != source:
        via = (*padded, Piece(source, kept, kept, PatchLayout(kept), rule.resample))
    return Piece(kept, square, square, PatchLayout(square), rule.resample, via=via)


def _cut(rule: _Rule, padded: tuple[Piece, ...], source: Size, windows: _Windows) -> Iterator[Piece]:
    """The windows in raster order: one piece where they keep their size, else each resized by itself."""
    square = (rule.window, rule.window)
    layout = PatchLayout(square)
    own = (min(windows.side, windows.size[0]), min(windows.side, windows.size[1]))
    if own == square:
        yield Piece(source, windows.size, windows.size, layout, rule.resample, via=padded)
        return
    for row in range(windows.grid[0]):
        for column in range(windows.grid[1]):
            offset = (-row * own[0], -column * own[1])
            window = Piece(source, windows.size, own, PatchLayout(own), rule.resample, offset)
            yield Piece(own, square, square, layout, rule.resample, via=(*padded, window))


def _run(tokens: _Tokens, grid: tuple[int, int]) -> Iterator[RunToken]:
    for row in range(grid[0]):
        for _ in range(grid[1]):
            yield from tokens.window
        if row < grid[0] - 1:
            yield tokens.newline
    yield from tokens.whole
