"""A simulated teacher speaks the real protocol: asked over HTTP by the client that the workers use."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from openai import BadRequestError, OpenAI

from intentloop import prompt, teacher_prompt
from intentloop.adapters.embedded import free_port, stop
from intentloop.events import SequenceItem

TENTS = prompt.sequence_text(
    [
        SequenceItem(
            action="item_view", title=f"山雀帐篷{number}号", category="户外.露营.帐篷", price_yuan=199.0, dwell_s=9
        )
        for number in range(4)
    ]
)


@pytest.fixture(scope="module")
def teacher() -> Iterator[str]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "demo.teachers",
        "--name",
        "qwen",
        "--port",
        str(port),
        "--noise",
        "0",
        "--seed",
        "3",
    ]
    process = subprocess.Popen(command)
    try:
        _wait(port)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop(process)


@pytest.fixture
def client(teacher: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=teacher, api_key="none", max_retries=5) as opened:
        yield opened


def test_a_teacher_labels_what_the_rule_engine_sees(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="qwen3-max", messages=[{"role": "user", "content": teacher_prompt.label_message(TENTS)}]
    )
    assert reply.choices[0].message.content == "比价犹豫|帐篷;露营;户外"
    assert reply.model == "qwen3-max"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens > 50
    assert reply.usage.completion_tokens >= 5


def test_a_stream_says_the_same_and_ends_with_its_usage(client: OpenAI) -> None:
    pieces: list[str] = []
    used = 0
    with client.chat.completions.create(
        model="kimi",
        messages=[{"role": "user", "content": teacher_prompt.label_message(TENTS)}],
        stream=True,
        stream_options={"include_usage": True},
    ) as chunks:
        for chunk in chunks:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            used = chunk.usage.total_tokens if chunk.usage else used
    assert "".join(pieces) == "比价犹豫|帐篷;露营;户外"
    assert used > 50


def test_a_judge_gives_three_to_good_keywords_and_less_to_absent_ones(client: OpenAI) -> None:
    def score(keywords: list[str]) -> str | None:
        message = teacher_prompt.judge_message(TENTS, "比价犹豫", keywords)
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": message}])
        return reply.choices[0].message.content

    assert score(["帐篷", "露营", "户外"]) == "3"
    assert score(["帐篷", "冰箱"]) == "1"
    assert score(["冰箱"]) == "0"


def test_a_message_without_a_sequence_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="no behaviour sequence"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


def test_a_teacher_says_that_it_is_simulated(teacher: str) -> None:
    assert "simulated" in httpx.get(teacher.replace("/v1", "/health")).text


def _wait(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"no teacher on port {port}")
