"""The one template: what the model reads and what it should say, as bytes.

Training, calibration, evaluation, the teachers' sequences and the phone render through here, so they cannot differ.
Titles are data: nothing in a title can end the turn, open a thought or look like a control token.
Not here: choosing what goes in (`compress.py`), reading what came out (`answer.py`).
"""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

from intentloop.events import SequenceItem
from intentloop.ids import DIGEST_DIGITS

VERSION = "p1"

PARTS = {  # of the system prompt, by name, in their order; `intentloop ablate` says what each is worth
    "task": "根据用户行为序列判断购买意图并提取核心关键信息",
    "intents": "意图分类:\n"
    "闲逛:无主动购物信号,或跨多个无关品类随意浏览无场景主线\n"
    "比价犹豫:同品类内商品对比\n"
    "场景购物:同一大类下跨子品类围绕统一场景选购(如厨房/露营)",
    "categories": "类目说明:\n序列中 cat:大类.子类.孙类 为商品类目层级,首段为顶级大类。",
    "criteria": "判定参考:多个无关大类→闲逛;同一大类跨子类→场景购物;同一完整类目重复→比价犹豫",
    "format": "输出格式:\n"
    '- 闲逛: 仅输出"闲逛"\n'
    '- 比价犹豫: 输出"比价犹豫|关键词1;关键词2;..."\n'
    '- 场景购物: 输出"场景购物|关键词1;关键词2;..."',
    "keywords": "关键词规则:\n"
    "- 3-6个,首位为主品类(比价犹豫)或主场景(场景购物)\n"
    "- 简短名词或形容词,2-6字\n"
    "- 按重要性降序排列",
}

SYSTEM = "\n".join(PARTS.values())

HEAD, ARROW = "【行为序列】", " → "  # of a sequence, and between its behaviours
END = "<|im_end|>"  # ends each turn; the last token that training supervises

MAX_TITLE_CHARS = 48  # a longer title is cut: its head names the goods, its tail is search bait

_PAGE = {
    "search": "搜索",
    "purchase": "购买",
    "cart": "加购",
    "favourite": "收藏",
    "item_view": "商详页",
    "content_view": "内容页",
    "video": "视频",
    "external_open": "外部唤起",
}

_TOUCHED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\s<→【]")  # all that cleaning may change
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_SPACES = re.compile(r"\s+")


def clean_title(title: str) -> str:
    """What of a title may the model see?

    Control characters become spaces, `<|`, `<think>` and the like lose their ASCII angle bracket, the arrow that
    separates behaviours becomes `->`, and the rest is cut at `MAX_TITLE_CHARS`.
    """
    if _TOUCHED.search(title) is None:  # nearly every title and category: seven times cheaper
        return title[:MAX_TITLE_CHARS]
    text = _SPACES.sub(" ", _CONTROL.sub(" ", title)).strip()
    return text.replace("<", "＜").replace("→", "->").replace(HEAD, "行为序列")[:MAX_TITLE_CHARS]


def item_text(item: SequenceItem) -> str:
    """How does one behaviour read? For example `商详页(便携帐篷,¥199,cat:户外.露营.帐篷,66s)`."""
    return _line(item, clean_title(item.title), clean_title(item.category))


def _line(item: SequenceItem, title: str, category: str) -> str:
    inside, price, dwell = title, item.price_yuan, item.dwell_s
    if price is not None:
        inside += _price(price)
    if item.category:
        inside += ",cat:" + category
    if dwell > 0:
        inside += f",{dwell}s"
    return f"{_PAGE.get(item.action, '其他')}({inside if title else inside[1:]})"


@lru_cache(maxsize=4_096)
def _price(yuan: float) -> str:
    return f",¥{yuan:g}"


def evidence(items: Sequence[SequenceItem]) -> str:
    """What of a sequence may an answer's keywords be taken from? Titles and categories as the model reads them."""
    texts = _texts(items)
    return "\n".join(texts if _is_clean(texts) else map(clean_title, texts))


def _texts(items: Sequence[SequenceItem]) -> list[str]:
    return [item.title for item in items] + [item.category for item in items]


def _is_clean(texts: Sequence[str]) -> bool:
    """Is there nothing to clean, as in nearly all sequences?"""
    return _TOUCHED.search("".join(texts)) is None and max(map(len, texts), default=0) <= MAX_TITLE_CHARS


def sequence_text(items: Sequence[SequenceItem]) -> str:
    """How does a whole sequence read? Oldest behaviour first."""
    if _is_clean(_texts(items)):
        lines = [_line(item, item.title, item.category) for item in items]
    else:
        lines = [item_text(item) for item in items]
    return HEAD + ARROW.join(lines)


def render(sequence: str, system: str = SYSTEM) -> str:
    """Which characters does the model continue? The chat markup of Qwen3 with thinking switched off.

    Source: the chat template of Qwen/Qwen3-0.6B with `enable_thinking=False`; a test holds the two byte-equal.
    """
    return opening(system) + sequence + _CLOSING


_CLOSING = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def opening(system: str = SYSTEM) -> str:
    """Which characters does every prompt begin with, whatever the shopper did? An engine may keep what it read here."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"


def answer_text(intent: str, keywords: Sequence[str]) -> str:
    """What should the model say? `闲逛`, or `intent|k1;k2;…`."""
    return intent if not keywords else f"{intent}|{';'.join(keywords)}"


def digest(sequence: str, system: str = SYSTEM) -> str:
    """Which prompt was this? Content digest of the rendered bytes; equal on phone and server or something is wrong."""
    begun = _digest_of_opening(system).copy()  # what all prompts begin with is digested once
    begun.update((sequence + _CLOSING).encode())
    return begun.hexdigest()[:DIGEST_DIGITS]


@lru_cache(maxsize=16)
def _digest_of_opening(system: str) -> "hashlib._Hash":
    return hashlib.sha256(opening(system).encode())
