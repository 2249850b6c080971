"""Puts a batch on Redis whole or not at all, and at most once for its key.

Either in a MULTI, guarded by WATCH on its marker, or for a few messages in one script: a round trip
instead of three, for somebody who waits.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import redis

from jobs.broker.outgoing import PublishResult
from jobs.errors import BrokerUnavailable

if TYPE_CHECKING:
    from jobs.broker.publish import Batch

# How long a batch is known to have been sent. A runner that was stopped for longer sends it again.
MARKER_SECONDS = 7 * 24 * 3600
# How long somebody else's batch counts as sent: longer than anybody who began to send it can take.
FENCE_SECONDS = 900
# Up to so many messages are sent by the script.
SCRIPT_MESSAGES = 50
# A marker that says who sends a batch's messages now: not whoever has it, and perhaps in several batches.
_FENCE = b"fence"
_WATCH_TRIES = 5


def push(
    channel: Any,
    batch: Batch,
    batch_key: str | None,
    *,
    marker_seconds: int = MARKER_SECONDS,
    fences: Collection[str] = (),
) -> PublishResult:
    """Run the commands of a batch, see ``publish``."""
    client = _client(channel)
    prefix = channel.global_keyprefix
    if batch_key is not None and not fences and not batch.others and len(batch.messages) <= SCRIPT_MESSAGES:
        return _run_script(client, prefix, batch, batch_key, marker_seconds)
    for _ in range(_WATCH_TRIES):
        try:
            return _run_multi(client, prefix, batch, batch_key, marker_seconds, fences)
        except redis.WatchError:
            # Somebody set the marker, or the connection broke while EXEC was on its way. The
            # marker tells which.
            continue
    raise BrokerUnavailable(
        f"Redis did not take batch {batch_key} in {_WATCH_TRIES} tries. Trying again is safe."
    )


def sent_keys(channel: Any, keys: Collection[str]) -> set[str]:
    """Return those of the batch keys whose batch was sent under its own key."""
    ordered = list(keys)
    found: Any = _client(channel).mget([f"{channel.global_keyprefix}{key}" for key in ordered])
    return {key for key, value in zip(ordered, found, strict=True) if value not in (None, _FENCE)}


def _run_multi(
    client: Any,
    prefix: str,
    batch: Batch,
    batch_key: str | None,
    marker_seconds: int,
    fences: Collection[str],
) -> PublishResult:
    marker = None if batch_key is None else f"{prefix}{batch_key}"
    guards = {f"{prefix}{key}": key for key in fences}
    watched = [*([] if marker is None else [marker]), *guards]
    with client.pipeline(transaction=True) as pipe:
        if watched:
            pipe.watch(*watched)
            known = dict(zip(watched, pipe.mget(watched), strict=True))
            state = None if marker is None else known[marker]
            if batch_key is not None and state is not None:
                return _was_sent(client, prefix, batch, batch_key, state)
            if fenced := frozenset(key for name, key in guards.items() if known[name] not in (None, _FENCE)):
                return PublishResult(fenced=fenced, exactly_once=True)
            pipe.multi()
            if marker is not None:
                pipe.set(marker, int(time.time()), ex=marker_seconds)
            for name in guards:
                pipe.set(name, _FENCE, ex=FENCE_SECONDS)
        for key, payloads in batch.pushes.items():
            # One LPUSH with many values leaves the list as many LPUSHes do.
            pipe.lpush(f"{prefix}{key}", *payloads)
        for name, key, *args in batch.others:
            getattr(pipe, name)(f"{prefix}{key}", *args)
        # A command that fails within a MULTI undoes nothing of the others.
        results = pipe.execute(raise_on_error=False)
    failed = {
        key: f"Redis did not take it: {result}."
        for key, result in zip(batch.pushes, results[len(watched) :], strict=False)
        if isinstance(result, Exception)
    }
    if failed:
        batch.refuse_pushes(failed)
    return PublishResult(exactly_once=marker is not None, refused=batch.refused)


_SCRIPT = """
local state = redis.call('GET', KEYS[1])
if state then return state end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
local failed = {}
local at = 3
for number = 2, #KEYS do
  local last = at + tonumber(ARGV[at])
  for each = at + 1, last do
    local answer = redis.pcall('LPUSH', KEYS[number], ARGV[each])
    if type(answer) == 'table' and answer.err then
      failed[#failed + 1] = number - 2
      failed[#failed + 1] = answer.err
      break
    end
  end
  at = last + 1
end
return failed
"""


def _run_script(client: Any, prefix: str, batch: Batch, batch_key: str, marker_seconds: int) -> PublishResult:
    arguments: list[Any] = [int(time.time()), marker_seconds]
    for payloads in batch.pushes.values():
        arguments += (len(payloads), *payloads)
    keys = [f"{prefix}{batch_key}", *(f"{prefix}{key}" for key in batch.pushes)]
    answer = client.register_script(_SCRIPT)(keys=keys, args=arguments)
    if not isinstance(answer, list):
        return _was_sent(client, prefix, batch, batch_key, answer)
    if answer:
        names = list(batch.pushes)
        batch.refuse_pushes(
            {
                names[number]: f"Redis did not take it: {_words(error)}."
                for number, error in zip(answer[::2], answer[1::2], strict=True)
            }
        )
    return PublishResult(exactly_once=True, refused=batch.refused)


def _was_sent(client: Any, prefix: str, batch: Batch, batch_key: str, state: bytes) -> PublishResult:
    """Say what a marker that is there means: sent under this key, or taken over by somebody else."""
    if state == _FENCE:
        return PublishResult(fenced=frozenset([batch_key]), exactly_once=True)
    batch.refuse_pushes(_no_lists(client, prefix, batch))
    return PublishResult(already_sent=True, exactly_once=True, refused=batch.refused)


def _words(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _client(channel: Any) -> Any:
    """Return a client that leaves keys as they are: kombu's, or with a prefix, of which it knows some commands only, another."""
    return redis.Redis(connection_pool=channel.pool) if channel.global_keyprefix else channel.client


def _no_lists(client: Any, prefix: str, batch: Batch) -> dict[str, str]:
    """Return why the lists did not take a batch that was sent: their keys are something else."""
    with client.pipeline(transaction=False) as pipe:
        for key in batch.pushes:
            pipe.type(f"{prefix}{key}")
        kinds = [kind.decode() if isinstance(kind, bytes) else str(kind) for kind in pipe.execute()]
    return {
        key: f"Redis did not take it: the key {key} is a {kind} and no list."
        for key, kind in zip(batch.pushes, kinds, strict=True)
        if kind not in ("list", "none")
    }
