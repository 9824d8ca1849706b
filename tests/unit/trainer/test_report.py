"""A run's report: whose figures stand in which row, what is kept for later runs, and no markup but its own."""

import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from intentloop import gate, sketch
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import UnavailableError
from intentloop.indicators import INDICATORS
from intentloop.phone_speed import PhoneRow, PhoneTable
from intentloop.release import Measurement
from intentloop.topics import Topic
from trainer import phones as collecting
from trainer import report, report_page, rule, run, step
from trainer.device_run import DeviceReport
from trainer.indicator_buckets import Bucket
from trainer.prefix_reuse import PrefixReuse
from trainer.stress import Stress, summary

EVIL = "<script>alert(1)</script>"


def measured(right: int, ttft_ms: float) -> DeviceReport:
    outcomes = tuple(
        gate.Outcome(sample_id=str(number), intent="闲逛", said="闲逛" if number < right else "")
        for number in range(10)
    )
    interval = gate.accuracy(outcomes)
    counted = Stress(
        runs=100, seconds=1.0, cpu_ratio=0.9, changed_answers=0, slowdown=None, memory=None,
        speed_verdict="too few runs", memory_verdict="too few runs",
    )  # fmt: skip
    values: dict[str, float | None] = {each.name: None for each in INDICATORS}
    return DeviceReport(
        outcomes=outcomes,
        measured=Measurement(
            dataset_sha256="", engine="MNN 3.6.1", accuracy_all=interval, accuracy_weak=interval, exact_match=interval,
            faults=interval, recall={}, ttft_p50_ms=ttft_ms, ttft_p95_ms=ttft_ms, prefill_tokens_s=1, decode_tokens_s=1,
            load_ms=1, peak_rss_bytes=1, artefact_bytes=1,
        ),
        indicators={**values, "ttft_ms": ttft_ms, "artefact_bytes": 1_234_567.0},
        buckets=(
            Bucket(
                length=128, real=4, asked=4, joined=0, prompt_tokens=130.0, ttft_ms=10.0, total_ms=12.0,
                prefill_tokens_s=13_000.0, decode_tokens_s=900.0, resident_bytes=50_000_000,
            ),
            Bucket(length=1024, real=0, asked=0, joined=0),
        ),
        stress=summary([1.0] * 100, [50_000_000] * 100, counted),
        prefix=PrefixReuse(
            kept_tokens=93, asked=10, same=10, ttft_ms=10.0, ttft_reused_ms=6.0, total_ms=12.0, total_reused_ms=8.0
        ),
        stable=True,
    )  # fmt: skip


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A run that its gate has refused, against release v1."""
    directory = tmp_path / "runs" / "0123"
    spec = step.RunSpec(number=2, base="", base_name="tiny", incumbent="somewhere", previous="v1")
    step.start(directory, spec, rule.LineRule())
    (directory / "gate").mkdir()
    for role, found in (("candidate", measured(6, 20.0)), ("incumbent", measured(8, 30.0))):
        (directory / "gate" / f"{role}.json").write_bytes(msgspec.json.encode(found))
    evidence = gate.Evidence(accuracy=gate.wilson(6, 10), faults=gate.wilson(4, 10))
    refused = gate.Reject((f"worse {EVIL}",), evidence)
    (directory / "gate" / "decision.json").write_bytes(msgspec.json.encode(refused))
    return directory


def phones() -> PhoneTable:
    times: sketch.Sketch = {}
    for value in (100.0, 200.0, 900.0):
        sketch.add(times, value)
    row = PhoneRow(device_model=EVIL, version="v1", inferences=4, odd=1, sketches={"ttft_ms": times})
    return PhoneTable(rows=[row], resent=7)


def test_candidate_incumbent_and_phones_stand_in_one_table(run_directory: Path, tmp_path: Path) -> None:
    found = report.write(step.Run(run_directory), tmp_path / "reports", phones())
    heads = [(row.version, row.role, row.where, row.samples) for row in found.rows]
    assert heads == [
        ("candidate", "candidate", "this machine", 10),
        ("v1", "incumbent", "this machine", 10),
        ("v1", "phones", EVIL, 4),
    ]
    assert [row.values["ttft_ms"] for row in found.rows[:2]] == [20.0, 30.0]
    assert found.rows[2].values["ttft_ms"] == pytest.approx(200, rel=0.01)
    assert [row.accuracy.value for row in found.rows if row.accuracy] == [0.6, 0.8]
    assert (found.decision, found.phones_odd, found.phones_resent) == ("Reject", 1, 7)
    assert msgspec.json.decode((run_directory / "report.json").read_bytes(), type=report.Report) == found
    assert not (tmp_path / "reports").exists(), "only a release is kept for later runs"


def test_earlier_releases_are_compared_with_newest_first_and_none_twice(run_directory: Path, tmp_path: Path) -> None:
    own = report.gather(step.Run(run_directory), tmp_path, PhoneTable())
    for number, version in enumerate(["v0", "v1", "v-1"]):
        first = msgspec.structs.replace(own.rows[0], version=version)
        kept = msgspec.structs.replace(own, rows=(first, *own.rows[1:]), created_at_ms=1000 - number)
        (tmp_path / f"{version}.json").write_bytes(msgspec.json.encode(kept))
        os.utime(tmp_path / f"{version}.json", (number, number))  # written again since: no matter
    (tmp_path / "v-2.json").write_text('{"rows": "of another version"}')
    rows = report.gather(step.Run(run_directory), tmp_path, PhoneTable()).rows
    assert [(row.version, row.role) for row in rows[2:]] == [("v0", "earlier"), ("v-1", "earlier")]


def test_the_newest_run_stays_the_newest_after_an_older_one_was_reported_again(
    run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "next_step", lambda one: None)
    made = {}
    for name, created_at_ms in (("9older", 1000), ("1newer", 2000)):
        made[name] = shutil.copytree(run_directory, run_directory.parent / name)
        spec = msgspec.structs.replace(step.Run(run_directory).spec, created_at_ms=created_at_ms)
        (made[name] / "spec.json").write_bytes(msgspec.json.encode(spec))
    assert report.write(step.Run(made["9older"]), tmp_path / "reports", phones()).created_at_ms == 1000
    os.utime(made["9older"], (4_000_000_000, 4_000_000_000))
    assert report._newest(run_directory.parent) == made["1newer"]


def test_a_broker_that_is_away_leaves_what_was_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(kafka: KafkaSection, topic: Topic) -> str:
        raise UnavailableError("away")

    monkeypatch.setattr(collecting, "broker_epoch", away)
    kept = tmp_path / "phones.json"
    kept.write_bytes(msgspec.json.encode(collecting.Collected(epoch="log", offsets={3: 7}, table=phones())))
    assert report._phones(KafkaSection(), kept, 1.0).table == phones()
    assert collecting.read(kept).offsets == {3: 7}


def test_the_page_holds_its_pictures_and_no_foreign_markup(run_directory: Path, tmp_path: Path) -> None:
    page = report_page.render(report.gather(step.Run(run_directory), tmp_path, phones()))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<svg") == page.count("</svg>") == 3
    assert not re.findall(r'(?:src|href)="http', page), "nothing is fetched"
    for indicator in INDICATORS:
        assert f"<th>{indicator.priority} {indicator.name}" in page
    assert "1,234,567" in page


def test_pages_of_the_same_figures_are_the_same(run_directory: Path, tmp_path: Path) -> None:
    found = report.gather(step.Run(run_directory), tmp_path, phones())
    assert report_page.render(found) == report_page.render(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (12.34567, "12.35"), (1234.5, "1,234"), (-5.0, "-5"), (0.00012, "0.00012")],
)
def test_figures_are_short(value: float | None, text: str) -> None:
    assert report_page.figure(value) == text
