"""How is a large model asked, and what may become of it? One client a teacher, over the real chat-completions protocol.

All calls to one teacher share its limiter, its pauses and its breaker. What can be expected to happen comes back as a
value (`Reply` or `Refusal`); both carry what all tries together have cost. Retries are ours, bounded and with jitter;
the client's own are off. Not here: prompts, reading answers, what to do about a refusal.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Any, Literal

import httpx2
import msgspec
from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI

from intentloop.adapters import metrics
from intentloop.adapters.completions import Completion, collect, read_completion, whole_text
from intentloop.adapters.settings import TeacherSection
from intentloop.errors import ConfigurationError
from intentloop.teacher_fault import FaultCause, cause_of, estimate_tokens, is_quota_rate

log = logging.getLogger(__name__)

RefusalKind = Literal["closed", "unavailable", "filtered", "truncated", "too_long"]
MAX_BACKOFF_S = 10.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What all tries of one request took; `estimated` when a provider did not say."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False
    cost_yuan: float = 0.0
    seconds: float = 0.0


class Reply(msgspec.Struct, frozen=True):
    """A teacher's whole text; it may still mean nothing."""

    text: str
    usage: Usage


class Refusal(msgspec.Struct, frozen=True):
    """No text. `closed` and `unavailable` may be better later; the others are about this sample and stay."""

    kind: RefusalKind
    detail: str
    usage: Usage = Usage()


