"""A conversation to a prompt by a checkpoint's template, with proof of which slot is which media item.

No wire order is trusted and no template is changed: the rendered prompts themselves are the evidence
(proof), and text cannot forge a control token (twins).
"""

from collections.abc import Iterable, Mapping, Sequence

from patchloom_service.chat import alignment
from patchloom_service.chat.jinja_template import ChatTemplate, TemplateLimits
from patchloom_service.chat.probe import TemplateProbe, probe
from patchloom_service.chat.rendering import LiteralSets, Rendering
from patchloom_service.chat.tokenize import Tokenizer
from patchloom_service.chat.twins import Literals, open_heads
from patchloom_service.types import Conversation, LiteralPolicy, MediaItem, Modality, Prompt


class JinjaRenderer:
    """Renders conversations with one template; thread-safe.

    `tokenizer` must be guarded with this template and with `placeholders` and `structural`. Raises
    TemplateRefused at construction for a template that does not compile, ValueError for a placeholder that
    is no control token.
    """

    def __init__(
        self,
        template: str,
        tokenizer: Tokenizer,
        placeholders: Mapping[Modality, str],
        structural: Sequence[str] = (),
        architectures: Sequence[str] = (),
        limits: TemplateLimits | None = None,
    ) -> None:
        for spelling in (*placeholders.values(), *structural):
            if spelling not in tokenizer.control:
                raise ValueError(f"{spelling!r} is no control token of the tokenizer")
        self.template = self._compile(template, limits)
        self.tokenizer = tokenizer
        self.placeholders = dict(placeholders)
        self.probe: TemplateProbe = probe(self.template, tokenizer, placeholders)
        self.shape = self.probe.shape
        self.modalities = {spelling: modality for modality, spelling in placeholders.items()}
        self.aligned = alignment.ARCHITECTURE in architectures
        self.media_tokens = frozenset(self._media_tokens(structural))
        self.literals = {
            LiteralPolicy.LITERAL: self._literal_sets(tokenizer.control, self.probe.kept_tokens),
            LiteralPolicy.PARSE: self._literal_sets(self.media_tokens, ()),
        }
        self.literals[LiteralPolicy.REJECT] = self.literals[LiteralPolicy.LITERAL]

    def _compile(self, source: str, limits: TemplateLimits | None) -> ChatTemplate:
        """The template, for families that put their own in front of it."""
        return ChatTemplate(source, limits)

    def _media_tokens(self, structural: Sequence[str]) -> set[str]:
        stand_ins = {
            match.spelling
            for alternate in self.probe.alternates.values()
            for match in self.tokenizer.find_control(alternate.text)
        }
        return {*self.placeholders.values(), *structural, *stand_ins}

    def _literal_sets(self, tokens: Iterable[str], kept: Iterable[str]) -> LiteralSets:
        words = set(tokens)
        heads = open_heads(self.template.literals, words)
        every = self.tokenizer.control
        return LiteralSets(
            generated=Literals(words - set(kept), every, heads), other=Literals(words, every, heads)
        )

    def render(self, conversation: Conversation, items: Sequence[MediaItem]) -> Prompt:
        """The prompt of a normalized conversation; `items` are its media in harvest order.

        Raises TemplateRefused where the template fails or an item has no slot that is certainly its own,
        LiteralRefused for control tokens in text under REJECT, InvalidMessage for options that exclude
        each other, LimitExceeded for a template run over its limits.
        """
        return Rendering(self, conversation, items).prompt()
