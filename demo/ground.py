"""What do all phones of one process share? Outbox, way to the gateway, models, and the file that tells how they do.

Two files steer and tell: `finish` in the phones' directory (whoever makes it wants no new visits), and `state.json`,
written every second. Both survive the process, so a restarted one goes on where the other was killed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from demo.courier import Courier
from demo.device_model import DeviceModels
from demo.outbox import Outbox
from demo.settings import PhonesSettings
from demo.uplink import Uplink
from intentloop.adapters.health import HealthServer

log = logging.getLogger("phones")

FINISH = "finish"
STATE = "state.json"


class PhonesState(msgspec.Struct, frozen=True, kw_only=True):
    """What the phones of this world did so far; `finished`: no visit goes on and nothing waits to be sent."""

    sent: int = 0
    waiting: int = 0
    refused: int = 0
    inferences: int = 0
    visits: int = 0
    skipped: dict[str, int] = {}
    phones_by_version: dict[str, int] = {}
    finished: bool = False


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
        return (self.section.directory / FINISH).exists()

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
        draft = self.section.directory / f"{STATE}.draft"
        draft.write_bytes(msgspec.json.encode(state))
        draft.replace(self.section.directory / STATE)

    async def _close(self) -> None:
        self._write_state()
        await self._health.stop()
        await self.uplink.close()
        self.models.close()
        self.outbox.close()


def read_state(directory: Path) -> PhonesState:
    """What do the phones of this directory say of themselves? Zeros before they said anything."""
    try:
        return msgspec.json.decode((directory / STATE).read_bytes(), type=PhonesState)
    except FileNotFoundError:
        return PhonesState()


def ask_to_finish(directory: Path) -> None:
    """Tell the phones of this directory to go home and send what they have."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FINISH).touch()
