import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_service.chat.spelling import Alternate
from patchloom_service.errors import TemplateRefused
from patchloom_service.types import Modality, Role

from tests.support.chat import (
    EXAMPLES,
    assistant,
    call,
    conversation,
    conversations,
    image,
    items_of,
    neutral,
    official_renderer,
    rendered,
    slot_order,
    spelled,
    structure,
    system,
    tool,
    user,
    without_kept_tokens,
    words,
    zoo,
    zoo_renderer,
)

QWEN = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
GLM = (
    "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|begin_of_image|>",
    "<|end_of_image|>", "<|begin_of_video|>", "<|video|>", "<|end_of_video|>", "<tool_response>",
    "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink",
)  # fmt: skip
GEMMA = (
    "<|turn>",
    "<turn|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
)
TOKENS = {
    "qwen2_5_vl": ("<|image_pad|>", QWEN),
    "qwen3_vl": ("<|image_pad|>", QWEN),
    "qwen3_5": ("<|image_pad|>", QWEN),
    "qwen3_6": ("<|image_pad|>", QWEN),
    "qwen2_5_text": ("<|image_pad|>", QWEN),
    "minicpmv4_5_fallback": ("<|image_pad|>", QWEN),
    "glm_5_3_flash": ("<|image|>", GLM),
    "glm_5_3_flash_earlier": ("<|image|>", GLM),
    "internvl_hf": ("<IMG_CONTEXT>", (*QWEN, "<video>")),
    "gemma4": ("<|image|>", GEMMA),
    "gemma3": ("<start_of_image>", ("<start_of_turn>", "<end_of_turn>")),
    "llava_next": ("<image>", ("</s>",)),
}
ALL_KEPT = (1, 1, 1, 2)
MATRIX = {
    "qwen2_5_vl": ALL_KEPT,
    "qwen3_vl": ALL_KEPT,
    "qwen3_5": ALL_KEPT,
    "qwen3_6": ALL_KEPT,
    "glm_5_3_flash": ALL_KEPT,
    "glm_5_3_flash_earlier": ALL_KEPT,
    "internvl_hf": ALL_KEPT,
    "gemma4": (1, 0, 0, 0),
    "gemma3": (1, "refused", "refused", "refused"),
    "llava_next": (1, "refused", "refused", "refused"),
    "qwen2_5_text": ("refused", 0, 0, 0),
    "minicpmv4_5_fallback": ("refused", 0, 0, 0),
}
LATER_SYSTEM = {
    "qwen2_5_vl": "kept", "qwen3_vl": "lost", "qwen3_5": "refused", "qwen3_6": "refused",
    "glm_5_3_flash": "kept", "internvl_hf": "kept", "gemma4": "kept", "gemma3": "refused",
}  # fmt: skip
_RENDERERS = {}


def renderer_of(official, name):
    if name not in _RENDERERS:
        placeholder, added = TOKENS[name]
        architectures = ["Glm5NextForConditionalGeneration"] if name.startswith("glm") else []
        _RENDERERS[name] = official_renderer(official(name), placeholder, added, architectures)
    return _RENDERERS[name]


@pytest.mark.parametrize("name", MATRIX)
def test_the_probe_finds_the_contract_matrix_of_the_official_templates(official, name):
    probe = renderer_of(official, name).probe
    user_facts, tool_facts = probe.roles[Role.USER], probe.roles[Role.TOOL]
    found = (user_facts.text_image, tool_facts.text_image, tool_facts.image, probe.parallel)
    assert found == MATRIX[name]


@pytest.mark.parametrize("name", LATER_SYSTEM)
def test_the_probe_finds_what_becomes_of_a_later_system_message(official, name):
    assert renderer_of(official, name).probe.later_system == LATER_SYSTEM[name]


def test_only_glm_orders_results_by_call(official):
    orders = {name: renderer_of(official, name).probe.order_images for name in MATRIX if name != "llava_next"}
    assert {name for name, order in orders.items() if order == "call"} == {
        "glm_5_3_flash",
        "glm_5_3_flash_earlier",
    }


def test_templates_that_need_a_mapping_get_one(official):
    words = {
        name: renderer_of(official, name).probe.arguments for name in ("glm_5_3_flash", "qwen3_5", "qwen3_vl")
    }
    assert words == {"glm_5_3_flash": "mapping", "qwen3_5": "mapping", "qwen3_vl": "mapping or string"}


@pytest.mark.parametrize("name", ["qwen2_5_text", "minicpmv4_5_fallback"])
def test_a_template_for_text_takes_strings_and_refuses_tool_images(official, name):
    renderer = renderer_of(official, name)
    assert Role.TOOL in renderer.probe.shape.strings
    assert "tool_images" in renderer.probe.as_json()
    with pytest.raises(TemplateRefused) as error:
        rendered(renderer, user("q"), assistant(calls=[call("a")]), tool("a", "seen", image()))
    assert error.value.field_path == "messages[2].content[1]"


