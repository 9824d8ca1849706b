"""How does a phone talk to the gateway? Like an app: gzip, a token, short time-outs, and retries that change nothing.

Not here: which batch goes next (`outbox.py`), what a release must look like (`device_model.py`).
"""

import gzip

import httpx
import msgspec

from intentloop.errors import UnavailableError
from intentloop.release import Manifest

TIMEOUT_S = 10.0
_RETRYABLE = {401, 408, 425, 429}  # 401: a gateway that is starting anew may not know its tokens yet


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One batch as a phone writes it; what the gateway makes of it is `events.Envelope`.

    Events are JSON as the app wrote it, which is not always right.
    """

    batch_id: str
    user_id: str
    device_id: str
    device_model: str = ""
    app_version: str = ""
    schema_version: int = 1
    sent_at_ms: int | None = None
    events: tuple[msgspec.Raw, ...] = ()


class Trigger(msgspec.Struct, frozen=True):
    """After how many item views a phone runs its model."""

    min_item_views: int = 3


class DeviceConfig(msgspec.Struct, frozen=True):
    """What the gateway tells a phone to do; an empty version means that there is no release yet."""

    model_version: str = ""
    enabled: bool = True
    trigger: Trigger = Trigger()


class RefusedError(Exception):
    """The gateway will never take this batch; the text is its reason."""


class Uplink:
    """One gateway as all phones of this process reach it.

    Args:
        base_url: Of the gateway.
        token: What proves that an app is ours.
    """

    def __init__(self, base_url: str, token: str) -> None:
        headers = {"authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(
            base_url=base_url, headers=headers, timeout=TIMEOUT_S, limits=limits, trust_env=False
        )

    async def send(self, body: bytes) -> None:
        """Hand over one batch; returns when the gateway has it in Kafka.

        Raises:
            UnavailableError: not now; the same bytes may be sent again.
            RefusedError: never.
        """
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        try:
            answer = await self._client.post("/v1/telemetry", content=gzip.compress(body, 5), headers=headers)
        except httpx.HTTPError as error:
            raise UnavailableError(f"gateway did not take a batch: {error!r}") from error
        if answer.is_success:
            return
        if answer.status_code >= 500 or answer.status_code in _RETRYABLE:
            raise UnavailableError(f"gateway answered {answer.status_code}: {answer.text[:200]}")
        raise RefusedError(f"{answer.status_code}: {answer.text[:200]}")

    async def config(self, user_id: str, device_model: str) -> DeviceConfig:
        """What should this user's phone do?"""
        content = await self._get("/v1/device/config", {"user_id": user_id, "device_model": device_model})
        return msgspec.json.decode(content, type=DeviceConfig)

    async def manifest(self, version: str) -> Manifest:
        """What is this release?"""
        return msgspec.json.decode(await self._get(f"/v1/models/{version}/manifest.json", {}), type=Manifest)

    async def file(self, version: str, name: str) -> bytes:
        """One file of a release, whole."""
        return await self._get(f"/v1/models/{version}/files/{name}", {})

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _get(self, path: str, query: dict[str, str]) -> bytes:
        try:
            answer = await self._client.get(path, params=query)
        except httpx.HTTPError as error:
            raise UnavailableError(f"gateway did not answer {path}: {error!r}") from error
        if not answer.is_success:
            raise UnavailableError(f"gateway answered {answer.status_code} to {path}: {answer.text[:200]}")
        return answer.content
