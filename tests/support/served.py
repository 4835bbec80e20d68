"""Model directories from the oracles' settings, and conversations that render to the oracles' prompts."""

import json
from pathlib import Path

import transformers
from patchloom_service.types import (
    Conversation,
    ImagePart,
    MediaSource,
    Message,
    Role,
    SourceKind,
    TextPart,
)
from PIL import Image

from tests.oracles.families import Family, build_tokenizer, image
from tests.support.pictures import encode


def write_model(family: Family, directory: Path) -> Path:
    """A model directory with a template that writes the family's slot for each image."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(family),
        extra_special_tokens=dict(family.attributes),
        pad_token="unused299",
    )
    tokenizer.save_pretrained(directory)
    files = {
        "config.json": {"architectures": [family.architecture], **family.config},
        "preprocessor_config.json": dict(family.image),
        "processor_config.json": dict(family.processor),
    }
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value))
    (directory / "chat_template.jinja").write_text(
        "{% for message in messages %}{% for part in message.content %}"
        "{% if part.type == 'image' %}" + family.slot + "{% else %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    return directory


def conversation(sizes) -> Conversation:
    """The oracle's prompt as parts of one message."""
    parts: list = [TextPart("a\n")]
    for index, size in enumerate(sizes):
        parts.append(ImagePart(MediaSource(SourceKind.DATA, encode(Image.fromarray(image(tuple(size)))))))
        if index % 2:
            parts.append(TextPart("\n b"))
    return Conversation((Message(Role.USER, (*parts, TextPart("\nz"))),))