CARRIERS = [name for name, found in MATRIX.items() if found == ALL_KEPT]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("name", CARRIERS)
def test_six_orders_of_three_results_keep_their_images(official, name, images):
    renderer = renderer_of(official, name)
    for order in itertools.permutations("abc"):
        results = [tool(c, *[p for n in range(images) for p in (f"{c}{n}", image())]) for c in order]
        prompt = rendered(renderer, user("start"), assistant(calls=[call(c, x=1) for c in "abc"]), *results)
        stand = "abc" if name.startswith("glm") else order
        assert slot_order(prompt) == [order.index(c) * images + n for c in stand for n in range(images)]
        assert prompt.renders == 2


@pytest.mark.parametrize("name", CARRIERS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_no_text_changes_the_structure_of_an_official_prompt(official, name, data):
    renderer = renderer_of(official, name)
    messages = data.draw(conversations(words(tuple(renderer.tokenizer.control))))
    messages = without_kept_tokens(renderer, messages)
    prompt = rendered(renderer, *messages)
    assert structure(prompt) == structure(rendered(renderer, *neutral(messages)))
    assert sorted(slot_order(prompt)) == list(range(len(items_of(conversation(*messages)))))


def test_gemma4_is_refused_for_tool_images_by_name(official):
    renderer = renderer_of(official, "gemma4")
    with pytest.raises(TemplateRefused, match="renders no placeholder for messages") as error:
        rendered(renderer, user("q", image()), assistant(calls=[call("a")]), tool("a", "seen", image()))
    assert error.value.field_path == "messages[2].content[1]"


def test_gemma4_is_refused_for_a_result_behind_a_user_message(official):
    renderer = renderer_of(official, "gemma4")
    with pytest.raises(TemplateRefused, match="ask for tool_results HOIST") as error:
        rendered(renderer, user("q"), assistant(calls=[call("a")]), user("wait"), tool("a", "seen"))
    assert error.value.field_path == "messages[3]"
    turn = user("q"), assistant(calls=[call("a")]), tool("a", "seen"), tool("a", "again"), user("thanks")
    assert rendered(renderer, *turn).warnings == ()


def test_llava_gets_the_lists_that_it_indexes(official):
    renderer = renderer_of(official, "llava_next")
    prompt = rendered(renderer, system("s", "t"), user("q", "r", image()), assistant("a", "b"))
    assert spelled(renderer, prompt) == "<<SYS>>\ns t\n<</SYS>>\n\n[INST] ⟦0⟧\nqr [/INST] a b⟦</s>⟧ "


def test_a_template_without_system_messages_warns_of_what_it_leaves_out():
    renderer = zoo_renderer("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    prompt = rendered(renderer, system("s"), user("q"))
    assert [(w.reason, w.field_path) for w in prompt.warnings] == [("SYSTEM_LOST", "messages[0]")]


FAULTY = "qwen3_vl", "qwen3_5", "glm_5_3_flash"


@pytest.mark.parametrize("name", FAULTY)
def test_tools_are_in_the_prompt_with_and_without_an_image(official, name):
    renderer = renderer_of(official, name)
    tools = [{"type": "function", "function": {"name": "zoom_in", "parameters": {}}}]
    for content in (("q",), ("q", image())):
        value = conversation(user(*content), tools=tools)
        assert "zoom_in" in spelled(renderer, renderer.render(value, items_of(value)))


@pytest.mark.parametrize("name", FAULTY)
def test_both_arguments_of_a_call_are_rendered(official, name):
    renderer = renderer_of(official, name)
    prompt = rendered(renderer, user("q"), assistant(calls=[call("1", "add", a=3, b=18)]), tool("1", "21"))
    text = spelled(renderer, prompt)
    assert ("None" in text, "3" in text, "18" in text) == (False, True, True)


@pytest.mark.parametrize("name", FAULTY)
def test_a_fenced_literal_in_a_tool_string_is_text(official, name):
    renderer = renderer_of(official, name)
    code = f"```\n{TOKENS[name][0]}\n```"
    prompt = rendered(renderer, user("q"), assistant(calls=[call("1")]), tool("1", code))
    assert code in spelled(renderer, prompt)
    assert slot_order(prompt) == []


def test_a_substring_of_the_template_proves_nothing():
    probe = zoo_renderer(zoo("stringified")).probe
    assert "vision" in zoo("stringified")
    assert probe.as_json()["tool_images"] == "printed"
    assert probe.as_json()["roles"]["tool"]["content"] == "string"


def test_the_probe_learns_the_stand_in_of_each_modality():
    alternates = zoo_renderer(zoo("loop")).probe.alternates
    assert alternates == {
        Modality.IMAGE: Alternate("video", own="<|image|>", before=0, text="<|video|>"),
        Modality.AUDIO: Alternate(
            "video", own="<|audio|>", before=0, text="<|vision_start|><|video|><|vision_end|>"
        ),
    }
    assert zoo_renderer(zoo("kinds_apart")).probe.alternates == {}


def test_a_template_that_always_fails_is_described_and_not_refused():
    facts = zoo_renderer("{{ raise_exception('no') }}").probe.as_json()
    assert facts["roles"]["user"]["content"] == "neither"
    assert (facts["parallel_tool_images"], facts["arguments"], facts["later_system"]) == (
        "refused",
        "unknown",
        "refused",
    )


def test_think_and_tool_call_keep_their_meaning_in_assistant_text(official):
    assert renderer_of(official, "glm_5_3_flash").probe.kept_tokens >= {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
    }
    assert renderer_of(official, "qwen3_5").probe.kept_tokens == {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
    }