class Teacher:
    """One teacher. Use as long as the process lives, then `close`.

    Args:
        section: Address, model, prices and limits.
    """

    def __init__(self, section: TeacherSection) -> None:
        self.section = section
        self.name = section.name or section.model
        self._client = AsyncOpenAI(
            base_url=section.base_url,
            api_key=section.api_key.get_secret_value() or "none",
            max_retries=0,
            timeout=section.timeout_s,
        )
        self._slots = asyncio.Semaphore(section.max_concurrency)
        self._not_before_s = 0.0  # throttled: no new call before this
        self._closed_until_s = 0.0
        self._closed_reason = ""
        self._failures = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def parameters(self) -> str:
        """How is this teacher sampled? For the books."""
        chosen = {} if self.section.temperature is None else {"temperature": self.section.temperature}
        return ";".join(f"{name}={value}" for name, value in {**chosen, **self.section.extra_body}.items())

    def closed(self) -> str:
        """Why may this teacher not be asked now? Empty when it may."""
        return self._closed_reason if time.monotonic() < self._closed_until_s else ""

    async def self_test(self, system: str, user: str) -> None:
        """Does this teacher answer at all with these settings? A wrong setting closes it at once, with one alarm."""
        outcome = await self.ask(system, user)
        told = f"said {outcome.text[:60]!r}" if isinstance(outcome, Reply) else f"{outcome.kind}: {outcome.detail}"
        log.info("self-test of teacher %s (%s): %s", self.name, self.section.model, told)

    async def ask(self, system: str, user: str) -> Reply | Refusal:
        """What does the teacher say? At most `section.attempts` tries; a truncated reply gets twice the room then."""
        began, usage, room = time.monotonic(), Usage(), self.section.max_output_tokens
        refusal = Refusal("unavailable", "not asked")
        for attempt in range(self.section.attempts):
            if self.closed():
                refusal = Refusal("closed", self.closed())
                break
            outcome = await self._attempt([system, user], room)
            if isinstance(outcome, Completion):
                usage = self._book(usage, outcome, system + user)
                text = whole_text(outcome)
                if text is not None:
                    return Reply(text, _timed(usage, began))
                refusal = _why_empty(outcome)
                room = self.section.max_output_tokens * 2
            else:
                refusal = outcome
            if refusal.kind in ("filtered", "too_long", "closed"):
                break
            await self._back_off(attempt)
        return msgspec.structs.replace(refusal, usage=_timed(usage, began))

    async def _attempt(self, messages: Sequence[str], room: int) -> Completion | Refusal:
        async with self._slots:
            await asyncio.sleep(max(0.0, self._not_before_s - time.monotonic()) * random.uniform(1.0, 1.2))
            if self.closed():
                return Refusal("closed", self.closed())
            try:
                completion = await self._exchange(messages, room)
            except APIStatusError as error:
                return self._note_error(error.status_code, f"{error.message} {error.body}", error.response.headers)
            except (APIConnectionError, APIError, httpx2.HTTPError, ValueError) as error:
                return self._note_error(None, f"{type(error).__name__}: {error}", httpx2.Headers())
        self._failures = 0
        return completion

    async def _exchange(self, messages: Sequence[str], room: int) -> Completion:
        section = self.section
        request: dict[str, Any] = {
            "model": section.model,
            "max_tokens": room,
            "messages": [
                {"role": role, "content": text} for role, text in zip(("system", "user"), messages, strict=True)
            ],
            "extra_body": section.extra_body or None,
        }
        if section.temperature is not None:
            request["temperature"] = section.temperature
        if section.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
            return await collect(await self._client.chat.completions.create(**request))
        return read_completion(await self._client.chat.completions.create(**request))

    def _note_error(self, status: int | None, text: str, headers: httpx2.Headers) -> Refusal:
        """Draw the consequences of an error for all calls, and say what it means for this one."""
        cause: FaultCause = cause_of(status, text)
        detail = f"{status or 'no answer'}: {' '.join(text.split())[:200]}"
        if cause == "configuration":
            return self._shut(float("inf"), f"wrong settings, {detail}; correct them and start again")
        if cause == "exhausted":
            return self._shut(self.section.exhausted_pause_s, f"allowance used up, {detail}")
        if cause in ("filtered", "too_long"):
            return Refusal("filtered" if cause == "filtered" else "too_long", detail)
        if cause == "throttled":
            pause_s = self._throttle_pause_s(text, headers)
            self._not_before_s = max(self._not_before_s, time.monotonic() + pause_s)
            return Refusal("unavailable", detail)
        self._failures += 1
        if self._failures >= self.section.breaker_failures:
            return self._shut(self.section.breaker_pause_s, f"{self._failures} failures in a row, last {detail}")
        return Refusal("unavailable", detail)

    def _throttle_pause_s(self, text: str, headers: httpx2.Headers) -> float:
        if is_quota_rate(text):
            return self.section.throttle_pause_s
        asked = headers.get("retry-after", "")
        wanted_s = float(asked) if asked.replace(".", "", 1).isdigit() else self.section.backoff_s
        return min(wanted_s, self.section.throttle_pause_s)

    def _shut(self, pause_s: float, reason: str) -> Refusal:
        if not self.closed():
            log.error("ALARM: teacher %s is closed: %s", self.name, reason)
            metrics.TEACHER_CLOSED.inc()
        self._closed_until_s = max(self._closed_until_s, time.monotonic() + pause_s)
        self._closed_reason = reason
        return Refusal("closed", reason)

    def _book(self, usage: Usage, completion: Completion, prompt: str) -> Usage:
        said = completion.prompt_tokens is not None and completion.output_tokens is not None
        prompt_tokens = completion.prompt_tokens if said else estimate_tokens(prompt)
        output_tokens = completion.output_tokens if said else estimate_tokens(completion.text or "")
        assert prompt_tokens is not None
        assert output_tokens is not None
        section = self.section
        cost = prompt_tokens * section.prompt_yuan_per_million + output_tokens * section.output_yuan_per_million
        return Usage(
            prompt_tokens=usage.prompt_tokens + prompt_tokens,
            output_tokens=usage.output_tokens + output_tokens,
            estimated=usage.estimated or not said,
            cost_yuan=usage.cost_yuan + cost / 1_000_000,
        )

    async def _back_off(self, attempt: int) -> None:
        if attempt + 1 < self.section.attempts:
            await asyncio.sleep(min(MAX_BACKOFF_S, self.section.backoff_s * 2**attempt) * random.uniform(0.5, 1.5))


def require(section: TeacherSection, role: str) -> TeacherSection:
    """Is this teacher set up at all?

    Raises:
        ConfigurationError: no address or no model.
    """
    if not section.base_url or not section.model:
        variable = f"INTENTLOOP_{role.upper()}__"
        raise ConfigurationError(f"{role} has no base_url or model; set {variable}BASE_URL and {variable}MODEL")
    return section


def _why_empty(completion: Completion) -> Refusal:
    if completion.finish == "content_filter":
        return Refusal("filtered", "the reply was withheld by the provider's content filter")
    if completion.finish == "length":
        return Refusal("truncated", "cut at the output limit; raise max_output_tokens or switch thinking off")
    return Refusal("unavailable", "an empty reply")


def _timed(usage: Usage, began: float) -> Usage:
    return msgspec.structs.replace(usage, seconds=time.monotonic() - began)
