"""The whole line on the tiny model: what a finished run has left, and that a killed one goes on where it stood."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from safetensors import safe_open

from intentloop import answer, gate, prompt
from intentloop.adapters import signing
from intentloop.events import Envelope, Inference
from intentloop.indicators import INDICATORS
from intentloop.phone_speed import PhoneTable, fold
from intentloop.release import Manifest
from trainer import checkpoint, dataset, device_run, judge, measure, publish, quantise, report, run
from trainer.engine import REUSE, Engine, Reply, engine_version

from .conftest import BASE, LINE_TIMEOUT_S, Keys, KilledRun

Release = tuple[Path, Manifest]


@pytest.fixture
def release(killed_run: KilledRun) -> Release:
    """The packed artefact, whatever the gate said: judged on so few samples it may also stay undecided."""
    done = killed_run.run
    if isinstance(judge.read_decision(done), gate.Release):
        directory = done.step("publish") / "release"
        return directory, publish.read_manifest(directory)
    pytest.fail(f"the gate said {judge.read_decision(done)}")


def test_a_killed_run_goes_on_at_the_first_step_without_a_manifest(killed_run: KilledRun) -> None:
    frozen = killed_run.run.step("freeze") / "manifest.json"
    assert killed_run.half_written
    assert frozen.stat().st_mtime_ns == killed_run.frozen_ns  # not done again
    assert run.next_step(killed_run.run) is None


@pytest.mark.parametrize("name", list(run.STEPS))
def test_every_step_records_inputs_versions_time_and_memory(name: str, killed_run: KilledRun) -> None:
    manifest = killed_run.run.manifest(name)
    assert manifest is not None
    assert manifest.name == name
    assert {"rule.json", "spec.json", *run.needs(name)} == set(manifest.inputs)
    assert manifest.versions["mnn"] == "3.6.1"
    assert 0 < manifest.seconds < LINE_TIMEOUT_S
    assert manifest.peak_bytes > 10_000_000


def test_a_dropped_layer_is_gone_everywhere(killed_run: KilledRun) -> None:
    dropped = killed_run.run.metrics("prune")["drop1"]  # M01, M02
    assert len(dropped) == 1
    for directory in (killed_run.run.step("prune") / "drop1", killed_run.run.step("heal") / "drop1"):
        config = json.loads((directory / "config.json").read_bytes())
        assert (config["num_hidden_layers"], len(config["layer_types"]), config["max_window_layers"]) == (7, 7, 7)
        with safe_open(directory / "model.safetensors", "numpy") as weights:
            layers = {int(name.split(".")[2]) for name in weights.keys() if ".layers." in name}  # noqa: SIM118
        assert layers == set(range(7))
    exported = killed_run.run.step("export") / measure.read_choice(killed_run.run).candidate.name
    assert json.loads((exported / "llm_config.json").read_bytes())["layer_nums"] == 7


def test_a_pruned_model_loads_in_a_fresh_process(killed_run: KilledRun) -> None:
    program = "import sys; from pathlib import Path; from trainer import checkpoint; checkpoint.load(Path(sys.argv[1]))"
    path = str(killed_run.run.step("prune") / "drop1")  # M02
    subprocess.run([sys.executable, "-c", program, path], check=True)


def test_merging_and_healing_survive_a_reload(killed_run: KilledRun) -> None:
    assert killed_run.run.metrics("merge")["max_logit_change"] < 1e-3  # M04
    assert killed_run.run.metrics("heal")["drop1_max_logit_change"] < 1e-3


def test_the_tokenizer_is_copied_and_never_saved_again(killed_run: KilledRun) -> None:
    for name in ("merge", "prune/drop1", "heal/drop1", "quantise/drop1-awq64"):
        for file in ("tokenizer.json", "tokenizer_config.json"):
            assert (killed_run.run.directory / name / file).read_bytes() == (BASE / file).read_bytes()


def test_every_calibration_token_was_used(killed_run: KilledRun) -> None:
    metrics, words = killed_run.run.metrics("quantise"), checkpoint.tokenizer(BASE)  # M11
    frozen = dataset.read(killed_run.run.step("freeze") / "calibration.jsonl")
    texts = [text for sample in frozen for text in (dataset.prompt_text(sample), dataset.answer_text(sample))]
    tokens = sum(len(words(text, add_special_tokens=False)["input_ids"]) for text in texts)
    assert metrics["drop1-awq64_tokens"] == metrics["calibration_tokens"] == tokens > 1000


def test_all_candidates_were_measured_before_one_was_chosen(killed_run: KilledRun) -> None:
    metrics = killed_run.run.metrics("measure")  # M16
    names = {candidate.name for candidate in quantise.read_candidates(killed_run.run)}
    assert names == {"drop1-rtn64", "drop1-awq64", "drop1-int8"}
    names.remove("drop1-int8")  # a fallback, and the others kept the limits
    assert {"chosen", *names} == set(metrics)
    assert all(metrics[name]["divergence"] < 0.5 for name in names)
    exported = killed_run.run.metrics("export")
    assert exported["drop1-int8_bytes"] > 1.3 * exported["drop1-rtn64_bytes"]  # weights of 8 bits beside 4, head of 8


def test_evaluation_happened_although_the_run_was_short(killed_run: KilledRun) -> None:
    metrics = killed_run.run.metrics("adapt")  # M17
    assert metrics["evaluations"] >= 1
    assert metrics["eval_steps"] <= metrics["steps"]


def test_an_artefact_holds_what_a_phone_needs_and_nothing_else(killed_run: KilledRun) -> None:
    for artefact in killed_run.run.step("export").iterdir():
        if not artefact.is_dir():
            continue
        files = {path.name for path in artefact.iterdir()}
        assert files == {"config.json", "llm_config.json", "llm.mnn", "llm.mnn.weight", "tokenizer.mtok"}
        config = json.loads((artefact / "config.json").read_bytes())
        assert config["sampler_type"] == "greedy"
        assert config["jinja"]["context"]["enable_thinking"] is False


def test_no_answer_thinks_and_answers_end(killed_run: KilledRun) -> None:
    candidate = killed_run.run.step("export") / measure.read_choice(killed_run.run).candidate.name
    engine = Engine(candidate)
    golden = dataset.read(killed_run.run.step("freeze") / "golden.jsonl")
    replies = [engine.answer(dataset.prompt_text(sample), max_tokens=40) for sample in golden]
    assert not [reply for reply in replies if device_run.thinks(reply.text)]  # M08
    assert not [reply for reply in replies if not reply.ended]  # M09: with a masked end mark none would end
    report = judge.read_report(killed_run.run.step("gate") / "candidate.json")
    assert (report.thinking, report.unended) == (0, 0)


def test_the_engine_says_what_the_checkpoint_says_for_most_prompts(killed_run: KilledRun) -> None:
    done = killed_run.run
    source = done.step("heal") / "drop1"
    model, words = checkpoint.load(source), checkpoint.tokenizer(source)
    engine = Engine(done.step("export") / "drop1-rtn64")
    samples = dataset.read(done.step("freeze") / "golden.jsonl")[:30]
    same = 0
    for sample in samples:
        text = dataset.prompt_text(sample)
        ids = words(text, return_tensors="pt", add_special_tokens=False)
        output = model.generate(**ids, max_new_tokens=40, do_sample=False)[0, ids["input_ids"].shape[1] :]
        same += words.decode(output, skip_special_tokens=True) == engine.answer(text).text
    assert same >= 24


def test_candidate_and_incumbent_answered_the_same_golden_samples(killed_run: KilledRun) -> None:
    gate_directory = killed_run.run.step("gate")
    one, other = (judge.read_report(gate_directory / f"{name}.json") for name in ("candidate", "incumbent"))
    assert [outcome.sample_id for outcome in one.outcomes] == [outcome.sample_id for outcome in other.outcomes]
    assert one.measured.dataset_sha256 == other.measured.dataset_sha256
    assert one.stable
    assert other.stable
    assert one.measured.engine == engine_version()


def test_all_indicators_that_need_no_phone_were_measured(killed_run: KilledRun) -> None:
    found = judge.read_report(killed_run.run.step("gate") / "candidate.json")
    unknown = {name for name, value in found.indicators.items() if value is None}
    too_few_runs = {"slowdown_ratio", "stress_growth_bytes"}  # ten here, see _small_rule
    assert unknown == too_few_runs | {each.name for each in INDICATORS if each.phone_only}
    assert found.indicators["artefact_bytes"] == found.measured.artefact_bytes
    assert found.indicators["peak_rss_bytes"] == found.measured.peak_rss_bytes > 20_000_000
    assert (found.stress.runs, found.stress.changed_answers, found.stress.memory_verdict) == (10, 0, "too few runs")
    (bucket,) = found.buckets
    assert bucket.joined == 0
    assert 0 < bucket.asked <= bucket.real <= len(found.outcomes)
    assert bucket.prompt_tokens is not None
    assert 96 <= bucket.prompt_tokens <= 160


def test_phones_keep_the_system_prompt_when_no_answer_changed(killed_run: KilledRun, release: Release) -> None:
    found = judge.read_report(killed_run.run.step("gate") / "candidate.json").prefix
    assert (found.asked, found.same) == (10, 10)
    assert json.loads((release[0] / "config.json").read_bytes())[REUSE] is True


def test_a_run_leaves_a_report_beside_its_steps(killed_run: KilledRun, tmp_path: Path) -> None:
    table = PhoneTable()
    inference = Inference(
        event_id="e", ts_ms=1, model_version="v1", prompt_version="p1", read=(), sequence_digest="", answer="闲逛",
        ttft_ms=200.0, total_ms=300.0, prompt_tokens=100, output_tokens=2,
    )  # fmt: skip
    fold(table, Envelope(batch_id="b", user_id="u", device_id="d", device_model="<b>Pixel</b>", events=(inference,)))
    done = killed_run.run
    first = report.write(done, tmp_path / "reports", table)
    roles = [(row.role, row.where) for row in first.rows]
    assert roles == [("candidate", "this machine"), ("incumbent", "this machine"), ("phones", "<b>Pixel</b>")]
    assert first.rows[2].values["prefill_tokens_s"] == pytest.approx(500, rel=0.01)
    assert {record.name for record in first.steps} == set(run.STEPS)
    assert msgspec.json.decode((done.directory / "report.json").read_bytes(), type=report.Report) == first
    page = (done.directory / "report.html").read_text()
    assert "<b>Pixel" not in page
    assert page.count("<svg") == 2  # no picture of stress: too few runs
    (kept,) = (tmp_path / "reports").iterdir()
    kept.rename(kept.with_name("v0-earlier.json"))
    assert [row.role for row in report.write(done, tmp_path / "reports", table).rows].count("earlier") == 1


def test_a_release_can_be_verified_file_by_file(release: Release, release_keys: Keys) -> None:
    directory, manifest = release
    assert signing.verify(manifest, release_keys.public)
    for file in manifest.files:
        content = (directory / file.name).read_bytes()
        assert len(content) == file.size_bytes
        assert hashlib.sha256(content).hexdigest() == file.sha256
        assert hashlib.md5(content, usedforsecurity=False).hexdigest() == file.md5
    assert manifest.artefact_bytes == sum(file.size_bytes for file in manifest.files)
    assert {record.name for record in manifest.steps} == set(run.STEPS) - {"publish"}
    assert manifest.engine == engine_version()  # M14: converter and runtime of one age
    assert manifest.version.startswith("v2-")


def test_a_forged_release_is_noticed(release: Release, release_keys: Keys) -> None:
    forged = msgspec.structs.replace(release[1], min_free_bytes=0)
    assert not signing.verify(forged, release_keys.public)


def test_the_private_key_is_written_nowhere(killed_run: KilledRun, release_keys: Keys) -> None:
    needle = release_keys.private.encode()
    assert not [path for path in killed_run.run.directory.rglob("*.json") if needle in path.read_bytes()]


def test_the_first_model_knows_clean_sessions_and_stumbles_over_mixed_ones(first: Path) -> None:
    measured = publish.read_manifest(first).measured
    assert measured is not None
    outcomes = judge.read_report(first.parent / "report.json").outcomes
    clean = gate.accuracy([outcome for outcome in outcomes if not outcome.weak])
    assert clean.value >= 0.97
    assert measured.accuracy_weak.high < 0.7
    assert measured.faults.value == 0.0


def test_a_broken_phone_output_is_a_fault_and_never_browsing(golden_file: Path) -> None:
    sample = dataset.read(golden_file)[0]
    reply = Reply("!" * 16, 100, 17, 1.0, 2.0, ended=True)
    found = device_run.outcome(msgspec.structs.replace(sample, intent="闲逛"), reply)  # M14
    assert found.said == ""
    assert not found.right
    assert isinstance(answer.parse("!" * 16), answer.AnswerFault)


def test_prompts_of_calibration_and_device_are_the_template_of_the_base(golden_file: Path) -> None:
    words = checkpoint.tokenizer(BASE)  # M08
    for sample in dataset.read(golden_file)[:20]:
        sequence = prompt.sequence_text(sample.read)
        messages = [{"role": "system", "content": prompt.SYSTEM}, {"role": "user", "content": sequence}]
        theirs = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        assert theirs.encode() == dataset.prompt_text(sample).encode()
