"""A bound on how often a container makes us loop: a hostile file has millions of empty pieces."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from patchloom_service.errors import LimitExceeded

Piece = TypeVar("Piece")

MAX_PIECES = 1 << 16


def bounded(pieces: Iterable[Piece], what: str, most: int = MAX_PIECES) -> Iterator[Piece]:
    """The same pieces; LimitExceeded at one too many."""
    for count, piece in enumerate(pieces):
        if count == most:
            raise LimitExceeded(f"the {what}; at most {most} are allowed")
        yield piece
