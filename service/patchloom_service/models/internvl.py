"""InternVL 3 and 3.5, Hugging Face form and InternVLChatModel: tiles by aspect ratio, then a thumbnail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from patchloom_kernels.layout import PatchLayout, Piece, Resample

from patchloom_service.errors import InvalidMessage
from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    Run,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
)
from patchloom_service.models.image_config import (
    CLIP_MEAN,
    CLIP_STD,
    ConfigRefused,
    ImageConfig,
    read_image_config,
)
from patchloom_service.models.rows import concatenated_rows, picture_row
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURE = "InternVLForConditionalGeneration"
CHAT_ARCHITECTURE = "InternVLChatModel"
START, CONTEXT, END, VIDEO = "<img>", "<IMG_CONTEXT>", "</img>", "<video>"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_MODEL_TYPES = {"internvl": ARCHITECTURE, "internvl_chat": CHAT_ARCHITECTURE}
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "size": {"height": 384, "width": 384},
    "min_patches": 1,
    "max_patches": 12,
}


@dataclass(frozen=True, slots=True)
class _Tiling:
    """How an image is cut: into at least `low` and at most `high` tiles, and `tokens` for each tile."""

    tile: Size
    low: int
    high: int
    thumbnail: bool
    tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ConfigRefused(f"tiles need 1 <= least <= most, got {self.low} and {self.high}")
        if min(self.tile) < 1 or self.tokens < 1:
            raise ConfigRefused(f"tile {self.tile} and {self.tokens} tokens a tile must be at least 1")


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return _architecture(config) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    chat = _architecture(checkpoint.config) == CHAT_ARCHITECTURE
    image, tiling = _chat_form(checkpoint.config) if chat else _processor_form(checkpoint)
    context, start, end = (_token(checkpoint, spelling) for spelling in (CONTEXT, START, END))
    declared = checkpoint.config.get("image_token_id", context)
    if declared != context:
        raise ConfigRefused(f"the tokenizer gives {CONTEXT} the id {context}, config.json says {declared}")
    frame = (None, None) if chat else (start, end)
    return ModelSpec(
        family="internvl_chat" if chat else "internvl",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: CONTEXT},
        structural=(START, END, *([VIDEO] if checkpoint.token_id(VIDEO) is not None else [])),
        plan_image=partial(_plan, image, tiling, context, frame),
        layout=_layout,
        table=image.table,
        settings={
            **image.settings(),
            "tile": tiling.tile,
            "tiles": (tiling.low, tiling.high),
            "thumbnail": tiling.thumbnail,
            "tile_tokens": tiling.tokens,
        },
        oracle="transformers GotOcr2ImageProcessor (torchvision backend) and GotOcr2ImageProcessorPil",
    )


def tile_grid(size: Size, tile: Size, low: int, high: int) -> tuple[int, int]:
    """Tiles down and across: the grid whose aspect ratio is nearest to the image's.

    Of equally near grids the one with more tiles, while the image is larger than half its area
    (get_optimal_tiled_canvas in transformers' models/got_ocr2).
    """
    height, width = size
    ratio = width / height
    best, best_distance = (1, 1), float("inf")
    for down, across in _grids(low, high):
        distance = abs(ratio - across / down)
        larger = height * width > 0.5 * tile[0] * tile[1] * down * across
        if distance < best_distance or (distance == best_distance and larger):
            best, best_distance = (down, across), distance
    return best


@cache
def _grids(low: int, high: int) -> tuple[tuple[int, int], ...]:
    """All (down, across) of `low` to `high` tiles: by their number, then by width."""
    counts = range(1, high + 1)
    found = [(down, across) for across in counts for down in counts if low <= down * across <= high]
    return tuple(sorted(found, key=lambda grid: grid[0] * grid[1]))


def _architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures") or [_MODEL_TYPES.get(str(config.get("model_type")))]
    return next((name for name in names if name in (ARCHITECTURE, CHAT_ARCHITECTURE)), None)


def _processor_form(checkpoint: Checkpoint) -> tuple[ImageConfig, _Tiling]:
    """The settings of GotOcr2ImageProcessor; InternVLProcessor turns its cutting on in any case."""
    image = read_image_config(
        checkpoint.image_processor,
        _DEFAULTS,
        ("size", "min_patches", "max_patches"),
        inert=("crop_to_patches",),
    )
    size = image.extra["size"]
    tokens = checkpoint.processor.get("image_seq_length") or checkpoint.config.get("image_seq_length", 256)
    return image, _Tiling(
        tile=(int(size.get("height", 0)), int(size.get("width", 0))),
        low=image.extra["min_patches"],
        high=image.extra["max_patches"],
        thumbnail=True,
        tokens=tokens,
    )


def _chat_form(config: Mapping[str, Any]) -> tuple[ImageConfig, _Tiling]:
    """The settings in config.json; mean, std and filter are constants of the model's own code."""
    vision = config.get("vision_config") or {}
    side = config.get("force_image_size") or vision.get("image_size", 448)
    patch, ratio = vision.get("patch_size", 14), config.get("downsample_ratio", 0.5)
    dynamic = config.get("dynamic_image_size", True)
    image = ImageConfig(Resample.BICUBIC, 1 / 255, IMAGENET_MEAN, IMAGENET_STD, {})
    return image, _Tiling(
        tile=(side, side),
        low=config.get("min_dynamic_patch", 1) if dynamic else 1,
        high=config.get("max_dynamic_patch", 12) if dynamic else 1,
        thumbnail=config.get("use_thumbnail", True),
        tokens=int((side // patch) ** 2 * ratio**2),
    )


def _token(checkpoint: Checkpoint, spelling: str) -> int:
    id = checkpoint.token_id(spelling)
    if id is None:
        raise ConfigRefused(f"the tokenizer has no token {spelling}; InternVL needs it")
    return id


def _plan(
    image: ImageConfig,
    tiling: _Tiling,
    context: int,
    frame: tuple[int | None, int | None],
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    if options.min_pixels is not None or options.max_pixels is not None:
        raise InvalidMessage(
            "min_pixels and max_pixels are no options of InternVL; leave them out, it counts tiles"
        )
    down, across = tile_grid(size, tiling.tile, tiling.low, tiling.high)
    target = (down * tiling.tile[0], across * tiling.tile[1])
    sizes = [target, tiling.tile] if tiling.thumbnail and down * across > 1 else [target]
    layout = PatchLayout(tiling.tile)
    pieces = tuple(Piece(size, t, t, layout, image.resample) for t in sizes)
    count = sum(piece.rows for piece in pieces) * tiling.tokens
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.TILES, (down, across)),
        token_count=count,
        run=_run(context, count, *frame),
        size=size,
        resized=target,
        pieces=tuple(TensorPiece("pixel_values", piece) for piece in pieces),
    )


def _run(context: int, count: int, start: int | None, end: int | None) -> Run:
    """The placeholders, framed where the template has not written the frame already."""
    run = RunToken(context, count)
    if start is None or end is None:
        return (run,)
    return RunToken(start, placeholder=False), run, RunToken(end, placeholder=False)


def _layout(plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [tiles of all images, 3, tile height, tile width], a thumbnail behind its tiles."""
    return concatenated_rows(plans, "pixel_values", picture_row, {})
