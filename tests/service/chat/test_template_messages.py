import pytest
from patchloom_client.protocols import _turns
from patchloom_service.chat.template_messages import REASONING_JOINER, Edit, Shape, draft, write
from patchloom_service.types import ThinkingPart

from tests.support.chat import assistant, conversation


def reasoning(*content):
    (message,) = write(draft(conversation(assistant(*content)), (), Shape()), Shape(), Edit())
    return message["content"], message.get("reasoning_content")


@pytest.mark.parametrize(
    ("thoughts", "joined"), [(("a", "b"), "a\nb"), (("a", "", "b"), "a\nb"), (("a",), "a"), (("", ""), None)]
)
def test_thinking_parts_are_joined_to_one_reasoning(thoughts, joined):
    assert reasoning(*map(ThinkingPart, thoughts), "ok") == ("ok", joined)


def test_thinking_parts_are_joined_as_the_client_joins_blocks_of_reasoning():
    assert REASONING_JOINER == _turns.REASONING_JOINER
