"""What does a chat completion hold, streamed or not? Providers leave fields out, so nothing is taken for granted."""

from typing import Any

import msgspec


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP exchange, streamed or not. Token counts are None when the provider did not say."""

    text: str | None
    finish: str | None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def read_completion(response: Any) -> Completion:
    """What does a reply that came at once hold? Providers leave out fields, so nothing is taken for granted.

    Raises:
        ValueError: it is not a chat completion.
    """
    choices = getattr(response, "choices", None)
    if not choices:
        raise ValueError(f"a reply without choices: {str(response)[:120]}")
    prompt_tokens, output_tokens = _tokens(response)
    return Completion(
        text=choices[0].message.content,
        finish=choices[0].finish_reason,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


async def collect(stream: Any) -> Completion:
    """What does a streamed reply hold? Chunks without choices may come first or last and carry the usage."""
    parts: list[str] = []
    finish: str | None = None
    tokens: tuple[int | None, int | None] = (None, None)
    async for chunk in stream:
        if _tokens(chunk)[0] is not None:
            tokens = _tokens(chunk)
        for choice in chunk.choices or []:
            if choice.delta is not None:
                parts.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    # neither a finish reason nor the end mark of the protocol: the connection was cut, whatever the text looks like
    return Completion(text="".join(parts), finish=finish or "length", prompt_tokens=tokens[0], output_tokens=tokens[1])


def _tokens(holder: Any) -> tuple[int | None, int | None]:
    usage = getattr(holder, "usage", None)
    if usage is None:
        return None, None
    return getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)


def whole_text(completion: Completion) -> str | None:
    """Which text did the teacher finish? Why it ended is asked first, since a cut reply may have none at all."""
    if completion.finish in ("length", "content_filter") or not completion.text:
        return None
    return completion.text
