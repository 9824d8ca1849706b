"""What the line decides without a model: layers, steps, splits, rows, names, resumption. No torch."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop.errors import ContractError
from intentloop.training_set import TrainingSample
from trainer import (
    awq_fold,
    converter,
    dataset,
    freeze,
    measure,
    prune,
    publish,
    quantise,
    rule,
    run,
    search_score,
    step,
    tiny_corpus,
)

# seeds/000, "淘特微调后 28 层模型 BI 值分布": the published influence of 28 blocks, and the six that were cut
PUBLISHED = (
    0.9103703498840332, 0.22136521339416504, 0.13332736492156982, 0.1306910514831543, 0.13731390237808228,
    0.11368060111999512, 0.1134185791015625, 0.0920405387878418, 0.10232663154602051, 0.10968828201293945,
    0.09634917974472046, 0.10251200199127197, 0.07831752300262451, 0.07851868867874146, 0.08390378952026367,
    0.09240895509719849, 0.10546720027923584, 0.10390979051589966, 0.09118866920471191, 0.1061851978302002,
    0.09440338611602783, 0.1049380898475647, 0.09798532724380493, 0.08883386850357056, 0.06927740573883057,
    0.08080613613128662, 0.08935767412185669, 0.5631741285324097,
)  # fmt: skip


def test_the_published_influence_chooses_the_six_lowest_between_the_ends() -> None:
    assert prune.choose(PUBLISHED, 6) == (12, 13, 14, 23, 24, 25)
    assert prune.choose(PUBLISHED, 0) == ()


def test_first_and_last_block_stay_even_when_they_are_lowest() -> None:
    assert prune.choose([0.0, 0.5, 0.4, 0.0], 1) == (2,)


def test_more_layers_than_lie_between_the_ends_are_refused() -> None:
    with pytest.raises(ContractError, match="cannot drop 3 of 4"):
        prune.choose([1.0, 0.1, 0.1, 1.0], 3)


def samples(count: int, seed: int = 3) -> list[TrainingSample]:
    return tiny_corpus.samples(seed, count, 0.5)


def test_no_user_and_no_sequence_is_in_two_parts_of_a_snapshot() -> None:
    golden = samples(40, seed=8)
    others = samples(5, seed=9)
    shared = [msgspec.structs.replace(one, user_id=golden[0].user_id) for one in others]
    copied = [msgspec.structs.replace(one, id=f"y{one.id}", user_id=f"y{one.user_id}") for one in golden[5:10]]
    parts = freeze.split([*samples(200), *shared, *copied], golden, rule.SplitRule(), 1)
    judged = {name: parts[name] for name in ("train", "validation", "dev", "golden")}
    for field in ("user_id", "digest"):
        seen = [{getattr(sample, field) for sample in part} for part in judged.values()]
        assert sum(len(part) for part in seen) == len(set().union(*seen))
    assert all(judged.values())


def test_one_user_with_many_samples_stays_in_one_part() -> None:
    same = [msgspec.structs.replace(sample, user_id=f"u{index % 7}") for index, sample in enumerate(samples(210))]
    parts = freeze.split(same, [], rule.SplitRule(), 1)
    users = [{sample.user_id for sample in parts[name]} for name in ("train", "validation", "dev")]
    assert sum(len(part) for part in users) == 7


def test_calibration_is_taken_from_training_samples_only() -> None:
    parts = freeze.split(samples(100), [], rule.SplitRule(calibration_samples=16), 1)
    assert {sample.id for sample in parts["calibration"]} <= {sample.id for sample in parts["train"]}
    assert len(parts["calibration"]) == 16


def test_a_snapshot_that_is_all_golden_is_refused() -> None:
    with pytest.raises(ContractError, match="at least 20"):
        freeze.split(samples(50), samples(50), rule.SplitRule(), 1)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_every_calibration_token_is_used_and_no_row_holds_two_samples(lengths: list[int]) -> None:
    rows = [[index] * length for index, length in enumerate(lengths)]  # M11, M12
    equal = awq_fold.calibration_rows(rows, 1)
    assert {len(row) for row in equal} == {max(lengths)}
    assert [set(row) for row in equal] == [{index} for index in range(len(lengths))]


def test_a_repeated_row_holds_its_sample_whole_and_in_order() -> None:
    assert awq_fold.calibration_rows([[1, 2, 3], [4, 5, 6, 7, 8]], 1) == [[1, 2, 3, 1, 2], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize("rows", [[], [[1] * 15] * 20])
def test_too_little_calibration_is_refused_before_minutes_are_spent(rows: list[list[int]]) -> None:
    with pytest.raises(ContractError, match="0 blocks"):  # M12
        awq_fold.calibration_rows(rows, 4096)


def scored(name: str, accuracy: float, divergence: float, dropped: tuple[int, ...] = ()) -> search_score.Score:
    candidate = quantise.Candidate(name=name, checkpoint="", reference="", quantiser="rtn", block=64, dropped=dropped)
    return search_score.Score(
        candidate=candidate, accuracy=accuracy, exact=0, faults=0, divergence=divergence, artefact_bytes=1
    )


def test_the_measured_best_wins_whatever_its_bits() -> None:
    found = measure.choose([scored("w8", 0.20, 0.0), scored("w4", 0.80, 0.3)], rule.LineRule())  # M16
    assert found.candidate.name == "w4"


def test_among_equals_fewer_layers_win_then_the_nearest_to_full_precision() -> None:
    scores = [scored("whole", 0.9, 0.01), scored("rtn", 0.9, 0.05, (3,)), scored("awq", 0.895, 0.02, (3,))]
    assert measure.choose(scores, rule.LineRule()).candidate.name == "awq"


def test_candidates_are_all_pairs_of_quantiser_and_block() -> None:
    quant = rule.QuantRule(quantisers=("rtn", "awq"), quant_blocks=(32, 64))
    names = [each.name for each in quantise.plan((2, 3), 2, rule.LineRule(quant=quant))]
    assert names == ["drop2-rtn32", "drop2-rtn64", "drop2-awq32", "drop2-awq64", "drop2-int8"]


def test_head_precisions_are_tried_with_every_pair_and_share_its_scales() -> None:
    quant = rule.QuantRule(quantisers=("awq",), quant_blocks=(32, 64), lm_quant_bits=(4, 8), fallback_bit=0)
    found = quantise.plan((2,), 1, rule.LineRule(quant=quant))
    assert [(each.name, each.head_bits) for each in found] == [
        ("drop1-awq32-head4", 4),
        ("drop1-awq32-head8", 8),
        ("drop1-awq64-head4", 4),
        ("drop1-awq64-head8", 8),
    ]
    assert len({each.checkpoint for each in found}) == 2


def test_the_fallback_has_eight_bits_throughout_and_needs_no_calibration() -> None:
    fallback = quantise.plan((2,), 1, rule.LineRule())[-1]
    assert (fallback.fallback, fallback.quantiser, fallback.bits, fallback.head_bits) == (True, "rtn", 8, 8)
    assert fallback.checkpoint == "heal/drop1"
    whole = rule.QuantRule(quant_bit=8)
    assert not any(each.fallback for each in quantise.plan((2,), 1, rule.LineRule(quant=whole)))


@pytest.mark.parametrize(("accuracy", "faults", "asked"), [(0.9, 0.05, 1), (0.9, 0.06, 2), (0.49, 0.0, 2)])
def test_a_fallback_is_measured_only_when_no_other_keeps_the_limits(accuracy: float, faults: float, asked: int) -> None:
    usual = scored("w4", accuracy, 0.1)
    usual = msgspec.structs.replace(usual, faults=faults)
    other = scored("int8", 0.8, 0.0)
    spare = msgspec.structs.replace(other.candidate, fallback=True)
    known = {"w4": usual, "int8": msgspec.structs.replace(other, candidate=spare)}
    scores = measure.score_all(
        [usual.candidate, spare], lambda some: [known[each.name] for each in some], rule.LineRule().gate
    )
    assert [score.candidate.name for score in scores] == ["w4", "int8"][:asked]


@pytest.mark.parametrize("quant", [rule.QuantRule(fallback_bit=0), rule.QuantRule(quant_bit=8)])
def test_where_no_fallback_is_made_the_choice_is_among_those_that_break_the_limits(quant: rule.QuantRule) -> None:
    rules = rule.LineRule(quant=quant)
    scores = measure.score_all(quantise.plan((2,), 1, rules), all_faulty, rules.gate)
    assert [score.candidate.name for score in scores] == ["drop1-rtn64", "drop1-hqq64", "drop1-awq64"]
    assert measure.choose(scores, rules).faults == 1


def test_where_nothing_but_fallbacks_is_made_they_are_measured() -> None:
    rules = rule.LineRule(quant=rule.QuantRule(quantisers=()))
    scores = measure.score_all(quantise.plan((2,), 1, rules), all_faulty, rules.gate)
    assert [score.candidate.name for score in scores] == ["drop1-int8"]


def all_faulty(candidates: Sequence[quantise.Candidate]) -> list[search_score.Score]:
    """What `measure.contest` says of candidates that are all broken; like it, it can't race nobody."""
    assert candidates
    usual = msgspec.structs.replace(scored("w4", 0.0, 0.1), faults=1.0)
    return [msgspec.structs.replace(usual, candidate=each) for each in candidates]


