import pytest
from patchloom_service.chat.expand import expand
from patchloom_service.errors import ContractViolation, LimitExceeded
from patchloom_service.models.base import Grid, GridKind, MediaPlan, RunToken
from patchloom_service.types import (
    ControlToken,
    ImagePart,
    MediaItem,
    MediaSource,
    Modality,
    Prompt,
    Slot,
    SourceKind,
    TextSegment,
)


def item(index: int) -> MediaItem:
    part = ImagePart(MediaSource(SourceKind.DATA, b"x"))
    return MediaItem(index, Modality.IMAGE, part, f"messages[0].content[{index}]", 0, index)


def plan(*run: RunToken | str) -> MediaPlan:
    count = sum(t.count for t in run if isinstance(t, RunToken) and t.placeholder)
    return MediaPlan(Modality.IMAGE, Grid(GridKind.PATCHES, (1, 1, count)), count, run)


def encode(texts):
    return [[ord(c) for c in text] for text in texts]


def run(segments, plans, max_tokens=1000):
    return expand(Prompt(tuple(segments)), [item(i) for i in range(len(plans))], plans, encode, max_tokens)


def test_a_slot_becomes_its_run_and_the_range_is_recorded():
    expanded = run([TextSegment("ab"), Slot(0), TextSegment("c")], [plan(RunToken(7, 3))])
    assert expanded.ids.tolist() == [97, 98, 7, 7, 7, 99]
    assert expanded.spans[0].ranges == ((2, 3),)


def test_adjacent_images_keep_ranges_of_their_own():
    expanded = run([Slot(1), Slot(0)], [plan(RunToken(7, 2)), plan(RunToken(7, 3))])
    assert expanded.order == (1, 0)
    assert [span.ranges for span in expanded.spans] == [((0, 3),), ((3, 2),)]


def test_structural_tokens_split_ranges_and_are_not_counted():
    start, end, stop = (RunToken(i, 1, placeholder=False) for i in (5, 6, 8))
    rows = (start, RunToken(7, 2), end, RunToken(7, 2), stop)
    span = run([ControlToken(1), Slot(0)], [plan(*rows)]).spans[0]
    assert span.ranges == ((2, 2), (5, 2))
    assert (span.offset, span.length) == (1, 7)


def test_placeholder_tokens_of_two_ids_in_a_row_are_one_range():
    assert run([Slot(0)], [plan(RunToken(7, 2), RunToken(9, 1))]).spans[0].ranges == ((0, 3),)


def test_seam_text_joins_the_text_around_it():
    texts = []

    def remember(given):
        texts.extend(given)
        return encode(given)

    prompt = Prompt((TextSegment("a\n"), Slot(0), Slot(1), TextSegment("\nb")))
    plans = [plan("\n\n", RunToken(7, 1), "\n\n")] * 2
    expand(prompt, [item(0), item(1)], plans, remember, 100)
    assert texts == ["a\n\n\n", "\n\n\n\n", "\n\n\nb"]


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], "0 slots for this image"),
        ([Slot(0), Slot(0)], "2 slots for this image"),
        ([Slot(0), Slot(1)], "slot for item 1, there are 1 items"),
    ],
)
def test_items_and_slots_must_pair_one_to_one(segments, message):
    with pytest.raises(ContractViolation, match=message):
        run(segments, [plan(RunToken(7, 1))])


def test_a_violation_names_the_item():
    with pytest.raises(ContractViolation) as caught:
        run([Slot(0)], [plan(RunToken(7, 1)), plan(RunToken(7, 1))])
    assert caught.value.field_path == "messages[0].content[1]"


def test_an_overlong_prompt_is_refused_with_both_numbers():
    with pytest.raises(LimitExceeded, match="1000002 tokens; at most 10 are allowed"):
        run([TextSegment("ab"), Slot(0)], [plan(RunToken(7, 1000000))], max_tokens=10)


def test_an_empty_prompt_has_no_ids():
    assert run([], []).ids.tolist() == []
