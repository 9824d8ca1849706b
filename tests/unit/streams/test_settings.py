import pytest
from pydantic import ValidationError

from intentloop.fold import FoldRule
from streams.settings import RulesSection, StreamsSettings, fold_rule


def test_the_defaults_of_the_settings_are_those_of_the_core() -> None:
    assert fold_rule(RulesSection()) == FoldRule()


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
