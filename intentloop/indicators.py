"""Which fifteen figures say how a model runs on a device, how urgent is each, and how is it measured?

Four groups: what the shopper waits for, how fast tokens pass, what memory it takes, what it does to the device. The
four of P0 are those that seeds/000 §5.1 names; the article shows its other eleven only in a picture, so they are ours.
What needs a phone's own sensors is listed and never estimated. Not here: whether answers are right (`gate.py`).
"""

from typing import Literal

import msgspec

Priority = Literal["P0", "P1", "P2"]
Group = Literal["waiting", "throughput", "memory", "device"]


class Indicator(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `measured` says how; `phone_only` that nothing but a phone can give it."""

    name: str
    priority: Priority
    group: Group
    unit: str
    better: Literal["lower", "higher"]
    measured: str
    phone_only: bool = False


def _indicator(head: str, unit: str, better: Literal["lower", "higher"], measured: str, phone_only: bool) -> Indicator:
    priority, group, name = head.split()
    return msgspec.convert(
        {
            "name": name,
            "priority": priority,
            "group": group,
            "unit": unit,
            "better": better,
            "measured": measured,
            "phone_only": phone_only,
        },
        Indicator,
    )


INDICATORS = tuple(
    _indicator(*row)
    for row in (
        ("P0 waiting ttft_ms", "ms", "lower", "median prefill until the first token, by the engine's counter", False),
        ("P1 waiting total_ms", "ms", "lower", "median of a whole answer with tokenising, as the caller waits", False),
        ("P0 waiting load_ms", "ms", "lower", "files to a model that can answer, once a process", False),
        ("P1 waiting first_answer_ms", "ms", "lower", "the first answer after loading, which pays for buffers", False),
        ("P1 throughput prefill_tokens_s", "tokens/s", "higher", "prompt tokens / time to first token", False),
        ("P0 throughput decode_tokens_s", "tokens/s", "higher", "answer tokens / (total - time to first token)", False),
        ("P1 throughput slowdown_ratio", "ratio", "lower", "loss of speed over the stress runs, fitted line", False),
        ("P0 memory peak_rss_bytes", "bytes", "lower", "most resident memory of the process so far", False),
        ("P1 memory unique_bytes", "bytes", "lower", "memory of this process alone after the answers", False),
        ("P1 memory load_growth_bytes", "bytes", "lower", "resident memory after loading - before", False),
        (
            "P1 memory stress_growth_bytes",
            "bytes",
            "lower",
            "private memory for each 1,000 answers, fitted line",
            False,
        ),
        ("P1 device artefact_bytes", "bytes", "lower", "what a phone downloads and stores", False),
        ("P2 device cpu_ratio", "cores", "lower", "CPU seconds / seconds under stress", False),
        ("P2 device temperature_c", "°C", "lower", "battery or skin sensor of a phone", True),
        ("P2 device energy_mj", "mJ/answer", "lower", "fuel gauge of a phone", True),
    )
)

FROM_PHONES = ("ttft_ms", "total_ms", "prefill_tokens_s", "decode_tokens_s")  # what an inference event allows
