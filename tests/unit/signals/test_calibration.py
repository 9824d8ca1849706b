"""The threshold for a wanted rate: on behaviour whose answer is known, and through the command into the streams."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from intentloop import calibration, readers
from intentloop.calibration import Against
from intentloop.commands.app import app
from intentloop.drift import DriftRule, LogBase, score
from intentloop.errors import ConfigurationError
from intentloop.readers import Row
from intentloop.window import code_of
from streams.settings import RulesSection, StreamsSettings, fold_rule

TAOBAO = Path(__file__).resolve().parents[4] / "shared" / "data" / "taobao_userbehavior" / "UserBehavior_head.csv"


def shoppers(seed: int = 7, users: int = 12, labels: int = 120) -> list[list[int]]:
    """Users who stay with a few goods for a while and then move on."""
    dice = random.Random(seed)
    found: list[list[int]] = []
    for _ in range(users):
        home = dice.randrange(40)
        own: list[int] = []
        for _ in range(labels):
            home = dice.randrange(40) if dice.random() < 0.1 else home
            own.append(home + dice.randrange(4))
        found.append(own)
    return found


def simulated(users: Sequence[Sequence[int]], rule: DriftRule) -> float:
    """The rate by definition: each fired score makes its window the reference."""
    fired = 0
    for labels in users:
        reference = list(labels[: rule.min_window])
        for end in range(rule.min_window + 1, len(labels) + 1):
            after = list(labels[:end])[-rule.window :]
            if score(reference, after, rule).fired:
                fired, reference = fired + 1, after
    return fired / sum(map(len, users))


@pytest.mark.parametrize("base", ["2", "e", "normalised"])
@pytest.mark.parametrize("threshold", [0.3, 0.8])
def test_the_rate_is_that_of_the_definition(base: LogBase, threshold: float) -> None:
    rule = DriftRule(log_base=base, threshold=threshold, window=8)
    assert calibration.last_inference_rate(shoppers(), rule) == simulated(shoppers(), rule)


def test_a_rate_by_hand() -> None:
    users = [[1, 1, 1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 3, 3]]
    rule = DriftRule(window=4, threshold=5.0)
    # against the window before: one full pair for each user, and the first one's is a clean switch
    assert calibration.previous_window_rate(users, rule) == 0.5
    # against the last inference: it saw 1 1 1; at the eighth label the window is 2 2 2 2, once in 16 labels
    assert calibration.last_inference_rate(users, rule) == 1 / 16


@pytest.mark.parametrize("against", ["last_inference", "previous_window"])
@pytest.mark.parametrize("target", [0.1, 0.21, 0.4])
def test_the_threshold_found_fires_as_often_as_wanted(against: Against, target: float) -> None:
    rule = DriftRule(window=12, switch_jaccard=calibration.NO_SWITCH)
    found = calibration.calibrate(shoppers(), rule, target, against)
    assert found.rate == pytest.approx(target, abs=0.02)
    again = calibration.rate(shoppers(), msgspec.structs.replace(rule, threshold=found.threshold), against)
    assert found.rate == again


def test_switches_count_towards_the_wanted_rate_and_are_its_least() -> None:
    rule = DriftRule(window=8)
    switches = calibration.previous_window_rate(shoppers(), msgspec.structs.replace(rule, threshold=9.0))
    assert 0.05 < switches < 0.4
    found = calibration.calibrate(shoppers(), rule, switches + 0.1, "previous_window")
    assert found.rate == pytest.approx(switches + 0.1, abs=0.01)
    assert calibration.calibrate(shoppers(), rule, switches / 2, "previous_window").rate == pytest.approx(switches)


@pytest.mark.parametrize("against", ["previous_window", "last_inference"])
def test_a_rate_that_cannot_be_reached_gives_a_profile_that_streams_take(against: calibration.Against) -> None:
    found = calibration.calibrate([[1, 1, 1, 2] * 60], DriftRule(window=4), 0.99, against)
    assert found.rate < 0.9
    assert RulesSection(drift_threshold=found.threshold).drift_threshold == calibration.GRID


def row(line: int, **changes: object) -> Row:
    values = {"line": line, "user_id": "u", "action": "item_view", "ts_ms": line * 60_000, "item_id": f"i{line}"}
    return msgspec.convert({**values, "title": "", "category": "c", **changes}, Row)


def test_labels_are_those_of_the_streams_noise_and_repeats_left_out() -> None:
    rows = [
        row(1),
        row(2, action="exposure"),
        row(3, item_id="i1", ts_ms=61_000),
        row(5, category="d", ts_ms=240_000),
        row(4, category=""),
        row(6, category="e", ts_ms=180_000),
    ]
    (labels,) = calibration.user_labels(rows, 30_000)
    c, e, d = (code_of(name) for name in "ced")
    assert labels == [c, e, d]


@pytest.mark.skipif(not TAOBAO.is_file(), reason="the Taobao sample lies beside the repository, not in it")
def test_real_behaviour_gives_the_known_rates_in_bits_and_a_profile_that_streams_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "profile.toml"
    arguments = ["calibrate", "drift", str(TAOBAO), "--log-base", "2", "--window", "12", "--profile", str(profile)]
    result = CliRunner().invoke(app, [*arguments, "--against", "previous_window"])
    assert result.exit_code == 0, result.output
    assert "43 users" in result.output
    # known from an independent count: 31 to 34 % of positions in bits, each full window against the one before
    rates = {
        int(cells[2]): float(cells[3].strip().rstrip("%"))
        for cells in (line.split("│") for line in result.output.splitlines())
        if len(cells) > 5 and cells[1].strip() == "2"
    }
    assert set(rates) == {8, 10, 12, 15}
    assert all(30.5 <= found <= 34.5 for found in rates.values())
    monkeypatch.setenv("INTENTLOOP_RULES__PROFILE", str(profile))
    rule = fold_rule(StreamsSettings().rules).drift
    assert (rule.log_base, rule.window) == ("2", 12)
    assert 0.9 < rule.threshold < 1.1
    monkeypatch.setenv("INTENTLOOP_RULES__DRIFT_THRESHOLD", "0.8")
    assert fold_rule(StreamsSettings().rules).drift.threshold == 0.8, "what is set elsewhere wins"


@pytest.mark.skipif(not TAOBAO.is_file(), reason="the Taobao sample lies beside the repository, not in it")
def test_the_other_known_rates_are_those_of_an_entropy_in_nats_or_normalised_beside_a_divergence_in_bits() -> None:
    with TAOBAO.open(encoding="utf-8") as lines:
        found = list(readers.read("taobao-userbehaviour", lines, 2_000_000_000_000, dress=False))
    users = calibration.user_labels([one for one in found if isinstance(one, Row)], 0)
    nats: list[float] = []
    normalised: list[float] = []
    for size in (8, 10, 12, 15):
        rule = DriftRule(log_base="2", window=size)
        pairs = [
            score(labels[end - 2 * size : end - size], labels[end - size : end], rule)
            for labels in users
            for end in range(2 * size, len(labels) + 1)
        ]
        rest = [0.3 * pair.jaccard_distance + 0.3 * pair.jensen_shannon for pair in pairs]
        for rates, unit in ((nats, math.log(2)), (normalised, 1 / math.log2(size))):
            fired = (0.4 * pair.entropy_change * unit + part > 0.8 for pair, part in zip(pairs, rest, strict=True))
            rates.append(sum(fired) / len(pairs))
    assert (min(nats), max(nats)) == pytest.approx((0.185, 0.199), abs=0.0005)  # known: 18.5 to 19.7 %
    assert (min(normalised), max(normalised)) == pytest.approx((0.006, 0.027), abs=0.0005)  # known: 0.6 to 2.7 %


def test_a_profile_that_is_not_there_stops_the_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTENTLOOP_RULES__PROFILE", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigurationError, match="calibrate"):
        StreamsSettings()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--target-rate", "1.5"], "not in (0, 1)"), (["--format", "otto"], "holds no labels"), ([], "cannot be read")],
)
def test_nonsense_is_refused_with_a_way_out(arguments: list[str], told: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    if arguments:
        file.write_text("1,2,3,pv,1511544070\n")
    result = CliRunner().invoke(app, ["calibrate", "drift", str(file), *arguments])
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())
