"""Which behaviours are worth the model's attention? Filter → Debounce → Enrich → Stratify → Serialise.

Three hundred raw events become a few dozen lines of evidence. The phone runs this before every inference; streams run
the first two stages before they fold behaviours into a user's window. Not here: the prompt's wording (`prompt.py`).

Source: RecGPT-Mobile V2 (arXiv 2608.24295), Table 5 and Figure 2: priorities and caps.
"""

from collections.abc import Mapping, Sequence

import msgspec

from intentloop import prompt
from intentloop.events import Behaviour, SequenceItem

PRIORITY: Mapping[str, int] = {
    "search": 0,
    "purchase": 0,
    "cart": 0,
    "favourite": 0,
    "item_view": 1,
    "content_view": 1,
    "video": 2,
    "external_open": 2,
    "exposure": 3,
    "page_view": 3,
    "ui": 3,
    "other": 3,
}
NOISE = 3  # events of this priority say nothing about intent

CAPS: Mapping[str, int] = {
    "search": 20,
    "purchase": 10,
    "cart": 15,
    "favourite": 10,
    "item_view": 30,
    "content_view": 10,
    "video": 5,
    "external_open": 5,
}


class CompressRule(msgspec.Struct, frozen=True, kw_only=True):
    """Caps per action (newest kept), debounce window, and token budget of the serialised sequence.

    `active_budget_tokens` is the budget of those who have done `active_events` things or more, repeats not counted.
    """

    caps: Mapping[str, int] = msgspec.field(default_factory=lambda: dict(CAPS))
    debounce_ms: int = 30_000
    budget_tokens: int = 300
    active_events: int = 100
    active_budget_tokens: int = 400


def compress(events: Sequence[Behaviour], rule: CompressRule) -> tuple[SequenceItem, ...]:
    """Which sequence does the model read?

    Args:
        events: One user's behaviours in event order, oldest first.
    Returns:
        Items, oldest first, whose estimated tokens once serialised (`prompt.sequence_text`) are within the budget; the
        newest P0 event always stays, also where it alone is beyond it.
    """
    distinct = debounce(filter_noise(events), rule.debounce_ms)
    if len(distinct) >= rule.active_events:
        rule = msgspec.structs.replace(rule, budget_tokens=max(rule.budget_tokens, rule.active_budget_tokens))
    return tuple(enrich(event) for event in stratify(distinct, rule))


def filter_noise(events: Sequence[Behaviour]) -> list[Behaviour]:
    """Which events say anything about intent? Drops P3: exposures, page views, interface noise, unknown types."""
    return [event for event in events if PRIORITY[event.action] < NOISE]


def debounce(events: Sequence[Behaviour], window_ms: int) -> list[Behaviour]:
    """Which repeats are one behaviour? The same action on the same thing within `window_ms` counts once.

    The first stays in its place and takes the longest dwell of the repeats.
    """
    result: list[Behaviour] = []
    last_seen: dict[tuple[str, str], tuple[int, int]] = {}
    for event in events:
        key = thing(event)
        seen = last_seen.get(key)
        if seen is not None and 0 <= event.ts_ms - seen[1] <= window_ms:
            first = result[seen[0]]
            if (event.dwell_ms or 0) > (first.dwell_ms or 0):
                result[seen[0]] = msgspec.structs.replace(first, dwell_ms=event.dwell_ms)
            last_seen[key] = (seen[0], event.ts_ms)
            continue
        last_seen[key] = (len(result), event.ts_ms)
        result.append(event)
    return result


def thing(event: Behaviour) -> tuple[str, str]:
    """What must be equal for two behaviours to be one? The action and the item, or the text where there is no item."""
    return event.action, event.item_id or event.title


def stratify(events: Sequence[Behaviour], rule: CompressRule) -> list[Behaviour]:
    """Which events fit under the caps and the budget? The lowest group is cut first, oldest first within it."""
    left = dict(rule.caps)
    capped: list[Behaviour] = []
    for event in reversed(events):
        if left.get(event.action, 0) > 0:
            left[event.action] -= 1
            capped.append(event)
    capped.reverse()
    protected = next((event for event in reversed(capped) if PRIORITY[event.action] == 0), None)
    # each line is charged with the arrow before it; the first has none
    cost = {id(event): _tenths(prompt.item_text(enrich(event))) + _tenths(prompt.ARROW) for event in capped}
    total = sum(cost.values()) + _tenths(prompt.HEAD) - _tenths(prompt.ARROW)
    for event in sorted(capped, key=lambda event: -PRIORITY[event.action]):
        if total <= 10 * rule.budget_tokens:
            break
        if event is not protected:
            total -= cost[id(event)]
            capped = [kept for kept in capped if kept is not event]
    return capped


def enrich(event: Behaviour) -> SequenceItem:
    """What does the model see of one behaviour? Title, category, price, and whole seconds of dwell."""
    return SequenceItem(
        action=event.action,
        title=event.title,
        category=event.category,
        price_yuan=event.price_yuan,
        dwell_s=round((event.dwell_ms or 0) / 1000),
    )


def estimate_tokens(text: str) -> int:
    """About how many tokens does Qwen's tokenizer make of this?

    A digit is a token, an ASCII letter half a one, anything else 0.8. On 2,080 real titles and item lines the sum is
    within 3 % of Qwen's own count, and 90 % of the lines are within 16 %.
    """
    return -(-_tenths(text) // 10)


def _tenths(text: str) -> int:
    """The same in tenths of a token, so that lines add up to exactly the whole."""
    digits = sum(character.isdigit() for character in text)
    letters = sum(character.isascii() and character.isalpha() for character in text)
    return 10 * digits + 5 * letters + 8 * (len(text) - digits - letters)
