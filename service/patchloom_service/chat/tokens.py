"""A prompt that arrives as token ids: which stretches are media items, expanded already or not.

Nothing is expanded twice: each item stands there as one placeholder, or as exactly its own run.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from patchloom_service.errors import ContractViolation
from patchloom_service.models.base import MediaPlan, RunToken, run_tokens
from patchloom_service.types import ControlToken, MediaItem, Modality, Prompt, Segment, Slot


def parse_token_prompt(
    ids: Sequence[int],
    items: Sequence[MediaItem],
    plans: Sequence[MediaPlan],
    placeholders: Mapping[Modality, int] | None = None,
) -> Prompt:
    """The prompt with a slot per item, in the order of `items`; all other ids stay as they are.

    `placeholders` gives the id that stands for one unexpanded item of a modality; without it that is the
    placeholder of the item's run. Raises ContractViolation with both numbers for a run of another length
    than the item's, and for more or fewer placeholders than items.
    """
    singles = dict(placeholders or {})
    for plan in plans:
        singles.setdefault(plan.modality, _placeholder_ids(plan)[0])
    media = set(singles.values()) | {i for plan in plans for i in _placeholder_ids(plan)}
    if sum(token in media for token in ids) == len(items):
        return _singles(ids, items, singles, media)
    return _Parser(list(ids), items, plans, singles, media).prompt()


def _placeholder_ids(plan: MediaPlan) -> list[int]:
    return [token.id for token in plan.run if isinstance(token, RunToken) and token.placeholder]


def _singles(
    ids: Sequence[int], items: Sequence[MediaItem], singles: Mapping[Modality, int], media: set[int]
) -> Prompt:
    """As many placeholders as items: none is expanded."""
    segments: list[Segment] = []
    order = iter(items)
    for token in ids:
        if token not in media:
            segments.append(ControlToken(token))
            continue
        item = next(order)
        if token != singles[item.modality]:
            raise ContractViolation(
                f"token {token} stands where this {item.modality.value} belongs; "
                f"{singles[item.modality]} is its placeholder",
                item.path,
            )
        segments.append(Slot(item.index))
    return Prompt(tuple(segments), renders=0)


class _Parser:
    """Walks ids of which at least one item is expanded."""

    def __init__(
        self,
        ids: list[int],
        items: Sequence[MediaItem],
        plans: Sequence[MediaPlan],
        singles: Mapping[Modality, int],
        media: set[int],
    ) -> None:
        self.ids, self.items, self.plans = ids, items, plans
        self.singles, self.media = singles, media
        self.runs = [_flat(plan, number) for number, plan in enumerate(plans)]
        self.at = self.item = 0

    def prompt(self) -> Prompt:
        """The prompt, every item found once."""
        segments: list[Segment] = []
        while self.at < len(self.ids):
            length = self._item_length()
            if length:
                segments.append(Slot(self.items[self.item].index))
                self.item += 1
            else:
                segments.append(ControlToken(self.ids[self.at]))
            self.at += length or 1
        if self.item < len(self.items):
            raise ContractViolation(
                f"the token prompt has {self.item} media runs for {len(self.items)} items; each needs one",
                self.items[self.item].path,
            )
        return Prompt(tuple(segments), renders=0)

    def _item_length(self) -> int:
        """How many ids from here on are the next item, 0 where an ordinary token stands."""
        if self.item < len(self.items):
            run = self.runs[self.item]
            if run and self.ids[self.at] == run[0] and self.ids[self.at : self.at + len(run)] == run:
                return len(run)
        token = self.ids[self.at]
        if token not in self.media:
            return 0
        found = sum(1 for _ in takewhile(lambda other: other == token, self.ids[self.at :]))
        left = len(self.items) - self.item
        if not left:
            raise ContractViolation(
                f"the token prompt has {found} placeholder tokens more than its {len(self.items)} items "
                "account for; send one placeholder or exactly one run for each item",
                "tokens.token_ids",
            )
        item = self.items[self.item]
        if token != self.singles[item.modality] or found > left:
            raise ContractViolation(
                f"a run of {found} placeholder tokens for this {item.modality.value}; "
                f"1 or exactly {self.plans[self.item].token_count} are allowed",
                item.path,
            )
        return 1


def _flat(plan: MediaPlan, number: int) -> list[int]:
    """The ids of an expanded run; empty where it merges with the text around it and cannot be recognised."""
    if any(isinstance(token, str) for token in plan.run):
        return []
    return [token.id for token in run_tokens(plan.run, number) for _ in range(token.count)]
