import msgspec
import pytest
from pydantic import ValidationError

from intentloop.answer import Answer, AnswerFault
from intentloop.fold import FoldRule
from intentloop.inference import judge
from intentloop.window import LiveIntent
from streams.settings import RulesSection, StreamsSettings, fold_rule
from tests.unit.core_streams.make import NOW_MS, inference, item


def test_the_defaults_of_the_settings_are_those_of_the_core() -> None:
    rule = fold_rule(RulesSection())
    plain = msgspec.structs.replace(rule.inference, simplify=str)
    assert msgspec.structs.replace(rule, inference=plain) == FoldRule()


@pytest.mark.parametrize(
    ("answer", "title", "keywords"),
    [
        ("比價猶豫|OPPO空調;遙控器", "OPPO空调遥控器", ("OPPO空调", "遥控器")),
        ("比价犹豫|ＯＰＰＯ空调", "OPPO空调遥控器", ("OPPO空调",)),
        ("比价犹豫|空调", "OPPO空調遙控器", ("空调",)),
        ("比價猶豫|空調", "OPPO空調遙控器", ("空調",)),
        ("場景购物|空调", "OPPO空调遥控器", ("空调",)),
    ],
)
def test_a_phone_s_keywords_are_read_in_whatever_script_they_and_the_titles_are(
    answer: str, title: str, keywords: tuple[str, ...]
) -> None:
    rule = fold_rule(RulesSection()).inference
    said = judge(inference("i", answer, [item(title=title)]), NOW_MS, LiveIntent(), (), rule).said
    assert isinstance(said, Answer)
    assert said.keywords == keywords


def test_a_keyword_that_nobody_read_stays_ungrounded_in_every_script() -> None:
    rule = fold_rule(RulesSection()).inference
    said = judge(inference("i", "比價猶豫|雪橇", [item(title="空调")]), NOW_MS, LiveIntent(), (), rule).said
    assert isinstance(said, AnswerFault)
    assert said.kind == "ungrounded"


def test_a_rule_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTENTLOOP_RULES__PICK_RANDOM_RATIO", "0.5")
    monkeypatch.setenv("INTENTLOOP_STREAMS__BATCH_RECORDS", "20")
    settings = StreamsSettings()
    assert fold_rule(settings.rules).pick.random_ratio == 0.5
    assert settings.streams.batch_records == 20


def test_a_state_that_would_live_less_than_a_day_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTENTLOOP_STREAMS__STATE_TTL_S", "3600")
    with pytest.raises(ValidationError, match="86400"):
        StreamsSettings()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("STREAMS__HEARTBEAT_S", "5", "more than half of session_timeout_s 8"),
        ("RULES__DRIFT_MIN_WINDOW", "20", "no window would ever be long enough"),
        ("RULES__PICK_BUDGET_PER_HOUR", "7", "leaves nothing for each of 8 partitions"),
    ],
)
def test_settings_that_could_never_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(f"INTENTLOOP_{name}", value)
    with pytest.raises(ValidationError, match=why):
        StreamsSettings()


def test_each_partition_has_its_part_of_the_budget_and_redis_outlives_the_fold() -> None:
    settings = StreamsSettings(rules=RulesSection(pick_budget_per_hour=80))
    rule = fold_rule(settings.rules, settings.streams.state_ttl_s)
    assert rule.pick.budget_per_hour == 10
    assert rule.state_ttl_ms == settings.streams.state_ttl_s * 1_000
    assert settings.streams.redis_ttl_s * 1_000 > rule.state_ttl_ms
