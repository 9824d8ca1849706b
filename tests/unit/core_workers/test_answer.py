import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop.answer import Answer, AnswerFault, ground, is_degenerate, keep_grounded, parse

TRADITIONAL = str.maketrans("遙價猶閒場購調", "遥价犹闲场购调")  # the few characters that these tests need


def simplify(text: str) -> str:
    return text.translate(TRADITIONAL)


REMOTE = Answer("比价犹豫", ("空调遥控器", "美的", "通用款"))
OBJECT = '{"intent":"比价犹豫","keywords":["空调遥控器","美的","通用款"]}'


@pytest.mark.parametrize(
    "raw",
    [
        f"```json\n{OBJECT}\n```",
        f"```JSON\r\n{OBJECT}\r\n```",
        f"好的，结果如下：\n```json\n{OBJECT}\n```\n希望有帮助",
        f"``` {OBJECT} ```",
        OBJECT,
        "```\n比价犹豫|空调遥控器;美的;通用款\n```",
    ],
)
def test_l01_a_fenced_reply_reads_like_the_bare_one(raw: str) -> None:
    assert parse(raw) == REMOTE


@pytest.mark.parametrize(
    "raw",
    [
        "用户看了两个遥控器，像场景购物，但其实是同类对比。</think>\n\n比价犹豫|空调遥控器;美的;通用款",
        "<think>\n\n</think>\n\n比价犹豫|空调遥控器;美的;通用款",
        "<think>场景购物？</think>比价犹豫|空调遥控器;美的;通用款",
    ],
)
def test_l02_only_what_follows_the_thinking_counts(raw: str) -> None:
    assert parse(raw) == REMOTE


def test_thinking_that_never_ends_is_no_label() -> None:
    assert isinstance(parse("<think>场景购物|露营;帐篷"), AnswerFault)
    assert isinstance(parse("<think>\n也许是场景购物，也许是闲逛"), AnswerFault)


@pytest.mark.parametrize(
    ("raw", "keywords"),
    [
        ("比价犹豫｜空调遥控器；美的；通用款", ("空调遥控器", "美的", "通用款")),
        ("比价犹豫|空调遥控器，美的、通用款", ("空调遥控器", "美的", "通用款")),
        ("比价犹豫 | 空调遥控器 ; 美的;;通用款；", ("空调遥控器", "美的", "通用款")),
        ("意图：比价犹豫|空调遥控器;美的", ("空调遥控器", "美的")),
        ("比价犹豫|美的;空调遥控器;美的", ("美的", "空调遥控器")),
    ],
)
def test_l18_full_width_separators_read_alike(raw: str, keywords: tuple[str, ...]) -> None:
    assert parse(raw) == Answer("比价犹豫", keywords)


def test_l18_browsing_with_keywords_is_a_format_fault() -> None:
    fault = parse("闲逛|帐篷;露营")
    assert isinstance(fault, AnswerFault)
    assert fault.kind == "format"


def test_l19_a_mended_keyword_must_be_found_in_what_was_read() -> None:
    raw = '{"intent":"场景购物","keywords":["9"油漆刷","露营"]}'
    answer = parse(raw)
    assert answer == Answer("场景购物", ('9"油漆刷', "露营"), repaired=True)
    assert isinstance(answer, Answer)
    assert keep_grounded(answer, '商详页(9"油漆刷) → 搜索(露营)') == answer
    assert isinstance(keep_grounded(answer, "商详页(油漆刷) → 搜索(露营)"), AnswerFault)


def test_l20_traditional_characters_agree_and_english_is_unknown() -> None:
    assert parse("比價猶豫|空調遙控器;美的;通用款", simplify) == REMOTE
    fault = parse("Price comparison|AC remote;Midea")
    assert isinstance(fault, AnswerFault)
    assert fault.kind == "unknown"


@pytest.mark.parametrize(
    "raw",
    [
        *("", "   ", "!", "!!!!", "!!!!!!!!", "……。", "哈哈哈哈", "帐篷帐篷帐篷帐篷", "<think></think>"),
        f"比价犹豫|{';'.join(['帐篷', '露营'] * 5)}",
        '{"intent":"比价犹豫","keywords":["帐篷"' + ',"帐篷"' * 8 + "]}",
    ],
)
def test_a_broken_model_is_never_read_as_browsing(raw: str) -> None:
    fault = parse(raw)
    assert isinstance(fault, AnswerFault)
    assert fault.kind == "degenerate"
    assert is_degenerate("!!!!!!!!")


def test_a_few_repeated_keywords_are_no_loop() -> None:
    assert parse("比价犹豫|帐篷;露营;帐篷;帐篷") == Answer("比价犹豫", ("帐篷", "露营"))
    assert parse("比价犹豫|" + ";".join("甲乙丙丁戊己庚辛")) == Answer("比价犹豫", tuple("甲乙丙丁戊己庚辛"))


@pytest.mark.parametrize(
    "raw", ['{"intent":' + "[" * 3_000 + "}", '{"intent":"闲逛","keywords":' + '{"a":' * 5_000 + "}" * 5_000]
)
def test_json_nested_too_deeply_is_a_fault_and_ends_nothing(raw: str) -> None:
    fault = parse(raw)
    assert isinstance(fault, AnswerFault)
    assert fault.kind == "format"


@given(st.text(alphabet='{}[]":;|,闲逛比价犹豫intentkeywords \\<>`\n！!�"', max_size=200))
def test_whatever_a_model_says_it_is_an_answer_or_a_fault(raw: str) -> None:
    assert isinstance(parse(raw, simplify), Answer | AnswerFault)
    assert isinstance(parse('{"intent":"比价犹豫","keywords":[' + raw), Answer | AnswerFault)


def test_a_reply_with_lost_bytes_is_never_a_label() -> None:
    fault = parse("比价犹\ufffd|空调")
    assert isinstance(fault, AnswerFault)
    assert fault.kind == "format"


@pytest.mark.parametrize(
    "raw",
    [
        '{"intent": 3}',
        '{"keywords":["x"],"intent":"闲逛"}',
        '{"intent":"比价犹豫"}',
        '{"intent":"比价犹豫","keywords":[1]}',
    ],
)
def test_json_that_breaks_the_format_is_a_fault(raw: str) -> None:
    assert isinstance(parse(raw), AnswerFault)


def test_keywords_that_hold_braces_are_keywords() -> None:
    assert parse("比价犹豫|{限时}帐篷;露营") == Answer("比价犹豫", ("{限时}帐篷", "露营"))


def test_ungrounded_keywords_go_and_one_must_stay() -> None:
    answer = Answer("比价犹豫", ("帐篷", "便宜", "露营"))
    assert keep_grounded(answer, "商详页(帐篷,cat:户外.露营.帐篷)") == Answer("比价犹豫", ("帐篷", "露营"))
    assert isinstance(ground(answer, "商详页(帐篷,cat:户外.露营.帐篷)"), AnswerFault)
    fault = keep_grounded(answer, "搜索(手机)")
    assert isinstance(fault, AnswerFault)
    assert fault.kind == "ungrounded"
    assert keep_grounded(Answer("闲逛"), "搜索(手机)") == Answer("闲逛")
