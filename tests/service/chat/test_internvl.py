from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.chat import internvl
from patchloom_service.chat.internvl import InternVLChatRenderer, view, written
from patchloom_service.chat.normalize import harvest, normalize
from patchloom_service.chat.render import JinjaRenderer
from patchloom_service.errors import InvalidMessage, LiteralRefused, TemplateRefused
from patchloom_service.types import (
    ControlToken,
    Conversation,
    ImagePart,
    LiteralPolicy,
    MediaSource,
    Message,
    Modality,
    RenderOptions,
    Role,
    Slot,
    SourceKind,
    StructuredPart,
    TextPart,
    TextSegment,
    ToolCall,
)

from bench.checkpoints import TEMPLATES
from tests.support.checkpoints import tokenizer

USER, ASSISTANT, TOOL, SYSTEM = Role.USER, Role.ASSISTANT, Role.TOOL, Role.SYSTEM
IMAGE = ImagePart(MediaSource(SourceKind.DATA, data=b"x"))
MEDIA = ("<IMG_CONTEXT>", "<img>", "</img>")
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def message(role: Role, *content, **fields) -> Message:
    return Message(
        role, tuple(TextPart(part) if isinstance(part, str) else part for part in content), **fields
    )


def conversation(*messages: Message, **options) -> Conversation:
    return normalize(Conversation(messages, options=RenderOptions(**options)), 100)


@cache
def renderer(kind: type[JinjaRenderer], template: str) -> JinjaRenderer:
    words = tokenizer("internvl3").guarded(template, MEDIA)
    return kind(template, words, {Modality.IMAGE: "<IMG_CONTEXT>"}, ("<img>", "</img>"))


def render(made: Conversation, kind=InternVLChatRenderer, template: str = PLAIN) -> str:
    """The prompt as text, a slot as its item's number in braces, control tokens between bars."""
    prompt = renderer(kind, template).render(made, harvest(made))
    return "".join(map(spelled, prompt.segments))


def spelled(segment) -> str:
    match segment:
        case TextSegment(text):
            return text
        case ControlToken(id):
            return f"|{tokenizer('internvl3').decode([id])}|"
        case Slot(item):
            return f"{{{item}}}"


def turn(role: str, content: str) -> str:
    return f"|<|im_start|>|{role}\n{content}|<|im_end|>|\n"


def shown(*items: int) -> str:
    return "".join(f"|<img>|{{{item}}}|</img>|" for item in items)


def test_images_of_a_user_stand_between_its_texts_with_a_newline_each():
    made = conversation(message(USER, "one ", IMAGE, IMAGE, "two"))
    assert render(made) == (turn("user", f"one {shown(0)}\n{shown(1)}\ntwo") + "|<|im_start|>|assistant\n")


def test_texts_of_a_user_join_without_anything_between():
    assert turn("user", "onetwo") in render(conversation(message(USER, "one", "two")))


def test_images_of_a_tool_result_stand_as_those_of_a_user():
    made = conversation(message(USER, "u"), message(TOOL, "before", IMAGE, "after"))
    assert turn("tool", f"before{shown(0)}\nafter") in render(made)


def test_a_result_of_images_only_is_its_images():
    assert turn("tool", f"{shown(0)}\n{shown(1)}\n") in render(conversation(message(TOOL, IMAGE, IMAGE)))


def test_texts_of_a_result_join_with_a_space():
    assert turn("tool", "a b") in render(conversation(message(TOOL, "a", "b")))


def test_images_of_users_and_parallel_results_keep_their_owners():
    made = conversation(
        message(USER, "first", IMAGE),
        message(ASSISTANT, "calling"),
        message(TOOL, "B", IMAGE, tool_call_id="b"),
        message(TOOL, IMAGE, "A", tool_call_id="a"),
    )
    assert render(made) == (
        turn("user", f"first{shown(0)}\n")
        + turn("assistant", "calling")
        + turn("tool", f"B{shown(1)}\n")
        + turn("tool", f"{shown(2)}\nA")
        + "|<|im_start|>|assistant\n"
    )


def test_ids_names_and_calls_reach_the_template():
    template = (TEMPLATES / "internvl_chat.jinja").read_text()
    made = conversation(
        message(ASSISTANT, tool_calls=(ToolCall("c1", "look", {"at": "x"}),)),
        message(TOOL, IMAGE, tool_call_id="c1"),
    )
    calls = '\n|<tool_call>|\n{"name": "look", "arguments": {"at": "x"}}\n|</tool_call>|'
    assert render(made, template=template) == (
        turn("assistant", calls) + turn("tool", f"[c1] {shown(0)}\n") + "|<|im_start|>|assistant\n"
    )


