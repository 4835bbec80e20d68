import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_service.chat.jinja_template import TemplateLimits
from patchloom_service.chat.normalize import harvest
from patchloom_service.errors import (
    InvalidMessage,
    LimitExceeded,
    LiteralRefused,
    TemplateRefused,
    UnsupportedContent,
)
from patchloom_service.types import (
    ControlToken,
    Conversation,
    LiteralPolicy,
    Message,
    Role,
    StructuredPart,
    TextPart,
    TextSegment,
)

from tests.support.chat import (
    EXAMPLES,
    MEDIA,
    PLAIN,
    TURNS,
    assistant,
    audio,
    call,
    conversation,
    conversations,
    image,
    neutral,
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

IN_PLACE = {
    "loop": "message",
    "macros": "message",
    "namespaces": "message",
    "indexing": "message",
    "stripped": "message",
    "controls": "message",
    "strict_system": "message",
    "separated": "message",
    "by_call": "call",
    "by_call_with_media": "call",
}
HOISTED = {"hoisted_behind": [0, 1, 2, 3, 4], "hoisted_front": [3, 4, 2, 1, 0]}
CALLS = ("a", "b", "c")


def parallel(order, images):
    """Three calls whose results arrive in another order, each with its images between unique texts."""
    results = [
        tool(name, *itertools.chain(*((f"<{name}{n}", image(), f"{name}{n}>") for n in range(images))))
        for name in order
    ]
    return user("start"), assistant(calls=[call(name) for name in CALLS]), *results


def neighbours(renderer, prompt):
    """For each slot in prompt order: the item and the words before and after it."""
    text = re.sub(r"⟦<[^⟧]*⟧", "", spelled(renderer, prompt))
    found = re.findall(r"<(\w+)(?:\s|Picture \d+: )*⟦(\d+)⟧\s*(\w+)>", text)
    return [(int(item), before, after) for before, item, after in found]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("order", list(itertools.permutations(CALLS)))
@pytest.mark.parametrize("name", IN_PLACE)
def test_parallel_results_keep_their_images(name, order, images):
    renderer = _renderer(name)
    prompt = rendered(renderer, *parallel(order, images))
    places = {f"{call}{n}": order.index(call) * images + n for call in CALLS for n in range(images)}
    stand = CALLS if IN_PLACE[name] == "call" else order
    words = [f"{call}{n}" for call in stand for n in range(images)]
    assert neighbours(renderer, prompt) == [(places[word], word, word) for word in words]


@pytest.mark.parametrize("name", HOISTED)
def test_hoisted_images_are_told_by_spelling(name):
    renderer = _renderer(name)
    prompt = rendered(
        renderer,
        user("U", image(), "V"),
        assistant(calls=[call("a"), call("b"), call("c")]),
        tool("c", image(), "C"),
        tool("a", "A", image()),
        tool("b", image(), "B", image()),
    )
    assert slot_order(prompt) == HOISTED[name]
    assert prompt.renders == 2 + 3


BARE_BY_CALL = """{%- set ns = namespace(bare=true) -%}
{%- for m in messages if m.role == 'tool' and (m.content is string or m.content | length != 1) -%}
{%- set ns.bare = false -%}{%- endfor -%}
{%- set tools = messages | selectattr('role', 'equalto', 'tool') | list -%}
{%- if ns.bare and tools -%}{%- set tools = tools | sort(attribute='tool_call_id') -%}{%- endif -%}
{%- set messages = (messages | rejectattr('role', 'equalto', 'tool') | list) + tools -%}
""" + zoo("loop")


def test_images_that_stand_elsewhere_without_text_are_told_by_spelling():
    renderer = zoo_renderer(BARE_BY_CALL)
    ask = user("q"), assistant(calls=[call("a"), call("b"), call("c")])
    bare = rendered(renderer, *ask, tool("c", image()), tool("a", image()), tool("b", image()))
    assert slot_order(bare) == [1, 2, 0]
    beside = rendered(renderer, *ask, tool("c", "C", image()), tool("a", image()), tool("b", image()))
    assert slot_order(beside) == [0, 1, 2]


REFUSED = {
    "kinds_apart": "cannot be proven which slot is whose",
    "doubled": "6 placeholders for 3 media items",
    "no_tool_images": "no placeholder for messages[2].content[1]; it takes no image in tool messages",
    "stringified": "prints the parts of tool messages as program text",
    "json_printed": "prints the parts of tool messages as program text",
    "string_only": "takes only a string as content of tool messages",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bound_is_refused(name):
    with pytest.raises(TemplateRefused, match=re.escape(REFUSED[name])) as error:
        rendered(_renderer(name), *parallel(CALLS, 1))
    assert error.value.field_path == "messages[2].content[1]"


@pytest.mark.parametrize("name", ["stringified", "json_printed", "string_only", "no_tool_images"])
def test_a_single_lost_image_is_refused_by_name(name):
    with pytest.raises(TemplateRefused) as error:
        rendered(_renderer(name), user("look"), assistant(calls=[call("a")]), tool("a", "seen", image()))
    assert error.value.field_path == "messages[2].content[1]"


def test_a_user_image_of_a_template_without_tool_images_renders():
    renderer = _renderer("no_tool_images")
    assert slot_order(rendered(renderer, user("A", image(), "B", image()))) == [0, 1]


def test_an_image_of_many_without_a_slot_is_the_one_that_is_named():
    renderer = _renderer("no_tool_images")
    with pytest.raises(TemplateRefused) as error:
        rendered(
            renderer,
            user(image(), "and", image()),
            assistant(calls=[call("a")]),
            tool("a", image()),
            user(image()),
        )
    assert error.value.field_path == "messages[2].content[0]"


def test_audio_and_images_are_bound_each_to_its_kind():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user(audio(), "one", image(), "two", audio()))
    assert spelled(renderer, prompt) == (
        "⟦<|start|>⟧user\n⟦0⟧one⟦<|vision_start|>⟧⟦1⟧⟦<|vision_end|>⟧two⟦2⟧⟦<|end|>⟧\n⟦<|start|>⟧assistant\n"
    )


def test_one_item_and_no_literal_cost_one_render():
    assert rendered(_renderer("loop"), user("A", image())).renders == 1


def test_two_items_cost_two_renders():
    assert rendered(_renderer("loop"), user("A", image(), image())).renders == 2


def test_a_literal_costs_one_more_render():
    assert rendered(_renderer("loop"), user("A<|end|>")).renders == 2


def test_the_order_of_interleaved_text_and_images_is_kept():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("A", image(), "B", image(), "C"), add_generation_prompt=False)
    assert spelled(renderer, prompt) == (
        "⟦<|start|>⟧user\nA⟦<|vision_start|>⟧⟦0⟧⟦<|vision_end|>⟧B⟦<|vision_start|>⟧⟦1⟧⟦<|vision_end|>⟧C"
        "⟦<|end|>⟧\n"
    )


