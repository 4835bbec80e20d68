import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_service.chat.alignment import align
from patchloom_service.chat.jinja_template import ChatTemplate
from patchloom_service.chat.normalize import harvest
from patchloom_service.chat.template_messages import Edit, Shape, draft, write
from patchloom_service.types import StructuredPart

from tests.support.chat import assistant, call, conversation, image, tool, user

SHAPE = Shape()


def drafted(*messages):
    value = conversation(*messages)
    return draft(value, harvest(value), SHAPE)


def order(*messages):
    """The first texts of the tool messages after alignment."""
    return [m.parts[0] for m in align(drafted(*messages)) if m.role == "tool"]


def test_results_stand_in_the_order_of_their_calls():
    turn = user("q"), assistant(calls=[call("a"), call("b"), call("c")])
    assert order(*turn, tool("c", "C"), tool("a", "A"), tool("b", "B")) == ["A", "B", "C"]


def test_fewer_results_than_calls_are_fine():
    turn = user("q"), assistant(calls=[call("a"), call("b"), call("c")])
    assert order(*turn, tool("c", "C"), tool("a", "A")) == ["A", "C"]


@pytest.mark.parametrize(
    ("calls", "results"),
    [
        (["a", "b"], ["b", "b"]),
        (["a", "b"], ["b", ""]),
        (["a", "b"], ["b", "x"]),
        (["a", "a"], ["b", "a"]),
        (["a", ""], ["b", "a"]),
        (["a", "b"], ["x", "a"]),
    ],
)
def test_ambiguous_ids_are_left_in_place(calls, results):
    texts = [f"{position}{call_id}" for position, call_id in enumerate(results)]
    messages = [tool(call_id, text) for call_id, text in zip(results, texts, strict=True)]
    assert order(user("q"), assistant(calls=[call(c) for c in calls]), *messages) == texts


def test_results_never_move_across_a_user_message():
    turn = user("q"), assistant(calls=[call("a"), call("b")])
    assert order(*turn, tool("b", "B"), user("wait"), tool("a", "A")) == ["B", "A"]


def test_results_never_move_into_another_round():
    first = user("q"), assistant(calls=[call("a"), call("b")]), tool("b", "B"), tool("a", "A")
    second = assistant(calls=[call("d"), call("c")]), tool("c", "C"), tool("d", "D")
    assert order(*first, *second) == ["A", "B", "D", "C"]


IDS = st.sampled_from(["a", "b", "c", "d", ""])
CONTENT = st.one_of(
    st.lists(st.one_of(st.sampled_from(["x", "y", " z"]), st.builds(image)), max_size=3),
    st.lists(
        st.fixed_dictionaries(
            {"output": st.sampled_from(["o", "p", ""])}, optional={"id": IDS, "tool_call_id": IDS}
        ),
        min_size=1,
        max_size=3,
    ).map(lambda value: [StructuredPart(value)]),
)


@st.composite
def rounds(draw):
    messages = [user("q")]
    for _ in range(draw(st.integers(1, 3))):
        ids = draw(st.lists(IDS, max_size=4))
        messages.append(assistant(calls=[call(i, x=1) for i in ids]))
        for i in draw(st.lists(IDS, max_size=4)):
            messages.append(tool(i, *draw(CONTENT)))
        if draw(st.booleans()):
            messages.append(user("r"))
    return messages


@pytest.mark.parametrize("name", ["glm_5_3_flash", "glm_5_3_flash_earlier"])
@settings(max_examples=300, deadline=None)
@given(messages=rounds())
def test_the_official_template_gives_the_same_bytes_without_ids(official, name, messages):
    template = _template(official, name)
    plain = drafted(*messages)
    assert _rendered(template, align(plain)) == _rendered(template, plain)


@pytest.mark.parametrize("name", ["glm_5_3_flash", "glm_5_3_flash_earlier"])
def test_two_thousand_results_in_one_turn_are_linear(official, name):
    template = _template(official, name)
    ids = [f"call{n}" for n in range(2000)]
    messages = [user("q"), assistant(calls=[call(i, x=1) for i in ids])]
    messages += [tool(i, f"r{i}", image()) for i in reversed(ids)]
    plain = drafted(*messages)
    start = time.process_time()
    text = _rendered(template, align(plain))
    assert time.process_time() - start < 1.0
    assert text.index("rcall0<") < text.index("rcall1<") < text.index("rcall1999<")


_TEMPLATES = {}


def _template(official, name):
    if name not in _TEMPLATES:
        _TEMPLATES[name] = ChatTemplate(official(name))
    return _TEMPLATES[name]


def _rendered(template, messages):
    variables = {"messages": write(messages, SHAPE, Edit()), "tools": None, "add_generation_prompt": True}
    return template.render(variables, now=0.0)
