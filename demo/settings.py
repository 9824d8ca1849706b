"""Which numbers does the demo's world run with? Sections of the phones' process."""

from pathlib import Path

from pydantic import Field, SecretStr

from intentloop.adapters.settings import HealthSection, ProcessSettings, ReleaseSection, Section


class PhonesSection(Section):
    """`time_scale` divides the shoppers' pauses; `gateway` is the base URL; shares are of phones or of sends.

    `visits` ends each phone after so many visits; 0 goes on until the process is stopped.
    """

    count: int = Field(default=200, ge=1)
    seed: int = 7
    gateway: str = "http://127.0.0.1:8080"
    token: SecretStr = SecretStr("")
    directory: Path = Path("var/phones")
    time_scale: float = Field(default=120.0, gt=0)
    visits: int = Field(default=0, ge=0)
    pause_s: float = Field(default=12.0, ge=0)
    mixed_ratio: float = Field(default=0.6, ge=0, le=1)
    intents: tuple[float, float, float] = (0.6, 0.22, 0.18)
    flush_s: float = Field(default=3.0, gt=0)
    resend_ratio: float = Field(default=0.02, ge=0, le=1)
    broken_ratio: float = Field(default=0.001, ge=0, le=1)
    skewed_ratio: float = Field(default=0.1, ge=0, le=1)
    off_ratio: float = Field(default=0.02, ge=0, le=1)
    engine_threads: int = Field(default=1, ge=1)
    free_bytes: int = Field(default=0, ge=0)  # storage that a phone claims to have; 0 asks the disk


class PhonesSettings(ProcessSettings):
    """All that `python -m demo.phones` and `python -m demo.feed` read."""

    phones: PhonesSection = PhonesSection()
    release: ReleaseSection = ReleaseSection()
    health: HealthSection = HealthSection()
