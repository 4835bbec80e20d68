"""What a chat template does with messages, learnt at load from sentinel conversations.

By behaviour, never by reading the source: each fact is what one or two renders showed. Nothing here fails on
an odd template; what cannot be learnt is said.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from patchloom_service.chat.jinja_template import ChatTemplate
from patchloom_service.chat.spelling import Alternate, SlotText, read_flags
from patchloom_service.chat.template_messages import Shape
from patchloom_service.chat.tokenize import Tokenizer
from patchloom_service.errors import PatchloomError
from patchloom_service.types import Json, Modality, Role

KEPT, LOST, PRINTED, REFUSED = "kept", "lost", "printed", "refused"
"""What became of a sentinel: in the prompt, not in the prompt, in it as program text, an error."""


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """How one role takes content: a string, a list of one text or two, a text with an image, an image alone.

    `text_image` and `image` hold the number of placeholders, or "refused"; `mixed` is what became of the
    text beside an image.
    """

    string: str
    listed: str
    texts: str
    text_image: int | str
    image: int | str
    mixed: str


@dataclass(frozen=True, slots=True)
class TemplateProbe:
    """All that was learnt of a template; `as_json` is what `model-info` shows.

    `parallel` counts the placeholders of two parallel tool results with an image each. `order_texts`,
    `order_images` and, for results without text, `order_bare` say where out-of-order results stand:
    "message", "call" or "unknown". `alternates` names
    the part type that can stand in for a modality. `kept_tokens` are the control tokens that keep their
    meaning in assistant text. Single facts are "kept", "lost", "printed" or "refused".
    """

    roles: Mapping[Role, RoleFacts]
    parallel: int | str
    order_texts: str
    order_images: str
    order_bare: str
    alternates: Mapping[Modality, Alternate]
    arguments: str
    null_content: str
    later_system: str
    developer: str
    structured: str
    reasoning: str
    tools: str
    result_after_user: str
    kept_tokens: frozenset[str] = field(default_factory=frozenset)

    @property
    def shape(self) -> Shape:
        """How messages are written for this template."""
        roles = self.roles.items()
        return Shape(
            strings=frozenset(role for role, facts in roles if facts.string == KEPT != facts.texts),
            lists=frozenset(role for role, facts in roles if facts.listed == KEPT != facts.string),
            joined=frozenset(role for role, facts in roles if facts.texts != KEPT),
            arguments=self.arguments if self.arguments == "string" else "mapping",
            merge_system=self.later_system in (LOST, REFUSED),
        )

    @property
    def text_moves_media(self) -> bool:
        """Whether a text beside an image changes where a result stands, so that brackets prove nothing."""
        orders = {self.order_images, self.order_bare}
        return len(orders) == 2 and "unknown" not in orders

    def as_json(self) -> dict[str, Json]:
        """Plain data, keys in a fixed order."""
        return {
            "roles": {
                role.value: {
                    "content": _wants(facts),
                    "string": facts.string,
                    "text": facts.listed,
                    "texts": facts.texts,
                    "text_image": facts.text_image,
                    "image": facts.image,
                }
                for role, facts in self.roles.items()
            },
            "parallel_tool_images": self.parallel,
            "tool_images": self._tool_images(),
            "order": {
                "texts": self.order_texts,
                "images": self.order_images,
                "bare_images": self.order_bare,
            },
            "alternates": {m.value: alternate.type for m, alternate in self.alternates.items()},
            "arguments": self.arguments,
            "null_content": self.null_content,
            "later_system": self.later_system,
            "developer": self.developer,
            "structured_results": self.structured,
            "reasoning": self.reasoning,
            "tools": self.tools,
            "result_after_user": self.result_after_user,
            "assistant_tokens": [*sorted(self.kept_tokens)],
            "assumed": [
                "the template prints no part's text inside the slot of another part",
                "the template does not reorder because of private characters",
            ],
        }

    def _tool_images(self) -> str:
        facts = self.roles[Role.TOOL]
        if facts.text_image == 1 and facts.image == 1 and self.parallel == 2:
            return KEPT
        if REFUSED in (facts.text_image, facts.image):
            return REFUSED
        return PRINTED if facts.mixed == PRINTED else LOST


def _wants(facts: RoleFacts) -> str:
    words = {
        (True, True): "string or list",
        (True, False): "string",
        (False, True): "list",
        (False, False): "neither",
    }
    return words[facts.string == KEPT, facts.listed == KEPT]


Messages = Sequence[dict[str, Any]]

_ASK, _SAY, _CALL_ONE, _CALL_TWO = "Qprobeask", "Qprobesay", "Qprobeidone", "Qprobeidtwo"
_ONE, _TWO = "Qprobeone", "Qprobetwo"
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "Qprobetool",
        "description": "Qprobetext",
        "parameters": {
            "type": "object",
            "properties": {"Qprobekey": {"type": "string", "description": "Qprobetext"}},
            "required": ["Qprobekey"],
        },
    },
}


def _message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _calls(arguments: Any, *ids: str) -> list[dict[str, Any]]:
    return [
        {"id": i, "type": "function", "function": {"name": "Qprobetool", "arguments": arguments}} for i in ids
    ]


class _Prober:
    """Renders sentinel conversations; a failed render is None."""

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, placeholders: Mapping[Modality, str]
    ) -> None:
        self.template, self.tokenizer, self.placeholders = template, tokenizer, placeholders
        self.arguments: Any = {"Qprobekey": "Qprobevalue"}
        self.lists: frozenset[Role] = frozenset()

    def render(self, messages: Messages, **variables: Any) -> str | None:
        """The prompt, None where the template fails."""
        known = {"tools": None, "documents": None, "add_generation_prompt": False}
        try:
            return self.template.render(
                {**self.tokenizer.variables, **known, **variables, "messages": list(messages)}, now=0.0
            )
        except PatchloomError:
            return None

    def fate(self, messages: Messages, *sentinels: str, **variables: Any) -> str:
        """What became of the sentinels."""
        text = self.render(messages, **variables)
        if text is None:
            return REFUSED
        if not all(sentinel in text for sentinel in sentinels):
            return LOST
        return PRINTED if _prints(text) else KEPT

    def count(self, messages: Messages) -> int | str:
        """The image placeholders in the prompt."""
        text = self.render(messages)
        if text is None:
            return REFUSED
        spelling = self.placeholders.get(Modality.IMAGE, "")
        return sum(match.spelling == spelling for match in self.tokenizer.find_control(text))

    def image_slots(self, text: str) -> list[SlotText]:
        """The image placeholders in a prompt."""
        spelling = self.placeholders.get(Modality.IMAGE, "")
        found = self.tokenizer.find_control(text)
        return [SlotText(m.start, m.end, Modality.IMAGE) for m in found if m.spelling == spelling]

    def system(self, text: str) -> dict[str, Any]:
        return _message("system", self._framing(Role.SYSTEM, text))

    def ask(self) -> dict[str, Any]:
        return _message("user", self._framing(Role.USER, _ASK))

    def say(self, **more: Any) -> dict[str, Any]:
        return _message("assistant", self._framing(Role.ASSISTANT, _SAY), **more)

    def _framing(self, role: Role, text: str) -> Any:
        """Text content in the form that the role needs."""
        return [_text(text)] if role in self.lists else text

    def call(self, *ids: str) -> dict[str, Any]:
        return _message("assistant", "", tool_calls=_calls(self.arguments, *ids))

    def framed(self, role: Role, content: Any) -> Messages:
        """A conversation in which a message of a role stands where it belongs."""
        message = _message(role.value, content)
        match role:
            case Role.USER:
                return [message]
            case Role.SYSTEM:
                return [message, self.ask()]
            case Role.ASSISTANT:
                return [self.ask(), message, self.ask()]
            case _:
                return [self.ask(), self.call(_CALL_ONE), message | _result_of(_CALL_ONE)]


def _result_of(call_id: str) -> dict[str, str]:
    return {"tool_call_id": call_id, "name": "Qprobetool"}


def _prints(text: str) -> bool:
    """Whether a content list or an arguments mapping stands in the prompt as Python or JSON text."""
    marks = ("'type':", '"type":', "{'Qprobekey'", "'output':")
    return any(mark in text for mark in marks)


def probe(
    template: ChatTemplate, tokenizer: Tokenizer, placeholders: Mapping[Modality, str]
) -> TemplateProbe:
    """Learns a template with some thirty small renders; never raises for what the template does."""
    prober = _Prober(template, tokenizer, placeholders)
    for role in (Role.USER, Role.SYSTEM, Role.ASSISTANT):
        if _needs_list(prober, role):
            prober.lists |= {role}
    arguments = _arguments(prober)
    roles = {role: _role_facts(prober, role) for role in Role}
    image = [{"type": "image"}]
    alternates = _alternates(prober)
    return TemplateProbe(
        roles=roles,
        parallel=prober.count(_parallel(prober, [_text(_ONE), *image], [_text(_TWO), *image])),
        order_texts=_order(prober, _ONE, _TWO),
        order_images=_order(prober, [_text(_ONE), *image], [_text(_TWO), *image]),
        order_bare=_order_bare(prober, alternates),
        alternates=alternates,
        arguments=arguments,
        null_content=_null_content(prober),
        later_system=prober.fate(
            [prober.system(_ONE), prober.ask(), prober.say(), prober.system(_TWO), prober.ask()], _ONE, _TWO
        ),
        developer=prober.fate([prober.system(_ONE) | {"role": "developer"}, prober.ask()], _ONE),
        structured=prober.fate(prober.framed(Role.TOOL, [{"name": "Qprobetool", "output": _ONE}]), _ONE),
        reasoning=prober.fate([prober.ask(), prober.say(reasoning_content=_ONE, reasoning=_ONE)], _ONE),
        tools=_tools(prober),
        result_after_user=prober.fate(
            [
                prober.ask(),
                prober.call(_CALL_ONE),
                _message("user", _TWO),
                _message("tool", _ONE, **_result_of(_CALL_ONE)),
            ],
            _ONE,
            _TWO,
        ),
        kept_tokens=_kept_tokens(prober),
    )


def _needs_list(prober: _Prober, role: Role) -> bool:
    as_string = prober.fate(prober.framed(role, _ONE), _ONE)
    return as_string != KEPT and prober.fate(prober.framed(role, [_text(_ONE)]), _ONE) == KEPT


def _arguments(prober: _Prober) -> str:
    """The form of arguments that survives, which the prober uses from here on."""

    def fate(arguments: Any) -> str:
        prober.arguments = arguments
        return prober.fate([*prober.framed(Role.TOOL, _ONE)], "Qprobevalue")

    forms: dict[str, Any] = {
        "string": '{"Qprobekey": "Qprobevalue"}',
        "mapping": {"Qprobekey": "Qprobevalue"},
    }
    fates = {name: fate(value) for name, value in forms.items()}
    kept = [name for name, became in fates.items() if became == KEPT]
    if not kept:
        kept = [name for name, became in fates.items() if became == LOST]
        prober.arguments = forms[kept[-1] if kept else "mapping"]
        return "unused" if kept else "unknown"
    prober.arguments = forms[kept[-1]]
    return "mapping or string" if len(kept) == 2 else kept[0]


def _role_facts(prober: _Prober, role: Role) -> RoleFacts:
    image = {"type": "image"}
    return RoleFacts(
        string=prober.fate(prober.framed(role, _ONE), _ONE),
        listed=prober.fate(prober.framed(role, [_text(_ONE)]), _ONE),
        texts=prober.fate(prober.framed(role, [_text(_ONE), _text(_TWO)]), _ONE, _TWO),
        text_image=prober.count(prober.framed(role, [_text(_ONE), image])),
        image=prober.count(prober.framed(role, [image])),
        mixed=prober.fate(prober.framed(role, [_text(_ONE), image]), _ONE),
    )


def _parallel(prober: _Prober, one: Any, two: Any) -> Messages:
    """Two calls whose results arrive in reverse order."""
    return [
        prober.ask(),
        prober.call(_CALL_ONE, _CALL_TWO),
        _message("tool", two, **_result_of(_CALL_TWO)),
        _message("tool", one, **_result_of(_CALL_ONE)),
    ]


def _order(prober: _Prober, one: Any, two: Any) -> str:
    text = prober.render(_parallel(prober, one, two))
    if text is None or _ONE not in text or _TWO not in text:
        return "unknown"
    return "call" if text.index(_ONE) < text.index(_TWO) else "message"


def _order_bare(prober: _Prober, alternates: Mapping[Modality, Alternate]) -> str:
    """The order of results that are an image alone, told by an alternate in the result of the first call."""
    alternate = alternates.get(Modality.IMAGE)
    image = [{"type": "image"}]
    base = prober.render(_parallel(prober, image, image))
    if alternate is None or base is None:
        return "unknown"
    other = prober.render(_parallel(prober, [{"type": alternate.type}], image))
    flags = read_flags(base, prober.image_slots(base), {Modality.IMAGE: alternate}, other or "")
    if flags is None or sum(flags) != 1:
        return "unknown"
    return "call" if flags[0] else "message"


def _null_content(prober: _Prober) -> str:
    message = prober.call(_CALL_ONE) | {"content": None}
    tail = _message("tool", _ONE, **_result_of(_CALL_ONE))
    text = prober.render([prober.ask(), message, tail])
    if text is None:
        return REFUSED
    return PRINTED if "None" in text else KEPT


def _tools(prober: _Prober) -> str:
    text = prober.render([prober.ask()], tools=[_TOOL])
    if text is None:
        return REFUSED
    return KEPT if "Qprobetool" in text and "Qprobekey" in text else LOST


_STAND_INS = {Modality.IMAGE: ("video", "audio"), Modality.AUDIO: ("video", "image")}


def _alternates(prober: _Prober) -> dict[Modality, Alternate]:
    found = {}
    for modality, spelling in prober.placeholders.items():
        learnt = (_alternate(prober, modality, spelling, name) for name in _STAND_INS[modality])
        alternate = next((a for a in learnt if a is not None), None)
        if alternate is not None:
            found[modality] = alternate
    return found


def _alternate(prober: _Prober, modality: Modality, spelling: str, name: str) -> Alternate | None:
    """Compares a prompt with one part of a modality with the same prompt with one part of another type."""
    own = prober.render([_message("user", [_text(_ONE), {"type": modality.value}])])
    other = prober.render([_message("user", [_text(_ONE), {"type": name}])])
    if own is None or other is None or own == other:
        return None
    slots = [match for match in prober.tokenizer.find_control(own) if match.spelling == spelling]
    if len(slots) != 1:
        return None
    slot = slots[0]
    head = min(_common(own, other), slot.start)
    tail = _common(own[head:][::-1], other[head:][::-1])
    tail = min(tail, len(own) - slot.end)
    own_text, text = own[head : len(own) - tail], other[head : len(other) - tail]
    if not text or text.startswith(own_text) or own_text.startswith(text):
        return None
    if not prober.tokenizer.find_control(text) or _prints(text):
        return None
    alternate = Alternate(type=name, own=own_text, before=slot.start - head, text=text)
    return alternate if _keeps_place(prober, modality, alternate) else None


def _keeps_place(prober: _Prober, modality: Modality, alternate: Alternate) -> bool:
    """Whether the alternate stands where the modality would: not in a loop of its own, for example."""
    own, other = {"type": modality.value}, {"type": alternate.type}
    ask, say = prober.ask(), prober.say()

    def apart(first: dict[str, str], second: dict[str, str]) -> Messages:
        return [_message("user", [_text(_ONE), first]), say, _message("user", [_text(_TWO), second])]

    def together(first: dict[str, str], second: dict[str, str]) -> Messages:
        return [_message("user", [_text(_ONE), first, _text(_TWO), second]), say, ask]

    for arrange in (together, apart):
        base = prober.render(arrange(own, own))
        if base is None:
            continue
        spelling = prober.placeholders[modality]
        slots = [
            SlotText(match.start, match.end, modality)
            for match in prober.tokenizer.find_control(base)
            if match.spelling == spelling
        ]
        texts = prober.render(arrange(own, other)), prober.render(arrange(other, own))
        flags = [read_flags(base, slots, {modality: alternate}, text or "") for text in texts]
        if None in flags or sorted(map(tuple, filter(None, flags))) != [(False, True), (True, False)]:
            return False
    return True


def _common(one: str, two: str) -> int:
    """The length of the common beginning of two texts."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(two)))


