import pytest

from intentloop.teacher_fault import cause_of, estimate_tokens, is_quota_rate


@pytest.mark.parametrize(
    ("status", "text", "cause"),
    [
        (None, "timed out", "transient"),
        (500, "data_inspection_failed", "transient"),
        (503, "", "transient"),
        (400, "parameter.enable_thinking must be set to false for non-streaming calls", "configuration"),
        (400, "invalid temperature: only 1 is allowed for this model", "configuration"),
        (401, "Incorrect API key provided", "configuration"),
        (404, "The model does not exist", "configuration"),
        (400, "<400> InternalError.Algo.DataInspectionFailed: Input text data may contain", "filtered"),
        (400, "data_inspection_failed", "filtered"),
        (400, "This model's maximum context length is 8192 tokens", "too_long"),
        (429, "The engine is currently overloaded", "throttled"),
        (429, "We're receiving too many requests", "throttled"),
        (429, "Throttling.RateQuota Requests rate limit exceeded", "throttled"),
        (429, "You've reached your usage limit for this period", "exhausted"),
        (403, "AllocationQuota.FreeTierOnly", "exhausted"),
        (400, "Arrearage: Access denied", "exhausted"),
    ],
)
def test_an_error_means_what_its_text_says(status: int | None, text: str, cause: str) -> None:
    assert cause_of(status, text) == cause


def test_only_a_rate_quota_needs_the_full_pause() -> None:
    assert is_quota_rate("Throttling.RateQuota")
    assert not is_quota_rate("The engine is currently overloaded")


def test_an_estimate_is_never_zero() -> None:
    assert estimate_tokens("") == 1
    assert estimate_tokens("空调遥控器") == 5
