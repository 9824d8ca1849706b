"""What do all phones of one process share? Outbox, way to the gateway, models, and the file that tells how they do.

What is kept survives the process, so a restarted one goes on where the other was killed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from demo.courier import Courier
from demo.device_model import DeviceModels
from demo.outbox import Outbox
from demo.phones_state import PhonesState, read_state, wants_finish, write_state
from demo.settings import PhonesSettings
from demo.uplink import Uplink
from intentloop.adapters.health import HealthServer

log = logging.getLogger("phones")


class Tally:
    """What this process's phones did; the parts of `PhonesState` that are not in the outbox."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.inferences = 0
        self.visits = 0
        self.skipped: dict[str, int] = {}


class Ground:
    """The shared things of one phones' process, opened once.

    Args:
        settings: Of the process.
    """

    def __init__(self, settings: PhonesSettings) -> None:
        section = settings.phones
        self.section = section
        self.outbox = Outbox(section.directory / "outbox.sqlite")
        self.run = self.outbox.next_run()
        self.uplink = Uplink(section.gateway, section.token.get_secret_value())
        self.models = DeviceModels(
            section.directory / "models", settings.release.public_key, section.free_bytes, section.engine_threads
        )
        self.tally = Tally()
        self.ended = False
        self._before = read_state(section.directory) if self.run > 1 else PhonesState()
        self._health = HealthServer(settings.health, dict)
        self._couriers: dict[str, Courier] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def wants_finish(self) -> bool:
        """Should no new visit begin?"""
        return wants_finish(self.section.directory)

    def courier(self, phone: str, clock_ms: Callable[[], int] | None) -> Courier:
        """Who carries this phone's batches?"""
        if phone not in self._couriers:
            courier = Courier(phone, self.outbox, self.uplink, clock_ms, self.section.resend_ratio)
            self._couriers[phone] = courier
            self._tasks.append(asyncio.create_task(courier.carry()))
        return self._couriers[phone]

    async def host(self, lives: Callable[[], Awaitable[None]]) -> None:
        """Run all lives to their end, see everything sent, then stay until cancelled."""
        await self._health.start()
        teller = asyncio.create_task(self._tell())
        try:
            await lives()
            while self.outbox.sent().waiting:
                self._raise_failed()
                await asyncio.sleep(0.1)
            self.ended = True
            self._write_state()
            log.info("everything is sent: %s events", self.outbox.sent().events)
            await teller
        finally:
            for task in [teller, *self._tasks]:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*self._tasks, teller, return_exceptions=True)
            await self._close()

    async def _tell(self) -> None:
        while True:
            self._raise_failed()
            self._write_state()
            await asyncio.sleep(1.0)

    def _raise_failed(self) -> None:
        """A courier that ended in an error must end the process, which is then started again."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def _write_state(self) -> None:
        sent, tally, before = self.outbox.sent(), self.tally, self._before
        versions = list(tally.versions.values())
        state = PhonesState(
            sent=sent.events,
            waiting=sent.waiting,
            refused=sent.refused,
            inferences=before.inferences + tally.inferences,
            visits=before.visits + tally.visits,
            skipped={
                name: before.skipped.get(name, 0) + tally.skipped.get(name, 0)
                for name in sorted({*before.skipped, *tally.skipped})
            },
            phones_by_version={version: versions.count(version) for version in sorted(set(versions))},
            finished=self.ended,
        )
        write_state(self.section.directory, state)

    async def _close(self) -> None:
        self._write_state()
        await self._health.stop()
        await self.uplink.close()
        self.models.close()
        self.outbox.close()
