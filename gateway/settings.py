"""What does the gateway need to know of its environment? Read once in `__main__`."""

from pydantic import Field, SecretStr

from intentloop.adapters.settings import BlobSection, KafkaSection, ProcessSettings, RedisSection, Section


class HttpSection(Section):
    """Where to listen; port 0 is any free one, told in the log. More than `max_connections` are answered 503."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    max_connections: int = Field(default=1_000, ge=1)
    keep_alive_s: int = Field(default=30, ge=1)


class PrivacySection(Section):
    """`user_key` makes hashes of users' ids. It must not change: with another key every user is a new one."""

    user_key: SecretStr = SecretStr("")


class AuthSection(Section):
    """`device_token` is what an app sends as bearer token; empty lets everybody in, which is logged at start."""

    device_token: SecretStr = SecretStr("")


class LimitsSection(Section):
    """`max_body_bytes` is as sent, `max_inflated_bytes` after gzip; `kafka_timeout_s` is the patience with a broker."""

    max_body_bytes: int = Field(default=1 << 20, gt=0)
    max_inflated_bytes: int = Field(default=2 << 20, gt=0)
    kafka_timeout_s: float = Field(default=5.0, gt=0)
    read_timeout_s: float = Field(default=30.0, gt=0)
    retry_after_s: int = Field(default=2, ge=1)


class DeviceSection(Section):
    """What phones are told: after how many item views to run the model, on which models, and when to ask again.

    An empty `allowed_models` allows all.
    """

    min_item_views: int = Field(default=3, ge=1)
    allowed_models: tuple[str, ...] = ()
    poll_after_s: int = Field(default=60, ge=1)


class GatewaySettings(ProcessSettings):
    """All of the gateway's settings."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()
    blobs: BlobSection = BlobSection()
    http: HttpSection = HttpSection()
    privacy: PrivacySection = PrivacySection()
    auth: AuthSection = AuthSection()
    limits: LimitsSection = LimitsSection()
    device: DeviceSection = DeviceSection()