# Control tokens in text


@pytest.mark.parametrize("literal", [*TURNS, *MEDIA, *PLAIN])
def test_a_control_token_in_user_text_is_text(literal):
    renderer = _renderer("loop")
    prompt = rendered(renderer, user(f"what does {literal} mean?", image()))
    assert spelled(renderer, prompt) == (
        f"⟦<|start|>⟧user\nwhat does {literal} mean?⟦<|vision_start|>⟧⟦0⟧⟦<|vision_end|>⟧⟦<|end|>⟧\n"
        "⟦<|start|>⟧assistant\n"
    )


@pytest.mark.parametrize("literal", ["<|end|>", "<|image|>", "<|vision_start|>"])
def test_a_control_token_split_over_two_parts_is_text(literal):
    renderer = _renderer("loop")
    for cut in range(1, len(literal)):
        prompt = rendered(renderer, user(f"a{literal[:cut]}", f"{literal[cut:]}b"))
        assert spelled(renderer, prompt) == (f"⟦<|start|>⟧user\na{literal}b⟦<|end|>⟧\n⟦<|start|>⟧assistant\n")


def test_a_control_token_split_over_three_parts_and_trimmed_is_text():
    renderer = _renderer("stripped")
    prompt = rendered(renderer, user("a<| \n", " en ", "\td|>b"))
    assert spelled(renderer, prompt) == "⟦<|start|>⟧user\na<|end|>b⟦<|end|>⟧\n"


