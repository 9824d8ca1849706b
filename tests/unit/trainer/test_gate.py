"""The gate: released, rejected or undecided, on hand-made outcomes; intervals against scipy and published figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from intentloop.errors import ContractError
from intentloop.gate import (
    Contender,
    GateRule,
    Inconclusive,
    Outcome,
    Reject,
    Release,
    judge,
    paired_gain,
    wilson,
)

INTENTS = ("闲逛", "比价犹豫", "场景购物")


def contender(version: str, right: list[bool], weak: int = 0, **changes: float) -> Contender:
    outcomes = tuple(
        Outcome(
            sample_id=str(index),
            intent=INTENTS[index % 3],
            said=INTENTS[index % 3] if correct else INTENTS[(index + 1) % 3],
            weak=index < weak,
        )
        for index, correct in enumerate(right)
    )
    values: dict[str, float] = {"artefact_bytes": 1_000_000, "ttft_p95_ms": 20.0, **changes}
    return Contender(
        version=version,
        outcomes=outcomes,
        artefact_bytes=int(values["artefact_bytes"]),
        ttft_p95_ms=values["ttft_p95_ms"],
    )


OLD = contender("v1", [index % 2 == 0 for index in range(300)], weak=150)
GOOD = [True] * 270 + [False] * 30


@given(st.integers(1, 500), st.data())
def test_the_score_interval_is_the_one_of_scipy(samples: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, samples))
    expected = binomtest(successes, samples).proportion_ci(method="wilson")
    found = wilson(successes, samples)
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)


def test_no_samples_say_nothing() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    assert (paired_gain([]).low, paired_gain([]).high) == (-1.0, 1.0)


def test_equal_answers_give_a_gain_of_zero_with_a_narrow_interval() -> None:
    same = paired_gain([(True, True)] * 150 + [(False, False)] * 150)
    apart = paired_gain([(True, False)] * 75 + [(False, True)] * 75 + [(True, True)] * 75 + [(False, False)] * 75)
    assert same.value == apart.value == 0.0
    assert same.high - same.low < (apart.high - apart.low) / 4


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200))
def test_swapping_the_pair_mirrors_the_interval(pairs: list[tuple[bool, bool]]) -> None:
    one, other = paired_gain(pairs), paired_gain([(second, first) for first, second in pairs])
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert -1 <= one.low <= one.value <= one.high <= 1


def test_unrelated_pairs_give_newcombes_unpaired_interval() -> None:
    # independent margins 56/70 and 48/80 would be the classic unpaired example; here 60 of 100 and 40 of 100, φ = 0
    pairs = [(True, True)] * 24 + [(True, False)] * 36 + [(False, True)] * 16 + [(False, False)] * 24
    one = binomtest(60, 100).proportion_ci(method="wilson")
    two = binomtest(40, 100).proportion_ci(method="wilson")
    expected_low = 0.2 - ((0.6 - one.low) ** 2 + (two.high - 0.4) ** 2) ** 0.5
    assert paired_gain(pairs).low == pytest.approx(expected_low, abs=1e-9)


def test_a_clearly_better_candidate_is_released_with_its_evidence() -> None:
    decision = judge(contender("v2", GOOD, weak=150), OLD, GateRule())
    assert isinstance(decision, Release)
    assert decision.evidence.gain_all is not None
    assert decision.evidence.gain_weak is not None
    assert decision.evidence.gain_weak.low > 0
    assert decision.evidence.fix_ratio is not None


def test_the_first_model_needs_no_incumbent() -> None:
    assert isinstance(judge(contender("v1", GOOD), None, GateRule()), Release)


def test_a_clearly_worse_candidate_is_rejected() -> None:
    worse = contender("v2", [index % 3 == 0 for index in range(300)])
    assert isinstance(judge(worse, OLD, GateRule(min_accuracy=0, min_recall=0, max_recall_loss=1)), Reject)


def test_an_equal_candidate_is_undecided() -> None:
    other = contender("v2", [index % 2 == 1 for index in range(300)], weak=150)
    assert isinstance(judge(other, OLD, GateRule()), Inconclusive)


def test_a_candidate_that_says_the_same_is_undecided() -> None:
    assert isinstance(judge(OLD, OLD, GateRule(min_fix_ratio=0)), Inconclusive)


def test_a_candidate_that_fixes_nothing_is_rejected() -> None:
    decision = judge(OLD, OLD, GateRule())
    assert isinstance(decision, Reject)
    assert "fixes 0.000" in decision.reasons[0]


def test_a_small_golden_set_is_undecided() -> None:
    assert isinstance(judge(contender("v2", [True] * 40), None, GateRule()), Inconclusive)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"artefact_bytes": 1e9}, "artefact"), ({"ttft_p95_ms": 9_999.0}, "first token")],
)
def test_a_broken_budget_rejects_the_best_candidate(changes: dict[str, float], word: str) -> None:
    decision = judge(contender("v2", GOOD, weak=150, **changes), OLD, GateRule())
    assert isinstance(decision, Reject)
    assert word in decision.reasons[0]


def test_a_class_that_is_given_up_for_the_others_rejects() -> None:
    candidate = contender("v2", [index % 3 != 2 for index in range(300)], weak=150)
    decision = judge(candidate, OLD, GateRule())
    assert isinstance(decision, Reject)
    assert "场景购物" in decision.reasons[0]


def rare_browsing(found: int) -> Contender:
    """300 outcomes, all right but for 闲逛, of which `found` of 100 are."""
    return contender("v", [index % 3 != 0 or index // 3 < found for index in range(300)])


def test_a_class_that_falls_surely_below_what_it_was_rejects_and_a_little_less_does_not() -> None:
    silent = contender("v1", [index % 3 == 0 for index in range(300)])  # always says 闲逛, so finds all of it
    assert isinstance(judge(rare_browsing(89), silent, GateRule()), Release)
    decision = judge(rare_browsing(70), silent, GateRule())
    assert isinstance(decision, Reject)
    assert "闲逛 fell by 0.300" in decision.reasons[0]


def test_a_class_below_the_floor_rejects_also_the_first_model() -> None:
    decision = judge(rare_browsing(30), None, GateRule())
    assert isinstance(decision, Reject)
    assert decision.reasons == ("recall of 闲逛 0.300 < 0.4",)


def test_too_many_faults_reject() -> None:
    good = contender("v2", GOOD, weak=150)
    silent = tuple(
        Outcome(sample_id=each.sample_id, intent=each.intent, said="" if index < 30 else each.intent)
        for index, each in enumerate(good.outcomes)
    )
    decision = judge(Contender(version="v2", outcomes=silent, artefact_bytes=1, ttft_p95_ms=1.0), None, GateRule())
    assert isinstance(decision, Reject)
    assert "faults" in decision.reasons[0]


def test_models_judged_on_different_samples_cannot_be_compared() -> None:
    with pytest.raises(ContractError, match="different samples"):
        judge(contender("v2", GOOD[:200]), OLD, GateRule())
