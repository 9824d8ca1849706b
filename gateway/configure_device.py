"""GET /v1/device/config: which model does this user's phone run, when, and where is it?"""

import hashlib
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import Parameter

from gateway.services import Services, services_of
from gateway.settings import DeviceSection
from intentloop.adapters import blobs
from intentloop.adapters.codec import encode
from intentloop.errors import ContractError, UnavailableError
from intentloop.release import Manifest, version_for


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """When a phone runs its model: after this many item views since the last run."""

    min_item_views: int


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one phone should do. An empty `model_version` means that there is no release yet.

    `enabled` is false for a device model that must not run the model; it may ask again after `poll_after_s`.
    """

    model_version: str
    manifest_path: str
    manifest_sha256: str
    prompt_version: str
    artefact_bytes: int
    min_free_bytes: int
    enabled: bool
    trigger: Trigger
    poll_after_s: int


UserId = Annotated[str, Parameter(min_length=1, max_length=128, description="The phone's own user id; never stored.")]
DeviceModel = Annotated[str, Parameter(max_length=128)]


@get("/v1/device/config", raises=[])
async def configure_device(
    request: Request[Any, Any, Any], user_id: UserId, device_model: DeviceModel = ""
) -> Response[DeviceConfig]:
    """Tell a phone which release it runs. Unchanged since the phone's ETag: 304."""
    services = services_of(request)
    manifest = await _manifest_for(services, user_id)
    config = _config(manifest, device_model, services.settings.device)
    body = encode(config)
    etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if etag in {each.strip() for each in request.headers.get("if-none-match", "").split(",")}:
        return Response(None, status_code=304, headers=headers)  # type: ignore[arg-type]
    return Response(body, headers=headers, media_type="application/json")  # type: ignore[arg-type]


async def _manifest_for(services: Services, user_id: str) -> Manifest | None:
    rollout = await services.registry.current()
    if rollout is None:
        return None
    version = version_for(services.hash_user(user_id), rollout)
    try:
        return await services.registry.manifest(version)
    except ContractError as error:  # the rollout names it, so the registry is being repaired: ask again
        raise UnavailableError(str(error)) from error


def _config(manifest: Manifest | None, device_model: str, section: DeviceSection) -> DeviceConfig:
    return DeviceConfig(
        model_version=manifest.version if manifest else "",
        manifest_path=f"/v1/models/{manifest.version}/manifest.json" if manifest else "",
        manifest_sha256=hashlib.sha256(blobs.encoded(manifest)).hexdigest() if manifest else "",
        prompt_version=manifest.prompt_version if manifest else "",
        artefact_bytes=manifest.artefact_bytes if manifest else 0,
        min_free_bytes=manifest.min_free_bytes if manifest else 0,
        enabled=not section.allowed_models or device_model in section.allowed_models,
        trigger=Trigger(min_item_views=section.min_item_views),
        poll_after_s=section.poll_after_s,
    )
