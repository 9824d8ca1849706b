"""Who carries a phone's batches to the gateway? One courier a phone: in order, again until acknowledged.

A retry carries the same batch id and the same event times; only `sent_at_ms` is the time of the attempt, because the
gateway corrects a phone's clock by it and a waiting batch must not be shifted by its wait.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from demo.outbox import Batch, Outbox
from demo.uplink import RefusedError, Report, Uplink
from intentloop.errors import UnavailableError

log = logging.getLogger("phones")

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 4.0

_decode = msgspec.json.Decoder(Report).decode
_encode = msgspec.json.encode


class Courier:
    """Carries one phone's batches.

    Args:
        clock_ms: The phone's own clock; None when the batches tell history and no clock may be corrected.
        resend_ratio: Share of acknowledged batches that are sent again, as after a lost answer.
    """

    def __init__(
        self, phone: str, outbox: Outbox, uplink: Uplink, clock_ms: Callable[[], int] | None, resend_ratio: float
    ) -> None:
        self.phone = phone
        self._outbox = outbox
        self._uplink = uplink
        self._clock_ms = clock_ms
        self._resend_ratio = resend_ratio
        self._random = Random(f"courier-{phone}")
        self._wake = asyncio.Event()

    def put(self, report: Report, event_ids: Sequence[str]) -> None:
        """Take one batch over; it is on disk when this returns."""
        self._outbox.add(Batch(report.batch_id, self.phone, _encode(report)), event_ids)
        self._wake.set()

    async def carry(self) -> None:
        """Send what waits, for ever, until cancelled."""
        while True:
            self._wake.clear()
            await self.empty()
            await self._wake.wait()

    async def empty(self) -> None:
        """Send until nothing waits."""
        while (batch := self._outbox.first(self.phone)) is not None:
            await self._deliver(batch)

    async def _deliver(self, batch: Batch) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                await self._uplink.send(self._stamped(batch))
                break
            except UnavailableError as error:
                log.debug("%s waits: %s", self.phone, error)
                await asyncio.sleep(wait_s * (0.5 + self._random.random()))
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)
            except RefusedError as error:
                log.warning("batch %s was refused: %s", batch.batch_id, error)
                self._outbox.refuse(batch.batch_id, str(error))
                return
        if self._random.random() < self._resend_ratio:
            await self._send_again(batch)
        self._outbox.acknowledge(batch.batch_id)

    async def _send_again(self, batch: Batch) -> None:
        """As if the answer had been lost: the gateway must take it, and nobody may count it twice."""
        try:
            await self._uplink.send(self._stamped(batch))
        except (UnavailableError, RefusedError) as error:
            log.debug("%s: the second sending failed, the first counts: %s", self.phone, error)

    def _stamped(self, batch: Batch) -> bytes:
        if self._clock_ms is None:
            return batch.body
        return _encode(msgspec.structs.replace(_decode(batch.body), sent_at_ms=self._clock_ms()))
