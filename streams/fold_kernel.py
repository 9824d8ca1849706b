"""How do the events of a whole batch move users' windows? The twin of `intentloop/fold.py` in numbers, compiled.

Envelopes lie as columns, states as rows; `fold_columns.py` lays both out and reads what was found. Each function names
the one that defines it; states and scores are equal to it to the last bit, which tests hold. Not here: what events say
and what follows from them, which stays in Python (`intentloop/findings.py`).
"""

from intentloop.window import CODE_PRIME, MAX_BATCHES, MAX_IDS, MAX_RECENT, THING_PRIME
from streams.code_texts import end_of, is_known, remainder
from streams.columns import (
    APPLIED,
    DRIFTED,
    DRIFTS,
    DUPLICATE,
    ENVELOPE,
    ID_AT,
    ID_END,
    IDS,
    INFERENCE,
    INFERRED,
    LABEL_AT,
    LATE,
    LEFT,
    MOVED,
    NAMED,
    NOISE,
    NOISY,
    NOT_RUN,
    QUARANTINED,
    RECENT,
    REFUSED,
    REJECTED,
    RENEWED,
    REPEAT,
    SKIPPED,
    STILL,
    SWITCHED,
    THING_AT,
    THING_END,
    Columns,
    Rule,
    Work,
)
from streams.keep_compiled import compiled
from streams.pack_states import Integers, States
from streams.track_windows import count_windows, push, score


@compiled
def fold_windows(columns: Columns, states: States, rule: Rule, work: Work) -> None:
    """`fold.fold` of all envelopes, in their order, as far as it moves the window."""
    start = 0
    for number in range(len(columns.envelopes)):
        work.at[ENVELOPE] = number
        row, stop = columns.envelopes[number, 0], columns.envelopes[number, 1]
        renew(columns, states, rule, work)
        resent = is_resent(states, row, columns.envelopes[number, 6])
        open_state(states, row, rule, work)
        for event in range(start, stop):
            step(columns, event, work)
            outcome = DUPLICATE if resent else admit(columns, event, states.clock[row], rule, work)
            work.outcomes[event] = follow(columns, event, states, rule, work) if outcome == APPLIED else outcome
        close_state(states, row, rule, work)
        start = stop


@compiled
def renew(columns: Columns, states: States, rule: Rule, work: Work) -> None:
    """`fold.is_expired`: begin anew with a user of whom nothing new came for long."""
    number = work.at[ENVELOPE]
    row, received_ms = columns.envelopes[number, 0], columns.envelopes[number, 2]
    clock = states.clock[row]
    if clock[1] <= 0 or received_ms - clock[1] < rule.state_ttl_ms:
        return
    for place in range(3):
        clock[place] = 0
    for place in range(5):
        states.sizes[row, place] = 0
    states.armed[row] = 1
    work.renewed[work.at[RENEWED]] = number
    work.at[RENEWED] += 1


@compiled
def is_resent(states: States, row: int, code: int) -> bool:
    """`fold._Work.is_resent`: did this very batch come before? Remembers it."""
    batches, size = states.batches[row], states.sizes[row, 4]
    if is_known(batches, size, code):
        return True
    if size == MAX_BATCHES:
        for place in range(size - 1):
            batches[place] = batches[place + 1]
        size -= 1
    batches[size] = code
    states.sizes[row, 4] = size + 1
    return False


@compiled
def open_state(states: States, row: int, rule: Rule, work: Work) -> None:
    """The start of `fold._Work`: copy what an envelope may make longer than a state keeps it."""
    sizes = states.sizes[row]
    work.at[IDS], work.at[RECENT] = sizes[0], sizes[1]
    for place in range(sizes[0]):
        work.ids[place] = states.ids[row, place]
    for place in range(sizes[1]):
        work.recent[place, 0], work.recent[place, 1] = states.recent[row, place, 0], states.recent[row, place, 1]
    beyond = sizes[2] - rule.window
    if beyond > 0:  # an earlier rule had a wider window
        for place in range(rule.window):
            states.labels[row, place] = states.labels[row, place + beyond]
        sizes[2] = rule.window
    count_windows(states, row, work)


@compiled
def close_state(states: States, row: int, rule: Rule, work: Work) -> None:
    """`fold._Work.result`: keep the newest ids, and the things that can still be repeated."""
    sizes = states.sizes[row]
    sizes[0] = min(work.at[IDS], MAX_IDS)
    oldest = work.at[IDS] - sizes[0]
    for place in range(sizes[0]):
        states.ids[row, place] = work.ids[oldest + place]
    sizes[1] = keep_recent(work.recent, work.at[RECENT], rule.debounce_ms, states.recent[row])


@compiled
def step(columns: Columns, event: int, work: Work) -> None:
    """Go on to the texts and the label of this event, whatever becomes of it."""
    work.at[ID_AT] = work.at[ID_END] + 1
    work.at[ID_END] = end_of(columns.ids, work.at[ID_AT])
    if columns.kinds[event] < NOISE:
        work.at[THING_AT] = work.at[THING_END] + 1
        work.at[THING_END] = end_of(columns.things, work.at[THING_AT])
        work.at[LABEL_AT] += 1


