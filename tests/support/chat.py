"""Small tokenizers, conversations and readable prompts for tests of rendering."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from hypothesis import strategies as st
from patchloom_service.chat.jinja_template import TemplateLimits
from patchloom_service.chat.normalize import harvest, normalize
from patchloom_service.chat.render import JinjaRenderer
from patchloom_service.chat.tokenize import Tokenizer
from patchloom_service.types import (
    AudioPart,
    ControlToken,
    Conversation,
    ImagePart,
    MediaItem,
    MediaSource,
    Message,
    Modality,
    Part,
    Prompt,
    RenderOptions,
    Role,
    Slot,
    SourceKind,
    TextPart,
    TextSegment,
    ToolCall,
)
from tokenizers import decoders, models, pre_tokenizers

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "templates"

EXAMPLES = int(os.environ.get("PATCHLOOM_EXAMPLES", "300"))
"""Random conversations a renderer; more in `make test-long`."""

TURNS = ("<|start|>", "<|end|>")
MEDIA = ("<|vision_start|>", "<|image|>", "<|vision_end|>", "<|video|>", "<|audio|>")
PLAIN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
PLACEHOLDERS = {Modality.IMAGE: "<|image|>", Modality.AUDIO: "<|audio|>"}


def byte_tokenizer(
    added: Iterable[tokenizers.AddedToken] = (), merges: Sequence[tuple[str, str]] = ()
) -> tokenizers.Tokenizer:
    """A byte-level BPE with a few merges and the control tokens of the template zoo."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    model = models.BPE(vocab=vocabulary, merges=list(merges))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [tokenizers.AddedToken(t, special=True, normalized=False) for t in (*TURNS, *MEDIA)]
        + [tokenizers.AddedToken(t, special=False, normalized=False) for t in PLAIN]
        + list(added)
    )
    return tokenizer


def save_tokenizer(tokenizer: tokenizers.Tokenizer, directory: Path, **config: object) -> Path:
    """A directory in Hugging Face layout with the tokenizer."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def zoo(name: str) -> str:
    """The source of one of our own templates."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def zoo_renderer(source: str, limits: TemplateLimits | None = None) -> JinjaRenderer:
    """A renderer of a template that uses the control tokens above."""
    tokenizer = Tokenizer(byte_tokenizer(), {}).guarded(source, MEDIA)
    structural = ("<|vision_start|>", "<|vision_end|>")
    return JinjaRenderer(source, tokenizer, PLACEHOLDERS, structural, limits=limits)


def official_renderer(
    source: str,
    placeholder: str,
    added: Sequence[str] = (),
    architectures: Sequence[str] = (),
    bos: str = "<s>",
) -> JinjaRenderer:
    """A renderer of an official template, over a small tokenizer with the given control tokens."""
    tokens = [tokenizers.AddedToken(t, special=True, normalized=False) for t in (bos, placeholder, *added)]
    tokenizer = Tokenizer(byte_tokenizer(tokens), {"bos_token": bos}).guarded(source, [placeholder])
    return JinjaRenderer(source, tokenizer, {Modality.IMAGE: placeholder}, (), architectures)


def image() -> ImagePart:
    """An image part; its bytes never matter here."""
    return ImagePart(MediaSource(SourceKind.DATA, data=b"x"))


def audio() -> AudioPart:
    """An audio part."""
    return AudioPart(MediaSource(SourceKind.DATA, data=b"x"))


def parts(*content: Part | str) -> tuple[Part, ...]:
    """Content parts; strings are texts."""
    return tuple(TextPart(part) if isinstance(part, str) else part for part in content)


def user(*content: Part | str) -> Message:
    """A user message."""
    return Message(Role.USER, parts(*content))


def system(*content: Part | str) -> Message:
    """A system message."""
    return Message(Role.SYSTEM, parts(*content))


def assistant(*content: Part | str, calls: Sequence[ToolCall] = (), reasoning: str = "") -> Message:
    """An assistant message."""
    return Message(Role.ASSISTANT, parts(*content), reasoning=reasoning, tool_calls=tuple(calls))


