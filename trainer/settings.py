"""Which environment does the trainer run in? Read once in `__main__`."""

from pathlib import Path

from pydantic import Field

from intentloop.adapters.settings import (
    BlobSection,
    HealthSection,
    KafkaSection,
    ProcessSettings,
    RedisSection,
    ReleaseSection,
    Section,
)

HERE = Path(__file__).resolve().parent


class TrainerSection(Section):
    """What is trained and how. Defaults are the tiny base model and its rule; the real one is two settings away.

    `base` is a directory in Hugging Face's format, `rule` a YAML file (`trainer/rule.py`), `work` holds the runs.
    `golden` is a file of samples to judge by instead of the store's golden set. `keep_runs`: see `trainer/forget.py`.
    """

    base: Path = HERE / "tiny_qwen3"
    base_name: str = "tiny-qwen3"
    rule: Path = HERE / "tiny.yaml"
    work: Path = Path("var/runs")
    golden: Path | None = None
    first_release: bool = True
    lease_ms: int = Field(default=20_000, ge=1_000)
    max_tries: int = Field(default=4, ge=1)
    poll_ms: int = Field(default=2_000, ge=100)
    keep_runs: int = Field(default=3, ge=1)
    burst: bool = False  # finish when no job is left; for tests and for machines that are paid by the hour


class TrainerSettings(ProcessSettings):
    """All of the trainer's settings."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()
    blobs: BlobSection = BlobSection()
    release: ReleaseSection = ReleaseSection()
    health: HealthSection = HealthSection()
    trainer: TrainerSection = TrainerSection()
