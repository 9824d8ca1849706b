"""Which environment do we run in? Sections that several processes share, read once in a process's `__main__`.

Every process has one frozen class in its own package (`gateway/settings.py`, …) made of these sections. Values come
from `INTENTLOOP_<SECTION>__<NAME>` in the environment, then from the file named by `INTENTLOOP_SETTINGS_FILE` (TOML).
"""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource


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