def tool(call_id: str, *content: Part | str) -> Message:
    """A tool result."""
    return Message(Role.TOOL, parts(*content), tool_call_id=call_id)


def call(call_id: str, name: str = "look", **arguments: object) -> ToolCall:
    """A tool call."""
    return ToolCall(call_id, name, dict(arguments))


def conversation(*messages: Message, tools: Sequence[dict] = (), **options: object) -> Conversation:
    """A normalized conversation."""
    return normalize(Conversation(messages, tuple(tools), RenderOptions(**options)), 4096)


def rendered(renderer: JinjaRenderer, *messages: Message, **options: object) -> Prompt:
    """The prompt of a conversation of these messages."""
    value = conversation(*messages, **options)
    return renderer.render(value, harvest(value))


def items_of(value: Conversation) -> tuple[MediaItem, ...]:
    """The media items."""
    return harvest(value)


def spelled(renderer: JinjaRenderer, prompt: Prompt) -> str:
    """The prompt as text: control tokens in ⟦⟧, the slot of item 3 as ⟦3⟧, text as it is."""
    names = {token.id: spelling for spelling, token in renderer.tokenizer.added.items()}
    words = []
    for segment in prompt.segments:
        match segment:
            case TextSegment(text):
                words.append(text)
            case ControlToken(token):
                words.append(f"⟦{names[token]}⟧")
            case Slot(item):
                words.append(f"⟦{item}⟧")
    return "".join(words)


def slot_order(prompt: Prompt) -> list[int]:
    """The items in prompt order."""
    return [segment.item for segment in prompt.segments if isinstance(segment, Slot)]


def words(tokens: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts full of control tokens and of their pieces."""
    pieces = ["<|", "|>", "<", "end", "[", "/", " ", "\n", "a", "é", "界", "\U000f0000"]
    return st.lists(st.sampled_from([*tokens, *pieces]), max_size=5).map("".join)


@st.composite
def conversations(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> list[Message]:
    """Rounds of user, calls and results in any order, with media."""
    mixed = st.one_of(texts, st.builds(image))
    messages = [system(draw(texts) or "s")] if draw(st.booleans()) else []
    messages.append(user(draw(texts) or "q"))
    for turn in range(draw(st.integers(0, 3))):
        ids = [f"{turn}-{n}" for n in range(draw(st.integers(1, 3)))]
        calls = [call(i, **{draw(texts): draw(texts)}) for i in ids]
        messages.append(assistant(draw(texts), calls=calls))
        for i in draw(st.permutations(ids)):
            messages.append(tool(i, *draw(st.lists(mixed, max_size=4))))
        messages.append(user(*draw(st.lists(mixed, min_size=1, max_size=3))))
    return messages


def neutral(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with a harmless text in place of each text."""
    return [
        Message(
            message.role,
            tuple(TextPart("x") if isinstance(part, TextPart) else part for part in message.content),
            tool_calls=tuple(call(c.id, c.name, x="x") for c in message.tool_calls),
            tool_call_id=message.tool_call_id,
        )
        for message in messages
    ]


def without_kept_tokens(renderer: JinjaRenderer, messages: Sequence[Message]) -> list[Message]:
    """The conversation without the tokens that mean something in assistant text."""

    def cleaned(message: Message) -> Message:
        text = "".join(part.text for part in message.content if isinstance(part, TextPart))
        while any(spelling in text for spelling in renderer.probe.kept_tokens):
            for spelling in renderer.probe.kept_tokens:
                text = text.replace(spelling, "")
        return Message(message.role, (TextPart(text),), tool_calls=message.tool_calls)

    return [cleaned(m) if m.role is Role.ASSISTANT else m for m in messages]


def structure(prompt: Prompt) -> list[ControlToken | Slot]:
    """A prompt without its text."""
    return [segment for segment in prompt.segments if not isinstance(segment, TextSegment)]
