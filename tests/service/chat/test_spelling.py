import pytest
from patchloom_service.chat.spelling import (
    Alternate,
    Markers,
    SlotText,
    enclosed_items,
    read_brackets,
    spell,
)
from patchloom_service.chat.twins import PrivateBlock
from patchloom_service.types import Modality

IMAGE, AUDIO = Modality.IMAGE, Modality.AUDIO
ALTERNATES = {IMAGE: Alternate("video", own="[i]", before=1, text="[v]")}


def markers(count):
    """Readable brackets: item 0 is A...B, item 1 is C...D."""
    return Markers(PrivateBlock(ord("A"), 2 * count), count)


def slots(text):
    return [SlotText(k, k + 1, IMAGE if c == "i" else AUDIO) for k, c in enumerate(text) if c in "ia"]


def brackets(text, *modalities):
    return read_brackets(text, slots(text), markers(len(modalities)), modalities)


def test_brackets_tell_the_order_of_the_text():
    assert brackets("x CiD y AiB", IMAGE, IMAGE) == (1, 0)
    assert brackets("AaBCiD", AUDIO, IMAGE) == (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "ABCiDi",
        "AiiBCD",
        "AiBi",
        "AiCBiD",
        "ACiDBi",
        "BiACiD",
        "AiBCiDCiD",
        "AiBCiDi",
        "AaBCiD",
        "",
    ],
)
def test_brackets_prove_nothing_if_a_slot_is_not_exactly_in_its_own(text):
    assert brackets(text, IMAGE, IMAGE) is None


def test_enclosed_items_are_those_with_a_slot_of_their_own():
    text = "AB CiD"
    assert enclosed_items(text, slots(text), markers(2)) == {1}


def rendering(order, prompt="<{}>{}<{}>"):
    """A template that shows the items in a fixed order."""

    def render_as(types):
        renders.append(types)
        return prompt.format(*("[v]" if types.get(item) == "video" else "[i]" for item in order))

    renders = []
    return render_as, renders


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_slots_spell_the_numbers_of_their_items(order):
    render_as, renders = rendering(order)
    base = render_as({})
    renders.clear()
    assert spell(base, slots(base), [IMAGE] * 3, ALTERNATES, render_as) == order
    assert len(renders) == 2


def test_seven_items_need_three_renders():
    order = (6, 0, 5, 1, 4, 2, 3)
    render_as, renders = rendering(order, "{}" * 7)
    base = render_as({})
    renders.clear()
    assert spell(base, slots(base), [IMAGE] * 7, ALTERNATES, render_as) == order
    assert len(renders) == 3


def test_a_render_that_differs_elsewhere_spells_nothing():
    def render_as(types):
        return "".join("[v]" if types.get(item) else "[i]" for item in (0, 1)) + str(len(types))

    base = render_as({})
    assert spell(base, slots(base), [IMAGE, IMAGE], ALTERNATES, render_as) is None


def test_an_alternate_in_a_loop_of_its_own_spells_nothing():
    def render_as(types):
        return "".join(sorted("[v]" if types.get(item) else "[i]" for item in (0, 1)))

    base = render_as({})
    assert spell(base, slots(base), [IMAGE, IMAGE], ALTERNATES, render_as) is None


def test_nothing_is_spelled_without_an_alternate():
    assert spell("[i][i]", slots("[i][i]"), [IMAGE, IMAGE], {}, lambda types: "[i][i]") is None
