"""Which environment do we run in? Sections that several processes share, read once in a process's `__main__`.

Every process has one frozen class in its own package (`gateway/settings.py`, …) made of these sections. Values come
from `INTENTLOOP_<SECTION>__<NAME>` in the environment, then from the file named by `INTENTLOOP_SETTINGS_FILE` (TOML).
"""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from intentloop.training_set import GOLDEN_RATIO


class Section(BaseModel):
    """A frozen group of settings; an unknown name is an error, since it is most likely a misspelt one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class KafkaSection(Section):
    """`prefix` goes before every topic and group name, so that tests and demos share a broker without meeting."""

    bootstrap: str = "127.0.0.1:9092"
    prefix: str = ""
    replication_factor: int = 1
    epoch: str = ""  # broker identity; empty asks the broker for its cluster id


class RedisSection(Section):
    """`prefix` goes before every key. The store must run with `noeviction`; that is checked at start."""

    url: str = "redis://127.0.0.1:6379/0"
    prefix: str = "il"


class BlobSection(Section):
    """Where releases and training runs lie: a directory that gateway and trainer both see."""

    root: Path = Path("var/blobs")


class ReleaseSection(Section):
    """Ed25519 keys of model manifests, base64 of 32 raw bytes. Only the trainer holds the private one."""

    private_key: SecretStr = SecretStr("")
    public_key: str = ""


class HealthSection(Section):
    """Where a process without an HTTP interface of its own answers `/health` and `/metrics`; port 0 is any free one."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65_535)


class TeacherSection(Section):
    """One large model that labels, behind an OpenAI-compatible API; what providers do differently is set here.

    An empty `base_url` means that there is no such teacher. `temperature` None sends none, for models that allow only
    their own. `extra_body` goes along with each request, for example `{"enable_thinking": false}` for Qwen3 on
    DashScope. A throttled teacher pauses for `throttle_pause_s` at most, a used-up allowance for `exhausted_pause_s`,
    and after `breaker_failures` failures in a row it rests for `breaker_pause_s`.
    """

    name: str = ""
    base_url: str = ""
    model: str = ""
    api_key: SecretStr = SecretStr("")
    temperature: float | None = None
    extra_body: dict[str, Any] = {}
    stream: bool = False
    max_output_tokens: int = Field(default=128, ge=8)
    prompt_yuan_per_million: float = Field(default=0.0, ge=0)
    output_yuan_per_million: float = Field(default=0.0, ge=0)
    max_concurrency: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=30.0, gt=0)
    attempts: int = Field(default=3, ge=1)
    backoff_s: float = Field(default=0.5, ge=0)
    throttle_pause_s: float = Field(default=60.0, ge=0)
    exhausted_pause_s: float = Field(default=3600.0, ge=0)
    breaker_failures: int = Field(default=8, ge=1)
    breaker_pause_s: float = Field(default=30.0, ge=0)


class LabellingSection(Section):
    """How samples become labels; `golden_ratio` must be the same in all processes and never change.

    `loops` jobs run at once in a process. `audit_ratio` of agreed samples go to a person as well. No teacher is asked
    any more on a day that has cost `daily_budget_yuan`.
    """

    loops: int = Field(default=8, ge=1)
    lease_s: float = Field(default=30.0, gt=0)
    max_tries: int = Field(default=5, ge=1)
    audit_ratio: float = Field(default=0.05, ge=0, le=1)
    golden_ratio: float = Field(default=GOLDEN_RATIO, ge=0, lt=1)
    daily_budget_yuan: float = Field(default=50.0, ge=0)
    drop_at_most: int = Field(default=1, ge=-1, le=3)


class ProcessSettings(BaseSettings):
    """Base of each process's settings class: frozen, environment before file, unknown sections ignored.

    A settings file and an environment are shared by all processes, so each ignores the sections of the others.
    """

    model_config = SettingsConfigDict(
        env_prefix="INTENTLOOP_",
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        nested_model_default_partial_update=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, environment, file: the first that names a value wins."""
        path = os.environ.get("INTENTLOOP_SETTINGS_FILE")
        file = (TomlConfigSettingsSource(settings_cls, toml_file=path),) if path else ()
        return (init_settings, env_settings, *file)
