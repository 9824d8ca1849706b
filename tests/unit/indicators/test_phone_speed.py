"""Phones' own figures, by release and phone model: counted once, by the lab's formulas, in a bounded table."""

import msgspec
import pytest

from intentloop import phone_speed, sketch
from intentloop.events import Behaviour, Envelope, Event, Inference
from intentloop.indicators import FROM_PHONES, INDICATORS
from intentloop.phone_speed import PhoneTable, figures, fold, row


def inference(**values: float | int | None) -> Inference:
    usual = {"ttft_ms": 400.0, "total_ms": 500.0, "prompt_tokens": 200, "output_tokens": 4}
    head = {"event_id": "e", "ts_ms": 1, "model_version": "v2", "prompt_version": "p1", "read": []}
    return msgspec.convert(
        {**head, "kind": "inference", "sequence_digest": "", "answer": "", **usual, **values}, Inference
    )


def envelope(batch: str, *events: Event, device: str = "Mate") -> Envelope:
    return Envelope(batch_id=batch, user_id="u", device_id="d", device_model=device, events=events)


def test_figures_follow_from_one_inference() -> None:
    expected = {"ttft_ms": 400.0, "total_ms": 500.0, "prefill_tokens_s": 500.0, "decode_tokens_s": 40.0}
    assert figures(inference()) == expected
    assert set(expected) == set(FROM_PHONES)


@pytest.mark.parametrize(
    "values", [{"ttft_ms": None}, {"total_ms": 399.0}, {"ttft_ms": 0.0}, {"total_ms": float("inf")}, {"ttft_ms": -1.0}]
)
def test_times_that_cannot_be_true_are_counted_and_give_nothing(values: dict[str, float]) -> None:
    table = PhoneTable()
    fold(table, envelope("b", msgspec.structs.replace(inference(), **values)))
    (found,) = table.rows
    assert (found.inferences, found.odd, found.sketches) == (1, 1, {})


def test_rows_are_by_phone_model_and_release() -> None:
    table = PhoneTable()
    behaviour = Behaviour(event_id="x", action="search", ts_ms=1)
    other = msgspec.structs.replace(inference(), model_version="v3")
    fold(table, envelope("b1", behaviour, inference(ttft_ms=100.0), inference(ttft_ms=300.0), other))
    fold(table, envelope("b2", inference(), device="Pixel"))
    counted = {(found.device_model, found.version): found.inferences for found in table.rows}
    assert counted == {("Mate", "v2"): 2, ("Mate", "v3"): 1, ("Pixel", "v2"): 1}
    found = row(table, "Mate", "v2").sketches["ttft_ms"]
    assert sketch.quantile(found, 1.0) == pytest.approx(300, rel=0.01)


def test_a_resent_batch_is_counted_once() -> None:
    table = PhoneTable()
    for batch in ("b1", "b1", "b2"):
        fold(table, envelope(batch, inference()))
    assert (table.rows[0].inferences, table.resent) == (2, 1)


def test_two_accounts_of_one_phone_share_a_batch_and_two_phones_may_count_alike() -> None:
    table = PhoneTable()
    one = envelope("b1", inference())
    for user, device in (("u", "d"), ("v", "d"), ("u", "e"), ("v", "d")):
        fold(table, msgspec.structs.replace(one, user_id=user, device_id=device))
    assert (table.rows[0].inferences, table.resent) == (3, 1)


def test_the_table_is_bounded_whatever_phones_call_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phone_speed, "MAX_ROWS", 3)
    monkeypatch.setattr(phone_speed, "REMEMBERED", 5)
    table = PhoneTable()
    for number in range(20):
        fold(table, envelope(f"b{number}", inference(), device=f"model {number}"))
    assert [found.device_model for found in table.rows] == ["model 0", "model 1", "model 2", phone_speed.OTHER]
    assert sum(found.inferences for found in table.rows) == 20
    assert [batch.split("\x00")[2] for batch in table.recent] == [f"b{number}" for number in range(15, 20)]


def test_a_table_survives_being_written() -> None:
    table = PhoneTable()
    fold(table, envelope("b1", inference()))
    assert msgspec.json.decode(msgspec.json.encode(table), type=PhoneTable) == table


def test_there_are_fifteen_indicators_and_four_are_urgent() -> None:
    names = [each.name for each in INDICATORS]
    assert len(names) == len(set(names)) == 15
    urgent = {each.name for each in INDICATORS if each.priority == "P0"}
    assert urgent == {"ttft_ms", "decode_tokens_s", "peak_rss_bytes", "load_ms"}  # seeds/000, 5.1
    assert {each.name for each in INDICATORS if each.phone_only} == {"temperature_c", "energy_mj"}
    assert set(FROM_PHONES) <= set(names)
