"""What can be set for the workers? Environment `INTENTLOOP_<SECTION>__<NAME>` or the settings file.

`teacher_a` and `teacher_b` must be set; `judge` is teacher A where it is not.
"""

from pydantic import Field

from intentloop.adapters.settings import (
    BlobSection,
    HealthSection,
    KafkaSection,
    LabellingSection,
    ProcessSettings,
    RedisSection,
    Section,
    TeacherSection,
)
from intentloop.fleet_drift import FleetRule


class RetrainSection(Section):
    """When a new model is asked for; the meaning of each is in `intentloop/retrain.py`."""

    interval_s: float = Field(default=1.0, gt=0)
    hard_new: int = Field(default=200, ge=1)
    rearm_hard: int = Field(default=50, ge=0)
    min_per_class: int = Field(default=20, ge=0)
    cooldown_s: float = Field(default=3600.0, ge=0)
    daily_requests: int = Field(default=4, ge=1)
    drift_min_hard: int = Field(default=20, ge=0)


class FleetSection(Section):
    """When a version's fleet has drifted; the meaning of each is in `intentloop/fleet_drift.py`.

    A window is judged when it holds `window` inferences and `window_s` have passed: a day is safe from daily rhythms,
    less notices sooner.
    """

    interval_s: float = Field(default=5.0, gt=0)
    alpha: float = Field(default=0.01, gt=0, lt=1)
    intent_floor: float = Field(default=0.10, ge=0, le=1)
    category_floor: float = Field(default=0.15, ge=0, le=1)
    rate_floor: float = Field(default=0.05, ge=0, le=1)
    window: int = Field(default=500, ge=20)
    window_s: float = Field(default=6 * 3600.0, ge=0)
    confirm: int = Field(default=2, ge=1)
    clear: int = Field(default=3, ge=1)
    min_baseline: int = Field(default=100, ge=20)


class WorkersSettings(ProcessSettings):
    """Settings of `python -m workers`."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()
    blobs: BlobSection = BlobSection()
    health: HealthSection = HealthSection()
    teacher_a: TeacherSection = TeacherSection()
    teacher_b: TeacherSection = TeacherSection()
    judge: TeacherSection = TeacherSection()
    labelling: LabellingSection = LabellingSection()
    retrain: RetrainSection = RetrainSection()
    fleet: FleetSection = FleetSection()


def fleet_rule(fleet: FleetSection) -> FleetRule:
    """Which rule does the core judge with?"""
    return FleetRule(**fleet.model_dump(exclude={"interval_s", "window_s"}), window_ms=round(fleet.window_s * 1000))
