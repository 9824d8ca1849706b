import json
from pathlib import Path

import pytest

from intentloop import prompt, teacher_prompt
from intentloop.answer import Answer, AnswerFault
from intentloop.events import SequenceItem
from workers.ask_teachers import read_answer

REMOTE = "美的空调遥控器通用款\n家电.空调.遥控器"


def test_l20_the_stored_keyword_is_the_simplified_form_found_in_the_titles() -> None:
    assert read_answer("比價猶豫|空調遙控器;美的;通用款", REMOTE) == Answer(
        "比价犹豫", ("空调遥控器", "美的", "通用款")
    )
    assert read_answer("比价犹豫|空调遥控器", "空調遙控器") == Answer("比价犹豫", ("空调遥控器",))


def test_words_from_nowhere_are_no_keywords() -> None:
    assert read_answer("比价犹豫|空调遥控器;便宜货", REMOTE) == Answer("比价犹豫", ("空调遥控器",))
    fault = read_answer("比价犹豫|便宜货", REMOTE)
    assert isinstance(fault, AnswerFault)
    assert fault.kind == "ungrounded"


HARD_TITLES = Path(__file__).parents[4] / "shared" / "data" / "derived" / "titles_hard.jsonl"


@pytest.mark.skipif(not HARD_TITLES.exists(), reason="the folder shared/ lies beside a working checkout only")
def test_real_titles_stay_in_their_box_and_break_no_answer() -> None:
    titles = [str(json.loads(line)["text"]) for line in HARD_TITLES.read_text(encoding="utf-8").splitlines()]
    assert len(titles) > 100
    for title in titles:
        item = SequenceItem(action="item_view", title=title, category="户外.露营.帐篷")
        sequence = prompt.sequence_text([item, item])
        message = teacher_prompt.judge_message(sequence, "比价犹豫", ("帐篷", "露营"))
        request = teacher_prompt.judge_request_in(message)
        assert request is not None
        assert request[1] == ("帐篷", "露营")
        assert request[0].count("cat:户外.露营.帐篷") == 2
        assert read_answer("比价犹豫|帐篷;露营", prompt.evidence([item])) == Answer("比价犹豫", ("帐篷", "露营"))
