"""What a test enqueued, and assertions about it whose failures can be read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from celery import Celery

from jobs import conf
from jobs.agent.wire import IDEMPOTENCY_HEADER
from jobs.core.arguments import bind
from jobs.core.masking import DEFAULT_KEYS, mask
from jobs.testing.standins import StoredMessage, application_of, moment

# An ETA that comes from a countdown is a little later than the test that computes it.
ETA_TOLERANCE = timedelta(seconds=2)
# As long as a line may be; the rest is cut.
_SHOWN = 200
_LISTED = 20
# Not given, where None is a value.
_ANY: Any = object()


@dataclass(frozen=True, slots=True, eq=False)
class EnqueuedJob:
    """A job as its message says it: ``args`` and ``kwargs`` went through the serializer and back."""

    task: str
    task_id: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    key: str
    eta: datetime | None
    expires_at: datetime | None
    priority: int | None
    # How often it ran before: 0 for the first attempt.
    retries: int
    headers: dict[str, Any]
    message: StoredMessage = field(repr=False)
    # By the names of the task's parameters, where the task is known.
    arguments: dict[str, Any] = field(default_factory=dict)
    # Why the body cannot be read; empty when it can.
    problem: str = ""

    @classmethod
    def read(cls, message: StoredMessage) -> EnqueuedJob:
        """Read a message; a body that cannot be read has a ``problem`` and no arguments."""
        headers = message.headers
        task = str(headers.get("task", ""))
        app = application_of(task, message.app)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        problem = ""
        try:
            payload = message.decode(app)
            args, kwargs = list(payload[0]), dict(payload[1])
        except Exception as error:  # noqa: BLE001 (any decoder may fail in its own way; it is shown)
            problem = f"{type(error).__name__}: {error}"
        return cls(
            task=task,
            task_id=str(headers.get("id", "")),
            args=args,
            kwargs=kwargs,
            queue=message.queue,
            key=str(headers.get(IDEMPOTENCY_HEADER) or ""),
            eta=moment(headers.get("eta")),
            expires_at=moment(headers.get("expires")),
            priority=message.properties.get("priority"),
            retries=int(headers.get("retries") or 0),
            headers=headers,
            message=message,
            arguments=_bound(app, task, args, kwargs),
            problem=problem,
        )

    def __str__(self) -> str:
        parts = [f"{self.task}({self.shown_arguments()})", f"queue={self.queue}"]
        if self.key:
            parts.append(f"key={self.key}")
        if self.eta is not None:
            parts.append(f"eta={self.eta.isoformat()}")
        if self.problem:
            parts.append(f"[its body cannot be read: {self.problem}]")
        return "  ".join(parts)

    def shown_arguments(self) -> str:
        """Return the arguments in one line, masked by name as on the pages."""
        shown = mask(self.arguments, (*DEFAULT_KEYS, *conf.current().masked_keys))
        text = ", ".join(
            repr(value) if name.isdecimal() else f"{name}={value!r}" for name, value in shown.items()
        )
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


class Enqueued(Sequence[EnqueuedJob]):
    """The jobs that a test enqueued, in their order: those that ran as well, but no retries and no holds.

    Jobs of a transaction that is rolled back are not among them.
    """

    def __init__(self, read: Callable[[], Sequence[EnqueuedJob]]) -> None:
        # Read anew each time, so that one object may be held for the whole test.
        self._read = read

    @property
    def _jobs(self) -> Sequence[EnqueuedJob]:
        return self._read()

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __iter__(self) -> Iterator[EnqueuedJob]:
        return iter(self._jobs)

    def __repr__(self) -> str:
        return "\n".join(str(job) for job in self._jobs) or "no jobs"

    def of(self, task: Any) -> Enqueued:
        """Return those of one task, given as the task or by its name."""
        name = task_name(task)
        return Enqueued(lambda: [job for job in self._jobs if job.task == name])

    def assert_one(self, task: Any = None, **wanted: Any) -> EnqueuedJob:
        """Assert that exactly one job matches, and return it. The arguments are those of ``assert_count``."""
        __tracebackhide__ = True
        return self.assert_count(1, task, **wanted)[0]

    def assert_none(self, task: Any = None, **wanted: Any) -> None:
        """Assert that no job matches. Without arguments: that nothing was enqueued."""
        __tracebackhide__ = True
        self.assert_count(0, task, **wanted)

    def assert_count(
        self,
        count: int,
        task: Any = None,
        *,
        args: Sequence[Any] = _ANY,
        kwargs: Mapping[str, Any] = _ANY,
        arguments: Mapping[str, Any] = _ANY,
        queue: str = _ANY,
        eta: datetime | None = _ANY,
        key: str = _ANY,
    ) -> list[EnqueuedJob]:
        """Assert that so many jobs match all that is given, and return them.

        ``args`` and ``kwargs`` are compared whole and as they were passed. ``arguments`` are compared by
        the names of the task's parameters, however they were passed, and may be some of them. ``eta`` may be
        two seconds off.

        Raises:
            AssertionError: with every job that was enqueued and what does not match of it.
        """
        # pytest then shows the line of the test, and not these.
        __tracebackhide__ = True
        wanted: dict[str, Any] = {"args": args, "kwargs": kwargs, "arguments": arguments}
        wanted |= {"queue": queue, "eta": eta, "key": key}
        wanted = {name: value for name, value in wanted.items() if value is not _ANY}
        name = None if task is None else task_name(task)
        jobs = self._jobs
        found = [job for job in jobs if not _differences(job, name, wanted)]
        if len(found) != count:
            raise AssertionError(_failure(jobs, count, len(found), name, wanted))
        return found


def task_name(task: Any) -> str:
    """Return the name of a task that is given as itself or by its name."""
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        raise TypeError(
            f"Cannot tell a task from {task!r}. Pass the task itself, or its name such as 'shop.tasks.send_receipt'."
        )
    return name


def _failure(
    jobs: Sequence[EnqueuedJob], count: int, found: int, task: str | None, wanted: Mapping[str, Any]
) -> str:
    what = " ".join([task or "of any task", *(f"{name}={value!r}" for name, value in wanted.items())])
    lines = [
        f"Expected {_jobs(count)} {what}; {found} of {len(jobs)} enqueued "
        f"{'matches' if found == 1 else 'match'}."
    ]
    for number, job in enumerate(jobs[:_LISTED], start=1):
        lines.append(f"  {number}. {job}")
        lines += [f"       {difference}" for difference in _differences(job, task, wanted)]
    if len(jobs) > _LISTED:
        lines.append(f"  and {len(jobs) - _LISTED} more")
    return "\n".join(lines)


def _jobs(count: int) -> str:
    return "no job" if count == 0 else "1 job" if count == 1 else f"{count} jobs"


def _differences(job: EnqueuedJob, task: str | None, wanted: Mapping[str, Any]) -> list[str]:
    if task is not None and job.task != task:
        return ["another task"]
    found = []
    for name, value in wanted.items():
        own = getattr(job, name)
        if name == "arguments":
            found += [
                f"argument {each} is {own[each]!r}, not {value[each]!r}"
                if each in own
                else f"no argument {each}"
                for each in value
                if each not in own or own[each] != value[each]
            ]
        elif name == "eta" and own is not None and value is not None:
            if abs(own - value) > ETA_TOLERANCE:
                found.append(f"eta is {own.isoformat()}, not {value.isoformat()}")
        elif name == "args" and own != list(value):
            found.append(f"args are {own!r}, not {list(value)!r}")
        elif name == "kwargs" and own != dict(value):
            found.append(f"kwargs are {own!r}, not {dict(value)!r}")
        elif name not in ("args", "kwargs") and own != value:
            found.append(f"{name} is {own!r}, not {value!r}")
    return found


def _bound(app: Celery, task: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name the arguments by the parameters of the task's function, its defaults included."""
    registered = app.tasks.get(task)
    if registered is None:
        return bind(None, args, kwargs)
    try:
        bound = inspect.signature(registered.run).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return bind(None, args, kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
