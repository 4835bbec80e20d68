"""Random conversations with every template keep the contract, whatever control tokens their texts spell.

Every renderer sees the same kinds of conversations: rounds of parallel calls whose results arrive in any
order, images anywhere, texts made of whole and halved control tokens and of private code points.
"""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchloom_service.types import (
    Conversation,
    Encoding,
    ImagePart,
    MediaSource,
    Message,
    OutputOptions,
    Request,
    Role,
    SourceKind,
    TextPart,
    ToolCall,
)

from tests.support.dialects import picture
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

EXAMPLES = int(os.environ.get("PATCHLOOM_EXAMPLES", "300"))
LEVELS = OutputOptions(encoding=Encoding.UINT8)
PICTURES = tuple(picture(n) for n in range(12))
# What these templates take: no results with images, or no tools at all.
TEXT_RESULTS = frozenset({"gemma4"})
TURNS_ONLY = frozenset({"gemma3", "llava_next"})
TEXT_ONLY = frozenset({"minicpmv4_5_fallback", "qwen2_5_text"})
# It moves images and knows no second modality: with two of them it is refused.
ONE_IMAGE = frozenset({"llava_next"})


@pytest.fixture(scope="module", params=[*OWN, *OFFICIAL, *REFUSING], ids=lambda served: served.name)
def served(request):
    return request.param


@pytest.fixture(scope="module")
def pipeline(served, request, tmp_path_factory):
    if served not in OWN:
        served = with_template(served, request.getfixturevalue("official"))
    with Pipeline(write_checkpoint(served, tmp_path_factory.mktemp(served.name))) as made:
        yield made


def image(index):
    return ImagePart(MediaSource(SourceKind.DATA, data=PICTURES[index].data))


def texts(words):
    return st.lists(st.sampled_from(words), max_size=4).map("".join)


@st.composite
def conversations(draw, words, name):
    """A system message at most, then rounds; the images are all different."""
    text = texts(words)
    fresh = iter(range(1 if name in ONE_IMAGE else len(PICTURES)))

    def content(images):
        parts = []
        for kind in draw(st.lists(st.booleans(), max_size=3)):
            number = next(fresh, None) if kind and images else None
            parts.append(TextPart(draw(text)) if number is None else image(number))
        return tuple(parts)

    messages = [Message(Role.SYSTEM, (TextPart(draw(text)),))] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 2))):
        asked = content(name not in TEXT_ONLY) or (TextPart(f"question {number}"),)
        messages.append(Message(Role.USER, asked))
        count = 0 if name in TURNS_ONLY else draw(st.integers(0, 3))
        calls = tuple(ToolCall(f"call_{number}_{n}", f"tool_{n}", {"q": draw(text)}) for n in range(count))
        # Assistant text keeps a template's own tokens (<think>), so it is plain here.
        messages.append(
            Message(Role.ASSISTANT, (TextPart(draw(st.sampled_from(["", "Well."]))),), tool_calls=calls)
        )
        for call in draw(st.permutations(calls)):
            found = content(name not in TEXT_RESULTS | TEXT_ONLY)
            messages.append(Message(Role.TOOL, found, tool_call_id=call.id))
    if draw(st.booleans()) or name in TURNS_ONLY:
        messages.append(Message(Role.USER, (TextPart("And now?"),)))
    return Conversation(tuple(messages))


def words_of(pipeline):
    """Control tokens whole and in halves, words, white space, private code points."""
    control = sorted(pipeline.model.tokenizer.control)[:40]
    media = sorted({*pipeline.model.spec.placeholders.values(), *pipeline.model.spec.structural})
    halves = [
        piece
        for token in (*media, *control[:8])
        for piece in (token[: len(token) // 2], token[len(token) // 2 :])
    ]
    private = ["\U000f0000", "\U000f0001\U000f0002", "\U0010fffd", "\ue000"]
    return [*media, *media, *control, *halves, *private, "word", "界", " ", "\n", "<", "|>", "\\udb80\\udc00"]


def plain(conversation):
    """The same conversation with a word for every text that is not white space only."""

    def neutral(part):
        return TextPart("x") if isinstance(part, TextPart) and part.text.strip() else part

    def harmless(call):
        return replace(call, arguments={"q": "x"})

    return replace(
        conversation,
        messages=tuple(
            replace(
                message,
                content=tuple(map(neutral, message.content)),
                tool_calls=tuple(map(harmless, message.tool_calls)),
            )
            for message in conversation.messages
        ),
    )


def control_ids(pipeline, response):
    """The control tokens of an answer outside its runs, in order."""
    control = set(pipeline.model.tokenizer.control.values())
    inside = {p for i in response.items for p in range(i.span.offset, i.span.offset + i.span.length)}
    return [t for p, t in enumerate(response.token_ids) if t in control and p not in inside]


@pytest.mark.timeout(300 if EXAMPLES <= 300 else 0)
def test_random_conversations_keep_the_contract(pipeline, served):
    words = words_of(pipeline)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(conversations(words, served.name))
    def check(conversation):
        sent = [p for m in conversation.messages for p in m.content if isinstance(p, ImagePart)]
        counted = pipeline.answer(Request("model", conversation), count=True)
        check_contract(pipeline, counted, len(sent))
        benign = pipeline.answer(Request("model", plain(conversation)), count=True)
        assert control_ids(pipeline, counted) == control_ids(pipeline, benign)
        check_owners(counted, conversation)
        # Pixels of a fifth: they cost more than all the rest.
        if sent and len(counted.token_ids) % 5 == 0:
            whole = pipeline.answer(Request("model", conversation, output=LEVELS))
            assert whole.token_ids == counted.token_ids
            for item, own in zip(whole.items, check_owners(whole, conversation), strict=True):
                assert shows(whole, item.index, own)

    check()


def check_owners(response, conversation):
    """The picture that each item's path leads to; its call id and its size are the item's."""
    found = []
    for item in response.items:
        at, position = (int(piece.split("]")[0]) for piece in item.path.split("[")[1:])
        message = conversation.messages[at]
        own = next(one for one in PICTURES if one.data == message.content[position].source.data)
        assert item.tool_call_id == (message.tool_call_id or "")
        assert (item.size.height, item.size.width) == (own.height, own.width)
        found.append(own)
    assert len(set(found)) == len(found)
    return found
