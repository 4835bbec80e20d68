"""GLM-5.3-Flash: parallel tool results in the order of their calls, in linear time.

The official template sorts by itself, in quadratic time and only where its own conditions hold. Here the
same conditions are decided first; the copy for the template then carries the results in their final order,
behind a spacer that keeps the template from sorting, and its output is the same, byte for byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchloom_service.chat.template_messages import DraftMessage
from patchloom_service.types import Role, StructuredPart

ARCHITECTURE = "Glm5NextForConditionalGeneration"
"""The only architecture whose template orders results like this."""


@dataclass(frozen=True, slots=True)
class _Result:
    """One result of a run: a tool message, or an entry of a tool message that lists outputs."""

    id: str
    message: DraftMessage


def align(messages: Sequence[DraftMessage]) -> tuple[DraftMessage, ...]:
    """The messages with every run of tool results in the template's order, behind a spacer.

    A run is ordered by its calls if it directly follows the assistant message with the calls, every call id
    is there once, and every result id is there, once, and known. Fewer results than calls are fine. Any
    other run keeps its order.
    """
    aligned: list[DraftMessage] = []
    index = 0
    while index < len(messages):
        end = index
        while end < len(messages) and messages[end].role is Role.TOOL:
            end += 1
        if end == index:
            aligned.append(messages[index])
            index += 1
            continue
        aligned += _aligned_run(messages[index - 1] if index else None, messages[index:end])
        index = end
    return tuple(aligned)


def _aligned_run(before: DraftMessage | None, run: Sequence[DraftMessage]) -> list[DraftMessage]:
    if any(_is_odd(message) for message in run):
        return list(run)
    # Without ids in the copy the sort of the newer revision would stop too; the earlier one compares all
    # call ids in any case.
    spacer = DraftMessage(None, ("",), run[0].path)
    results = [result for message in run for result in _results(message)]
    order = _call_order(before)
    ids = [result.id for result in results]
    if order and "" not in ids and len(set(ids)) == len(ids) and order.keys() >= set(ids):
        ordered = sorted(results, key=lambda result: order[result.id])
        return [spacer, *(result.message for result in ordered)]
    return [spacer, *run]


def _call_order(before: DraftMessage | None) -> dict[str, int]:
    """Call id -> position; empty where an id is missing or twice there."""
    if before is None or before.role is not Role.ASSISTANT:
        return {}
    ids = [call.id for call in before.tool_calls]
    if "" in ids or len(set(ids)) != len(ids):
        return {}
    return {call_id: position for position, call_id in enumerate(ids)}


def _results(message: DraftMessage) -> list[_Result]:
    outputs = _outputs(message)
    if outputs is None:
        return [_Result(message.tool_call_id or "", message)]
    return [
        _Result(_entry_id(entry), replace(message, parts=(StructuredPart([entry]),))) for entry in outputs
    ]


def _outputs(message: DraftMessage) -> list[Any] | None:
    """The entries of a message that lists outputs: its first entry has an `output`."""
    content: list[Any] = []
    for part in message.parts:
        if isinstance(part, StructuredPart):
            content += part.value if isinstance(part.value, list) else [part.value]
        else:
            content.append(part)
    is_outputs = bool(content) and isinstance(content[0], dict) and "output" in content[0]
    return content if is_outputs else None


def _is_odd(message: DraftMessage) -> bool:
    """Whether single entries of the outputs would not render as they do in the list."""
    outputs = _outputs(message)
    if outputs is None:
        return False
    regular = all(isinstance(entry, dict) and "output" in entry for entry in outputs)
    return not regular or outputs[0].get("type") == "tool_reference"


def _entry_id(entry: dict[str, Any]) -> str:
    found = entry.get("tool_call_id") or entry.get("id")
    return str(found) if found else ""
