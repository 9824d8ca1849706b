"""Where do ids of derived things come from? From the source's position or content, never from a clock or a dice."""

import hashlib

DIGEST_DIGITS = 32  # 128 bits


def derived(kind: str, partition: int, offset: int, index: int) -> str:
    """Which id has the `index`-th thing of this kind made from one source record?"""
    return f"{kind}-{partition}-{offset}-{index}"


def content_digest(text: str) -> str:
    """Which text is this? 32 hex digits (128 bits) of SHA-256 over its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def bucket(key: str, salt: str) -> float:
    """Where in [0, 1) does this key fall, evenly and for ever? Source: 53 bits of SHA-256 over salt and key."""
    return (int.from_bytes(hashlib.sha256(f"{salt}\x00{key}".encode()).digest()[:8], "big") >> 11) / (1 << 53)


def label_code(label: str) -> int:
    """Which 32-bit number stands for this semantic label in a user's packed state?"""
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=4).digest(), "big")
