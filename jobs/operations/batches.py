"""The batches of a replay: chosen, made, claimed, sent and noted, each step of one beside that of another."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Min
from kombu import Connection

from jobs.broker.publish import Batch, Delivery, encode, open_channel, publish, send
from jobs.core.words import ItemState, OperationState
from jobs.models import Operation, OperationBatch, OperationItem, OperationStage
from jobs.operations import rows
from jobs.operations.messages import Prepared, prepare
from jobs.operations.selection import Selection
from jobs.operations.skipping import explain

if TYPE_CHECKING:
    from jobs.operations.runner import HoldsDuty

# Letters a batch: one claim, one MULTI, one update. Twice as many gains nothing measurable.
BATCH = 1_000
# Bodies of a batch together, so that large ones do not fill the memory.
BATCH_BYTES = 8_000_000


@dataclass(slots=True)
class Making:
    """A batch whose messages a second thread makes."""

    size: int
    last_item_id: int
    made: Future[tuple[Prepared, Batch]]
    channel: Any


@dataclass(frozen=True, slots=True)
class Sending:
    """A claimed batch on its way to the broker."""

    number: int
    prepared: Prepared
    delivery: Delivery


class Batches:
    """Sends the letters of one replay, a batch at a time. What was claimed and perhaps sent is in rows."""

    def __init__(self, connection: Connection, helper: Executor) -> None:
        self._connection = connection
        self._helper = helper
        self._first_item: int | None = None

    def send(
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
                current, planned = making, sent + making.size
                prepared, encoded = current.made.result()
                making = self._begin(operation, after=current.last_item_id, limit=limit - planned)
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

    def finish(self, operation: Operation, batch: OperationBatch, *, now: datetime) -> str:
        """Send a batch that was claimed and perhaps sent; return what was found, in words."""
        # Those that have an outcome were sent, whatever else is known.
        stored = rows.sent_messages(
            operation_id=operation.pk,
            batch=batch.number,
            first_item_id=batch.first_item_id,
            last_item_id=batch.last_item_id,
        )
        if not stored:
            batch.delete()
            return "none of its letters waits for an outcome any more; none was sent again"
        prepared = prepare(operation, stored, replays_made=True)
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

    def _wait_for(self, operation: Operation, sending: Sending, now: datetime) -> int | None:
        """Wait until the broker has a batch; return its number when that is still to be noted."""
        result = sending.delivery.wait()
        if not result.refused:
            return sending.number
        self._note_sent(operation, sending.number, sending.prepared.stayed(result.refused), now)
        return None

    def _begin(self, operation: Operation, *, after: int, limit: int) -> Making | None:
        """Read the next batch and have its messages made; None when there is none."""
        if limit <= 0:
            return None
        stored = rows.pending_messages(
            operation_id=operation.pk, after=after, limit=min(BATCH, limit), limit_bytes=BATCH_BYTES
        )
        if not stored:
            return None
        channel = open_channel(self._connection)
        made = self._helper.submit(_make, operation, channel, stored)
        return Making(len(stored), stored[-1][0], made, channel)

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

    def _number(self, operation: Operation, item_id: int) -> int:
        """Number a batch by its first item's place in the operation.

        An item is claimed once, so two runners that both believe to hold the duty never give two
        batches one number, and one marker.
        """
        if self._first_item is None:
            lowest = OperationItem.objects.filter(operation=operation).aggregate(lowest=Min("pk"))["lowest"]
            self._first_item = lowest or item_id
        return item_id - self._first_item + 1


def _make(operation: Operation, channel: Any, stored: Sequence[rows.MessageRow]) -> tuple[Prepared, Batch]:
    """Prepare and encode; touches neither the database nor the network."""
    prepared = prepare(operation, stored)
    return prepared, encode(channel, prepared.messages)


def _forget_batch(operation: Operation, number: int) -> None:
    OperationBatch.objects.filter(operation=operation, number=number).delete()


def batch_key(operation: Operation, batch: int) -> str:
    """Return the marker of a batch. The seed keeps apart two databases that share a broker."""
    seed = str(operation.selection.get("seed", ""))[:12]
    return f"jobs.sent.{operation.pk}-{seed}.{batch}"
