import msgspec
import pytest

from intentloop import inference as inferences
from intentloop.answer import Answer, AnswerFault
from intentloop.inference import InferenceRule, Occasion, Verdict, judge
from intentloop.picks import Pick
from intentloop.window import LiveIntent, code_of
from tests.unit.core_streams.make import NOW_MS, PHONE_CASE, TENT, envelope, inference, item

RULE = InferenceRule()
NOBODY = LiveIntent()


def judged(answer: str, live: LiveIntent = NOBODY, tops: tuple[int, ...] = ()) -> Verdict:
    return judge(inference("i", answer), NOW_MS, live, tops, RULE)


def test_an_answer_that_the_rules_share_gives_no_reason() -> None:
    verdict = judged("比价犹豫|帐篷")
    assert verdict.said == Answer("比价犹豫", ("帐篷",))
    assert verdict.reasons == ()
    assert verdict.is_trigger
    assert verdict.live == LiveIntent("比价犹豫", NOW_MS, False, ("帐篷",), TENT)


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [
        ("闲逛", ("rule_disagrees",)),
        ("场景购物|帐篷", ("rule_disagrees", "rare_class")),
        ("比价犹豫|雪橇", ("ungrounded",)),
        *[(f"比价犹豫|{word}", ("ungrounded",)) for word in ("商详页", "cat", "行为序列", "→")],
        ("比价犹豫", ("format_fault",)),
        ("随便看看", ("format_fault",)),
    ],
)
def test_reasons_come_from_the_answer(answer: str, reasons: tuple[str, ...]) -> None:
    assert judged(answer).reasons == reasons


def test_a_faulty_answer_neither_triggers_nor_becomes_the_live_intent() -> None:
    live = LiveIntent("场景购物", NOW_MS - 1)
    for answer in ("比价犹豫|雪橇", "随便看看", "!!!!!!!!!!!!!!!!", '{"intent":' + "[" * 3_000 + "}"):
        verdict = judged(answer, live)
        assert isinstance(verdict.said, AnswerFault)
        assert not verdict.is_trigger
        assert verdict.live == live


@pytest.mark.parametrize("raw", ["!", "!!!!", "!!!!!!!!!!!!!!!!"])
def test_exclamation_marks_are_degenerate_counted_by_version_and_never_a_sample(raw: str) -> None:
    verdict = judged(raw)  # case M14
    assert verdict.counts == ("faults_degenerate", "faults_degenerate:v7")
    assert not verdict.is_sample


def test_a_phone_with_another_prompt_is_counted_and_otherwise_ignored() -> None:
    other = msgspec.structs.replace(inference("i", "比价犹豫|帐篷"), sequence_digest="0" * 32)
    live = LiveIntent("闲逛", 5)
    verdict = judge(other, NOW_MS, live, (), RULE)
    assert verdict.counts == ("digest_mismatches",)
    assert (verdict.is_trigger, verdict.is_sample, verdict.live) == (False, False, live)


def test_two_intents_within_minutes_are_a_flip_flop() -> None:
    def reasons(before_ms: int, name: str = "场景购物") -> tuple[str, ...]:
        return judged("比价犹豫|帐篷", LiveIntent(name, NOW_MS - before_ms)).reasons

    assert reasons(300_000) == ("flip_flop",)
    assert reasons(300_001) == ()
    assert reasons(1, "比价犹豫") == ()


def test_context_gives_reasons_too() -> None:
    stale = judge(
        inference("i", "比价犹豫|帐篷", confidence=0.49), NOW_MS, LiveIntent(stale=True), (code_of("食品"),), RULE
    )
    assert stale.reasons == ("drifted", "low_confidence", "novel_category")
    assert set(stale.tops) == {code_of("食品"), code_of("户外")}


def test_the_first_inference_of_a_user_finds_nothing_novel() -> None:
    read = (item(), item(PHONE_CASE, "手机壳"))
    verdict = judge(inference("i", "闲逛", read), NOW_MS, LiveIntent(), (), RULE)
    assert "novel_category" not in verdict.reasons
    assert set(verdict.tops) == {code_of("户外"), code_of("数码")}


def test_a_trigger_is_a_cloud_event_at_the_time_of_the_inference() -> None:
    event = inference("i9", "比价犹豫|帐篷")
    occasion = Occasion(event, NOW_MS, envelope(event))
    fact = inferences.trigger_fact("trigger-3-17-0", occasion, Answer("比价犹豫", ("帐篷",)), RULE)
    assert fact.type == "shopping_hesitate_trigger"
    assert fact.time == "2026-11-30T10:00:00.000+00:00"
    assert fact.subject == fact.data.user_id == "u1"
    assert fact.data.inference_id == "i9"
    assert fact.data.expires_at_ms == NOW_MS + 30 * 60_000
    scene = inferences.trigger_fact("t", occasion, Answer("场景购物", ("帐篷",)), RULE)
    assert scene.type == "shopping_scene_trigger"


def test_a_sample_carries_what_was_read_and_what_was_said() -> None:
    event = inference("i9", "比价犹豫|雪橇")
    verdict = judged("比价犹豫|雪橇")
    fact = inferences.sample_fact("sample-3-17-0", Occasion(event, NOW_MS, envelope(event)), verdict, Pick(1.0, False))
    assert (fact.device_intent, fact.device_fault) == ("", "ungrounded")
    assert fact.read == event.read
    assert fact.digest == event.sequence_digest
    assert fact.device_model == "Redmi K80"
    assert (fact.reasons, fact.priority, fact.random) == (("ungrounded",), 1.0, False)
