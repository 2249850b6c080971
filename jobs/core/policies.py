"""The policies of a job: their names, defaults, what is allowed, and what a wrong one is told.

A policy is an attribute of a ``Job`` subclass, an argument of its decorator, or a key of the setting
JOBS_POLICIES. This table is what all three, their messages and docs/jobs.md are made from.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.core.keys import KeyRefused, parse_template
from jobs.core.rates import RateError, parse_rate

# A week: a job that runs longer is a service.
LONGEST_SECONDS = 604_800
DAY_SECONDS = 86_400
# RabbitMQ's own limit for a message since 4.0.
LARGEST_PAYLOAD_BYTES = 16_777_216
# How much longer than its soft limit a job may run before it is killed, where only one was given.
HARD_TO_SOFT = 1.1


class PolicyRefused(ValueError):
    """A policy's value cannot be used; the text says why and what is allowed."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: ``allowed`` completes "Give …", ``meaning`` is a sentence for the documentation."""

    name: str
    default: Any
    allowed: str
    meaning: str
    # Returns why a value is wrong, "" when it is not.
    objection: Callable[[Any], str]
    # Whether one value can fit every job of a project.
    is_for_all: bool = True


def check(name: str, value: Any) -> None:
    """Check the value of a policy.

    Raises:
        PolicyRefused: when it is of the wrong type or out of range.
        KeyError: when there is no such policy.
    """
    policy = POLICIES[name]
    why = policy.objection(value)
    if why:
        raise PolicyRefused(f"{why}. Give {policy.allowed}.")


def check_together(values: Mapping[str, Any]) -> None:
    """Check policies that must fit each other; all of them must be there and right one by one.

    Raises:
        PolicyRefused: when two of them contradict each other.
    """
    soft, hard = values["soft_time_limit"], values["time_limit"]
    if not soft < hard:
        raise PolicyRefused(
            f"soft_time_limit={soft!r} is not below time_limit={hard!r}, so the job would be killed before it is "
            "asked to stop. Give a time_limit some seconds above the soft_time_limit."
        )
    if values["limit_key"] is not None and values["rate"] is None and values["concurrency"] is None:
        raise PolicyRefused(
            "limit_key limits nothing without a rate or a concurrency. Give one of them, or leave limit_key out."
        )


