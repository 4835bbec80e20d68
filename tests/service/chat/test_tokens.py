import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.chat.expand import expand
from patchloom_service.chat.tokens import parse_token_prompt
from patchloom_service.errors import ContractViolation
from patchloom_service.models.base import Grid, GridKind, MediaPlan, RunToken
from patchloom_service.types import ControlToken, MediaItem, Modality, Slot

from tests.support.chat import image

PAD, START, END = 90, 91, 92


def plan(count, framed=False):
    run = (RunToken(PAD, count),)
    if framed:
        run = (RunToken(START, 1, placeholder=False), *run, RunToken(END, 1, placeholder=False))
    return MediaPlan(Modality.IMAGE, Grid(GridKind.PATCHES, (1, 1, count)), count, run)


def items(count):
    return [MediaItem(n, Modality.IMAGE, image(), f"media[{n}]", 0, n) for n in range(count)]


def parsed(ids, *plans, **more):
    prompt = parse_token_prompt(ids, items(len(plans)), plans, **more)
    return [s.item if isinstance(s, Slot) else f"t{s.id}" for s in prompt.segments]


def test_one_placeholder_stands_for_one_item():
    assert parsed([1, PAD, 2, PAD], plan(4), plan(6)) == ["t1", 0, "t2", 1]


def test_a_full_run_is_recognised():
    assert parsed([1, *[PAD] * 4, 2, *[PAD] * 6, 3], plan(4), plan(6)) == ["t1", 0, "t2", 1, "t3"]


def test_expanded_and_unexpanded_items_may_stand_together():
    assert parsed([*[PAD] * 4, PAD, 1], plan(4), plan(6)) == [0, 1, "t1"]


def test_runs_without_anything_between_are_told_by_their_lengths():
    assert parsed([PAD] * 10, plan(4), plan(6)) == [0, 1]


def test_a_run_with_structural_tokens_is_recognised_as_a_whole():
    run = [START, *[PAD] * 4, END]
    assert parsed([1, *run, 2], plan(4, framed=True)) == ["t1", 0, "t2"]
    assert parsed([1, PAD, 2], plan(4, framed=True)) == ["t1", 0, "t2"]


def test_items_of_one_token_are_never_expanded_twice():
    assert parsed([1, PAD, PAD], plan(1), plan(1)) == ["t1", 0, 1]


def test_a_run_of_another_length_names_both_numbers():
    with pytest.raises(ContractViolation, match=r"run of 3 placeholder tokens.*1 or exactly 4") as error:
        parsed([1, PAD, PAD, PAD], plan(4))
    assert error.value.field_path == "media[0]"


def test_one_placeholder_too_many_is_refused():
    with pytest.raises(ContractViolation, match="1 placeholder tokens more than its 1 items"):
        parsed([*[PAD] * 4, 1, PAD], plan(4))


def test_a_missing_run_names_its_item():
    with pytest.raises(ContractViolation, match="1 media runs for 2 items") as error:
        parsed([1, *[PAD] * 4, 2], plan(4), plan(6))
    assert error.value.field_path == "media[1]"


def test_a_stray_placeholder_without_items_is_refused():
    with pytest.raises(ContractViolation, match="more than its 0 items"):
        parsed([1, PAD], placeholders={Modality.IMAGE: PAD})


def test_without_items_all_ids_stay():
    assert parsed([1, 2]) == ["t1", "t2"]


COUNTS = st.lists(st.integers(2, 9), max_size=5)


@given(counts=COUNTS, data=st.data())
def test_expanding_a_parsed_prompt_gives_the_expanded_ids_again(counts, data):
    plans = [plan(count) for count in counts]
    expanded, mixed = [7], [7]
    for count in counts:
        expanded += [PAD] * count + [8]
        mixed += [PAD] * (count if data.draw(st.booleans()) else 1) + [8]
    for ids in (expanded, mixed):
        prompt = parse_token_prompt(ids, items(len(plans)), plans)
        assert all(isinstance(segment, ControlToken | Slot) for segment in prompt.segments)
        again = expand(prompt, items(len(plans)), plans, lambda texts: [[] for _ in texts], 10_000)
        assert np.array_equal(again.ids, expanded)
