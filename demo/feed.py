"""Feed real data as phones' behaviours: `python -m demo.feed FILE --format … --speed …`.

Each user of the file is a phone, each visit ends as on a phone: the released model reads it and answers, for real.
Event times are those of the file; batches carry no `sent_at_ms`, so no clock is corrected and history stays
history. Ids are made from line numbers: fed twice, nothing counts twice.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from demo import phone
from demo.courier import Courier
from demo.ground import Ground
from demo.phones import stop_on_sigterm
from demo.settings import PhonesSettings
from demo.uplink import Report
from demo.visits import ROWS, Rows, Visit, cut
from intentloop import readers
from intentloop.adapters.clock import now_ms
from intentloop.errors import UnavailableError
from intentloop.events import Behaviour, Event

log = logging.getLogger("feed")

BATCH_EVENTS = 100
MOST_TOLD = 50  # bad rows that a report names


def main(
    file: Path,
    format: Annotated[str, typer.Option(help="taobao-userbehaviour, otto or events-jsonl")],
    speed: Annotated[float, typer.Option(help="how many times faster than the file's times; 0 is as fast as it goes")],
) -> None:
    """Read the file, then feed it until told to stop."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = PhonesSettings()
    rows, visits = load(file, msgspec.convert(format, readers.Format))
    settings.phones.directory.mkdir(parents=True, exist_ok=True)
    (settings.phones.directory / ROWS).write_bytes(msgspec.json.encode(rows))
    with suppress(asyncio.CancelledError):
        asyncio.run(run(settings, visits, speed))


def load(file: Path, format: readers.Format) -> tuple[Rows, list[Visit]]:
    """What is in this file? Bytes that are no UTF-8 become U+FFFD, as a reader of logs has to do."""
    good: list[readers.Row] = []
    bad: list[readers.BadRow] = []
    with file.open(encoding="utf-8", errors="replace") as lines:
        for row in readers.read(format, lines, now_ms()):
            if isinstance(row, readers.BadRow):
                bad.append(row)
            else:
                good.append(row)
    visits = cut(good)
    users = len({visit.user_id for visit in visits})
    rows = Rows(
        read=len(good) + len(bad),
        rejected=len(bad),
        rejections=tuple(bad[:MOST_TOLD]),
        users=users,
        visits=len(visits),
        made_up=sum(row.made_up for row in good),
    )
    return rows, visits


async def run(settings: PhonesSettings, visits: Sequence[Visit], speed: float) -> None:
    """Feed every user's visits in their order, all users side by side."""
    stop_on_sigterm()
    ground = Ground(settings)
    log.info("run %s: %s visits at speed %s", ground.run, len(visits), speed or "max")
    by_user: dict[str, list[Visit]] = {}
    for visit in visits:
        by_user.setdefault(visit.user_id, []).append(visit)
    start_ms = visits[0].rows[0].ts_ms if visits else 0
    feeder = Feeder(ground, start_ms, speed)

    async def lives() -> None:
        await feeder.get_model()
        async with asyncio.TaskGroup() as group:
            for user_id, own in by_user.items():
                group.create_task(feeder.feed(user_id, own))

    await ground.host(lives)