def all_text(prompt):
    return "".join(segment.text for segment in prompt.segments if isinstance(segment, TextSegment))


def test_control_tokens_in_every_untrusted_place_are_text():
    renderer = zoo_renderer(
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ mood }}"
        "{% for m in messages %}<|start|>{{ m.role }}{{ m.name }}{{ m.tool_call_id }}{{ m.content }}"
        "{{ m.reasoning_content }}{% for c in m.tool_calls or [] %}{{ c.id }}<tool_call>"
        "{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    )
    bad = "<|end|><|image|>"
    prompt = rendered(
        renderer,
        system(bad),
        user(bad),
        assistant(bad, calls=[call(bad, bad, **{bad: [bad, {bad: bad}]})], reasoning=bad),
        tool(bad, bad),
        tools=[{bad: {"description": bad}}],
        template_kwargs={"mood": bad},
    )
    structure = [s for s in prompt.segments if not isinstance(s, TextSegment)]
    clean = rendered(
        renderer,
        system("x"),
        user("x"),
        assistant("x", calls=[call("x", "x", x=["x", {"x": "x"}])], reasoning="x"),
        tool("x", "x"),
        tools=[{"x": {"description": "x"}}],
        template_kwargs={"mood": "x"},
    )
    assert structure == [s for s in clean.segments if not isinstance(s, TextSegment)]
    assert all_text(prompt) == all_text(clean).replace("x", bad)


def test_assistant_text_keeps_what_the_template_means_by_its_own_tokens():
    renderer = _renderer("loop")
    text = "<tool_call>{}</tool_call><|end|><|image|>"
    prompt = rendered(renderer, user("q"), assistant(text), add_generation_prompt=False)
    assert spelled(renderer, prompt).endswith(
        "assistant\n⟦<tool_call>⟧{}⟦</tool_call>⟧<|end|><|image|>⟦<|end|>⟧\n"
    )


def test_a_name_cannot_complete_a_control_token_that_the_template_builds():
    renderer = _renderer("named_headers")
    message = Message(Role.USER, (TextPart("q"),), name="end")
    assert spelled(renderer, rendered(renderer, message)) == "<|end|>user\nq⟦<|end|>⟧\n"


def test_reject_refuses_a_control_token_and_names_its_place():
    with pytest.raises(LiteralRefused, match=re.escape("'<|end|>'")) as error:
        rendered(
            _renderer("loop"), user("a"), assistant("b"), user("c", "d<|end|>"), literals=LiteralPolicy.REJECT
        )
    assert error.value.field_path == "messages[2].content[1]"


def test_reject_refuses_a_control_token_that_two_parts_join_to():
    with pytest.raises(LiteralRefused) as error:
        rendered(_renderer("loop"), user("a<|en", "d|>"), literals=LiteralPolicy.REJECT)
    assert error.value.field_path == "messages[0].content[0]"


def test_reject_lets_the_beginning_of_a_token_pass():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("if a <"), literals=LiteralPolicy.REJECT)
    assert spelled(renderer, prompt) == "⟦<|start|>⟧user\nif a <⟦<|end|>⟧\n⟦<|start|>⟧assistant\n"


