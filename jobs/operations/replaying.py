"""One replay: items, stages, rate, batches, and the report at its end."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Min
from kombu import Connection

from jobs.agent import wire
from jobs.broker.publish import Batch, Delivery, JSONText, Outgoing, encode, open_channel, publish, send
from jobs.core import job_ids, replay, replay_text
from jobs.core.pace import Pace
from jobs.core.stages import StageCounts, Verdict, judge
from jobs.core.words import ItemState, OperationState
from jobs.models import Operation, OperationBatch, OperationEvent, OperationItem, OperationStage
from jobs.operations import rows
from jobs.operations.counting import current_stage, letters_in_words, stage_counts
from jobs.operations.outcomes import report
from jobs.operations.selection import Selection
from jobs.operations.skipping import explain

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from jobs.operations.runner import HoldsDuty

# Letters a batch: one claim, one MULTI, one update. Twice as many gains nothing measurable.
BATCH = 1_000
# Letters at a time before other operations have their turn: less than half a second. Its first batch waits
# for its messages, the others find them made.
STEP = 8 * BATCH
# Bodies of a batch together, so that large ones do not fill the memory.
BATCH_BYTES = 8_000_000
ITEMS_BATCH = 5_000
ITEMS_PAGE = 200_000
# How often outcomes are looked at, in seconds: while waiting for them, and while sending a stage.
LOOK_SECONDS = 0.5


@dataclass(slots=True)
class Prepared:
    """What may go out in a batch, as (item, letter, message, task id, publication id), and what cannot."""

    ready: list[tuple[int, int, Outgoing, str, str]]
    refused: list[tuple[int, int, str]]

    @property
    def messages(self) -> list[Outgoing]:
        """What goes out, in its order."""
        return [outgoing for _, _, outgoing, _, _ in self.ready]

    def stayed(self, refused: Mapping[int, str]) -> list[tuple[int, int, str]]:
        """Return (item, letter, why) of those that the broker refused, by their positions."""
        return [(*self.ready[position][:2], why) for position, why in refused.items()]


@dataclass(slots=True)
class Making:
    """A batch whose messages a second thread makes."""

    chosen: list[tuple[int, int]]
    made: Future[tuple[Prepared, Batch]]
    channel: Any


@dataclass(frozen=True, slots=True)
class Sending:
    """A claimed batch on its way to the broker."""

    number: int
    prepared: Prepared
    delivery: Delivery


class Replaying:
    """One replay as this process carries it out. All that counts is in rows; the rest is pace and caches."""

    def __init__(self, connection: Connection, helper: Executor) -> None:
        self._connection = connection
        self._helper = helper
        self._pace: Pace | None = None
        self._first_item: int | None = None
        self._judged_at: datetime | None = None
        self._quota = 0
        self._page = array("q")
        self._page_at = 0

    def step(self, operation: Operation, *, now: datetime, lease: HoldsDuty) -> float | None:
        """Do one batch of it; return the seconds until the next, None when it has ended or stopped."""
        if operation.started_at is None or operation.carried_out_by != lease.holder:
            self._take_up(operation, now, lease)
        if not operation.is_materialised:
            self._write_items(operation, now, lease)
            return 0.0
        stage = current_stage(operation) if operation.stages else None
        if stage is not None:
            verdict = self._judge_stage(operation, stage, now, lease)
            if verdict == Verdict.STOP:
                return None
            if verdict == Verdict.PASS:
                return 0.0
            if verdict == Verdict.WAIT:
                return LOOK_SECONDS
        limit = STEP if stage is None else min(STEP, self._quota)
        rate = operation.rate_per_second
        if rate is None:
            self._pace = None
        else:
            if self._pace is None:
                self._pace = Pace(at=now)
            if self._pace.allowance(rate_per_second=rate, now=now) < min(limit, max(1, int(rate * 0.1))):
                return self._pace.seconds_until(rate_per_second=rate)
            limit = min(limit, self._pace.allowance(rate_per_second=rate, now=now))
        sent, has_more = self._send_batches(operation, stage, limit=limit, now=now, lease=lease)
        if self._pace is not None and rate is not None:
            self._pace.spend(sent)
        self._quota -= sent
        if has_more:
            return (
                0.0 if self._pace is None or rate is None else self._pace.seconds_until(rate_per_second=rate)
            )
        return self._wait_or_finish(operation, now, lease)

    def finish_batch(self, operation: Operation, batch: OperationBatch, *, now: datetime) -> str:
        """Send a batch that was claimed and perhaps sent; return what was found, in words."""
        # Those that have an outcome were sent, whatever else is known.
        items = OperationItem.objects.filter(
            operation=operation, batch=batch.number, state=ItemState.SENT, pk__gte=batch.first_item_id
        ).filter(pk__lte=batch.last_item_id)
        pairs = list(items.order_by("pk").values_list("pk", "letter_id"))
        if not pairs:
            batch.delete()
            return "none of its letters waits for an outcome any more; none was sent again"
        messages = rows.read_messages(letter_ids=[letter for _, letter in pairs])
        prepared = self._prepare(operation, pairs, messages, replays_made=True)
        key = batch_key(operation, batch.number)
        result = publish(self._connection, prepared.messages, batch_key=key)
        stayed = [*prepared.stayed(result.refused), *prepared.refused]
        self._note_sent(operation, batch.number, stayed, now)
        if result.already_sent:
            return f"all {len(prepared.ready):,} letters had been sent; none was sent again"
        if result.exactly_once:
            return f"none of its {len(prepared.ready):,} letters had been sent; they are now"
        return (
            f"its {len(prepared.ready):,} letters were sent again with the same ids,"
            " because this broker cannot tell whether they had been"
        )

    def _take_up(self, operation: Operation, now: datetime, lease: HoldsDuty) -> None:
        with transaction.atomic():
            if operation.started_at is None:
                _log(
                    operation,
                    now,
                    lease.holder,
                    "started",
                    f"Started: {letters_in_words(operation.selected_count)}",
                )
                operation.started_at = now
            else:
                text = f"Taken over from {operation.carried_out_by}"
                _log(operation, now, lease.holder, "resumed_after_crash", text)
            operation.carried_out_by = lease.holder
            Operation.objects.filter(pk=operation.pk).update(
                started_at=operation.started_at, carried_out_by=lease.holder
            )

    def _write_items(self, operation: Operation, now: datetime, lease: HoldsDuty) -> None:
        """Write the next items; at the end, those of letters that somebody else has taken, as skipped."""
        selection = Selection.from_json(operation.selection)
        if self._page_at >= len(self._page):
            found = selection.queryset().filter(pk__gt=operation.checkpoint_id).order_by("pk")
            ids = found.values_list("pk", flat=True)[:ITEMS_PAGE].iterator(chunk_size=10_000)
            self._page, self._page_at = array("q", ids), 0
        batch = self._page[self._page_at : self._page_at + ITEMS_BATCH].tolist()
        self._page_at += len(batch)
        with transaction.atomic():
            lease.check()
            if batch:
                self._write(operation, selection, batch, now)
                # Only forward: a runner that lost its lease must not move it back.
                Operation.objects.filter(pk=operation.pk, checkpoint_id__lt=batch[-1]).update(
                    checkpoint_id=batch[-1]
                )
                return
        taken = array("q", selection.left_out().order_by("pk").values_list("pk", flat=True).iterator())
        for start in range(0, len(taken), ITEMS_BATCH):
            with transaction.atomic():
                lease.check()
                self._write(operation, selection, taken[start : start + ITEMS_BATCH].tolist(), now)
        with transaction.atomic():
            lease.check()
            count = OperationItem.objects.filter(operation=operation).count()
            Operation.objects.filter(pk=operation.pk).update(
                is_materialised=True,
                changed_count=count,
                # More only when a letter died between the freeze and the count.
                selected_count=max(operation.selected_count, count),
            )

    def _write(
        self, operation: Operation, selection: Selection, letter_ids: list[int], now: datetime
    ) -> None:
        rows.write_items(operation_id=operation.pk, letter_ids=letter_ids, frozen_at=selection.frozen_at)
        self._explain_skipped(operation, letter_ids, now)

    def _explain_skipped(self, operation: Operation, letter_ids: list[int], now: datetime) -> None:
        unexplained = dict(
            OperationItem.objects.filter(
                operation=operation, state=ItemState.SKIPPED, detail="", letter_id__gte=letter_ids[0]
            )
            .filter(letter_id__lte=letter_ids[-1])
            .values_list("letter_id", "pk")
        )
        if unexplained:
            reasons = explain(list(unexplained), operation_id=operation.pk)
            with_words = [(pk, reasons[letter_id]) for letter_id, pk in unexplained.items()]
            for pk, detail in with_words:
                OperationItem.objects.filter(pk=pk).update(detail=detail, ended_at=now)

    def _judge_stage(
        self, operation: Operation, stage: OperationStage, now: datetime, lease: HoldsDuty
    ) -> Verdict:
        """Decide what the stage does. Outcomes are counted twice a second at most, not for every batch."""
        is_fresh = self._judged_at is not None and 0 <= (now - self._judged_at).total_seconds() < LOOK_SECONDS
        if is_fresh and self._quota > 0:
            return Verdict.SEND
        self._judged_at = now
        pending = OperationItem.objects.filter(operation=operation, state=ItemState.PENDING).count()
        counts = stage_counts(operation, stage, pending=pending)
        self._quota = counts.left
        verdict = judge(counts, stop_above_percent=operation.stop_above_percent)
        if verdict == Verdict.STOP:
            self._stop(operation, stage, counts, now, lease)
        elif verdict == Verdict.PASS:
            self._pass_stage(operation, stage, counts, now, lease)
        elif stage.started_at is None:
            with transaction.atomic():
                OperationStage.objects.filter(pk=stage.pk).update(started_at=now)
                size = letters_in_words(counts.left)
                _log(operation, now, lease.holder, "stage", f"Stage {stage.number} started: {size}")
        return verdict

    def _stop(
        self,
        operation: Operation,
        stage: OperationStage,
        counts: StageCounts,
        now: datetime,
        lease: HoldsDuty,
    ) -> None:
        """Stop by itself, unless an operator paused or ended it in the same moment."""
        share = 100 * counts.bad / max(1, counts.finished)
        unknown = f" or have no known outcome ({counts.unknown:,})" if counts.unknown else ""
        text = (
            f"Stopped itself in stage {stage.number}: {counts.bad:,} of {counts.finished:,} died again{unknown},"
            f" {share:.1f} %, limit {operation.stop_above_percent} %. {counts.pending:,} letters are not sent."
        )
        with transaction.atomic():
            lease.check()
            stopped = Operation.objects.filter(pk=operation.pk, state=OperationState.RUNNING).update(
                state=OperationState.STOPPED, outcome=text
            )
            if stopped:
                _log(operation, now, lease.holder, "stopped", text)

    def _pass_stage(
        self,
        operation: Operation,
        stage: OperationStage,
        counts: StageCounts,
        now: datetime,
        lease: HoldsDuty,
    ) -> None:
        with transaction.atomic():
            lease.check()
            if not OperationStage.objects.filter(pk=stage.pk, ended_at=None).update(
                ended_at=now, started_at=stage.started_at or now
            ):
                return
            if counts.finished:
                share = 100 * counts.bad / counts.finished
                text = (
                    f"Stage {stage.number} passed: {counts.bad:,} of {counts.finished:,} died again,"
                    f" {share:.1f} %, limit {operation.stop_above_percent} %"
                )
            else:
                text = f"Stage {stage.number} passed: nothing was left to send"
            _log(operation, now, lease.holder, "passed", text)

    def _send_batches(
        self,
        operation: Operation,
        stage: OperationStage | None,
        *,
        limit: int,
        now: datetime,
        lease: HoldsDuty,
    ) -> tuple[int, bool]:
        """Claim, send and mark up to ``limit`` letters, a batch at a time.

        Returns how many went, and whether some may be left.
        """
        sent = 0
        # The batch that is on its way, and whose row says so until a later transaction.
        sending: Sending | None = None
        making = self._begin(operation, after=0, limit=limit)
        has_more = making is not None
        try:
            while making is not None:
                # Claim this batch while on another core the one before it is sent and the messages of the
                # next one are made: sqlite3, psycopg and the socket let go of the interpreter meanwhile.
                current, planned = making, sent + len(making.chosen)
                prepared, encoded = current.made.result()
                making = self._begin(operation, after=current.chosen[-1][0], limit=limit - planned)
                has_more = making is not None or planned >= limit
                before, sending = sending, None
                went = None if before is None else self._wait_for(operation, before, now)
                batch = self._claim(operation, stage, prepared, went, now, lease)
                if batch is None:
                    break
                number, letters = batch
                if not letters:
                    continue
                if len(letters) < len(prepared.ready):
                    prepared.ready = [row for row in prepared.ready if row[1] in letters]
                    encoded = encode(current.channel, prepared.messages)
                key = batch_key(operation, number)
                delivery = send(self._connection, encoded, self._helper, batch_key=key)
                sent += len(prepared.ready)
                if delivery.is_guarded:
                    sending = Sending(number, prepared, delivery)
                else:
                    # Without a marker, what is not noted at a crash is sent again: keep that short.
                    refused = delivery.wait().refused
                    self._note_sent(operation, number, prepared.stayed(refused), now)
        finally:
            if making is not None:
                making.made.cancel()
            if sending is not None:
                went = self._wait_for(operation, sending, now)
                if went is not None:
                    self._note_sent(operation, went, [], now)
        return sent, has_more

    def _wait_for(self, operation: Operation, sending: Sending, now: datetime) -> int | None:
        """Wait until the broker has a batch; return its number when that is still to be noted."""
        result = sending.delivery.wait()
        if not result.refused:
            return sending.number
        self._note_sent(operation, sending.number, sending.prepared.stayed(result.refused), now)
        return None

    def _begin(self, operation: Operation, *, after: int, limit: int) -> Making | None:
        """Choose the next batch and have its messages made; None when there is none."""
        chosen = self._choose(operation, after=after, limit=min(BATCH, limit)) if limit > 0 else []
        if not chosen:
            return None
        channel = open_channel(self._connection)
        messages = rows.read_messages(letter_ids=[letter for _, letter in chosen])
        made = self._helper.submit(self._make, operation, channel, chosen, messages)
        return Making(chosen, made, channel)

    def _choose(self, operation: Operation, *, after: int, limit: int) -> list[tuple[int, int]]:
        """Return (item, letter) of the next batch, at most BATCH_BYTES of messages, at least one."""
        chosen: list[tuple[int, int]] = []
        size = 0
        for item_id, letter_id, length in rows.next_items(
            operation_id=operation.pk, after=after, limit=limit
        ):
            if chosen and size + length > BATCH_BYTES:
                break
            chosen.append((item_id, letter_id))
            size += length
        return chosen

    def _claim(
        self,
        operation: Operation,
        stage: OperationStage | None,
        prepared: Prepared,
        went: int | None,
        now: datetime,
        lease: HoldsDuty,
    ) -> tuple[int, set[int]] | None:
        """Claim the letters of a batch and mark their items in one transaction; the others are skipped.

        ``went`` is the batch before, which is noted as sent along with it. Returns the batch's number
        and its letters, or None when the operation does not run any more.
        """
        frozen_at = Selection.from_json(operation.selection).frozen_at
        with transaction.atomic():
            if went is not None:
                _forget_batch(operation, went)
            lease.check()
            if not Operation.objects.filter(pk=operation.pk, state=OperationState.RUNNING).exists():
                return None
            letters = rows.claim_letters(
                letter_ids=[letter for _, letter, *_ in prepared.ready], frozen_at=frozen_at, now=now
            )
            if prepared.refused:
                details = [(item, why) for item, _, why in prepared.refused]
                rows.end_items(state=ItemState.REFUSED, details=details, now=now)
            lost = [(item, letter) for item, letter, *_ in prepared.ready if letter not in letters]
            if lost:
                reasons = explain([letter for _, letter in lost], operation_id=operation.pk)
                details = [(item, reasons[letter]) for item, letter in lost]
                rows.end_items(state=ItemState.SKIPPED, details=details, now=now)
            items = [
                (item, task_id, publication_id)
                for item, letter, _, task_id, publication_id in prepared.ready
                if letter in letters
            ]
            if not items:
                return 0, letters
            batch = OperationBatch.objects.create(
                operation=operation,
                number=self._number(operation, items[0][0]),
                first_item_id=items[0][0],
                last_item_id=items[-1][0],
                claimed_at=now,
            )
            number = 0 if stage is None else stage.number
            rows.mark_sent(items=items, batch=batch.number, stage=number, now=now)
        return batch.number, letters

    def _note_sent(
        self, operation: Operation, batch: int, stayed: Sequence[tuple[int, int, str]], now: datetime
    ) -> None:
        """Note that a batch went; what could not go is refused, and its letter dead as before."""
        with transaction.atomic():
            _forget_batch(operation, batch)
            if stayed:
                rows.unclaim_letters(letter_ids=[letter for _, letter, _ in stayed], now=now)
                details = [(item, why) for item, _, why in stayed]
                rows.end_items(state=ItemState.REFUSED, details=details, now=now)

    def _make(
        self,
        operation: Operation,
        channel: Any,
        items: Sequence[tuple[int, int]],
        messages: Mapping[int, rows.MessageRow],
    ) -> tuple[Prepared, Batch]:
        """Prepare and encode; touches neither the database nor the network."""
        prepared = self._prepare(operation, items, messages)
        return prepared, encode(channel, prepared.messages)

    def _prepare(
        self,
        operation: Operation,
        items: Sequence[tuple[int, int]],
        messages: Mapping[int, rows.MessageRow],
        *,
        replays_made: bool = False,
    ) -> Prepared:
        """Build the messages. Ids follow from the operation's seed, so a batch sent twice has the same."""
        seed = str(operation.selection.get("seed", "")).encode()
        published_at = datetime.now().timestamp()  # noqa: DTZ005 - seconds since the epoch have no zone
        is_plain = operation.edited_arguments is None and not operation.keeps_task_id
        always = {
            "retries": ', "retries": 0',
            "eta": ', "eta": null',
            "expires": ', "expires": null',
            wire.PUBLISHED_AT_HEADER: f', "{wire.PUBLISHED_AT_HEADER}": {published_at!r}',
        }
        prepared = Prepared([], [])
        for item_id, letter_id in items:
            row = messages.get(letter_id)
            if row is None:
                continue
            task_id, publication_id = job_ids.derive(seed, item_id)
            if is_plain:
                replays = row[-1] if replays_made else row[-1] + 1
                changed = {
                    **always,
                    "id": f', "id": "{task_id}"',
                    wire.PUBLICATION_HEADER: f', "{wire.PUBLICATION_HEADER}": "{publication_id}"',
                    wire.REPLAY_OF_HEADER: f', "{wire.REPLAY_OF_HEADER}": "{_hyphenated(row[1])}"',
                    wire.REPLAY_ITEM_HEADER: f', "{wire.REPLAY_ITEM_HEADER}": {item_id}',
                    wire.REPLAY_NUMBER_HEADER: f', "{wire.REPLAY_NUMBER_HEADER}": {replays}',
                }
                copied = _copied(row, changed, task_id, operation.target_queue)
                if copied is not None:
                    prepared.ready.append((item_id, letter_id, copied, task_id, publication_id))
                    continue
            letter_uuid, message, replays = _stored(row)
            stamp = {
                wire.PUBLICATION_HEADER: publication_id,
                wire.PUBLISHED_AT_HEADER: published_at,
                wire.REPLAY_OF_HEADER: letter_uuid,
                wire.REPLAY_ITEM_HEADER: item_id,
                wire.REPLAY_NUMBER_HEADER: replays if replays_made else replays + 1,
            }
            try:
                result = replay.prepare(
                    message,
                    new_task_id=task_id,
                    stamp=stamp,
                    target_queue=operation.target_queue,
                    edited_arguments=operation.edited_arguments,
                    keeps_task_id=operation.keeps_task_id,
                )
            except replay.ReplayRefused as refusal:
                prepared.refused.append((item_id, letter_id, str(refusal)))
                continue
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                # Anybody can have sent it: one that nobody foresaw must not hold up all the others.
                logger.exception("operation %s: letter %s cannot be made ready", operation.pk, letter_uuid)
                why = f"Its message cannot be made ready to send ({type(error).__name__}: {error})."
                prepared.refused.append((item_id, letter_id, why))
                continue
            # All but its last part, the task id.
            outgoing = Outgoing(*result[:-1])
            prepared.ready.append((item_id, letter_id, outgoing, result.task_id, publication_id))
        return prepared

    def _number(self, operation: Operation, item_id: int) -> int:
        """Number a batch by its first item's place in the operation.

        An item is claimed once, so two runners that both believe to hold the duty never give two
        batches one number, and one marker.
        """
        if self._first_item is None:
            lowest = OperationItem.objects.filter(operation=operation).aggregate(lowest=Min("pk"))["lowest"]
            self._first_item = lowest or item_id
        return item_id - self._first_item + 1

    def _wait_or_finish(self, operation: Operation, now: datetime, lease: HoldsDuty) -> float | None:
        is_waiting = OperationItem.objects.filter(
            operation=operation, state__in=[ItemState.SENT, ItemState.PENDING]
        ).exists()
        if is_waiting:
            return LOOK_SECONDS
        with transaction.atomic():
            lease.check()
            text = report(operation)
            finished = Operation.objects.filter(pk=operation.pk, state=OperationState.RUNNING).update(
                state=OperationState.FINISHED, ended_at=now, outcome=text
            )
            if finished:
                OperationStage.objects.filter(operation=operation, ended_at=None).update(ended_at=now)
                _log(operation, now, lease.holder, "finished", text)
        return None


