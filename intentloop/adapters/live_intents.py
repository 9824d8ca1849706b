"""What is a shopper after now? One Redis key a user, filled from the triggers on Kafka, gone when it expires.

Streams state triggers for everybody (`stream.intent-triggered.v1`), and drifts (`stream.intent-drifted.v1`), after
which nobody acts on an older intent; this is their reader for the gateway's reranking, so that no other process's state
is looked into. A drift is kept like an intent, as 闲逛. Every gateway reads all of them, and what is kept lives as long
as what was stated last, so reading twice, late, in any order, or in several gateways at once ends in the same intents;
no group, no rebalancing.
"""

import asyncio
import logging
from contextlib import AsyncExitStack

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from intentloop.adapters import codec
from intentloop.adapters.clock import now_ms
from intentloop.adapters.keys import Keys
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import ContractError, UnavailableError
from intentloop.facts import IntentDrifted, TriggerData
from intentloop.rerank import LiveIntent
from intentloop.topics import DRIFTED, TRIGGERED

log = logging.getLogger("live-intents")

_GROUP = "gateway-live-intents"  # only keeps the place to go on from
_PAUSE_S = 2.0
_READ_TIMEOUT_S = 1.0  # a feed must not wait for its order
_KEEP_LATER = """
local stored, ends = redis.call('PEXPIRETIME', KEYS[1]), tonumber(ARGV[2])
if stored < ends or (stored == ends and ARGV[3] == '1') then
  redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[2])
end
"""


class LiveIntents:
    """Reads and keeps live intents.

    Args:
        redis: A client of `redis_client.connect`.
        keys: Names the key of a user.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis, self._keys = redis, keys

    async def get(self, user_id: str) -> LiveIntent | None:
        """What is this user (hashed id) after? None when nothing is known, or it has expired or become stale.

        Raises:
            UnavailableError: Redis does not answer within a second.
        """
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                stored = await self._redis.get(self._keys.live_intent(user_id))
        except (RedisError, OSError, TimeoutError) as error:
            raise UnavailableError(f"live intents in Redis do not answer: {error or 'time-out'}") from error
        live = None if stored is None else msgspec.json.decode(stored, type=LiveIntent)
        return None if live is None or live.intent == "闲逛" else live

    async def put(self, trigger: TriggerData) -> None:
        """Keep what a trigger says until it expires, unless it has expired or what is kept expires later."""
        live = LiveIntent(intent=trigger.intent, keywords=trigger.keywords, expires_at_ms=trigger.expires_at_ms)
        await self._keep(trigger.user_id, live)

    async def forget(self, drift: IntentDrifted) -> None:
        """What was stated before this drift is stale: the mark left here outlives it.

        A trigger of after the drift lives longer than the mark; of the same moment it lives as long, and counts.
        """
        mark = LiveIntent(intent="闲逛", keywords=(), expires_at_ms=drift.stale_until_ms)
        await self._keep(drift.user_id, mark)

    async def _keep(self, user_id: str, live: LiveIntent) -> None:
        if live.expires_at_ms > now_ms():
            key = self._keys.live_intent(user_id)
            names_one = int(live.intent != "闲逛")
            await self._redis.eval(_KEEP_LATER, 1, key, codec.encode(live), live.expires_at_ms, names_one)

    async def follow(self, kafka: KafkaSection) -> None:
        """Keep up with the triggers until cancelled; a broker or Redis that is away is waited for."""
        while True:
            try:
                async with AsyncExitStack() as stack:
                    await self._read(await _started(kafka, stack))
            except (KafkaError, RedisError, OSError) as error:
                log.warning("live intents wait: %s: %s", type(error).__name__, error)
                await asyncio.sleep(_PAUSE_S)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            batches = await consumer.getmany(timeout_ms=1_000, max_records=500)
            for records in batches.values():
                for record in records:
                    await self._take(record.topic, record.value)
            if batches:
                await consumer.commit()  # only now: what was not kept is read again

    async def _take(self, topic: str, value: bytes | None) -> None:
        is_drift = topic.endswith(DRIFTED.name)
        try:
            fact = codec.read(DRIFTED if is_drift else TRIGGERED, value)
        except ContractError as error:
            log.warning("a fact in %s cannot be read: %s", topic, error)
            return
        if is_drift:
            await self.forget(fact)
        else:
            await self.put(fact.data)


async def _started(kafka: KafkaSection, stack: AsyncExitStack) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap,
        group_id=f"{kafka.prefix}{_GROUP}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
        retry_backoff_ms=1_000,
    )
    stack.push_async_callback(consumer.stop)
    await consumer.start()
    consumer.assign(
        [
            TopicPartition(f"{kafka.prefix}{topic.name}", partition)
            for topic in (TRIGGERED, DRIFTED)
            for partition in range(topic.partitions)
        ]
    )
    return consumer