def test_parse_reads_turn_tokens_in_text_but_never_media():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("a<|end|><|image|>", image()), literals=LiteralPolicy.PARSE)
    assert spelled(renderer, prompt) == (
        "⟦<|start|>⟧user\na⟦<|end|>⟧<|image|>⟦<|vision_start|>⟧⟦0⟧⟦<|vision_end|>⟧⟦<|end|>⟧\n"
        "⟦<|start|>⟧assistant\n"
    )


def test_a_private_character_in_text_is_text():
    renderer = _renderer("loop")
    text = "".join(map(chr, range(0xF0000, 0xF0040)))
    prompt = rendered(renderer, user(f"{text}<|end|>", image(), image()))
    assert f"{text}<|end|>" in spelled(renderer, prompt)
    assert slot_order(prompt) == [0, 1]


def test_a_template_that_escapes_to_ascii_gives_the_text_back():
    renderer = zoo_renderer(
        "{% for m in messages %}<|start|>{{ m.content | tojson(ensure_ascii=True) }}{% endfor %}"
    )
    assert spelled(renderer, rendered(renderer, user("é<|end|>"))) == '⟦<|start|>⟧"\\u00e9<|end|>"'


def test_a_template_that_encodes_control_tokens_is_refused():
    renderer = zoo_renderer("{% for m in messages %}<|start|>{{ m.content | urlencode }}{% endfor %}")
    with pytest.raises(TemplateRefused, match="transforms control tokens"):
        rendered(renderer, user("a<|end|>"))


def test_a_template_that_transforms_the_beginning_of_a_token_is_refused():
    renderer = zoo_renderer("{% for m in messages %}<|start|>{{ m.content | replace('<', '[') }}{% endfor %}")
    with pytest.raises(TemplateRefused, match="transforms text"):
        rendered(renderer, user("a<"))


# Content forms


def test_tool_text_parts_are_joined_by_one_space():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("q"), assistant(calls=[call("a")]), tool("a", "one", "two"))
    assert "tool\none two⟦" in spelled(renderer, prompt)


def test_an_empty_tool_result_leaves_an_empty_block():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("q"), assistant(calls=[call("a")]), tool("a"))
    assert "⟦<|start|>⟧tool\n⟦<|end|>⟧" in spelled(renderer, prompt)


def test_user_text_parts_stay_a_list_where_the_template_takes_lists():
    renderer = _renderer("separated")
    assert spelled(renderer, rendered(renderer, user("one", "two"))) == "⟦<|start|>⟧user\none\ntwo⟦<|end|>⟧\n"


def test_user_text_parts_are_joined_where_the_template_wants_a_string():
    renderer = _renderer("stringified")
    assert spelled(renderer, rendered(renderer, user("one", "two"))) == "⟦<|start|>⟧user\none two⟦<|end|>⟧\n"


def test_a_template_that_wants_lists_gets_lists():
    renderer = _renderer("lists_only")
    assert spelled(renderer, rendered(renderer, user("one"))) == "⟦<|start|>⟧user\none⟦<|end|>⟧\n"


def test_an_empty_text_beside_an_image_adds_nothing():
    renderer = _renderer("loop")
    plain, empty = rendered(renderer, user(image())), rendered(renderer, user("", image()))
    assert plain.segments == empty.segments


def test_arguments_go_in_as_a_mapping_or_a_string_as_the_template_needs():
    messages = user("q"), assistant(calls=[call("a", "add", b=18, a=3)]), tool("a", "21")
    for name in ("loop", "arguments_string"):
        assert '{"b": 18, "a": 3}' in spelled(_renderer(name), rendered(_renderer(name), *messages))


def test_a_later_system_message_joins_the_first_where_the_template_needs_it():
    renderer = _renderer("strict_system")
    prompt = rendered(renderer, system("one"), user("q"), assistant("a"), system("two"), user("r"))
    assert spelled(renderer, prompt).startswith("⟦<|start|>⟧system\none\n\ntwo⟦<|end|>⟧\n⟦<|start|>⟧user\nq")
    assert [(w.reason, w.field_path) for w in prompt.warnings] == [("SYSTEM_MERGED", "messages[3]")]


