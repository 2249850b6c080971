"""The text of a new job and of its test."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from string import Formatter, Template

from jobs.errors import JobsError

QUEUES = ("critical", "default", "low", "long")
# Soft and hard limit in seconds. All are below half an hour, after which RabbitMQ takes a job back, and far
# below Redis's visibility timeout of an hour, after which a job that still runs is delivered again.
_LIMITS = {"critical": (20, 30), "default": (60, 90), "low": (300, 330), "long": (1500, 1560)}
_WHOLE_NUMBERS = re.compile(r"(?:.*_)?(?:id|pk|number|count|year)")

JOB = Template('''\
@shared_task(
    base=Job,
    # A second job with this key finds the work done, and does nothing.
    idempotency_key="$key",
    queue="$queue",
    # Seconds. The soft limit raises an error in the job; the hard one ends its process.
    soft_time_limit=$soft,
    time_limit=$hard,
)
def $name($signature) -> None:
    """${Words}, once for each key.

    Raises:
        PermanentError: $first is $bad_word; the job goes to the dead letters at once.
        TransientError: the other side is away; the job is tried again, 5 times at most.
    """
    if $is_bad:
        raise PermanentError(
            f"Cannot $words: $first is $shown, $rule. "
            "Mend what sent this job; replaying it cannot help."
        )
    try:
        _$name($arguments)
    except (ConnectionError, TimeoutError) as error:
        raise TransientError(
            f"Cannot $words now: {error}. "
            "It is tried again after a wait; the last attempt makes it a dead letter."
        ) from error


def _$name($signature) -> None:
    """Do the work; a crash in its middle means that it is done again from its start."""
    logger.info("$name: $log", $arguments)
''')

TEST = Template('''\
"""The job ``$name``; pytest and ``manage.py test`` both run this."""

from unittest.mock import call, patch

$imports

WORK = "$module._$name"


class ${Class}Tests(JobsMixin, TestCase):
    """What the job promises, with all its policies and without a broker."""

    def test_it_goes_to_its_queue_under_its_key(self) -> None:
        $name.delay($good)

        self.assert_enqueued($name, queue="$queue", key="$good_key")

    def test_the_work_is_done_once_for_each_key(self) -> None:
        with patch(WORK) as work:
            $name.delay($good)
            $name.delay($good)
            self.run_jobs()

        work.assert_called_once_with($good_values)

    def test_it_is_tried_again_when_the_other_side_is_away(self) -> None:
        with patch(WORK, side_effect=[ConnectionError("away"), None]) as work:
            $name.delay($good)
            self.run_jobs()

        work.assert_has_calls([call($good_values), call($good_values)])

    def test_a_job_that_cannot_succeed_is_a_dead_letter_at_once(self) -> None:
        with self.expect_dead_letter($name, reason="failed"):
            $name.delay($bad)
            self.run_jobs()
''')


@dataclass(frozen=True, slots=True)
class Draft:
    """A job that is to be written: its function's name, key template, parameters and queue."""

    name: str
    key: str
    parameters: tuple[str, ...]
    queue: str

    @classmethod
    def make(cls, name: str, *, key: str | None = None, queue: str = "default") -> Draft:
        """Check the name and the key; without a key make one of the name's last word.

        Raises:
            JobsError: when Python or the ledger would refuse them.
        """
        if keyword.iskeyword(name):
            raise JobsError(
                f"Cannot start a job named {name!r}: it is a word of Python's own. "
                f"Name what the job does, for instance {name}_order."
            )
        if not name.isidentifier():
            fixed = re.sub(r"\W+", "_", name).strip("_").lower()
            hint = fixed if fixed.isidentifier() and not keyword.iskeyword(fixed) else "send_receipt"
            raise JobsError(
                f"Cannot start a job named {name!r}: it is not a name of a Python function. "
                f"Use letters, digits and underscores, for instance {hint}."
            )
        if queue not in _LIMITS:
            raise JobsError(f"Cannot send to the queue {queue!r}. Use one of {', '.join(QUEUES)}.")
        key = _default_key(name) if key is None else key
        return cls(name=name, key=key, parameters=_fields(key, job=name), queue=queue)

    def private_names(self) -> tuple[str, ...]:
        """Return the names that the job's text binds in its module."""
        return (self.name, f"_{self.name}")

    def job_text(self) -> str:
        """Return the job and the function that does its work."""
        first = self.parameters[0]
        words = self.name.strip("_").replace("_", " ")
        soft, hard = _LIMITS[self.queue]
        whole = _is_whole(first)
        return JOB.substitute(
            name=self.name,
            key=self.key,
            queue=self.queue,
            soft=soft,
            hard=hard,
            signature=", ".join(f"{each}: {'int' if _is_whole(each) else 'str'}" for each in self.parameters),
            arguments=", ".join(self.parameters),
            Words=words[:1].upper() + words[1:],
            words=words,
            first=first,
            is_bad=f"{first} < 1" if whole else f"not {first}",
            bad_word="below 1" if whole else "empty",
            shown=f"{{{first}}}",
            rule="and the first is 1" if whole else "and may not be empty",
            log=" ".join(f"{each}=%s" for each in self.parameters),
        )

    def test_text(self, *, module: str, imports: str) -> str:
        """Return the test of the job in ``module``; ``imports`` are the lines that it needs beside patch."""
        good = {each: 5 if _is_whole(each) else "a" for each in self.parameters}
        first = self.parameters[0]
        bad = {**good, first: 0 if _is_whole(first) else ""}
        return TEST.substitute(
            module=module,
            name=self.name,
            imports=imports,
            Class="".join(part[:1].upper() + part[1:] for part in self.name.split("_")),
            queue=self.queue,
            good=_keywords(good),
            good_values=", ".join(_literal(value) for value in good.values()),
            good_key=self.key.format(**good),
            bad=_keywords(bad),
        )


def _default_key(name: str) -> str:
    """Return "receipt:{receipt_id}" for send_receipt."""
    words = [word for word in name.split("_") if word]
    noun = words[-1] if len(words) > 1 else "object"
    return f"{noun}:{{{noun}_id}}"


def _fields(key: str, *, job: str) -> tuple[str, ...]:
    example = _default_key(job)
    try:
        parts = list(Formatter().parse(key))
    except ValueError as error:
        raise JobsError(f"Cannot read the key {key!r}: {error}. Write for instance {example!r}.") from None
    fields = [field for _, field, _, _ in parts if field is not None]
    if not fields:
        raise JobsError(
            f"Cannot use the key {key!r}: it names no argument, so only the first job ever would run. "
            f"Write for instance {example!r}."
        )
    for _, field, form, conversion in parts:
        if field is None:
            continue
        if form or conversion or not field.isidentifier() or keyword.iskeyword(field) or field == job:
            raise JobsError(
                f"Cannot use the key {key!r}: {field!r} is not the name of an argument. "
                f"Write for instance {example!r}."
            )
    if re.search(r"[\"\\\x00-\x1f\x7f]", key):
        raise JobsError(
            f"Cannot use the key {key!r}: quotes, backslashes and control characters are not for keys. "
            f"Write for instance {example!r}."
        )
    return tuple(dict.fromkeys(fields))


def _is_whole(parameter: str) -> bool:
    return _WHOLE_NUMBERS.fullmatch(parameter) is not None


def _literal(value: int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _keywords(values: dict[str, int | str]) -> str:
    return ", ".join(f"{name}={_literal(value)}" for name, value in values.items())