def test_published_parameters_are_the_defaults() -> None:
    tune = rule.LineRule().tune  # seeds/000
    assert (tune.lora_rank, tune.lora_alpha, tune.lora_dropout, tune.lora_target) == (8, 16, 0.0, "all")
    assert (tune.learning_rate, tune.lr_scheduler_type, tune.num_train_epochs) == (5e-5, "cosine", 5)
    assert (tune.per_device_train_batch_size, tune.gradient_accumulation_steps, tune.eval_steps) == (2, 8, 100)
    assert rule.LineRule().prune.heal_epochs == 3
    assert (rule.LineRule().prune.distil_alpha, rule.LineRule().prune.distil_temperature) == (0.9, 1.0)


def test_a_misspelt_parameter_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "rule.yaml"
    path.write_text("tune:\n  learning_rat: 1.0e-4\n", encoding="utf-8")
    with pytest.raises(ContractError, match="learning_rat"):
        rule.read(path)


def test_the_same_inputs_give_the_same_version() -> None:
    lineage = {"base": "a", "snapshot": "b"}
    expected = hashlib.sha256(b'{"base":"a","snapshot":"b"}').hexdigest()[:8]
    assert publish.version(2, lineage) == f"v2-{expected}"
    assert publish.version(2, dict(reversed(lineage.items()))) == f"v2-{expected}"
    assert publish.version(2, {**lineage, "base": "c"}) != f"v2-{expected}"


