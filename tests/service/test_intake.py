"""Key-only parts whose plan depends on the company they are in."""

from types import SimpleNamespace

import pytest
from patchloom_service.intake import _holds
from patchloom_service.models.base import Grid, GridKind, MediaPlan, RunToken
from patchloom_service.types import ImageOptions, Modality


def plan(tiles):
    grid = Grid(GridKind.TILES, (tiles,))
    return MediaPlan(Modality.IMAGE, grid, 1, (RunToken(7),), size=(10, 10), resized=(10, 10))


ALIKE = SimpleNamespace(plan_image=lambda size, options, count: plan(4))
COUNTING = SimpleNamespace(plan_image=lambda size, options, count: plan(4 if count == 1 else 1))


@pytest.mark.parametrize(
    ("spec", "cached", "images", "holds"),
    [
        (ALIKE, 9, 3, True),  # made with size options of its own
        (COUNTING, 4, 1, True),
        (COUNTING, 1, 2, True),
        (COUNTING, 4, 2, False),
    ],
)
def test_a_cached_plan_holds_where_the_number_of_images_gives_the_same(spec, cached, images, holds):
    assert _holds(plan(cached), spec, ImageOptions(), images) is holds


def test_a_clip_holds_whatever_the_images():
    clip = MediaPlan(Modality.AUDIO, Grid(GridKind.FRAMES, (1,)), 1, (RunToken(7),))
    assert _holds(clip, COUNTING, ImageOptions(), 3)
