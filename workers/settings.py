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


class RetrainSection(Section):
    """When a new model is asked for; the meaning of each is in `intentloop/retrain.py`."""

    interval_s: float = Field(default=1.0, gt=0)
    hard_new: int = Field(default=200, ge=1)
    rearm_hard: int = Field(default=50, ge=0)
    min_per_class: int = Field(default=20, ge=0)
    cooldown_s: float = Field(default=3600.0, ge=0)
    daily_requests: int = Field(default=4, ge=1)
    drift_min_hard: int = Field(default=20, ge=0)


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
