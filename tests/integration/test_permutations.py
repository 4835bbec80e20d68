"""Three parallel results in every order, dialect and template: each image stands beside its own text.

Counts agree even where two results get each other's pictures, so the pixels of every image are looked at.
"""

import itertools
import re

import pytest
from patchloom_service.errors import TemplateRefused

from tests.support.dialects import DIALECTS, Call, Result, Session, Turn, picture, write
from tests.support.pipeline import (
    OFFICIAL,
    OWN,
    REFUSING,
    Pipeline,
    check_contract,
    shows,
    with_template,
    write_checkpoint,
)

CALLS = ("call_a", "call_b", "call_c")
ORDERS = tuple(itertools.permutations(range(3)))


@pytest.fixture(scope="module", params=[*OWN, *OFFICIAL], ids=lambda served: served.name)
def served(request):
    return request.param


@pytest.fixture(scope="module")
def pipeline(served, request, tmp_path_factory):
    if served in OFFICIAL:
        served = with_template(served, request.getfixturevalue("official"))
    with Pipeline(write_checkpoint(served, tmp_path_factory.mktemp(served.name))) as made:
        yield made


def shown(call, n):
    """The n-th image of the result of a call."""
    return picture(2 * call + n)


def session(order, images, text):
    """Results in `order`, each with `images` images between texts."""
    results = []
    for call in order:
        parts = []
        for n in range(images):
            before, after = text(call, n)
            parts += [before, shown(call, n), after]
        results.append(Result(CALLS[call], parts))
    calls = [Call(name, "screenshot", {"page": 1}) for name in CALLS]
    return Session([Turn("user", "compare"), Turn("assistant", None, calls, results)])


def marked(call, n):
    return f"«{call}{n}", f"{call}{n}»"


def alike(call, n):
    return "Screenshot:", "."


def neighbours(pipeline, response):
    """For each item in prompt order: the last mark before it and the first behind it."""
    found = []
    for item in response.items:
        before = pipeline.text(response.token_ids[: item.span.offset])
        after = pipeline.text(response.token_ids[item.span.offset + item.span.length :])
        found.append((re.findall(r"«(\d\d)", before)[-1:], re.findall(r"(\d\d)»", after)[:1]))
    return found


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_pixels_stand_beside_their_own_text_in_every_order(pipeline, served, dialect, images):
    for order in ORDERS:
        response = pipeline.run(write(session(order, images, marked), dialect), dialect)
        check_contract(pipeline, response, 3 * images)
        marks = neighbours(pipeline, response)
        for item in response.items:
            call = CALLS.index(item.tool_call_id)
            own = [n for n in range(images) if shows(response, item.index, shown(call, n))]
            assert len(own) == 1, (order, item.path)
            mark = f"{call}{own[0]}"
            if served.inline:
                assert marks[item.index] == ([mark], [mark]), (order, item.path)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_identical_texts_do_not_blur_which_image_is_whose(pipeline, served, dialect, images):
    for order in ORDERS:
        response = pipeline.run(write(session(order, images, alike), dialect), dialect)
        check_contract(pipeline, response, 3 * images)
        found = []
        for item in response.items:
            call = CALLS.index(item.tool_call_id)
            found += [(call, n) for n in range(images) if shows(response, item.index, shown(call, n))]
        stand = sorted(order) if served.results == "call" else order
        wanted = [(call, n) for call in stand for n in range(images)]
        if served.inline:
            assert found == wanted, order
        else:
            assert sorted(found) == sorted(wanted), order


def test_the_three_dialects_give_the_same_ids(pipeline):
    value = session((2, 0, 1), 2, marked)
    ids = [pipeline.run(write(value, dialect), dialect, count=True).token_ids for dialect in DIALECTS]
    assert ids[0] == ids[1] == ids[2]


REFUSALS = {
    "gemma4": "messages[2].content[1]: the template renders no placeholder for messages[2].content[1]",
    "gemma3": "Conversation roles must alternate",
    "llava_next": "Only user and assistant roles are supported",
    "minicpmv4_5_fallback": "messages[2].content[1]: ",
    "qwen2_5_text": "messages[2].content[1]: ",
}


@pytest.mark.parametrize("served", REFUSING, ids=lambda served: served.name)
def test_a_template_without_tool_images_refuses_them(served, official, tmp_path):
    with Pipeline(write_checkpoint(with_template(served, official), tmp_path)) as pipeline:
        for dialect in DIALECTS:
            with pytest.raises(TemplateRefused, match=re.escape(REFUSALS[served.name])):
                pipeline.run(write(session((2, 0, 1), 1, marked), dialect), dialect)
