"""How fast is each release on each phone model, by the phones' own reports? A bounded table that grows by envelopes.

The figures are the indicators that an inference event allows (`indicators.FROM_PHONES`), by the formulas of the lab, as
quantile sketches; so tables of several readers can be merged. Phones name their own model and version, so only
`MAX_ROWS` pairs get a row, later ones share one. Not here: reading the topic (`trainer/phones.py`).
"""

import math

import msgspec

from intentloop import sketch, window
from intentloop.events import Envelope, Inference

MAX_ROWS = 500
REMEMBERED = 20_000  # batches by whose id a resent one is known; a later resend counts twice
OTHER = "(other)"


class PhoneRow(msgspec.Struct, kw_only=True):
    """One phone model with one release. `odd` counts inferences without usable times; sketches by indicator."""

    device_model: str
    version: str
    inferences: int = 0
    odd: int = 0
    sketches: dict[str, dict[int, int]] = {}


class PhoneTable(msgspec.Struct, kw_only=True):
    """All rows, in the order of their first report, and the ids of the newest batches."""

    rows: list[PhoneRow] = []
    recent: dict[str, None] = {}
    resent: int = 0


def fold(table: PhoneTable, envelope: Envelope) -> None:
    """Count one envelope's inferences in `table`; a batch that came before is left out."""
    batch = f"{envelope.user_id}\x00{envelope.device_id}\x00{window.batch_id(envelope)}"  # of one account of a phone
    if batch in table.recent:
        table.resent += 1
        return
    table.recent[batch] = None
    if len(table.recent) > REMEMBERED:
        del table.recent[next(iter(table.recent))]
    for event in envelope.events:
        if isinstance(event, Inference):
            _count(row(table, envelope.device_model, event.model_version), event)


def row(table: PhoneTable, device_model: str, version: str) -> PhoneRow:
    """Which row does this pair count in? A new one while there is room."""
    for found in table.rows:
        if (found.device_model, found.version) == (device_model, version):
            return found
    if len(table.rows) >= MAX_ROWS and (device_model, version) != (OTHER, OTHER):
        return row(table, OTHER, OTHER)
    table.rows.append(PhoneRow(device_model=device_model, version=version))
    return table.rows[-1]


def figures(event: Inference) -> dict[str, float]:
    """Which indicators does one inference give? Empty when its times cannot be true."""
    ttft_ms, total_ms = event.ttft_ms, event.total_ms
    if ttft_ms is None or total_ms is None or not (0 < ttft_ms <= total_ms < math.inf):
        return {}
    found = {"ttft_ms": ttft_ms, "total_ms": total_ms}
    if event.prompt_tokens is not None and event.prompt_tokens > 0:
        found["prefill_tokens_s"] = event.prompt_tokens * 1000 / ttft_ms
    if event.output_tokens is not None and event.output_tokens > 0 and total_ms > ttft_ms:
        found["decode_tokens_s"] = event.output_tokens * 1000 / (total_ms - ttft_ms)
    return found


def _count(counted: PhoneRow, event: Inference) -> None:
    counted.inferences += 1
    found = figures(event)
    counted.odd += not found
    for name, value in found.items():
        sketch.add(counted.sketches.setdefault(name, {}), value)
