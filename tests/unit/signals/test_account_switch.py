"""T19, from a phone's bytes to windows, samples and triggers: two people, one phone, nothing of one in the other."""

import json
from typing import Any

import msgspec

from gateway.sort_batch import Sorted, sort_batch
from intentloop import prompt
from intentloop.events import SequenceItem
from intentloop.fold import Folded, FoldRule
from intentloop.intake import IntakeRule
from intentloop.picks import PickRule
from intentloop.window import code_of
from tests.unit.core_streams.make import NOW_MS, run

TEST_KIT, ROD, REEL = "验孕棒", "碳素钓鱼竿", "钓鱼轮"
CATEGORY = {TEST_KIT: "医药.计生.验孕", ROD: "户外.垂钓.鱼竿", REEL: "户外.垂钓.渔轮"}
EVERYONE = FoldRule(pick=PickRule(random_ratio=1.0))


def view(number: int, title: str, **changes: Any) -> dict[str, Any]:
    event = {"event_id": f"e{number}", "type": "pv", "ts": NOW_MS + number * 60_000, "title": title}
    return {**event, "category": CATEGORY[title], "device": "d1", **changes}


def infer(number: int, *titles: str, **changes: Any) -> dict[str, Any]:
    read = tuple(SequenceItem(action="item_view", title=title, category=CATEGORY[title]) for title in titles)
    event = {"kind": "inference", "event_id": f"i{number}", "ts_ms": NOW_MS + number * 60_000, "model_version": "v1"}
    event |= {"prompt_version": "p1", "sequence_digest": prompt.digest(prompt.sequence_text(read))}
    return {**event, "read": msgspec.to_builtins(read), "answer": "比价犹豫|钓鱼", **changes}


def sort(*events: dict[str, Any], user: str = "A") -> Sorted:
    head = {"batch_id": "b1", "user_id": user, "device_id": "d1", "sent_at_ms": NOW_MS + 3_600_000}
    body = json.dumps({**head, "events": list(events)}).encode()
    return sort_batch(body, NOW_MS + 3_600_000, lambda name: f"hash-{name}", IntakeRule())


def folded(found: Sorted) -> dict[str, Folded]:
    return {each.user_id: run(each, rule=EVERYONE) for each in found.envelopes}


def test_the_window_is_cut_where_the_account_changes() -> None:
    found = sort(
        view(1, TEST_KIT, user="A"), view(2, ROD, user="B"), view(3, REEL, user="B"), infer(4, ROD, REEL, user="B")
    )
    states = folded(found)
    assert states["hash-A"].state.labels == (code_of(CATEGORY[TEST_KIT]),)
    assert states["hash-B"].state.labels == (code_of(CATEGORY[ROD]), code_of(CATEGORY[REEL]))
    assert states["hash-B"].state.reference == states["hash-B"].state.labels
    (sample,) = states["hash-B"].picked
    (trigger,) = states["hash-B"].triggered
    assert (sample.user_id, trigger.subject, trigger.data.user_id) == ("hash-B",) * 3
    assert TEST_KIT not in prompt.sequence_text(sample.read)
    assert not states["hash-A"].triggered
    assert not states["hash-A"].picked


def test_going_back_and_forth_keeps_two_windows() -> None:
    found = sort(view(1, TEST_KIT), view(2, ROD, uid="B"), view(3, TEST_KIT, item_id="x"), view(4, REEL, user_id="B"))
    labels = {user: each.state.labels for user, each in folded(found).items()}
    kit = code_of(CATEGORY[TEST_KIT])
    assert labels == {"hash-A": (kit, kit), "hash-B": (code_of(CATEGORY[ROD]), code_of(CATEGORY[REEL]))}


def test_a_prompt_that_mixes_two_accounts_becomes_neither_sample_nor_trigger() -> None:
    found = sort(view(1, TEST_KIT), view(2, ROD, user="B"), infer(3, TEST_KIT, ROD, user="B"), view(4, REEL, user="B"))
    (aside,) = found.set_aside
    assert (aside.index, found.accepted) == (2, 3)
    assert "another account" in aside.reason
    assert [rejection.index for each in found.envelopes for rejection in each.rejected] == [2]
    states = folded(found)
    assert not any(each.picked or each.triggered for each in states.values())
    assert states["hash-B"].counts["applied"] == 2


def test_what_both_have_seen_is_nobodys_secret() -> None:
    found = sort(view(1, ROD), view(2, ROD, user="B"), infer(3, ROD, user="B"))
    assert found.set_aside == ()
    assert len(folded(found)["hash-B"].picked) == 1


def test_one_account_alone_may_read_what_it_did_in_earlier_batches() -> None:
    assert sort(view(1, ROD), infer(2, TEST_KIT, ROD)).set_aside == ()
