"""Which simplified characters does a traditional text stand for? OpenCC's table, loaded once."""

from functools import lru_cache

from opencc import OpenCC


@lru_cache(maxsize=1)
def _table() -> OpenCC:
    return OpenCC("t2s")


def simplify(text: str) -> str:
    """Map traditional Chinese characters to simplified ones; everything else stays."""
    return str(_table().convert(text))
