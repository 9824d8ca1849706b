"""Which rows of one user are one visit? Rows of a data set, cut where the user was idle for half an hour."""

from collections.abc import Iterable

import msgspec

from intentloop.readers import BadRow, Row

ROWS = "rows.json"  # file in the phones' directory
IDLE_MS = 1_800_000  # 30 minutes, the usual cut of web analytics


class Visit(msgspec.Struct, frozen=True):
    """One user's rows in their order, without a pause longer than `IDLE_MS`."""

    user_id: str
    rows: tuple[Row, ...]


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What a file held; `rejections` are the first of the rows that were set aside, `made_up` counts titles."""

    read: int
    rejected: int
    rejections: tuple[BadRow, ...]
    users: int
    visits: int
    made_up: int


def cut(rows: Iterable[Row]) -> list[Visit]:
    """Which visits are these? A user's order is kept; visits are sorted by their first time.

    A time that goes back by more than the pause also starts a visit: a clock was set, and one visit cannot span it.
    """
    by_user: dict[str, list[list[Row]]] = {}
    for row in rows:
        visits = by_user.setdefault(row.user_id, [])
        if not visits or abs(row.ts_ms - visits[-1][-1].ts_ms) > IDLE_MS:
            visits.append([])
        visits[-1].append(row)
    found = [Visit(user_id, tuple(visit)) for user_id, visits in by_user.items() for visit in visits]
    # a user's visits must keep their order even where a clock went back, so the sort key never falls within a user
    latest: dict[str, int] = {}
    keyed: list[tuple[int, int, Visit]] = []
    for number, visit in enumerate(found):
        latest[visit.user_id] = max(latest.get(visit.user_id, 0), visit.rows[0].ts_ms)
        keyed.append((latest[visit.user_id], number, visit))
    return [visit for _, _, visit in sorted(keyed, key=lambda entry: entry[:2])]
