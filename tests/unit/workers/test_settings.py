import pytest
from pydantic import ValidationError

from intentloop.retrain import RetrainRule
from workers.settings import RetrainSection, WorkersSettings


def test_teachers_are_set_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTENTLOOP_TEACHER_A__BASE_URL", "https://qwen.example/v1")
    monkeypatch.setenv("INTENTLOOP_TEACHER_A__API_KEY", "geheim")
    monkeypatch.setenv("INTENTLOOP_TEACHER_A__EXTRA_BODY", '{"enable_thinking": false}')
    monkeypatch.setenv("INTENTLOOP_TEACHER_B__TEMPERATURE", "0.6")
    settings = WorkersSettings()
    assert settings.teacher_a.base_url == "https://qwen.example/v1"
    assert settings.teacher_a.extra_body == {"enable_thinking": False}
    assert settings.teacher_a.temperature is None
    assert settings.teacher_b.temperature == 0.6
    assert "geheim" not in repr(settings)


def test_a_misspelt_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTENTLOOP_TEACHER_A__BASEURL", "https://qwen.example/v1")
    with pytest.raises(ValidationError, match="baseurl"):
        WorkersSettings()


def test_the_retrain_settings_are_the_rules() -> None:
    values = RetrainSection().model_dump(exclude={"interval_s"})
    assert RetrainRule(**values) == RetrainRule()
