"""Which environment does a stream worker run in? Read once in `__main__`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, TomlConfigSettingsSource

from intentloop.adapters.chinese import simplify
from intentloop.adapters.settings import HealthSection, KafkaSection, ProcessSettings, RedisSection, Section
from intentloop.compress import CompressRule
from intentloop.drift import DriftRule, LogBase
from intentloop.errors import ConfigurationError
from intentloop.fold import FoldRule
from intentloop.inference import InferenceRule
from intentloop.picks import PickRule
from intentloop.timeline import TimeRule
from intentloop.topics import TELEMETRY

DAY_S = 86_400


class StreamsSection(Section):
    """How records are taken. `state_ttl_s` is the life of a user's state, at least 24 h and within Kafka's retention.

    It is told by receipts; Redis keeps a state `state_lag_s` longer: so far behind a worker still finds what it needs.
    `batch_records` bounds one round of the protocol. `compiled`: fold in compiled code where numba is installed. The
    session time-out is how long a killed worker is waited for.
    """

    batch_records: int = Field(default=300, ge=1, le=2_000)
    state_ttl_s: int = Field(default=DAY_S, ge=DAY_S, le=3 * DAY_S)
    state_lag_s: int = Field(default=6 * 3_600, ge=60, le=3 * DAY_S)
    session_timeout_s: float = Field(default=8.0, ge=6.0, le=60.0)
    heartbeat_s: float = Field(default=2.0, gt=0.0, le=20.0)
    reset_on_new_broker: bool = False
    compiled: bool = True

    @property
    def redis_ttl_s(self) -> int:
        """For how long does Redis keep a state after it was written?"""
        return self.state_ttl_s + self.state_lag_s

    @model_validator(mode="after")
    def _beats_in_time(self) -> Self:
        if self.heartbeat_s > self.session_timeout_s / 2:
            raise ValueError(
                f"heartbeat_s {self.heartbeat_s:g} is more than half of session_timeout_s {self.session_timeout_s:g}: "
                "one lost heartbeat would cost a rebalance"
            )
        return self


class RulesSection(Section):
    """The numbers of the fold that operations may want to move; the rest are constants of `intentloop/`.

    `pick_budget_per_hour` is for all phones together; each source partition has an equal part of it.
    `profile` is a file of `intentloop calibrate`: its `[rules]` count where nothing else is set.
    """

    profile: Path | None = None
    late_grace_ms: int = Field(default=30 * 60_000, ge=0)
    future_grace_ms: int = Field(default=10 * 60_000, ge=0)
    debounce_ms: int = Field(default=30_000, ge=0)
    drift_threshold: float = Field(default=0.8, gt=0.0)
    drift_window: int = Field(default=12, ge=3, le=64)
    drift_min_window: int = Field(default=3, ge=1, le=64)
    drift_log_base: LogBase = "e"
    drift_rearm_margin: float = Field(default=0.15, ge=0.0)
    trigger_ttl_ms: int = Field(default=30 * 60_000, gt=0)
    flip_flop_ms: int = Field(default=5 * 60_000, ge=0)
    low_confidence: float = Field(default=0.5, ge=0.0, le=1.0)
    pick_min_priority: float = Field(default=0.8, ge=0.0)
    pick_budget_per_hour: int = Field(default=500 * TELEMETRY.partitions, ge=0)
    pick_class_ratio: float = Field(default=0.7, ge=0.0, le=1.0)
    pick_random_ratio: float = Field(default=0.02, ge=0.0, le=1.0)
    pick_salt: str = "pick"

    @model_validator(mode="after")
    def _can_fire_and_pick(self) -> Self:
        if self.drift_min_window > self.drift_window:
            raise ValueError(
                f"drift_min_window {self.drift_min_window} is more than drift_window {self.drift_window}: "
                "no window would ever be long enough to be scored"
            )
        if 0 < self.pick_budget_per_hour < TELEMETRY.partitions:
            raise ValueError(
                f"pick_budget_per_hour {self.pick_budget_per_hour} leaves nothing for each of {TELEMETRY.partitions} "
                f"partitions; set 0 to pick none, or {TELEMETRY.partitions} or more"
            )
        return self


class StreamsSettings(ProcessSettings):
    """All of a stream worker's settings."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()
    health: HealthSection = HealthSection()
    streams: StreamsSection = StreamsSection()
    rules: RulesSection = RulesSection()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Last of all, after environment and file: the profile that one of them names."""
        found = super().settings_customise_sources(settings_cls, *sources, **named)
        for source in found[1:]:
            profile = source().get("rules", {}).get("profile")
            if profile:
                if not Path(profile).is_file():
                    raise ConfigurationError(f"rules.profile {profile} is no file; `intentloop calibrate` writes one")
                return (*found, TomlConfigSettingsSource(settings_cls, toml_file=profile))
        return found


def fold_rule(rules: RulesSection, state_ttl_s: int = DAY_S) -> FoldRule:
    """Which rule does the core fold with?"""
    return FoldRule(
        state_ttl_ms=state_ttl_s * 1_000,
        time=TimeRule(late_grace_ms=rules.late_grace_ms, future_grace_ms=rules.future_grace_ms),
        compress=CompressRule(debounce_ms=rules.debounce_ms),
        drift=DriftRule(
            threshold=rules.drift_threshold,
            window=rules.drift_window,
            min_window=rules.drift_min_window,
            log_base=rules.drift_log_base,
        ),
        inference=InferenceRule(
            trigger_ttl_ms=rules.trigger_ttl_ms,
            flip_flop_ms=rules.flip_flop_ms,
            low_confidence=rules.low_confidence,
            simplify=simplify,
        ),
        pick=PickRule(
            min_priority=rules.pick_min_priority,
            budget_per_hour=rules.pick_budget_per_hour // TELEMETRY.partitions,
            class_ratio=rules.pick_class_ratio,
            random_ratio=rules.pick_random_ratio,
            salt=rules.pick_salt,
        ),
        rearm_margin=rules.drift_rearm_margin,
    )
