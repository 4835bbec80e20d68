"""Groups a flat list of Responses items into messages: one assistant message a turn."""

from collections.abc import Iterable, Sequence

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.protocols._values import Notes

REASONING_JOINER = "\n"
"""Stands between the blocks of reasoning of one turn, in every dialect."""


class Turns:
    """The messages so far and the assistant turn that is still open.

    A turn is reasoning, then one message, then calls. A system, user or tool message ends it, and so does
    an assistant message where the turn has spoken or called. Reasoning behind the message or between calls
    joins the turn if a call follows, with a warning, because it moves before them.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._messages: list[pb.Message] = []
        self._open: pb.Message | None = None
        self._spoken = False
        self._late: list[tuple[str, str]] = []  # reasoning behind the message or a call, with its path

    def message(self, message: pb.Message) -> None:
        """A message of another role."""
        self._close_all()
        self._messages.append(message)

    def reason(self, reasoning: str, path: str) -> None:
        """Reasoning before a message or a call."""
        if self._spoken or (self._open and self._open.tool_calls):
            self._late.append((reasoning, path))
        else:
            _add_reasoning(self._turn(), reasoning)

    def speak(self, content: Sequence[pb.ContentPart]) -> None:
        """An assistant message."""
        if self._spoken or (self._open and self._open.tool_calls):
            self._close()
        self._turn().content.extend(content)
        self._spoken = True

    def call(self, call: pb.ToolCall) -> None:
        """A call of a tool."""
        turn = self._turn()
        for reasoning, path in self._late:
            _add_reasoning(turn, reasoning)
            message = "reasoning behind the content of its turn was moved before it"
            self._notes.add("REASONING_MOVED", path, message)
        self._late.clear()
        turn.tool_calls.append(call)

    def finish(self) -> list[pb.Message]:
        """All messages."""
        self._close_all()
        return self._messages

    def _turn(self) -> pb.Message:
        if self._open is None:
            self._open = pb.Message(role=pb.ROLE_ASSISTANT)
        return self._open

    def _close_all(self) -> None:
        while self._open is not None:
            self._close()

    def _close(self) -> None:
        """Ends the turn; reasoning that no call followed opens the next one."""
        late, self._late = self._late, []
        if self._open is not None:
            self._messages.append(self._open)
        self._open, self._spoken = None, False
        for reasoning, _ in late:
            _add_reasoning(self._turn(), reasoning)


def join_reasoning(blocks: Iterable[str]) -> str:
    """The reasoning of one turn from its blocks; empty ones say nothing."""
    return REASONING_JOINER.join(filter(None, blocks))


def note_moved(moved: bool, reason: str, path: str, notes: Notes) -> None:
    """Warns that a block or part does not stay where it stood, if so."""
    if moved:
        what = "this block was moved: a turn is reasoning, then text, then calls"
        notes.add(reason, path, what)


def _add_reasoning(message: pb.Message, reasoning: str) -> None:
    before = message.reasoning + REASONING_JOINER if message.HasField("reasoning") else ""
    message.reasoning = before + reasoning