def test_calibration_text_in_an_artefact_is_found_plain_and_escaped(tmp_path: Path) -> None:
    text = "【行为序列】商详页(帐篷)"
    converter.check_no_text(tmp_path, [text])
    for content in (text.encode(), msgspec.json.encode([text]), b'"' + text.encode("unicode_escape") + b'"'):
        (tmp_path / "export_args.json").write_bytes(content)
        with pytest.raises(ContractError, match=r"export_args\.json"):
            converter.check_no_text(tmp_path, [text])


def make_run(directory: Path) -> step.Run:
    (directory / "inputs").mkdir(parents=True)
    for name in ("training", "golden"):
        dataset.write(directory / "inputs" / f"{name}.jsonl", [])
    return step.start(directory, step.RunSpec(number=2, base="", base_name=""), rule.LineRule())


def test_a_step_without_a_manifest_is_the_next_one_and_its_half_written_files_go(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    assert run.next_step(made) == "freeze"
    (made.step("freeze")).mkdir()
    (made.step("freeze") / "half").write_text("x")
    assert run.next_step(made) == "freeze"
    step.perform(made, "freeze", run.needs("freeze"), lambda one, into: {})
    assert not (made.step("freeze") / "half").exists()
    assert run.next_step(made) == "adapt"


def test_a_finished_step_is_not_done_again_until_what_it_read_changes(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    calls: list[Path] = []

    def work(one: step.Run, into: Path) -> step.Metrics:
        calls.append(into)
        return {}

    for _ in range(2):
        step.perform(made, "freeze", run.needs("freeze"), work)
    assert len(calls) == 1
    dataset.write(tmp_path / "inputs" / "training.jsonl", samples(3))
    assert run.next_step(made) == "freeze"


def test_the_memory_of_a_process_is_its_own_and_not_its_parents() -> None:
    ballast = b"x" * 300_000_000
    program = "from trainer import step; print(step.peak_bytes())"
    found = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert len(ballast) > found > 5_000_000


def test_a_step_that_dies_leaves_no_manifest(tmp_path: Path) -> None:
    made = make_run(tmp_path)

    def die(one: step.Run, into: Path) -> step.Metrics:
        (into / "weights").write_text("half")
        raise ContractError("no")

    with pytest.raises(ContractError, match="no"):
        step.perform(made, "freeze", run.needs("freeze"), die)
    assert made.manifest("freeze") is None


def test_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="run the steps in order"):
        step.perform(make_run(tmp_path), "merge", run.needs("merge"), lambda one, into: {})


@pytest.mark.parametrize("name", list(run.STEPS))
def test_every_step_needs_only_earlier_steps_or_inputs(name: str) -> None:
    earlier = list(run.STEPS)[: list(run.STEPS).index(name)]
    assert all(need in earlier or need.startswith("inputs/") for need in run.needs(name))


@pytest.mark.parametrize("name", list(run.STEPS))
def test_only_the_last_step_is_given_the_private_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(publish.PRIVATE_KEY, "secret")
    _, environment = run.command(name, make_run(tmp_path))
    assert (publish.PRIVATE_KEY in environment) == (name == "publish")