def complete_time_limits(levels: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return soft and hard time limit in seconds out of several levels, the most specific first.

    The first level that gives one of the two decides. The other comes from a later level when it fits,
    and follows by ``HARD_TO_SOFT`` when it does not: a job that only gives ``time_limit=30`` is asked to
    stop after 27 s, not after the default's 600. The last level must give both.
    """
    soft: float | None = None
    hard: float | None = None
    for level in levels:
        other_soft, other_hard = level.get("soft_time_limit"), level.get("time_limit")
        if soft is None and hard is None:
            soft, hard = other_soft, other_hard
        elif soft is None and hard is not None and other_soft is not None:
            soft = other_soft if other_soft < hard else _whole(hard / HARD_TO_SOFT)
        elif hard is None and soft is not None and other_hard is not None:
            hard = other_hard if other_hard > soft else _whole(soft * HARD_TO_SOFT)
    if soft is None or hard is None:
        raise KeyError("the last level gives no time limits")
    return soft, hard


def explain_unknown(name: str) -> str:
    """Say what a name that is nearly, or used to be elsewhere, a policy should be; "" when it is neither."""
    if name in FOREIGN_NAMES:
        return FOREIGN_NAMES[name]
    # A name with a unit is often written without it.
    for policy in POLICIES:
        if name != policy and policy.rsplit("_", 1)[-1] in _UNITS and name == policy.rsplit("_", 1)[0]:
            return f"a policy carries its unit in its name. Write {policy}"
    near = difflib.get_close_matches(name, POLICIES, n=1, cutoff=0.8)
    if near and near[0] != name:
        return f"it is no policy and looks like one. Write {near[0]}, or give an attribute of your own another name"
    return ""


def _whole(seconds: float) -> float:
    """Round to whole seconds where that changes little; limits below 10 s stay as they are."""
    return float(round(seconds)) if seconds >= 10 else seconds


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(least: float, most: float, *, above: bool = False) -> Callable[[Any], str]:
    def objection(value: Any) -> str:
        if not _is_number(value) or not math.isfinite(value):
            return "it is not a number"
        if value > most:
            return f"it is above {most:,}"
        if value < least or (above and value == least):
            return f"it is not above {least:,}" if above else f"it is below {least:,}"
        return ""

    return objection


def _whole_number(least: int, most: int) -> Callable[[Any], str]:
    in_range = _number(least, most)

    def objection(value: Any) -> str:
        if not isinstance(value, int) or isinstance(value, bool):
            return "it is not a whole number"
        return in_range(value)

    return objection


def _or_none(objection: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None else objection(value)


def _switch(value: Any) -> str:
    return "" if isinstance(value, bool) else "it is not a switch"


def _name(value: Any) -> str:
    if not isinstance(value, str):
        return "it is not a name"
    return "" if value.strip() and value.isprintable() else "it is empty or cannot be printed"


def _template(value: Any) -> str:
    if callable(value):
        return ""
    if not isinstance(value, str):
        return "it is neither a template nor a method"
    try:
        parse_template(value)
    except KeyRefused as refused:
        return str(refused)
    return ""


def _rate(value: Any) -> str:
    if not isinstance(value, str):
        return "it is not a text"
    try:
        parse_rate(value)
    except RateError as error:
        return str(error)
    return ""


_UNITS = ("seconds", "bytes")

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "idempotency_key",
            None,
            'a template over the parameters such as "receipt:{order_id}", a method that returns a text, or None',
            "Names what the job does, so that it is done once however often it is sent or delivered.",
            _or_none(_template),
            is_for_all=False,
        ),
        Policy(
            "atomic",
            False,
            "True or False",
            "Runs the body and the record of its key in one transaction of the database ``using``, so that "
            "what it does there happens exactly once.",
            _switch,
        ),
        Policy(
            "using",
            None,
            'the name of one of DATABASES, or None for "default"',
            "The database of the job's ledger, outbox and transaction.",
            _or_none(_name),
        ),
        Policy(
            "idempotency_lease_seconds",
            60,
            "a number of seconds from 1 to 3,600",
            "How long a key stays with a process that has died, before another one may run the job. A "
            "process that lives extends it.",
            _number(1, 3600),
        ),
        Policy(
            "max_attempts",
            5,
            "a whole number from 1 to 1,000; 1 is for a job that is never retried",
            "How often a job may run before it becomes a dead letter, the first time included.",
            _whole_number(1, 1000),
        ),
        Policy(
            "backoff_base_seconds",
            1,
            "a number of seconds from 0 to 86,400",
            "The longest wait before the first retry.",
            _number(0, DAY_SECONDS),
        ),
        Policy(
            "backoff_factor",
            4,
            "a number from 1 to 100",
            "How much longer the longest wait is after each attempt.",
            _number(1, 100),
        ),
        Policy(
            "backoff_cap_seconds",
            300,
            "a number of seconds from 0 to 86,400",
            "The longest wait before any retry, unless the other side asks for more by Retry-After.",
            _number(0, DAY_SECONDS),
        ),
        Policy(
            "payload_limit_bytes",
            262_144,
            f"a whole number of bytes from 1 to {LARGEST_PAYLOAD_BYTES:,}",
            "The largest message body; a larger one is refused when it is sent. Pass ids, not documents.",
            _whole_number(1, LARGEST_PAYLOAD_BYTES),
        ),
        Policy(
            "soft_time_limit",
            600,
            "a number of seconds above 0 and below the time_limit, at most 604,800",
            "Seconds after which SoftTimeLimitExceeded is raised in the job, which may then tidy up.",
            _number(0, LONGEST_SECONDS, above=True),
        ),
        Policy(
            "time_limit",
            660,
            "a number of seconds above the soft_time_limit, at most 604,800",
            "Seconds after which the process of the job is killed.",
            _number(0, LONGEST_SECONDS, above=True),
        ),
        Policy(
            "rate",
            None,
            'a text such as "10/s", "100/m", "1000/h" or "10/30s", or None for no limit',
            "How many jobs of this task may start in a time, over all workers.",
            _or_none(_rate),
        ),
        Policy(
            "concurrency",
            None,
            "a whole number from 1 to 100,000, or None for no limit",
            "How many jobs of this task may run at once, over all workers.",
            _or_none(_whole_number(1, 100_000)),
        ),
        Policy(
            "limit_key",
            None,
            'a template over the parameters such as "{customer_id}", a method that returns a text, or None',
            "Makes ``rate`` and ``concurrency`` count for each key on its own.",
            _or_none(_template),
            is_for_all=False,
        ),
        Policy(
            "queue",
            None,
            "the name of a queue, or None for where Celery's routes send it",
            "The queue: ``critical``, ``default``, ``low`` or ``long``, or another one of the application.",
            _or_none(_name),
        ),
    )
}

# What other retry options say, in the words of the policies.
FOREIGN_NAMES: dict[str, str] = {
    "retries": "a Job counts attempts, the first one included. Write max_attempts with one more",
    "max_retries": "a Job counts attempts, the first one included. Write max_attempts with one more",
    "autoretry_for": (
        "a Job retries every error but PermanentError. Leave it out, and raise PermanentError where trying again "
        "cannot help"
    ),
    "dont_autoretry_for": "a Job retries every error but PermanentError. Raise that from it instead",
    "retry_kwargs": "a Job has policies for it. Write max_attempts",
    "retry_backoff": "a Job has policies for it. Write backoff_base_seconds and backoff_factor",
    "retry_backoff_max": "a Job has a policy for it. Write backoff_cap_seconds",
    "retry_jitter": "a Job always waits with full jitter. Leave it out",
}
