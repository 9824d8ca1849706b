import asyncio
import time
from typing import Any, cast

import msgspec
import pytest

from intentloop.adapters import redis_client
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.settings import RedisSection
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import ContractError
from intentloop.training_set import is_golden_user, sample_of
from tests.unit.core_workers.samples import labelled, picked, vote

pytestmark = pytest.mark.anyio
NO_GOLD = 0.0


async def test_a_label_added_twice_is_counted_once(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), NO_GOLD)
        assert await store.add(labelled(1))
        assert not await store.add(labelled(1))
        counts = await store.counts()
        assert (counts.samples, counts.hard, counts.hard_new, counts.labelled) == (1, 1, 1, 1)
        assert counts.cost_yuan == 0.002
        assert counts.keyword_scores == {"3": 1}


async def test_counts_tell_outcomes_classes_and_agreement(redis_section: RedisSection) -> None:
    split = (vote("闲逛"), vote("比价犹豫", "帐篷", teacher="b"))
    failed = (vote("闲逛"), vote("", teacher="b", failure="filtered"))
    browse = (vote("闲逛"), vote("闲逛", teacher="b"))
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), NO_GOLD)
        await store.add(labelled(1))
        await store.add(labelled(2, verdict="unanimous", intent="闲逛", keywords=(), keyword_score=None, votes=browse))
        await store.add(labelled(3, verdict="people", intent="", keywords=(), keyword_score=None, votes=split))
        await store.add(labelled(4, verdict="people", intent="", keywords=(), keyword_score=None, votes=failed))
        await store.add(labelled(5, verdict="dropped", keyword_score=1))
        counts = await store.counts()
        assert counts.outcomes == {"dropped": 1, "hard": 1, "people": 2, "unanimous": 1}
        assert counts.per_class == {"比价犹豫": 1, "闲逛": 1}
        assert (counts.both_voted, counts.agreed, counts.agreement_ratio) == (4, 3, 0.75)
        assert (counts.failed, counts.samples, counts.hard_new) == (1, 2, 1)
        await store.audit()


async def test_the_same_behaviour_trains_once(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), NO_GOLD)
        await store.add(labelled(1))
        twin = msgspec.structs.replace(picked(2), digest=picked(1).digest)
        assert await store.add(labelled(2, sample=twin))
        counts = await store.counts()
        assert (counts.samples, counts.duplicates, counts.labelled) == (1, 1, 2)


async def test_a_person_outranks_the_teachers_in_either_order(redis_section: RedisSection) -> None:
    person = labelled(1, source="person", intent="场景购物", votes=(), keyword_score=None)
    async with connect(redis_section) as redis:
        for name, order in (("x", (labelled(1), person)), ("y", (person, labelled(1)))):
            store = TrainingStore(redis, Keys(f"{redis_section.prefix}{name}"), NO_GOLD)
            for label in order:
                await store.add(label)
            (sample,) = await store.samples()
            assert (sample.intent, sample.source) == ("场景购物", "person")
            assert (await store.counts()).per_class["场景购物"] == 1
            assert (await store.counts()).per_class.get("比价犹豫", 0) == 0


async def test_golden_users_and_golden_digests_never_train(redis_section: RedisSection) -> None:
    ratio = 0.3
    golden = next(number for number in range(100) if is_golden_user(f"u{number}", ratio))
    plain = next(number for number in range(100) if not is_golden_user(f"u{number}", ratio))
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), ratio)
        await store.add(labelled(golden))
        assert (await store.counts()).samples == 0
        await store.add(labelled(golden, source="person"))
        assert [sample.user_id for sample in await store.golden()] == [f"u{golden}"]
        await store.add(labelled(plain))
        assert (await store.counts()).samples == 1
        assert not is_golden_user("other", ratio)
        same = msgspec.structs.replace(sample_of(labelled(plain)), id="made", user_id="other")
        assert await store.add_golden(same)  # the digest leaves the training set
        assert (await store.counts()).samples == 0
        await store.add(labelled(plain, id="again"))
        assert await store.samples() == []
        await store.add(labelled(plain, id="later", sample=picked(plain, user_id="other", digest="another")))
        assert (await store.counts()).samples == 0  # the user is golden now, whatever they read
        await store.audit()


