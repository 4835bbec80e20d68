import pytest
from patchloom_service.chat.normalize import harvest, normalize, unmatched_results
from patchloom_service.errors import InvalidMessage, LimitExceeded, UnsupportedContent
from patchloom_service.types import (
    Conversation,
    ImagePart,
    MediaSource,
    Message,
    RenderOptions,
    Role,
    SourceKind,
    StructuredPart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResultPolicy,
)

IMAGE = ImagePart(MediaSource(SourceKind.DATA, b"x"))


def user(*content):
    return Message(Role.USER, tuple(TextPart(c) if isinstance(c, str) else c for c in content))


def calls(*ids, name="look"):
    return Message(Role.ASSISTANT, tool_calls=tuple(ToolCall(i, f"{name}_{i}", {}) for i in ids))


def result(call_id, *content, name=None):
    return Message(Role.TOOL, content or (TextPart(call_id),), tool_call_id=call_id, name=name)


def normalized(*messages, policy=ToolResultPolicy.KEEP, limit=100):
    conversation = Conversation(messages, options=RenderOptions(tool_results=policy))
    return normalize(conversation, limit).messages


@pytest.mark.parametrize("role", [Role.ASSISTANT, Role.TOOL])
def test_an_empty_assistant_or_tool_message_holds_one_empty_text(role):
    assert normalized(Message(role))[0].content == (TextPart(""),)


@pytest.mark.parametrize("role", [Role.USER, Role.SYSTEM])
def test_missing_content_of_user_and_system_is_refused(role):
    with pytest.raises(InvalidMessage, match="missing content") as caught:
        normalized(user("a"), Message(role))
    assert caught.value.field_path == "messages[1].content"


def test_no_messages_are_refused():
    with pytest.raises(InvalidMessage, match="at least one message"):
        normalized()


def test_a_thinking_part_in_a_tool_message_is_refused():
    with pytest.raises(InvalidMessage, match="role='assistant'") as caught:
        normalized(calls("a"), result("a", TextPart("x"), ThinkingPart("hm")))
    assert caught.value.field_path == "messages[1].content[1]"


def test_a_structured_part_outside_a_tool_message_is_refused():
    with pytest.raises(InvalidMessage, match="role='tool'"):
        normalized(user(StructuredPart([1])))


@pytest.mark.parametrize("hidden", [{"type": "image"}, [{"deep": {"image_url": "x"}}]])
def test_media_inside_a_structured_part_is_refused(hidden):
    with pytest.raises(UnsupportedContent, match="media inside"):
        normalized(calls("a"), result("a", StructuredPart(hidden)))


@pytest.mark.parametrize("kind", [["string", "null"], {"any": 1}, None, 3])
def test_a_structured_part_may_hold_a_json_schema(kind):
    part = StructuredPart([{"type": kind, "text": "x"}])
    assert normalized(calls("a"), result("a", part))[1].content == (part,)


def test_a_tool_result_takes_the_name_of_its_latest_call():
    messages = normalized(calls("a", name="old"), calls("a", name="new"), result("a"), result("b"))
    assert [message.name for message in messages[2:]] == ["new_a", ""]


def test_a_tool_results_own_name_wins():
    assert normalized(calls("a"), result("a", name="mine"))[1].name == "mine"


def test_user_content_between_results_keeps_its_position_by_default():
    turn = (calls("a", "b"), result("a", name="x"), user("note"), result("b", name="y"))
    assert normalized(*turn) == normalized(*turn, policy=ToolResultPolicy.KEEP)
    assert [m.role for m in normalized(*turn)] == [Role.ASSISTANT, Role.TOOL, Role.USER, Role.TOOL]


def test_hoist_puts_results_first_and_keeps_both_orders():
    turn = (calls("a", "b"), user("1"), result("b"), user("2"), result("a"))
    hoisted = normalized(*turn, policy=ToolResultPolicy.HOIST)
    assert [m.content[0].text for m in hoisted[1:]] == ["b", "a", "1", "2"]


def test_hoist_does_not_cross_an_assistant_message():
    turn = (calls("a"), user("1"), result("a"), calls("b"), user("2"), result("b"))
    hoisted = normalized(*turn, policy=ToolResultPolicy.HOIST)
    assert [m.content[0].text for m in hoisted] == ["", "a", "1", "", "b", "2"]


def test_reject_names_the_user_message_in_the_way():
    with pytest.raises(InvalidMessage, match="send the results first") as caught:
        normalized(calls("a"), user("1"), result("a"), policy=ToolResultPolicy.REJECT)
    assert caught.value.field_path == "messages[1]"


def test_reject_takes_user_content_behind_all_results():
    assert len(normalized(calls("a"), result("a"), user("1"), policy=ToolResultPolicy.REJECT)) == 3


def test_too_many_results_in_a_turn_are_refused():
    with pytest.raises(LimitExceeded, match="3 tool results in a turn; at most 2"):
        normalized(calls(*"abc"), result("a"), result("b"), result("c"), limit=2)


@pytest.mark.parametrize(
    "message",
    [
        Message(Role.USER, (TextPart("x"),), tool_calls=(ToolCall("a", "f", {}),)),
        Message(Role.USER, (TextPart("x"),), reasoning="hm"),
        Message(Role.ASSISTANT, tool_call_id="a"),
        Message(Role.ASSISTANT, (ThinkingPart("x"),), reasoning="hm"),
        Message(Role.ASSISTANT, tool_calls=(ToolCall("a", "", {}),)),
    ],
)
def test_a_field_in_the_wrong_role_is_refused(message):
    with pytest.raises(InvalidMessage):
        normalized(message)


def test_results_without_a_waiting_call_are_warned_of():
    conversation = normalize(
        Conversation((calls("a"), result("a"), result("a"), result("z"), calls("a"), result("a"))), 10
    )
    assert [w.field_path for w in unmatched_results(conversation)] == [
        "messages[2].tool_call_id",
        "messages[3].tool_call_id",
    ]


def test_harvest_counts_items_in_message_order_with_their_calls():
    conversation = normalize(
        Conversation((user("look", IMAGE), calls("a"), result("a", TextPart("t"), IMAGE))), 10
    )
    assert [(i.index, i.path, i.tool_call_id) for i in harvest(conversation)] == [
        (0, "messages[0].content[1]", ""),
        (1, "messages[2].content[1]", "a"),
    ]


def test_a_turn_goes_on_behind_a_system_message():
    system = Message(Role.SYSTEM, (TextPart("s"),))
    turn = (calls("a", "b"), result("a"), user("1"), system, result("b"), user("2"))
    hoisted = normalized(*turn, policy=ToolResultPolicy.HOIST)
    assert [m.content[0].text for m in hoisted[1:]] == ["a", "b", "1", "s", "2"]
    assert normalized(*turn) == normalized(*turn, policy=ToolResultPolicy.KEEP)
    with pytest.raises(InvalidMessage, match="user content before") as caught:
        normalized(*turn, policy=ToolResultPolicy.REJECT)
    assert caught.value.field_path == "messages[2]"