def test_a_later_system_message_stays_where_the_template_takes_it():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("q"), system("two"), add_generation_prompt=False)
    assert spelled(renderer, prompt) == "⟦<|start|>⟧user\nq⟦<|end|>⟧\n⟦<|start|>⟧system\ntwo⟦<|end|>⟧\n"
    assert prompt.warnings == ()


@pytest.mark.parametrize("change", ["lower", "capitalize", "title"])
@pytest.mark.parametrize("texts", [("<|END|>",), ("<|IMAGE|>", "b"), ("<|E", "ND|>")])
def test_a_template_that_changes_the_case_of_text_makes_no_control_token_of_it(change, texts):
    renderer = zoo_renderer(zoo("loop").replace("{{ part.text }}", f"{{{{ part.text | {change} }}}}"))
    prompt = rendered(renderer, user("a", *texts), assistant("b"))
    assert structure(prompt) == structure(rendered(renderer, user("a"), assistant("b")))


def structured(value):
    return user("q"), assistant(calls=[call("a")]), tool("a", StructuredPart(value))


def test_a_structured_result_reaches_the_template_as_it_is():
    renderer = _renderer("structured")
    prompt = rendered(
        renderer, *structured([{"name": "f", "output": "1<|end|>"}, {"name": "g", "output": 2}])
    )
    assert "tool\nf=1<|end|>;g=2;⟦<|end|>⟧" in spelled(renderer, prompt)


BY_KEY = zoo("loop")
for word in ("image", "video"):
    BY_KEY = BY_KEY.replace(f"part.type == '{word}'", f"(part.type == '{word}' or '{word}' in part)")
BY_KEY = BY_KEY.replace(
    "{% elif part.type == 'text' %}",
    "{% elif part.output is defined %}{{ part.name }}={{ part.output }};{% elif part.type == 'text' %}",
)


@pytest.mark.parametrize(
    "value", [[{"video": "x"}], [{"output": "<|video|>"}, {"text": "a", "video": 1}], {"image": "x"}]
)
def test_a_structured_result_that_a_template_takes_for_media_is_refused(value):
    with pytest.raises(UnsupportedContent, match="takes a structured part for media") as caught:
        rendered(zoo_renderer(BY_KEY), *structured(value))
    assert caught.value.field_path == "messages[2].content"


def test_a_structured_result_may_spell_media_tokens():
    renderer = zoo_renderer(BY_KEY)
    prompt = rendered(renderer, *structured([{"name": "<|image|>", "output": "<|video|>"}]))
    assert "<|image|>=<|video|>;" in spelled(renderer, prompt)
    assert slot_order(prompt) == []


def test_an_ignored_structured_result_is_refused():
    with pytest.raises(TemplateRefused, match="ignores a structured part"):
        rendered(_renderer("loop"), *structured([{"name": "f", "output": "1"}]))


def test_a_printed_structured_result_is_refused():
    with pytest.raises(TemplateRefused, match="prints a structured part as program text"):
        rendered(_renderer("stringified"), *structured([{"name": "f", "output": "1"}]))


# Options


def test_the_final_message_is_continued_where_it_ends():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("q"), assistant("so far "), continue_final_message=True)
    assert spelled(renderer, prompt) == "⟦<|start|>⟧user\nq⟦<|end|>⟧\n⟦<|start|>⟧assistant\nso far "


def test_a_trimmed_final_message_is_continued_without_its_space():
    renderer = _renderer("stripped")
    prompt = rendered(renderer, user("q"), assistant("so far "), continue_final_message=True)
    assert spelled(renderer, prompt) == "⟦<|start|>⟧user\nq⟦<|end|>⟧\n⟦<|start|>⟧assistant\nso far"


