"""What must not be stored or leave? Users' own ids, and what identifies a person inside a text.

The gateway hashes user ids before anything is stored; it and the workers redact text before people or teachers see it.
Redaction errs on the side of removing: a model number of eleven digits that looks like a phone number goes too. It is
not anonymisation: a name without a cue word, or an address without a house number, stays.
"""

import hashlib
import hmac
import re
from collections.abc import Callable

_HAN = "\u4e00-\u9fff"
_ROAD = "(?:路|街|大道|巷|弄|胡同|村)"
_DOOR = r"(?:[-\s]{0,2}\d{1,5}(?:号楼|号院|号|栋|幢|座|单元|层|楼|室|户)?)"

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}")
_ID_NUMBER = re.compile(r"(?<!\d)(?:\d{17}[\dXxＸｘ]|\d{6}[ -]\d{8}[ -]\d{3}[\dXx])(?!\d)")
_CARD = re.compile(r"(?<!\d)(?:\d{4}[ -]){3,4}\d{1,4}(?!\d)|(?<!\d)\d{16,19}(?!\d)")
_MOBILE = re.compile(r"(?<!\d)(?:\+?86[- ]?)?[1１][3-9３-９]\d[- ]?\d{4}[- ]?\d{4}(?!\d)")
_LANDLINE = re.compile(r"(?<!\d)[(（]?0\d{2,3}[)）]?[- ]?\d{7,8}(?!\d)")
_STREET = re.compile(rf"[{_HAN}]{{1,30}}{_ROAD}\s?\d{{1,5}}\s?(?:号|弄|巷){_DOOR}{{0,5}}")  # bounded: no text is slow
_BUILDING = re.compile(r"\d{1,4}(?:号楼|栋|幢|座)(?:\d{1,3}单元)?\s?\d{2,5}(?:室|户)?")
_ADDRESS_CUE = re.compile(r"((?:收货|收件|家庭|详细|联系)?(?:地址|住址)\s*[:：]\s*)[^，,;；。\n]{4,60}")
_NAME_CUE = r"(?:收货人|收件人)(?:姓名)?\s*[:：]?\s*|(?:联系人|姓名)\s*[:：]\s*"
_NAME = re.compile(rf"({_NAME_CUE})(?:[{_HAN}·]{{2,4}}|[A-Za-z][A-Za-z .]{{1,30}})")

_STEPS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_EMAIL, "[邮箱]"),
    (_ADDRESS_CUE, lambda found: f"{found[1]}[地址]"),
    (_NAME, lambda found: f"{found[1]}[姓名]"),
    (_ID_NUMBER, "[证件号]"),
    (_MOBILE, "[电话]"),
    (_CARD, "[卡号]"),
    (_LANDLINE, "[电话]"),
    (_STREET, "[地址]"),
    (_BUILDING, "[地址]"),
)


def user_hash(user_id: str, key: bytes) -> str:
    """Which id stands for this user inside the system? 32 hex digits (128 bits) of HMAC-SHA256 under `key`.

    The same for ever under one key; without the key neither reversible nor open to trying all phone numbers.
    """
    return hmac.new(key, user_id.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:32]


def redact(text: str) -> str:
    """What of this text may a teacher or a person read?

    E-mail addresses, addresses and names after a cue word, ID numbers, mobile and landline numbers, bank cards, street
    and house numbers become a bracketed word of their kind, e.g. `[电话]`. Redacting twice changes nothing.
    """
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return text
