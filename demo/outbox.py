"""Which batches has a phone not got rid of yet? A small database on disk, as an app has one.

What is in here survives `kill -9` of the phones' process, and it is the demo's account of what was sent: every event id
once, acknowledged or not. Not here: sending (`uplink.py`).
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

_SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, batch_id TEXT UNIQUE, phone TEXT, body BLOB, acknowledged INTEGER DEFAULT 0);
CREATE INDEX IF NOT EXISTS unsent ON batches (acknowledged, phone, number);
CREATE TABLE IF NOT EXISTS events (event_id TEXT PRIMARY KEY, batch_id TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (batch_id TEXT PRIMARY KEY, reason TEXT);
CREATE TABLE IF NOT EXISTS runs (number INTEGER PRIMARY KEY);
"""


class Batch(msgspec.Struct, frozen=True):
    """One batch as it waits: `body` is the phone's JSON, the same bytes at every attempt."""

    batch_id: str
    phone: str
    body: bytes


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What phones handed over: distinct event ids, batches, how many wait, how many were refused for good."""

    events: int
    batches: int
    waiting: int
    refused: int


class Outbox:
    """All phones' unsent batches in one file; used from one thread.

    Args:
        path: The database; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None, timeout=20.0)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing; only a power cut might
        self._database.executescript(_SCHEMA)

    def next_run(self) -> int:
        """Which run of the process is this? Ids carry it, so that a restarted process never reuses one."""
        return int(self._database.execute("INSERT INTO runs DEFAULT VALUES").lastrowid or 0)

    def knows(self, batch_id: str) -> bool:
        """Was this batch added before, whatever became of it?"""
        found = self._database.execute("SELECT 1 FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
        return found is not None

    def add(self, batch: Batch, event_ids: Sequence[str]) -> None:
        """Keep one batch until it is acknowledged."""
        with self._database:
            self._database.execute("BEGIN")
            self._database.execute(
                "INSERT INTO batches (batch_id, phone, body) VALUES (?, ?, ?)",
                (batch.batch_id, batch.phone, batch.body),
            )
            self._database.executemany(
                "INSERT OR IGNORE INTO events VALUES (?, ?)", [(event_id, batch.batch_id) for event_id in event_ids]
            )

    def phones(self) -> list[str]:
        """Which phones have something to send?"""
        return [row[0] for row in self._database.execute("SELECT DISTINCT phone FROM batches WHERE acknowledged = 0")]

    def first(self, phone: str) -> Batch | None:
        """Which batch of this phone goes next? The oldest: a phone's batches keep their order."""
        row = self._database.execute(
            "SELECT batch_id, phone, body FROM batches WHERE acknowledged = 0 AND phone = ? ORDER BY number LIMIT 1",
            (phone,),
        ).fetchone()
        return Batch(*row) if row else None

    def acknowledge(self, batch_id: str) -> None:
        """The gateway has it."""
        self._database.execute("UPDATE batches SET acknowledged = 1, body = NULL WHERE batch_id = ?", (batch_id,))

    def refuse(self, batch_id: str, reason: str) -> None:
        """The gateway will never take it; sending it again is no use."""
        with self._database:
            self._database.execute("BEGIN")
            self._database.execute("UPDATE batches SET acknowledged = 2 WHERE batch_id = ?", (batch_id,))
            self._database.execute("INSERT OR IGNORE INTO refused VALUES (?, ?)", (batch_id, reason))

    def sent(self) -> Sent:
        """What was handed over so far?"""
        return _count(self._database)

    def close(self) -> None:
        """Give the file back."""
        self._database.close()


def read_sent(path: Path) -> Sent:
    """What does the outbox of another process say? Zeros before there is one."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20.0)) as database:
            return _count(database)
    except sqlite3.OperationalError:  # not there, or its tables are being made
        return Sent(events=0, batches=0, waiting=0, refused=0)


def _count(database: sqlite3.Connection) -> Sent:
    events, batches, waiting, refused = database.execute(
        "SELECT (SELECT count(*) FROM events), count(*), coalesce(sum(acknowledged = 0), 0), "
        "coalesce(sum(acknowledged = 2), 0) FROM batches"
    ).fetchone()
    return Sent(events=events, batches=batches, waiting=waiting, refused=refused)