def test_a_continued_literal_stays_text():
    renderer = _renderer("loop")
    prompt = rendered(renderer, user("q"), assistant("see <|end|>"), continue_final_message=True)
    assert spelled(renderer, prompt).endswith("assistant\nsee <|end|>")


def test_a_final_message_that_the_template_changes_cannot_be_continued():
    with pytest.raises(TemplateRefused, match="cannot be continued"):
        rendered(_renderer("reversed_text"), user("q"), assistant("abc"), continue_final_message=True)


def test_a_final_message_without_text_cannot_be_continued():
    with pytest.raises(InvalidMessage, match="needs a text"):
        rendered(_renderer("loop"), user(image()), continue_final_message=True)


@pytest.mark.parametrize("name", ["messages", "bos_token", "raise_exception"])
def test_template_kwargs_cannot_take_the_names_of_the_template(name):
    renderer = _renderer("loop")
    renderer.tokenizer.variables["bos_token"] = "<|start|>"
    with pytest.raises(InvalidMessage) as error:
        rendered(renderer, user("q"), template_kwargs={name: "x"})
    del renderer.tokenizer.variables["bos_token"]
    assert error.value.field_path == f"render.template_kwargs.{name}"


def test_now_is_fixed_by_the_request():
    renderer = zoo_renderer("{{ strftime_now('%Y-%m-%d') }}{{ messages[0].content }}")
    assert spelled(renderer, rendered(renderer, user("!"), now=86400.0)) == "1970-01-02!"


def test_the_refusal_of_a_template_says_its_own_words():
    renderer = zoo_renderer("{{ raise_exception('Roles must alternate.') }}")
    with pytest.raises(TemplateRefused, match=re.escape("refuses this conversation: Roles must alternate.")):
        rendered(renderer, user("q"))


def test_a_placeholder_without_a_media_part_is_refused():
    renderer = zoo_renderer("<|image|>{{ messages[0].content }}")
    with pytest.raises(TemplateRefused, match="1 placeholders for 0 media items"):
        rendered(renderer, user("q"))


def test_a_template_that_runs_away_is_stopped():
    renderer = zoo_renderer(
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        limits=TemplateLimits(steps=10_000),
    )
    with pytest.raises(LimitExceeded, match="limit of 10000 steps"):
        rendered(renderer, user("go"))


# Properties

WORDS = words((*TURNS, *MEDIA, *PLAIN))


@pytest.mark.parametrize("name", ["loop", "macros", "by_call", "hoisted_behind"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(messages=conversations(WORDS))
def test_text_never_changes_the_structure_of_a_prompt(name, messages):
    renderer = _renderer(name)
    messages = without_kept_tokens(renderer, messages)
    prompt = rendered(renderer, *messages)
    assert structure(prompt) == structure(rendered(renderer, *neutral(messages)))
    assert sorted(slot_order(prompt)) == list(range(len(harvest(conversation(*messages)))))


@settings(max_examples=EXAMPLES, deadline=None)
@given(texts=st.lists(WORDS, min_size=1, max_size=5))
def test_text_comes_out_as_it_went_in(texts):
    renderer = _renderer("loop")
    prompt = rendered(renderer, user(*texts), add_generation_prompt=False)
    start, body, end, newline = prompt.segments
    assert isinstance(start, ControlToken)
    assert isinstance(end, ControlToken)
    assert (body.text, newline.text) == ("user\n" + "".join(texts), "\n")


_RENDERERS = {}


def _renderer(name):
    if name not in _RENDERERS:
        _RENDERERS[name] = zoo_renderer(zoo(name))
    return _RENDERERS[name]


def test_a_conversation_is_not_changed_by_rendering():
    value = Conversation((user("a", image(), image()), assistant("b<|end|>")))
    before = repr(value)
    _renderer("loop").render(value, harvest(value))
    assert repr(value) == before