class Feeder:
    """Turns visits into batches.

    Args:
        start_ms: The file's first time, which is now.
        speed: Divides the time between visits; 0 leaves none.
    """

    def __init__(self, ground: Ground, start_ms: int, speed: float) -> None:
        self._ground = ground
        self._start_ms = start_ms
        self._speed = speed
        self._began_ms = now_ms()
        self._rule = phone.PhoneRule()
        self._version = ""

    async def get_model(self) -> None:
        """Install the current release; replayed phones have it before they begin."""
        while not self._version:
            try:
                version = (await self._ground.uplink.config("replay", "")).model_version
                if version:
                    await self._ground.models.install(version, self._ground.uplink)
                    self._version = version
                    continue
            except UnavailableError as error:
                log.info("waiting for a release: %s", error)
            await asyncio.sleep(0.3)
        self._began_ms = now_ms()

    async def feed(self, user_id: str, visits: Sequence[Visit]) -> None:
        """One user's visits, in their order."""
        courier = self._ground.courier(f"u{user_id}", None)
        self._ground.tally.versions[user_id] = self._version
        state = phone.PhoneState()
        for visit in visits:
            await self._wait_for(visit.rows[0].ts_ms)
            if self._ground.wants_finish():
                return
            state = await self._feed_visit(courier, state, visit)
            self._ground.tally.visits += 1

    async def _wait_for(self, ts_ms: int) -> None:
        if self._speed > 0:
            due_ms = self._began_ms + (ts_ms - self._start_ms) / self._speed
            await asyncio.sleep(max(0.0, (due_ms - now_ms()) / 1000))

    async def _feed_visit(self, courier: Courier, state: phone.PhoneState, visit: Visit) -> phone.PhoneState:
        batch_id = f"replay-{_event_id(visit.rows[0])}"
        events: list[Event] = []
        for index, row in enumerate(visit.rows):
            behaviour = _behave(row, index, visit)
            state = phone.notice(state, behaviour, self._rule)
            events.append(behaviour)
        if not self._ground.outbox.knows(f"{batch_id}-end"):
            state = await self._infer(state, visit, events)
            self._hand_over(courier, visit.user_id, batch_id, events)
        return phone.leave(state)

    async def _infer(self, state: phone.PhoneState, visit: Visit, events: list[Event]) -> phone.PhoneState:
        if not phone.wants_inference(state, self._rule):
            return state
        last = visit.rows[-1]
        stamp = phone.Stamp(f"{_event_id(last)}-inference", last.ts_ms, len(visit.rows))
        check = phone.failed_check(state, phone.Conditions(), stamp.ts_ms, self._rule)
        if check is not None:
            events.append(phone.skip(check, self._version, stamp))
            return state
        question = phone.ask(state.window, self._rule)
        said = await self._ground.models.answer(self._version, question.prompt)
        events.append(phone.report(question, said, stamp))
        self._ground.tally.inferences += 1
        return phone.after_inference(state, stamp.ts_ms, self._rule)

    def _hand_over(self, courier: Courier, user_id: str, batch_id: str, events: Sequence[Event]) -> None:
        """In parts of a batch's size; the last is named so that a restart knows the visit as whole."""
        for start in range(0, len(events), BATCH_EVENTS):
            part = events[start : start + BATCH_EVENTS]
            is_last = start + BATCH_EVENTS >= len(events)
            name = f"{batch_id}-end" if is_last else f"{batch_id}-{start}"
            if not self._ground.outbox.knows(name):
                written = tuple(msgspec.Raw(msgspec.json.encode(event)) for event in part)
                report = Report(batch_id=name, user_id=user_id, device_id=f"replay-{user_id}", events=written)
                courier.put(report, [event.event_id for event in part])


def _event_id(row: readers.Row) -> str:
    return f"{row.user_id}-{row.line}-{row.position}"


def _behave(row: readers.Row, index: int, visit: Visit) -> Behaviour:
    """The row as a phone would have recorded it; where the data have no dwell it is the time to the next row."""
    following = visit.rows[index + 1] if index + 1 < len(visit.rows) else None
    dwell_ms = row.dwell_ms
    if dwell_ms is None and following is not None and 0 < following.ts_ms - row.ts_ms <= 300_000:
        dwell_ms = following.ts_ms - row.ts_ms
    return Behaviour(
        event_id=_event_id(row),
        action=row.action,
        ts_ms=row.ts_ms,
        seq=index,
        item_id=row.item_id,
        title=row.title,
        category=row.category,
        price_yuan=row.price_yuan,
        dwell_ms=dwell_ms,
    )


if __name__ == "__main__":
    typer.run(main)
