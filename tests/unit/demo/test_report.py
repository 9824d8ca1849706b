"""The demo's report holds what was promised, and says itself what it does not show."""

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from demo.report import DemoReport, ReleaseReport, StepReport, failures, release_report, table, write
from intentloop.release import Interval, Manifest, Measurement, StepRecord


def interval(value: float, margin: float = 0.05) -> Interval:
    return Interval(value=value, low=value - margin, high=value + margin, samples=300)


def release(version: str, weak: float) -> ReleaseReport:
    return ReleaseReport(
        version=version,
        accuracy_weak=interval(weak),
        accuracy_all=interval(0.8),
        artefact_bytes=1_160_000,
        quantiser="awq w4 block 64",
        layers_dropped=(5,),
        steps=(StepReport("adapt", 12.3),),
    )


GOOD = DemoReport(
    events_sent=1000,
    events_accounted=1000,
    events_lost=0,
    samples_picked=300,
    samples_labelled=300,
    samples_hard=120,
    samples_to_people=40,
    triggers_emitted=77,
    teacher_agreement_ratio=0.885,
    label_cost=1.25,
    releases=(release("v1", 0.5), release("v2", 0.8)),
    seconds_total=200.0,
    phones=40,
    phones_by_version={"v2": 40},
    inferences=500,
    retrain_reason="120 new hard samples, 100 are enough",
    restarts={"workers": 1},
    broker="embedded tansu",
)


def change(**changes: object) -> DemoReport:
    return msgspec.structs.replace(GOOD, **changes)


def test_a_run_that_keeps_all_promises_has_no_failures() -> None:
    assert failures(GOOD) == []


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (change(events_accounted=999, events_lost=1), "1 of 1000 events"),
        (change(events_accounted=1001, events_lost=-1), "-1 of 1000 events"),
        (change(releases=(release("v1", 0.5),)), "1 release"),
        (change(releases=(release("v1", 0.5), release("v2", 0.59))), "not above"),
        (change(phones_by_version={"v1": 40}), "no phone runs v2"),
    ],
)
def test_each_broken_promise_is_a_failure(report: DemoReport, words: str) -> None:
    assert any(words in failure for failure in failures(report))


def test_the_file_has_the_promised_fields(tmp_path: Path) -> None:
    write(GOOD, tmp_path / "deep" / "report.json")
    found = json.loads((tmp_path / "deep" / "report.json").read_text(encoding="utf-8"))
    assert {
        "events_sent",
        "events_accounted",
        "events_lost",
        "samples_picked",
        "samples_labelled",
        "samples_hard",
        "samples_to_people",
        "triggers_emitted",
        "teacher_agreement_ratio",
        "label_cost",
        "releases",
        "seconds_total",
    } <= set(found)
    first = found["releases"][0]
    assert {"low", "high"} <= set(first["accuracy_weak"]) & set(first["accuracy_all"])
    assert first["steps"] == [{"name": "adapt", "seconds": 12.3}]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["report.json"]


def test_the_table_says_that_teachers_are_simulated_and_shows_both_versions() -> None:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(GOOD))
    text = console.export_text()
    console.file.close()
    assert "simulated" in text
    assert "50.0% [45.0%, 55.0%]" in text
    assert "80.0% [75.0%, 85.0%]" in text
    assert "workers: 1" in text


def test_a_release_is_reported_as_its_manifest_says() -> None:
    measured = Measurement(
        dataset_sha256="d",
        engine="MNN 3.6.1",
        accuracy_all=interval(0.9),
        accuracy_weak=interval(0.8),
        exact_match=interval(0.7),
        faults=interval(0.05),
        recall={},
        ttft_p50_ms=1,
        ttft_p95_ms=2,
        prefill_tokens_s=3,
        decode_tokens_s=4,
        load_ms=5,
        peak_rss_bytes=6,
        artefact_bytes=7,
    )
    manifest = Manifest(
        version="v9",
        previous="v8",
        base_model="tiny",
        prompt_version="p1",
        engine="MNN 3.6.1",
        quantiser="rtn",
        layers_dropped=(3,),
        files=(),
        artefact_bytes=77,
        min_free_bytes=1,
        measured=measured,
        steps=(StepRecord(name="export", seconds=1.2345, peak_bytes=9),),
        lineage={},
        reason="r",
        created_at_ms=1,
    )
    report = release_report(manifest)
    assert report is not None
    assert (report.version, report.artefact_bytes, report.accuracy_weak) == ("v9", 77, interval(0.8))
    assert report.steps == (StepReport("export", 1.23),)
    assert release_report(msgspec.structs.replace(manifest, measured=None)) is None