async def test_a_release_uses_up_what_it_learnt_from(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), NO_GOLD)
        for number in range(5):
            await store.add(labelled(number))
        await store.mark_used([picked(number).id for number in range(3)], "v2")
        await store.mark_used([picked(number).id for number in range(3)], "v2")
        counts = await store.counts()
        assert (counts.hard, counts.hard_new) == (5, 2)


async def test_samples_come_in_the_order_of_their_ids(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), NO_GOLD)
        for number in (7, 3, 9, 1):
            await store.add(labelled(number))
        assert [sample.id for sample in await store.samples()] == [f"sample-0-{number}-0" for number in (1, 3, 7, 9)]


async def test_a_lost_sample_is_noticed_before_training(redis_section: RedisSection) -> None:
    keys = Keys(redis_section.prefix)
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, keys, NO_GOLD)
        await store.add(labelled(1))
        await cast(Any, redis).hdel(keys.training, picked(1).id)
        with pytest.raises(ContractError, match="lost something"):
            await store.audit()


async def test_labels_that_come_during_an_audit_are_no_loss_and_a_lost_ledger_entry_is(
    redis_section: RedisSection,
) -> None:
    keys = Keys(redis_section.prefix)
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, keys, NO_GOLD)
        for number in range(700):
            await store.add(labelled(number))

        async def label() -> None:
            for number in range(700, 1_400):
                await store.add(labelled(number))

        labelling = asyncio.create_task(label())
        while not labelling.done():
            await store.audit()
        await labelling
        await cast(Any, redis).hdel(keys.outcomes, labelled(3).id)
        with pytest.raises(ContractError, match="lost something"):
            await store.audit()


async def test_a_full_redis_refuses_and_nothing_is_half_done(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), NO_GOLD)
        await store.add(labelled(1))
        await redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(Exception, match=r"used memory > .maxmemory"):
                await store.add(labelled(2))
            assert (await store.counts()).samples == 1
        finally:
            await redis.config_set("maxmemory", 0)
        await store.add(labelled(2))
        assert (await store.counts()).samples == 2
        await store.audit()


async def test_a_command_that_timed_out_and_ran_twice_counts_once(
    redis_section: RedisSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "SOCKET_TIMEOUT_S", 0.2)
    async with connect(redis_section) as redis:
        store = TrainingStore(redis, Keys(redis_section.prefix), NO_GOLD)
        await store.add(labelled(1))
        await redis.client_pause(500)
        await store.add(labelled(2))
        counts = await store.counts()
        assert (counts.labelled, counts.samples, counts.outcomes, counts.cost_yuan) == (2, 2, {"hard": 2}, 0.004)


async def test_an_export_of_many_samples_lets_others_through(redis_section: RedisSection) -> None:
    keys = Keys(redis_section.prefix)
    async with connect(redis_section) as redis, connect(redis_section) as other:
        store = TrainingStore(redis, keys, NO_GOLD)
        await store.add(labelled(1))
        (value,) = await cast(Any, redis).hvals(keys.training)
        pipeline = redis.pipeline(transaction=False)
        for number in range(20_000):
            pipeline.hset(keys.training, f"copy-{number}", value)
        await pipeline.execute()
        export = asyncio.create_task(_count(store, keys.training))
        waits = []
        while not export.done():
            began = time.monotonic()
            await other.ping()
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.001)
        assert await export == 20_001
        assert sorted(waits)[int(len(waits) * 0.5)] < 0.05


async def _count(store: TrainingStore, key: str) -> int:
    return len({field async for field, _ in store._scan(key)})