@compiled
def admit(columns: Columns, event: int, clock: Integers, rule: Rule, work: Work) -> int:
    """`fold._Work.is_admitted`: `APPLIED`, or what became of the event instead. Moves the user's clock."""
    envelope = columns.envelopes[work.at[ENVELOPE]]
    received_ms, shift_ms, earliest_ms, latest_ms = envelope[2], envelope[3], envelope[4], envelope[5]
    code = remainder(columns.ids, work.at[ID_AT], work.at[ID_END], 1, CODE_PRIME)
    if is_known(work.ids, work.at[IDS], code):
        return DUPLICATE
    work.ids[work.at[IDS]] = code
    work.at[IDS] += 1
    if columns.kinds[event] == REJECTED:
        return REFUSED
    ts_ms = columns.times[event] + shift_ms
    if not earliest_ms <= ts_ms <= latest_ms:
        return QUARANTINED
    if ts_ms > clock[0]:
        clock[0], clock[1] = ts_ms, received_ms
    elif clock[0] > ts_ms and max(clock[0] - ts_ms, received_ms - clock[1]) > rule.late_grace_ms:
        return LATE
    return APPLIED


@compiled
def follow(columns: Columns, event: int, states: States, rule: Rule, work: Work) -> int:
    """What does an event that counts do? The newest inference makes the window that it saw the reference."""
    kind, row = columns.kinds[event], columns.envelopes[work.at[ENVELOPE], 0]
    if kind == NOISE:
        return NOISY
    if kind == SKIPPED:
        return NOT_RUN
    if kind != INFERENCE:
        return behave(columns, event, states, rule, work)
    ts_ms = columns.times[event] + columns.envelopes[work.at[ENVELOPE], 3]
    if ts_ms < states.clock[row, 2]:
        return INFERRED
    states.clock[row, 2] = ts_ms
    for place in range(states.sizes[row, 2]):
        states.reference[row, place] = states.labels[row, place]
    states.sizes[row, 3], states.armed[row] = states.sizes[row, 2], 1
    count_windows(states, row, work)
    return INFERRED


@compiled
def behave(columns: Columns, event: int, states: States, rule: Rule, work: Work) -> int:
    """`fold._Work.take_behaviour` of one that is no noise."""
    at, envelope = work.at, columns.envelopes[work.at[ENVELOPE]]
    start = columns.actions[columns.kinds[event]]
    thing = remainder(columns.things, at[THING_AT], at[THING_END], start, THING_PRIME)
    repeat, at[RECENT] = is_repeat(work.recent, at[RECENT], thing, columns.times[event] + envelope[3], rule.debounce_ms)
    if repeat:
        return REPEAT
    label = columns.labels[at[LABEL_AT]]
    if label < 0:
        return APPLIED
    push(states, envelope[0], label, rule.window, work)
    return watch(states, envelope[0], rule, work)


@compiled
def watch(states: States, row: int, rule: Rule, work: Work) -> int:
    """`fold._Work.watch_drift`: score the window; note a drift that fires."""
    drift, sizes = work.at[DRIFTS], states.sizes[row]
    found = work.scores[drift]
    kind = score(work.counts, work.at[NAMED], sizes, rule, found)
    if kind == STILL or (kind == MOVED and not found[0] > rule.threshold):
        if found[0] < rule.rearm_below:
            states.armed[row] = 1
        return APPLIED
    if not states.armed[row]:
        return APPLIED
    states.armed[row] = 0
    for place in range(sizes[3]):
        work.windows[drift, 0, place] = states.reference[row, place]
    for place in range(sizes[2]):
        work.windows[drift, 1, place] = states.labels[row, place]
    work.window_sizes[drift, 0], work.window_sizes[drift, 1] = sizes[3], sizes[2]
    work.at[DRIFTS] += 1
    return SWITCHED if kind == LEFT else DRIFTED


@compiled
def is_repeat(recent: Integers, size: int, thing: int, ts_ms: int, window_ms: int) -> tuple[bool, int]:
    """`window.is_repeat`; tells also how many things are remembered now."""
    at, repeat = 0, False
    while at < size and recent[at, 0] != thing:
        at += 1
    if at < size:
        repeat = 0 <= ts_ms - recent[at, 1] <= window_ms
        for place in range(at, size - 1):
            recent[place, 0], recent[place, 1] = recent[place + 1, 0], recent[place + 1, 1]
        size -= 1
    recent[size, 0], recent[size, 1] = thing, ts_ms
    return repeat, size + 1


@compiled
def keep_recent(recent: Integers, size: int, window_ms: int, kept: Integers) -> int:
    """`window.newest_recent`, into `kept`; tells how many."""
    if size == 0:
        return 0
    newest_ms = recent[0, 1]
    for place in range(size):
        newest_ms = max(newest_ms, recent[place, 1])
    since, at, drop = newest_ms - window_ms, 0, -MAX_RECENT
    for place in range(size):
        drop += recent[place, 1] >= since
    for place in range(size):
        if recent[place, 1] < since:
            continue
        if drop > 0:
            drop -= 1
            continue
        kept[at, 0], kept[at, 1] = recent[place, 0], recent[place, 1]
        at += 1
    return at
