"""Run N simulated phones against a gateway: `python -m demo.phones`.

Every phone really runs the released model on what its shopper did. Killed and started again it loses nothing that an
app would keep: unsent batches wait on disk, counts go on.
"""

import asyncio
import logging
import signal
import sys
from contextlib import suppress

from demo.ground import Ground
from demo.live import Phone, person
from demo.settings import PhonesSettings

log = logging.getLogger("phones")


def main() -> None:
    """Read settings, then live until told to stop."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with suppress(asyncio.CancelledError):
        asyncio.run(run(PhonesSettings()))


async def run(settings: PhonesSettings) -> None:
    """Put all phones on the ground and let them live."""
    stop_on_sigterm()
    ground = Ground(settings)
    log.info("run %s of %s simulated phones against %s", ground.run, settings.phones.count, settings.phones.gateway)
    phones = [
        Phone(person(number, settings.phones), ground.run, settings.phones, ground.tally, ground.wants_finish)
        for number in range(settings.phones.count)
    ]

    async def lives() -> None:
        async with asyncio.TaskGroup() as group:
            for phone in phones:
                courier = ground.courier(phone.owner.name, phone.clock_ms)
                group.create_task(phone.live(courier, ground.models, ground.uplink))

    await ground.host(lives)


def stop_on_sigterm() -> None:
    """End the running task, cleanly, when asked to."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


if __name__ == "__main__":
    main()
