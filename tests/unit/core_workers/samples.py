"""Facts for tests of labelling: one picked sample and one label, changed by keyword."""

from typing import Any

from intentloop import prompt
from intentloop.events import SequenceItem
from intentloop.facts import SampleLabelled, SamplePicked, Vote
from intentloop.ids import content_digest

TENT = SequenceItem(action="item_view", title="山雀便携帐篷", category="户外.露营.帐篷", price_yuan=199.0, dwell_s=66)
TENT_TOO = SequenceItem(
    action="item_view", title="青禾加厚帐篷", category="户外.露营.帐篷", price_yuan=259.0, dwell_s=12
)


def picked(number: int = 0, **changes: Any) -> SamplePicked:
    """A sample of user `u<number>` who compares tents; the phone said 闲逛."""
    read = changes.pop("read", (TENT, TENT_TOO, SequenceItem(action="search", title=f"帐篷{number}")))
    values: dict[str, Any] = {
        "id": f"sample-0-{number}-0",
        "user_id": f"u{number}",
        "ts_ms": 1_790_000_000_000 + number,
        "read": read,
        "digest": content_digest(prompt.sequence_text(read)),
        "device_answer": "闲逛",
        "device_intent": "闲逛",
        "device_keywords": (),
        "device_fault": "",
        "device_model": "tiny",
        "model_version": "v1",
        "prompt_version": prompt.VERSION,
        "reasons": ("random",),
        "priority": 1.0,
        "random": True,
    }
    return SamplePicked(**(values | changes))


def vote(intent: str, *keywords: str, teacher: str = "a", failure: str = "", **changes: Any) -> Vote:
    """One teacher's vote."""
    return Vote(teacher=teacher, model="m", intent=intent, keywords=keywords, failure=failure, **changes)


def labelled(number: int = 0, **changes: Any) -> SampleLabelled:
    """A hard sample: both teachers say 比价犹豫, the phone said 闲逛."""
    values: dict[str, Any] = {
        "sample": picked(number),
        "verdict": "hard",
        "reason": "both teachers say 比价犹豫, the phone said 闲逛",
        "intent": "比价犹豫",
        "keywords": ("帐篷", "露营", "便携"),
        "keyword_score": 3,
        "votes": (vote("比价犹豫", "帐篷"), vote("比价犹豫", "帐篷", teacher="b")),
        "audit": False,
        "source": "teachers",
        "cost_yuan": 0.002,
        "labelled_at_ms": 1_790_000_100_000 + number,
    }
    values |= changes
    values.setdefault("id", f"{'person' if values['source'] == 'person' else 'label'}-{values['sample'].id}")
    return SampleLabelled(**values)