def _kept_tokens(prober: _Prober) -> frozenset[str]:
    """Control tokens that the template writes only within assistant turns, in pairs or not special.

    Those that open or close turns are left out: tokens of any other turn, the tokenizer's own begin and end
    tokens, and the first one of an assistant turn where it is not half of a pair.
    """
    ask, say = prober.ask, prober.say
    outside = _spellings(prober, [_message("system", _ONE), ask()]) | _spellings(prober, [ask()])
    result = prober.render(prober.framed(Role.TOOL, _ONE))
    if result is not None:
        outside |= _tokens_around(prober, result, _ONE)
    inside: set[str] = set()
    turn = prober.call(_CALL_ONE) | {"reasoning_content": _ONE, "reasoning": _ONE}
    for messages in ([ask(), say()], [ask(), say(reasoning_content=_ONE)], [ask(), turn]):
        text = prober.render(messages)
        after = text.partition(_ASK)[2] if text else ""
        inside |= _spellings_in(prober, after)
    header = _assistant_header(prober)
    own = set(prober.tokenizer.variables.values())
    return frozenset(
        token
        for token in inside - outside - own
        if _is_paired(token, inside) or not (token in header or prober.tokenizer.added[token].special)
    )


def _assistant_header(prober: _Prober) -> set[str]:
    """The first control token between a question and the answer that no turn without an answer has."""
    text = prober.render([prober.ask(), prober.say()])
    alone = prober.render([prober.ask()])
    if text is None or alone is None:
        return set()
    before = text.partition(_ASK)[2].partition(_SAY)[0]
    known = _spellings_in(prober, alone)
    new = [match.spelling for match in prober.tokenizer.find_control(before) if match.spelling not in known]
    return set(new[:1])


def _tokens_around(prober: _Prober, text: str, sentinel: str) -> set[str]:
    """The control tokens next to a sentinel, within its own turn."""
    before, _, after = text.partition(sentinel)
    near = [m.spelling for m in prober.tokenizer.find_control(before.rpartition("Qprobevalue")[2])]
    return set(near[-2:]) | {m.spelling for m in prober.tokenizer.find_control(after)[:2]}


def _spellings(prober: _Prober, messages: Messages) -> set[str]:
    return _spellings_in(prober, prober.render(messages) or "")


def _spellings_in(prober: _Prober, text: str) -> set[str]:
    return {match.spelling for match in prober.tokenizer.find_control(text)}


def _is_paired(token: str, tokens: Iterable[str]) -> bool:
    name: Callable[[str], str] = partial(_bare)
    return any(other != token and name(other) == name(token) for other in tokens)


def _bare(token: str) -> str:
    """The word in a token, without the marks that tell its opening from its closing form."""
    word = token.strip("<>|[]/ ")
    for affix in ("begin_of_", "end_of_", "start_of_", "start_", "end_"):
        word = word.removeprefix(affix)
    for affix in ("_begin", "_end", "_start"):
        word = word.removesuffix(affix)
    return word
