"""What Redis does in one step: may this job start now, and if not, when shall it come back.

Two guards. The **rate** is a token bucket in the form of GCRA: ``tat``, the moment at which the bucket is
full again, is all it keeps. The **seats** are a sorted set of holders by the end of their lease.

Beside each guard runs a **virtual queue**, of which only the tail is kept: a job that is held back gets the
next moment at its end, so that held jobs come back one by one at the limit's pace instead of asking again
and again. A moment is a turn, not a promise: the guard decides when the job is there. Jobs that come for
the first time stand behind those that wait, unless what they ask for would be lost.

Source: "ATM Forum Traffic Management Specification 4.1", section 4.4, for GCRA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.commands.core import Script

# A worker is never exactly on time. A bucket of so many seconds' worth of jobs lets late ones catch up;
# it is also how far a burst goes above the pace: 2 % over ten seconds.
TOLERANCE_SECONDS = 0.2
# The same for slow rates, as a part of the time between two jobs: less than one, so never two at once. A job
# that is late by more than the tolerance costs a later one its turn, which at a slow rate is a long time.
TOLERANCE_INTERVALS = 0.5
# After so long a turn that nobody took is over: its job stands at the end again. Retries and replays
# carry the turn of an earlier life.
STALE_TURN_SECONDS = 30.0
# Jobs that wait for a seat come back twice as often as seats are expected to become free: fewer turns
# leave seats empty between two jobs, more cost publications.
TURNS_A_SEAT = 2.0
# Runtime taken for the first jobs of a limit: too short mends itself at the first turns, too long makes a
# backlog wait for seats that are free. And the least: below it, publishing costs more than running.
FIRST_RUNTIME_SECONDS = 0.05
LEAST_RUNTIME_SECONDS = 0.02
# Numbers of a limit that nobody uses are kept so long, for the runtime; rates and seats need less.
KEEP_SECONDS = 600.0

# Times are microseconds, since the epoch or as lengths. Numbers of Lua are exact up to 2^53.
_ADMIT = """
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local interval, tolerance = tonumber(ARGV[2]), tonumber(ARGV[3])
local seats, lease, holder = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local turn, longest = tonumber(ARGV[7]), tonumber(ARGV[8])
local stale, keep, first_runtime, least_runtime, turns_a_seat = $constants

-- Of a turn in the far future or past nothing is known here.
if turn < now - stale or turn > now + longest then
    turn = 0
end
-- It came before its turn: the clock of the worker that sent it, or of this one, is off.
if turn > now + 100000 then
    return {0, turn - now, turn}
end

local found = redis.call('HMGET', KEYS[1], 'tat', 'tail', 'seat_tail', 'runtime', 'moved')
-- No honest value lies further ahead. A larger one is of a slower rate before a deployment, or of a server
-- whose clock was ahead.
local tat = math.min(tonumber(found[1]) or 0, now + tolerance + interval)
local tail = math.min(tonumber(found[2]) or 0, now + longest)
local seat_tail = math.min(tonumber(found[3]) or 0, now + longest)
local moved = math.min(tonumber(found[5]) or 0, now)
local tail_before, seat_tail_before = tail, seat_tail

-- The last of a queue, whose turn this is, leaves it; then it keeps its place when it has to wait again.
local function behind(last, step, soonest)
    if turn > 0 and turn >= last - 1000 then
        return soonest
    end
    return math.max(last + step, soonest)
end

local held, back = false, now
if interval > 0 then
    -- A full bucket gives away what it would lose.
    local is_next = turn > 0 or tail <= now or tat <= now
    if not is_next or tat - tolerance > now then
        held = true
        -- When the bucket is half full, so that the job may come a little early or late.
        tail = behind(tail, interval, math.max(tat - tolerance / 2, now))
        back = math.max(back, tail)
    end
end
if seats > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
    local runtime = math.max(tonumber(found[4]) or first_runtime, least_runtime)
    local step = runtime / seats / turns_a_seat
    local is_next = turn > 0 or seat_tail <= now or now - moved >= step
    if not is_next or redis.call('ZCARD', KEYS[2]) >= seats then
        held = true
        -- While no seat becomes free the waiting grows, by half of what it already is.
        local growth = moved > 0 and (now - moved) / 2 or 0
        seat_tail = behind(seat_tail, step, now + math.max(step, math.min(growth, longest / 2)))
        back = math.max(back, seat_tail)
    end
end

-- Too far away to wait for: no turn, and the queue grows no longer.
local is_too_far = held and back - now > longest
if is_too_far then
    tail, seat_tail = tail_before, seat_tail_before
end
if not held then
    if interval > 0 then
        tat = math.max(tat, now) + interval
    end
    if seats > 0 then
        redis.call('ZADD', KEYS[2], now + lease, holder)
        redis.call('PEXPIRE', KEYS[2], math.ceil(lease / 1000) + 1000)
        moved = now
    end
