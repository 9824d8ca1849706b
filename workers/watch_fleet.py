"""Do the phones of a released version still meet the world that it learnt from? Looks every few seconds.

1. One worker holds the lease `fleet`; the others stand by.
2. A version seen for the first time gets its reference: the mix of the random share that it learnt from.
3. Exact totals of the streams and new labels move the versions' states (`intentloop/fleet_state.py`), mixes are
   judged when a window is full, rates whenever they have new blocks.
4. Each confirmed drift is sent as `loop.fleet-drifted.v1`; its id follows from version, signal and look.
5. Only then are states and label offsets stored, together, if nobody else has stored any since step 3. A crash before
   that looks again, from the same state.

`decide.py` asks the stored state whether the current release has drifted. Not here: drift of one user (`streams/`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from intentloop import fleet_drift, fleet_state, topics
from intentloop.adapters import codec, fleet_detectors, metrics
from intentloop.adapters.broker_epoch import broker_epoch
from intentloop.adapters.clock import now_ms
from intentloop.adapters.fact_reader import FactReader, Record
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.fleet_detectors import DetectorRule
from intentloop.adapters.fleet_store import FleetStore
from intentloop.adapters.leases import Lease
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import ContractError, FencedError
from intentloop.facts import FleetDrifted, FleetSignal, SampleLabelled
from intentloop.fleet_drift import RATES, FleetRule, RateBlocks
from intentloop.fleet_state import FleetState, RateRise

log = logging.getLogger(__name__)

POLL_MS = 500


class FleetSources(msgspec.Struct, frozen=True, kw_only=True):
    """What a look reads and writes: `versions` are the released ones, `totals` the streams' exact counters."""

    store: FleetStore
    producer: FactProducer
    versions: Callable[[], Awaitable[Sequence[str]]]
    totals: Callable[[], Awaitable[dict[str, int]]]


class FleetWatcher:
    """Watches the fleets of all released versions.

    Args:
        kafka: Where the broker is.
        sources: What it reads and writes.
        rule: When a fleet has drifted.
    """

    def __init__(self, kafka: KafkaSection, sources: FleetSources, rule: FleetRule) -> None:
        self._kafka, self._sources, self._rule = kafka, sources, rule

    async def run(self, lease: Lease, interval_s: float, stop: asyncio.Event) -> None:
        """Look while the lease is ours, until told to stop."""
        with ThreadPoolExecutor(1, thread_name_prefix="watch-fleet") as thread:
            while not stop.is_set():
                if await lease.hold():
                    await self._watch(lease, interval_s, stop, thread)
                await _pause(stop, interval_s)
        await lease.release()

    async def _watch(self, lease: Lease, interval_s: float, stop: asyncio.Event, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        epoch = await loop.run_in_executor(thread, broker_epoch, self._kafka, topics.LABELLED)
        offsets = await self._sources.store.offsets(epoch)
        reader = await loop.run_in_executor(thread, FactReader, self._kafka, topics.LABELLED, offsets or {}, epoch)
        log.info("fleets are watched; labels from %s", offsets or "the beginning")
        next_look_s = loop.time()
        try:
            while not stop.is_set() and await lease.hold():
                records = await loop.run_in_executor(thread, reader.poll, POLL_MS)
                if records or loop.time() >= next_look_s:
                    next_look_s = loop.time() + interval_s
                    await self.look(epoch, records, now_ms())
        except FencedError as error:
            log.warning("fleets: stopped without effect: %s", error)
        finally:
            await loop.run_in_executor(thread, reader.close)

    async def look(self, epoch: str, records: Sequence[Record], at_ms: int) -> list[FleetDrifted]:
        """Steps 2 to 5 once, with the labels that came."""
        sources = self._sources
        revision = await sources.store.revision()
        before = await sources.store.states()
        totals = await sources.totals()
        states = {version: before.get(version) or await self._new(version) for version in await sources.versions()}
        for record in records:
            label = _label(record)
            if label is not None and label.sample.model_version in states:
                version = label.sample.model_version
                states[version] = fleet_state.take_label(states[version], label, self._rule)
        drifts: list[FleetDrifted] = []
        for version, state in states.items():
            taken = fleet_state.take_totals(state, fleet_state.version_totals(totals, version), self._rule, at_ms)
            states[version], found = fleet_state.look_at_mixes(taken, self._rule, at_ms)
            drifts.extend(found)
            for signal in RATES:
                states[version], risen = self._look_at_rate(before.get(version), states[version], signal, at_ms)
                drifts.extend(risen)
        await self._tell(drifts)
        changed = {version: state for version, state in states.items() if state != before.get(version)}
        await sources.store.save(changed, epoch, records, revision)
        return drifts

    async def _new(self, version: str) -> FleetState:
        labels = [label async for label in self._sources.store.learnt(version)]
        baseline = fleet_drift.snapshot_baseline(labels, self._rule)
        reference = "its snapshot's random share" if baseline else "its own first window: its snapshot tells too little"
        log.info("fleet of %s is compared with %s (%d labels)", version, reference, len(labels))
        return FleetState(version=version, baseline=baseline)

    def _look_at_rate(
        self, before: FleetState | None, state: FleetState, signal: FleetSignal, at_ms: int
    ) -> tuple[FleetState, list[FleetDrifted]]:
        blocks = state.rates.get(signal, RateBlocks())
        if before is not None and before.rates.get(signal, RateBlocks()).total == blocks.total:
            return state, []
        size = self._rule.block if signal == "format_faults" else self._rule.label_block
        values = fleet_drift.values(blocks, size)
        rise = fleet_detectors.rise(values, DetectorRule(floor=self._rule.rate_floor))
        if rise is None:
            return fleet_state.settle_rate(state, signal, size, self._rule), []
        found = RateRise(rise.before, rise.after, rise.cut, len(values) - rise.cut)
        drift = fleet_state.rate_drifted(state, signal, found, self._rule.rate_floor, at_ms)
        return fleet_state.state_rate(state, drift), [drift]

    async def _tell(self, drifts: Sequence[FleetDrifted]) -> None:
        for drift in drifts:
            log.warning("fleet of %s drifted: %s", drift.model_version, drift.reason)
            await self._sources.producer.send(topics.FLEET_DRIFTED, drift.model_version, drift)
            metrics.FLEET_DRIFTS.labels(drift.signal).inc()


def _label(record: Record) -> SampleLabelled | None:
    """A label that cannot be read is passed over: whoever trains on it has the dead letter."""
    try:
        label: SampleLabelled = codec.read(topics.LABELLED, record.value)
    except ContractError as error:
        log.warning("label %d-%d cannot be read: %s", record.partition, record.offset, error)
        return None
    return label


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
