"""What identifies a person does not leave; what sells goods does."""

import hashlib
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop.privacy import redact, user_hash


def test_a_user_id_becomes_a_keyed_hash() -> None:
    expected = hmac.new(b"key", "用户1".encode(), hashlib.sha256).hexdigest()[:32]
    assert user_hash("用户1", b"key") == expected
    assert user_hash("用户1", b"other") != expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("打13812345678找我", "打[电话]找我"),
        ("电话+86 138-1234-5678。", "电话[电话]。"),
        ("１３８１２３４５６７８", "[电话]"),
        ("总机0571-88157858转1", "总机[电话]转1"),
        ("身份证11010519491231002X的", "身份证[证件号]的"),
        ("330106199001011234", "[证件号]"),
        ("卡号6222 0212 3456 7890 123", "卡号[卡号]"),
        ("卡6222021234567890123", "卡[卡号]"),
        ("浙江省杭州市余杭区文一西路969号3幢502室", "[地址]"),
        ("收货地址：阿里巴巴西溪园区五号楼，请放门口", "收货地址：[地址]，请放门口"),
        ("收货人：张三 帐篷", "收货人：[姓名] 帐篷"),
        ("收货人李小明", "收货人[姓名]"),
        ("联系人：Li Lei，", "联系人：[姓名]，"),
        ("写信到 a.b@example.com 吧", "写信到 [邮箱] 吧"),
    ],
)
def test_what_identifies_a_person_is_removed(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "美的空调遥控器通用款RN02S13",
        "姓名贴防水标签",
        "杭州市特产龙井茶250g",
        "2026年新款12345mAh充电宝",
        "联系人管理软件",
        "蓝色12.9寸1024GB",
        "条码6901234567892",
        "50011972.50011866.50016107",
        "一号店 2号电池 5号电池",
    ],
)
def test_titles_of_goods_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


@given(st.text(alphabet="收货人张三省市区路号楼0123456789138-+ a.@:：室单元地址", max_size=120))
def test_redacting_twice_changes_nothing_more_and_no_mobile_number_survives(text: str) -> None:
    once = redact(text + " 13912345678")
    assert "13912345678" not in once


@pytest.mark.parametrize("piece", ["市区", "路1", "1 ", "省", "a.", "1-", "收货地址"])
def test_the_cost_of_a_hostile_text_grows_with_its_length_only(piece: str) -> None:
    def cost(pieces: int) -> float:
        begun = time.process_time()
        redact(piece * pieces + "@")
        return time.process_time() - begun

    assert cost(8000) < 40 * max(cost(800), 0.002)  # quadratic would be 100 times
