"""Who made this release? Ed25519 over the manifest, which names every file with its hash.

Keys are base64 of 32 raw bytes. Only the trainer holds the private one; gateway and phones verify with the public one.
"""

import base64
import binascii

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from intentloop.errors import ConfigurationError
from intentloop.release import Manifest, signed_bytes


def generate_keys() -> tuple[str, str]:
    """Make a new pair: private and public key, base64."""
    private = Ed25519PrivateKey.generate()
    return _text(private.private_bytes_raw()), _text(private.public_key().public_bytes_raw())


def public_key(private_key: str) -> str:
    """Which public key belongs to this private one?

    Raises:
        ConfigurationError: the key is not base64 of 32 bytes.
    """
    key = Ed25519PrivateKey.from_private_bytes(_raw(private_key, "private"))
    return _text(key.public_key().public_bytes_raw())


def sign(manifest: Manifest, private_key: str) -> Manifest:
    """Give the manifest its signature; an earlier one does not matter.

    Raises:
        ConfigurationError: the key is not base64 of 32 bytes.
    """
    key = Ed25519PrivateKey.from_private_bytes(_raw(private_key, "private"))
    return msgspec.structs.replace(manifest, signature=_text(key.sign(signed_bytes(manifest))))


def verify(manifest: Manifest, public_key: str) -> bool:
    """Did the holder of the private key sign exactly this manifest?

    Raises:
        ConfigurationError: the public key is not base64 of 32 bytes.
    """
    key = Ed25519PublicKey.from_public_bytes(_raw(public_key, "public"))
    try:
        key.verify(base64.b64decode(manifest.signature, validate=True), signed_bytes(manifest))
    except (InvalidSignature, binascii.Error):
        return False
    return True


def _raw(key: str, kind: str) -> bytes:
    try:
        raw = base64.b64decode(key, validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != 32:
        found = "empty" if not key else "not base64 of 32 bytes"
        raise ConfigurationError(
            f"INTENTLOOP_RELEASE__{kind.upper()}_KEY is {found}; make a pair with `generate_keys()` of {__name__}"
        )
    return raw


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
