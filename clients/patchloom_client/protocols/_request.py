"""Puts messages, tools and the options that all dialects share into one request."""

from collections.abc import Collection, Sequence

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage, UnsupportedContent
from patchloom_client.protocols._json import json_object
from patchloom_client.protocols._values import Body, Notes, join, listed, mapping, shown, text
from patchloom_client.protocols.options import apply_options

_SHARED = ("add_generation_prompt", "continue_final_message", "reasoning_effort")
_PROCESSOR = ("min_pixels", "max_pixels")

SHARED_KEYS = (
    *("model", "patchloom", "tools", "chat_template_kwargs", "mm_processor_kwargs"),
    *_SHARED,
)
"""Top-level keys that `build` reads, in every dialect."""

REFUSED_KEYS = {
    "chat_template": "a template of the request is not used; the service has the checkpoint's own",
    "documents": "documents are not supported; write them into a message",
}
"""Top-level keys that change the prompt in other servers and are not taken, in every dialect."""


def check_top_level(body: object, known: Collection[str], ignored: Collection[str], notes: Notes) -> Body:
    """The body as an object: refused keys raise, unknown keys give a warning."""
    checked = mapping(body, "")
    refuse_keys(checked, REFUSED_KEYS)
    notes.unknown_keys(checked, {*known, *SHARED_KEYS, *ignored, *REFUSED_KEYS}, "")
    return checked


def refuse_keys(body: Body, reasons: dict[str, str]) -> None:
    """Raises UnsupportedContent for a key with a value other than null, false or an empty container."""
    for key, reason in reasons.items():
        value = body.get(key)
        if value is not None and value is not False and value != [] and value != {}:
            raise UnsupportedContent(reason, key)


def build(
    body: Body, messages: Sequence[pb.Message], tools: Sequence[bytes], notes: Notes
) -> pb.PreprocessRequest:
    """The request of a conversation with the body's model and options, and the warnings so far."""
    if not messages:
        path = "input" if "input" in body else "messages"
        raise InvalidMessage("a conversation needs at least one message", path)
    request = pb.PreprocessRequest(
        model=model_name(body),
        conversation=pb.Conversation(messages=messages, tools=tools),
        warnings=notes.warnings,
    )
    _apply_shared(request, body)
    apply_own_options(request, body)
    return request


def model_name(body: Body) -> str:
    """The served model's name; "" where the body has none."""
    return "" if body.get("model") is None else text(body["model"], "model")


def apply_own_options(request: pb.PreprocessRequest, body: Body) -> None:
    """Sets what stands under the body's key "patchloom"."""
    if body.get("patchloom") is not None:
        apply_options(request, mapping(body["patchloom"], "patchloom"))


def _apply_shared(request: pb.PreprocessRequest, body: Body) -> None:
    apply_options(request, {key: body.get(key) for key in _SHARED}, "")
    if body.get("chat_template_kwargs") is not None:
        kwargs = json_object(body["chat_template_kwargs"], "chat_template_kwargs")
        apply_options(request, {"template_kwargs": kwargs.decode()}, "")
    if body.get("mm_processor_kwargs") is not None:
        _apply_processor(request, mapping(body["mm_processor_kwargs"], "mm_processor_kwargs"))


def _apply_processor(request: pb.PreprocessRequest, kwargs: Body) -> None:
    for key in kwargs:
        if key not in _PROCESSOR:
            raise UnsupportedContent(
                f"processor option {shown(key)} is not supported; send {listed(_PROCESSOR)}",
                join("mm_processor_kwargs", key),
            )
    apply_options(request, kwargs, "mm_processor_kwargs")
