"""The plan of an image whose placeholders are its merged patches, without structural tokens in the run."""

from patchloom_kernels.layout import Piece

from patchloom_service.models.base import Grid, GridKind, MediaPlan, RunToken, TensorPiece
from patchloom_service.types import Modality


def patch_plan(piece: Piece, token: int, merge: int) -> MediaPlan:
    """One placeholder for every `merge` x `merge` patches of the piece, written to pixel_values."""
    down, across = piece.grid
    count = down * across // merge**2
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.PATCHES, (1, down, across)),
        token_count=count,
        run=(RunToken(token, count),),
        size=piece.source,
        resized=piece.target,
        pieces=(TensorPiece("pixel_values", piece),),
    )
