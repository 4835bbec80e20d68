"""What a source image becomes: a resized picture on a canvas, cut into patches, values in place.

The vocabulary of all kernels. It knows nothing of models: families describe themselves with
these values.
"""

from dataclasses import dataclass, field
from enum import StrEnum

PAD_ENTRY = 256
"""Index of a normalise table's padding value; 0..255 are the pixel levels."""


class Resample(StrEnum):
    """Antialiased resampling filter; bicubic has a = -0.5, Lanczos three lobes."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class Parity(StrEnum):
    """Whose integer resize the bytes equal: weights, shift and pass order (kernels/README.md)."""

    ATEN_U8 = "aten_u8"
    PILLOW12 = "pillow12"
    PILLOW13 = "pillow13"


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """How a canvas is cut into patches, in which order the patches and the values of a patch stand.

    Patches are ordered (gh/m, gw/m, m, m) with m = `merge`, raster order when m is 1. The values of
    one patch are ordered by `columns`, a permutation of the axes c (channel), t (temporal copy),
    y and x (row and column within the patch). A tile is a patch as large as the tile.
    """

    patch: tuple[int, int]  # (height, width)
    merge: int = 1
    temporal: int = 1
    columns: str = "ctyx"

    def __post_init__(self) -> None:
        if sorted(self.columns) != sorted("ctyx"):
            raise ValueError(f"columns must be a permutation of 'ctyx', got {self.columns!r}")

    def row_size(self, channels: int = 3) -> int:
        """Values of one patch."""
        return channels * self.temporal * self.patch[0] * self.patch[1]

    def strides(self, channels: int = 3) -> "Strides":
        """Element strides of a contiguous [patches, row_size] output."""
        size = {"c": channels, "t": self.temporal, "y": self.patch[0], "x": self.patch[1]}
        step, steps = 1, {}
        for axis in reversed(self.columns):
            steps[axis] = step
            step *= size[axis]
        return Strides(row=step, **steps)


@dataclass(frozen=True, slots=True)
class Strides:
    """Element strides of the output along patch row, channel, temporal copy, y and x."""

    row: int
    c: int
    t: int
    y: int
    x: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A picture made of a source: resized to `target`, on `canvas` at `offset`, cut by `layout`.

    Canvas pixel (y, x) is resized pixel (y - offset[0], x - offset[1]) where that exists and `pad`
    elsewhere, so a negative offset crops. The canvas is a whole number of merge groups of patches.
    `pad` is one table index per channel: a level 0..255, or PAD_ENTRY for padding added after
    normalisation. All sizes are (height, width). `via` are pictures to make on the way, first to last, each
    of the one before: `source` is then the canvas of the last. Kernels read that picture; making it is up
    to whoever calls them.
    """

    source: tuple[int, int]
    target: tuple[int, int]
    canvas: tuple[int, int]
    layout: PatchLayout
    resample: Resample = Resample.BICUBIC
    offset: tuple[int, int] = (0, 0)
    pad: tuple[int, int, int] = (0, 0, 0)
    via: tuple["Piece", ...] = ()

    def __post_init__(self) -> None:
        if self.via and self.via[-1].canvas != self.source:
            raise ValueError(f"source {self.source} is not the picture before, {self.via[-1].canvas}")
        if not all(0 <= entry <= PAD_ENTRY for entry in self.pad):
            raise ValueError(f"pad must be table indices 0..{PAD_ENTRY}, got {self.pad}")
        for name, size in (("source", self.source), ("target", self.target)):
            if min(size) < 1:
                raise ValueError(f"{name} must be at least 1x1, got {size}")
        for side, patch in zip(self.canvas, self.layout.patch, strict=True):
            if side < 1 or side % (patch * self.layout.merge):
                raise ValueError(
                    f"canvas {self.canvas} is no whole number of {self.layout.patch} patches "
                    f"in groups of {self.layout.merge}"
                )

    @property
    def shows_all(self) -> bool:
        """Whether the whole resized picture lies on the canvas."""
        return all(
            offset >= 0 and offset + target <= canvas
            for offset, target, canvas in zip(self.offset, self.target, self.canvas, strict=True)
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.canvas[0] // self.layout.patch[0], self.canvas[1] // self.layout.patch[1]

    @property
    def rows(self) -> int:
        """Patches in all."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, slots=True)
class Job:
    """One piece to compute: which source it reads, and where in the flat output it writes.

    `start` is the element index of patch 0, channel 0, copy 0, pixel (0, 0).
    """

    source: int
    piece: Piece
    start: int
    strides: Strides = field(default=Strides(0, 0, 0, 0, 0))

    @classmethod
    def contiguous(cls, source: int, piece: Piece, start: int) -> "Job":
        """A job whose patches follow one another without gaps from `start`."""
        return cls(source, piece, start, piece.layout.strides())
