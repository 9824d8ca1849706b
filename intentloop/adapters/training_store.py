"""Where is the rolling training set? In Redis, by sample id, beside the golden set and a ledger of every label.

A label is counted once, however often it is added: the ledger, the sets and the tallies move in one script. Counts are
O(1) to read and can be checked against the ledger (`audit`), which stops a training run on a set that lost something.
Exports go by cursor in chunks, so that nobody else waits. Not here: which labels belong where (`training_set.place`).
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from intentloop.adapters import training_scripts
from intentloop.adapters.keys import Keys
from intentloop.errors import ContractError
from intentloop.facts import SampleLabelled
from intentloop.retrain import RunVerdict
from intentloop.training_set import (
    GOLDEN_RATIO,
    TrainingCounts,
    TrainingSample,
    has_failed_vote,
    is_hard,
    place,
    sample_of,
    teachers_agreement,
)

CHUNK = 500  # entries an export asks for at once: well under a millisecond of Redis's time

_encode = msgspec.json.encode
_decode_label = msgspec.json.Decoder(SampleLabelled).decode
_decode_verdict = msgspec.json.Decoder(RunVerdict).decode
_decode_sample = msgspec.json.Decoder(TrainingSample).decode


class TrainingStore:
    """The training set, the golden set and the ledger of labels.

    Args:
        redis: Connected client; its Redis must run with `noeviction` (`redis_client.check_noeviction`).
        keys: Names of keys.
        golden_ratio: Share of users who never train a model; the same in every process.
    """

    def __init__(self, redis: Redis, keys: Keys, golden_ratio: float = GOLDEN_RATIO) -> None:
        self._redis: Any = redis
        self._names = keys
        self._golden_ratio = golden_ratio
        self._keys = [keys.training, keys.training_digests, keys.training_hard, keys.training_used]
        self._keys += [keys.training_fresh, keys.golden, keys.golden_digests, keys.golden_users]
        self._keys += [keys.outcomes, keys.tallies]
        self._scripts: dict[str, Any] = {
            verb: redis.register_script(source) for verb, source in training_scripts.ALL.items()
        }

    async def add(self, labelled: SampleLabelled) -> bool:
        """Book a label and put its sample where it belongs; false when this label is booked already."""
        where = place(labelled, self._golden_ratio)
        golden = _encode(sample_of(labelled)) if where == "golden" else b""
        sample = labelled.sample
        arguments: list[object] = [
            labelled.id,
            ",".join(_tallies(labelled)),
            _encode(labelled),
            where,
            sample.id,
            sample.digest,
        ]
        arguments += [sample.user_id, labelled.intent, int(is_hard(labelled)), labelled.labelled_at_ms]
        arguments += [labelled.source, golden, round(labelled.cost_yuan * 1_000_000), *_tallies(labelled)]
        return bool(await self._scripts["add"](keys=self._keys, args=arguments))

    async def add_golden(self, sample: TrainingSample) -> bool:
        """Put a sample into the golden set; its user and digest never train again. False when the digest is there."""
        arguments = [sample.id, _encode(sample), sample.digest, sample.user_id]
        return bool(await self._scripts["add_golden"](keys=self._keys, args=arguments))

    async def samples(self) -> list[TrainingSample]:
        """Which samples may a model learn from? In the order of their ids, so that a snapshot is re-creatable.

        Disjoint from the golden set by user and by digest, whatever was added when.
        """
        golden = await self.golden()
        users, digests = {sample.user_id for sample in golden}, {sample.digest for sample in golden}
        found = {key: sample_of(_decode_label(value)) async for key, value in self._scan(self._names.training)}
        kept = [sample for sample in found.values() if sample.user_id not in users and sample.digest not in digests]
        return sorted(kept, key=lambda sample: sample.id)

    async def golden(self) -> list[TrainingSample]:
        """Which samples judge a model? In the order of their ids."""
        found = {key: _decode_sample(value) async for key, value in self._scan(self._names.golden)}
        return sorted(found.values(), key=lambda sample: sample.id)

    async def mark_used(self, ids: Sequence[str], version: str) -> None:
        """Remember that release `version` learnt from these samples; they are no longer new."""
        for start in range(0, len(ids), CHUNK):
            await self._scripts["mark_used"](keys=self._keys, args=[version, *ids[start : start + CHUNK]])

    async def record_verdict(self, request_id: str, verdict: RunVerdict, ids: Sequence[str]) -> None:
        """Remember what the gate said of the candidate that learnt from these samples; they stay in the set.

        How many of them are hard and new to the current release is filled in here, for the next decision.
        """
        seen = 0
        for start in range(0, len(ids), CHUNK):
            seen += sum(await self._redis.smismember(self._names.training_fresh, list(ids[start : start + CHUNK])))
        told = _encode(msgspec.structs.replace(verdict, hard_seen=seen))
        await self._redis.hset(self._names.verdicts, request_id, told)

    async def verdicts(self) -> dict[str, RunVerdict]:
        """What did the gate say of each run, by request? The last one to be judged comes last."""
        found = {key: _decode_verdict(value) async for key, value in self._scan(self._names.verdicts)}
        return dict(sorted(found.items(), key=lambda pair: pair[1].judged_at_ms))

    async def counts(self) -> TrainingCounts:
        """What does the set hold, and how did its labels come about?"""
        samples, hard, fresh, golden, labelled, flat = await self._scripts["counts"](keys=self._keys)
        tallies = {flat[at].decode(): int(flat[at + 1]) for at in range(0, len(flat), 2)}
        both, agreed = tallies.get("both_voted", 0), tallies.get("agreed", 0)
        return TrainingCounts(
            samples=samples,
            hard=hard,
            hard_new=fresh,
            per_class=_group(tallies, "class:"),
            golden=golden,
            labelled=labelled,
            outcomes=_group(tallies, "outcome:"),
            failed=tallies.get("failed", 0),
            duplicates=tallies.get("duplicates", 0),
            both_voted=both,
            agreed=agreed,
            agreement_ratio=agreed / both if both else None,
            keyword_scores=_group(tallies, "keyword:"),
            cost_yuan=tallies.get("cost_micro", 0) / 1_000_000,
            revision=tallies.get("revision", 0),
        )

    async def audit(self) -> None:
        """Is everything still there that was ever counted?

        Raises:
            ContractError: ledger, samples and tallies differ; training on what is left would be silent loss.
        """
        before = await self.counts()
        ledger = {label: record async for label, record in self._scan(self._names.outcomes)}  # a cursor may repeat
        after = await self.counts()  # labels may have come meanwhile
        found = Counter(record.decode().split(",")[0].removeprefix("outcome:") for record in ledger.values())
        lost = [
            name for name, count in after.outcomes.items() if not before.outcomes.get(name, 0) <= found[name] <= count
        ]
        if lost or sum(after.per_class.values()) != after.samples:
            raise ContractError(
                f"the training set lost something: ledger {dict(found)} against tallies {dict(after.outcomes)}, "
                f"{after.samples} samples against classes {dict(after.per_class)}; "
                "rebuild it by replaying label.sample-labelled.v1"
            )

    async def _scan(self, key: str) -> AsyncIterator[tuple[str, bytes]]:
        """Every field of a hash, in chunks; a field that changes meanwhile may come twice."""
        async for field, value in self._redis.hscan_iter(key, count=CHUNK):
            yield field.decode(), value


def _tallies(labelled: SampleLabelled) -> list[str]:
    """Which counts does this label move? The outcome goes first; the ledger keeps the same list."""
    names = ["outcome:person" if labelled.source == "person" else f"outcome:{labelled.verdict}"]
    if labelled.source == "person":
        return names
    agreement = teachers_agreement(labelled)
    if agreement is not None:
        names.append("both_voted")
    if agreement:
        names.append("agreed")
    if has_failed_vote(labelled):
        names.append("failed")
    if labelled.keyword_score is not None:
        names.append(f"keyword:{labelled.keyword_score}")
    return names


def _group(tallies: dict[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in sorted(tallies.items()) if name.startswith(prefix)}