def _forget_batch(operation: Operation, number: int) -> None:
    OperationBatch.objects.filter(operation=operation, number=number).delete()


def batch_key(operation: Operation, batch: int) -> str:
    """Return the marker of a batch. The seed keeps apart two databases that share a broker."""
    seed = str(operation.selection.get("seed", ""))[:12]
    return f"jobs.sent.{operation.pk}-{seed}.{batch}"


def _copied(
    row: rows.MessageRow, changed: Mapping[str, str], task_id: str, target_queue: str
) -> Outgoing | None:
    """Return what ``replay.prepare`` would, written over the stored text; None when it takes more than that."""
    _, _, body, content_type, content_encoding, headers, properties, queue, routing_key, exchange, *rest = row
    queue = target_queue or queue or ("" if exchange else routing_key)
    body = bytes(body)
    if not queue or not replay_text.are_plain(properties) or replay.may_have_chord(body, content_type):
        return None
    text = replay_text.headers(headers, changed)
    if text is None:
        return None
    return Outgoing(
        body,
        content_type or "application/data",
        content_encoding or "binary",
        JSONText(text),
        JSONText(f'{{"delivery_mode": 2, "correlation_id": "{task_id}"}}'),
        queue,
        rest[0],
    )


def _stored(row: rows.MessageRow) -> tuple[str, replay.StoredMessage, int]:
    _, letter_uuid, body, content_type, content_encoding, headers, properties, queue, *rest = row
    routing_key, exchange, priority, reason, task_id, replays = rest
    if not queue and not exchange:
        # On the default exchange the routing key is the queue's name.
        queue = routing_key
    message = replay.StoredMessage(
        bytes(body),
        content_type,
        content_encoding,
        _header_values(headers),
        _header_values(properties),
        queue,
        priority,
        reason,
        task_id,
    )
    return _hyphenated(letter_uuid), message, replays


# json.loads looks at its options for every text, and for spaces around it.
_decode = json.JSONDecoder().raw_decode


def _hyphenated(letter_uuid: object) -> str:
    """Write a letter's id as text; SQLite holds 32 digits, PostgreSQL gives a UUID."""
    digits = str(letter_uuid)
    if len(digits) != 32:
        return digits
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _header_values(text: str) -> dict[str, Any]:
    values: dict[str, Any] = _decode(text)[0]
    # Tagged values are rare, and looking for them in every header of 100,000 letters is not cheap.
    if '"__' in text:
        values = wire.from_json_value(values)
    return values


def _log(operation: Operation, now: datetime, holder: str, kind: str, text: str) -> None:
    OperationEvent.objects.create(operation=operation, at=now, actor=holder, kind=kind, text=text[:500])