def test_written_messages_keep_all_other_fields():
    given = {"role": "tool", "content": [{"type": "image"}], "tool_call_id": "c", "name": "n", "x": [1]}
    assert written(given) == {**given, "content": "<img><IMG_CONTEXT></img>"}
    assert given["content"] == [{"type": "image"}]


def test_as_many_legacy_markers_as_images_are_their_places():
    made = conversation(message(USER, IMAGE, "a<IMAGE_TOKEN>b", IMAGE, "<IMAGE_TOKEN>c"))
    assert turn("user", f"a{shown(0)}b{shown(1)}c") in render(made)


def test_legacy_markers_without_images_are_text():
    made = conversation(message(USER, "a <IMAGE_TOKEN> b"))
    assert turn("user", "a <IMAGE_TOKEN> b") in render(made)


@pytest.mark.parametrize("text", ["<IMAGE_TOKEN>", "<IMAGE_TOKEN>" * 3])
def test_another_number_of_legacy_markers_is_refused(text):
    made = conversation(message(USER, "x"), message(USER, text, IMAGE, IMAGE))
    with pytest.raises(InvalidMessage) as caught:
        render(made)
    count = text.count("<")
    assert str(caught.value) == (
        f"messages[1].content: {count} <IMAGE_TOKEN> markers for 2 images; "
        "as many markers as images, or none, are allowed"
    )


@pytest.mark.parametrize("role", [SYSTEM, ASSISTANT, TOOL])
def test_legacy_markers_of_other_roles_are_text(role):
    made = conversation(message(role, "a <IMAGE_TOKEN> b", IMAGE))
    assert turn(role.value, f"a <IMAGE_TOKEN> b{shown(0)}\n") in render(made)


def test_a_legacy_marker_in_one_message_leaves_the_images_of_another():
    made = conversation(
        message(USER, "old <IMAGE_TOKEN>", IMAGE),
        message(USER, "new", IMAGE),
        message(USER, "said <IMAGE_TOKEN>"),
        message(TOOL, IMAGE),
    )
    prompt = render(made)
    assert turn("user", f"old {shown(0)}") in prompt
    assert turn("user", f"new{shown(1)}\n") in prompt
    assert turn("user", "said <IMAGE_TOKEN>") in prompt
    assert turn("tool", f"{shown(2)}\n") in prompt


def test_image_tokens_in_text_stay_text():
    made = conversation(message(USER, "<img><IMG_CONTEXT></img>", IMAGE, IMAGE))
    assert turn("user", f"<img><IMG_CONTEXT></img>{shown(0)}\n{shown(1)}\n") in render(made)


def test_a_refused_literal_is_named_at_the_part_that_the_client_sent():
    made = conversation(message(USER, IMAGE, IMAGE, "a<img>"), literals=LiteralPolicy.REJECT)
    with pytest.raises(LiteralRefused) as caught:
        render(made)
    assert caught.value.field_path == "messages[0].content[2]"


def test_structured_parts_are_refused():
    made = conversation(message(TOOL, StructuredPart([{"name": "f", "output": "x"}])))
    with pytest.raises(TemplateRefused, match="text and image parts"):
        render(made)


def test_the_probe_sees_a_template_that_takes_images_of_all_roles():
    facts = renderer(InternVLChatRenderer, PLAIN).probe
    assert facts.as_json()["tool_images"] == "kept"
    assert facts.parallel == 2


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "<IMAGE_TOKEN>", "x<IMAGE_TOKEN>y"]) | st.just(IMAGE), min_size=1),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([USER, TOOL]),
)
def test_a_view_keeps_every_image_and_its_owner(contents, role):
    made = conversation(*(message(role, *content) for content in contents))
    items = harvest(made)
    try:
        seen = view(made, items)
    except InvalidMessage:
        return
    assert [(item.index, item.message, item.path) for item in seen.items] == [
        (item.index, item.message, item.path) for item in items
    ]
    for item in seen.items:
        assert seen.conversation.messages[item.message].content[item.position] is item.part
    assert len(harvest(seen.conversation)) == len(items)


HF = (TEMPLATES / "internvl.jinja").read_text()


def test_the_template_of_the_hugging_face_form_needs_no_view():
    made = conversation(
        message(USER, "one ", IMAGE, "two <IMAGE_TOKEN>"), message(TOOL, IMAGE, tool_call_id="c")
    )
    assert render(made, JinjaRenderer, HF) == (
        turn("user", "one {0}\ntwo <IMAGE_TOKEN>") + turn("tool", "[c] {1}\n") + "|<|im_start|>|assistant\n"
    )


def test_the_architecture_is_that_of_the_model_file():
    from patchloom_service.models.internvl import CHAT_ARCHITECTURE

    assert internvl.ARCHITECTURE == CHAT_ARCHITECTURE
