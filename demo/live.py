"""What happens on one phone from visit to visit? Shoppers act, the phone notices, infers, and reports in batches.

The clock is the machine's, plus what this phone's clock is wrong by; only the shopper's pauses are shortened.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random

import msgspec

from demo import phone
from demo.courier import Courier
from demo.device_model import DeviceModels, DownloadError
from demo.ground import Tally
from demo.settings import PhonesSection
from demo.uplink import Report, Uplink
from intentloop import shoppers
from intentloop.adapters.clock import now_ms
from intentloop.errors import IntentloopError, UnavailableError
from intentloop.events import Behaviour, Event

log = logging.getLogger("phones")

BATCH_EVENTS = 60  # a phone hands over earlier than the gateway's limit of 200
DEVICES = ("Redmi K80", "Honor 200", "OPPO Reno13", "vivo S20", "iPhone 15")


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds which phone: fixed by the seed and the number."""

    name: str
    user_id: str
    device_id: str
    device_model: str
    clock_error_ms: int
    switched_on: bool
    device_allowed: bool


def person(number: int, section: PhonesSection) -> Person:
    """Who is the `number`-th shopper of this world?"""
    random = Random(f"person-{section.seed}-{number}")
    skewed = random.random() < section.skewed_ratio
    return Person(
        name=f"p{number:04d}",
        user_id=f"shopper-{section.seed}-{number}",
        device_id=f"device-{section.seed}-{number}",
        device_model=random.choice(DEVICES),
        clock_error_ms=random.choice((-259_200_000, -600_000, 90_000, 3_600_000, 259_200_000)) if skewed else 0,
        switched_on=random.random() >= section.off_ratio,
        device_allowed=random.random() >= section.off_ratio,
    )


class Phone:
    """One phone and its shopper.

    Args:
        run: Number of this start of the process; part of every id.
        finish: Tells that no new visit should begin.
    """

    def __init__(
        self, owner: Person, run: int, section: PhonesSection, tally: Tally, finish: Callable[[], bool]
    ) -> None:
        self.owner = owner
        self._section = section
        self._tally = tally
        self._finish = finish
        self._run = run
        self._random = Random(f"life-{section.seed}-{owner.name}-{run}")
        self._rule = phone.PhoneRule()
        self._state = phone.PhoneState()
        self._pending: list[Event] = []
        self._flushed_ms = 0
        self._numbers = {"event": 0, "batch": 0}
        self._version = ""
        self._enabled = True

    def clock_ms(self) -> int:
        """What does this phone's clock say?"""
        return now_ms() + self.owner.clock_error_ms

    async def live(self, courier: Courier, models: DeviceModels, uplink: Uplink) -> None:
        """Visit after visit, until enough or told to finish."""
        rule = shoppers.ShopperRule(intents=self._section.intents, mixed_ratio=self._section.mixed_ratio)
        await self._pause(self._random.random() * self._section.pause_s)
        visits = 0
        while not self._finish() and (not self._section.visits or visits < self._section.visits):
            await self._update(models, uplink)
            await self._visit(shoppers.session(self._random, rule), courier)
            await self._leave(models)
            self._flush(courier)
            visits += 1
            self._tally.visits += 1
            await self._pause(self._section.pause_s * (0.5 + self._random.random()))

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when everybody is going home."""
        until_ms = now_ms() + seconds * 1000
        while now_ms() < until_ms and not self._finish():
            await asyncio.sleep(min(0.25, max(0.0, (until_ms - now_ms()) / 1000)))

    async def _visit(self, session: shoppers.Session, courier: Courier) -> None:
        for step in session.steps:
            await self._pause(step.gap_ms / 1000 / self._section.time_scale)
            behaviour = phone.behave(step, self._stamp())
            self._state = phone.notice(self._state, behaviour, self._rule)
            self._pending.append(behaviour)
            if len(self._pending) >= BATCH_EVENTS or now_ms() - self._flushed_ms > self._section.flush_s * 1000:
                self._flush(courier)

    async def _leave(self, models: DeviceModels) -> None:
        """The shopper pauses: infer, or say why not."""
        if phone.wants_inference(self._state, self._rule):
            conditions = phone.Conditions(
                switched_on=self.owner.switched_on,
                device_allowed=self.owner.device_allowed and self._enabled,
                model_ready=bool(self._version) and models.is_ready(self._version),
                runtime_free=self._random.random() >= self._section.off_ratio,
            )
            check = phone.failed_check(self._state, conditions, self.clock_ms(), self._rule)
            if check is None:
                await self._infer(models)
            else:
                self._tally.skipped[check] = self._tally.skipped.get(check, 0) + 1
                self._pending.append(phone.skip(check, self._version, self._stamp()))
        self._state = phone.leave(self._state)

    async def _infer(self, models: DeviceModels) -> None:
        question = phone.ask(self._state.window, self._rule)
        said = await models.answer(self._version, question.prompt)
        stamp = self._stamp()
        self._pending.append(phone.report(question, said, stamp))
        self._state = phone.after_inference(self._state, stamp.ts_ms, self._rule)
        self._tally.inferences += 1

    async def _update(self, models: DeviceModels, uplink: Uplink) -> None:
        """Ask what to do and which release to run; a phone that cannot have it stays with the one it has."""
        try:
            config = await uplink.config(self.owner.user_id, self.owner.device_model)
            self._enabled, wanted = config.enabled, config.model_version
            self._rule = msgspec.structs.replace(self._rule, min_views=config.trigger.min_item_views)
            if wanted and wanted != self._version:
                await models.install(wanted, uplink)
                self._version = wanted
                self._tally.versions[self.owner.name] = wanted
        except (UnavailableError, DownloadError) as error:
            log.info("%s stays with release %r: %s", self.owner.name, self._version, error)
        except IntentloopError as error:
            log.warning("%s cannot run a release: %s", self.owner.name, error)

    def _flush(self, courier: Courier) -> None:
        self._flushed_ms = now_ms()
        if not self._pending:
            return
        self._numbers["batch"] += 1
        report = Report(
            batch_id=f"{self.owner.device_id}-{self._run}-b{self._numbers['batch']}",
            user_id=self.owner.user_id,
            device_id=self.owner.device_id,
            device_model=self.owner.device_model,
            app_version="demo-1",
            events=tuple(self._written(event) for event in self._pending),
        )
        courier.put(report, [event.event_id for event in self._pending])
        self._pending = []

    def _written(self, event: Event) -> msgspec.Raw:
        """The event as the app writes it; an app has bugs, and now and then writes a time that is none."""
        text = msgspec.json.encode(event)
        if isinstance(event, Behaviour) and self._random.random() < self._section.broken_ratio:
            text = text.replace(b'"ts_ms":', b'"ts_ms":"soon","was":', 1)
        return msgspec.Raw(text)

    def _stamp(self) -> phone.Stamp:
        self._numbers["event"] += 1
        number = self._numbers["event"]
        seq = self._run * 1_000_000 + number  # an app that starts anew goes on counting
        return phone.Stamp(f"{self.owner.device_id}-{self._run}-{number}", self.clock_ms(), seq)