end
local function number(value)
    return string.format('%.3f', value)
end
redis.call('HSET', KEYS[1], 'tat', number(tat), 'tail', number(tail))
if seats > 0 then
    redis.call('HSET', KEYS[1], 'seat_tail', number(seat_tail), 'moved', number(moved))
end
local last = math.max(tat, tail, seat_tail, now)
redis.call('PEXPIRE', KEYS[1], math.ceil((last - now + (seats > 0 and keep or 1000000)) / 1000))
if is_too_far then
    return {0, longest, 0}
end
if held then
    return {0, math.ceil(back - now), math.ceil(back)}
end
return {1, 0, 0}
"""

# Whoever still runs holds its seat, even when the lease ran out in between: the number tells the truth.
_RENEW = """
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local lease = tonumber(ARGV[2])
local was_held = redis.call('ZSCORE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[1], now + lease, ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(lease / 1000) + 1000)
return (was_held and tonumber(was_held) > now) and 1 or 0
"""

_RELEASE = """
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local ran, keep = tonumber(ARGV[3]), tonumber(ARGV[4])
redis.call('ZREM', KEYS[2], ARGV[2])
local before = tonumber(redis.call('HGET', KEYS[1], 'runtime'))
local runtime = before and (before * 0.8 + ran * 0.2) or ran
redis.call('HSET', KEYS[1], 'runtime', string.format('%.0f', runtime), 'moved', string.format('%.3f', now))
-- Only ever longer: a queue may reach further than this.
if redis.call('PTTL', KEYS[1]) < keep / 1000 then
    redis.call('PEXPIRE', KEYS[1], math.ceil(keep / 1000))
end
return 1
"""

# In the text, so that they do not travel with each call.
_CONSTANTS = ", ".join(
    f"{number:.0f}"
    for number in (
        STALE_TURN_SECONDS * 1e6,
        KEEP_SECONDS * 1e6,
        FIRST_RUNTIME_SECONDS * 1e6,
        LEAST_RUNTIME_SECONDS * 1e6,
        TURNS_A_SEAT,
    )
)


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the numbers and the seats of one limit are kept."""

    numbers: str
    seats: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a job may start. If not: seconds until it shall come back, and its turn.

    ``turn`` is in seconds since the epoch, by the clock of Redis; None when it got none.
    """

    is_admitted: bool
    wait_seconds: float = 0.0
    turn: float | None = None


class Scripts:
    """The scripts of one Redis. ``now``, in seconds since the epoch, is for tests; Redis's own clock else."""

    def __init__(self, client: redis.Redis) -> None:
        self._admit = client.register_script(_ADMIT.replace("$constants", _CONSTANTS))
        self._renew = client.register_script(_RENEW)
        self._release = client.register_script(_RELEASE)

    def admit(
        self,
        keys: Keys,
        *,
        interval_seconds: float,
        seats: int,
        lease_seconds: float,
        holder: str,
        turn: float | None,
        longest_hold_seconds: float,
        now: float | None = None,
    ) -> Answer:
        """Let a job start, and count it, or say when it shall come back.

        ``interval_seconds`` or ``seats`` may be zero, for no such limit.
        """
        tolerance = max(TOLERANCE_SECONDS, interval_seconds * TOLERANCE_INTERVALS)
        admitted, wait, given = _call(
            self._admit,
            (keys.numbers, keys.seats),
            _moment(now),
            interval_seconds * 1e6,
            tolerance * 1e6,
            seats,
            lease_seconds * 1e6,
            holder,
            (turn or 0.0) * 1e6,
            longest_hold_seconds * 1e6,
        )
        if admitted:
            return Answer(is_admitted=True)
        return Answer(is_admitted=False, wait_seconds=wait / 1e6, turn=given / 1e6 if given else None)

    def renew(self, keys: Keys, *, holder: str, lease_seconds: float, now: float | None = None) -> bool:
        """Hold a seat for another lease; say whether it was still held."""
        return bool(_call(self._renew, (keys.seats,), _moment(now), lease_seconds * 1e6, holder))

    def release(self, keys: Keys, *, holder: str, ran_seconds: float, now: float | None = None) -> None:
        """Free a seat, and note how long its job ran."""
        _call(
            self._release,
            (keys.numbers, keys.seats),
            _moment(now),
            holder,
            ran_seconds * 1e6,
            KEEP_SECONDS * 1e6,
        )


def _call(script: Script, keys: Sequence[str], *arguments: str | float) -> Any:
    return script(keys=keys, args=arguments)


def _moment(now: float | None) -> str:
    return "" if now is None else f"{now * 1e6:.0f}"
