"""What a job's class gives, checked when the class is made and resolved when Celery binds it.

A policy comes from the first of these that gives it: Celery's ``task_annotations``, the decorator or
the class itself, its bases in the order of Python, the setting JOBS_POLICIES, Celery's own
``task_time_limit`` and ``task_soft_time_limit``, and the default.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery, Task

from jobs.core.keys import KeyRefused, check_template, parse_template
from jobs.core.policies import (
    FOREIGN_NAMES,
    POLICIES,
    PolicyRefused,
    check,
    check_together,
    complete_time_limits,
    explain_unknown,
)
from jobs.errors import PolicyError

# Celery warns about these in a class of its own and will ignore them from 6.0 on: a task is to be routed
# by settings. A job's queue is part of the job, so it is kept where Celery does not look, and put back
# once the class is bound.
KEPT_ASIDE = ("queue", "priority")
TEMPLATES = ("idempotency_key", "limit_key")
DEFAULTS: dict[str, Any] = {name: policy.default for name, policy in POLICIES.items()}
_TIME_LIMITS = ("soft_time_limit", "time_limit")
# RabbitMQ's range. Redis has 0 to 9, and kombu takes the nearest.
_PRIORITIES = range(256)


class KeptAside:
    """Reads a policy that was kept aside, until the bound class has it as an attribute again."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, job: Any, owner: type[Any]) -> Any:
        return next((level[self.name] for level in given_levels(owner) if self.name in level), None)


class RoutedBySelf:
    """Has the two attributes under ``Job``, so that Job does not have them itself either."""

    queue: Any = KeptAside("queue")
    priority: Any = KeptAside("priority")


class FromAttempts:
    """Celery's ``max_retries``: one below ``max_attempts``, wherever that came from."""

    def __get__(self, job: Any, owner: type[Any]) -> int:
        return int((owner if job is None else job).max_attempts) - 1


def adopt(job_class: type[Any], *, base: type[Any]) -> None:
    """Check what a new subclass of ``base`` gives, and keep it.

    Raises:
        PolicyError: when a policy is wrong, misspelt, or does not fit the parameters or another policy.
    """
    given = {}
    for name, value in list(vars(job_class).items()):
        if name in POLICIES or name == "priority":
            given[name] = value
        elif not name.startswith("_"):
            check_name(job_class, name, base=base)
            check_acknowledgement(job_class, name, value)
    check_values(job_class, given)
    for name in KEPT_ASIDE:
        if name in given:
            delattr(job_class, name)
    job_class._jobs_given = given
    job_class._jobs_signature = _signature_of_body(job_class)
    _check_whole(job_class, [*given_levels(job_class), DEFAULTS], app=None)


def resolve(job_class: type[Any], app: Celery, *, base: type[Any]) -> dict[str, Any]:
    """Return every policy of a class that is being bound to an application.

    Raises:
        PolicyError: when an annotation or a setting is wrong, or a policy does not fit the application.
    """
    annotated = job_class._jobs_annotated
    for name in annotated:
        if name not in POLICIES and name != "priority":
            check_name(job_class, name, base=base)
            check_acknowledgement(job_class, name, annotated[name])
    check_values(job_class, {name: value for name, value in annotated.items() if name in POLICIES})
    limits = {name: app.conf[f"task_{name}"] for name in _TIME_LIMITS}
    levels = [
        annotated,
        *given_levels(job_class),
        project_policies(),
        {name: limit for name, limit in limits.items() if limit is not None},
        DEFAULTS,
    ]
    return _check_whole(job_class, levels, app=app)


def given_levels(job_class: type[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what each class gives, the most specific first, down to the first that is no job's."""
    for each in job_class.__mro__:
        kept = vars(each).get("_jobs_given")
        if kept is not None:
            yield kept
        elif issubclass(each, Task):
            return
        else:
            # A mixin.
            yield {name: value for name, value in vars(each).items() if name in POLICIES}


def project_policies() -> Mapping[str, Any]:
    """Return the setting JOBS_POLICIES.

    Raises:
        PolicyError: when it is no mapping, or a policy in it is wrong or fits no project.
    """
    from jobs import conf

    policies = conf.current().policies
    if not isinstance(policies, Mapping):
        raise PolicyError(
            f"Cannot use JOBS_POLICIES={policies!r}: it is not a mapping of policies to values. "
            'Write for instance {"max_attempts": 3}.'
        )
    for name, value in policies.items():
        if name not in POLICIES:
            hint = explain_unknown(str(name)) or f"it is no policy. Policies are {', '.join(POLICIES)}"
            raise PolicyError(f"Cannot use {name!r} in JOBS_POLICIES: {hint}.")
        if not POLICIES[name].is_for_all:
            raise PolicyError(
                f"Cannot use {name!r} in JOBS_POLICIES: no value fits every job. Give it to the jobs themselves."
            )
        try:
            check(name, value)
        except PolicyRefused as refused:
            raise PolicyError(f"Cannot use {name}={value!r} in JOBS_POLICIES: {refused}") from None
    return policies


def check_name(job_class: type[Any], name: str, *, base: type[Any]) -> None:
    """Refuse an attribute that was meant as a policy.

    Raises:
        PolicyError: when it is nearly the name of one, or another library's word for one.
    """
    # Not hasattr: reading Task.app binds the class.
    if name not in FOREIGN_NAMES and any(name in vars(each) for each in base.__mro__):
        return
    hint = explain_unknown(name)
    if hint:
        raise PolicyError(f"Cannot use {name} on job {name_of(job_class)}: {hint}.")


def check_acknowledgement(job_class: type[Any], name: str, value: Any) -> None:
    """Refuse the acknowledgement of a job before it has run.

    Raises:
        PolicyError: such a job is lost with its worker, and nobody hears of it.
    """
    if name == "acks_late" and not value:
        raise PolicyError(
            f"Cannot use acks_late={value!r} on job {name_of(job_class)}: acknowledged when it starts, it is lost with "
            "its worker. Leave it out; give a job that must not be done twice an idempotency_key and max_attempts=1."
        )


def check_values(job_class: type[Any], given: Mapping[str, Any]) -> None:
    """Check values one by one.

    Raises:
        PolicyError: naming job, policy, value and what is allowed.
    """
    for name, value in given.items():
        if name == "priority":
            if value is not None and (isinstance(value, bool) or value not in _PRIORITIES):
                raise PolicyError(
                    f"Cannot use priority={value!r} on job {name_of(job_class)}: it is no whole number from 0 to 255. "
                    "Give one; with RabbitMQ higher ones go first, with Redis 0 does."
                )
            continue
        try:
            check(name, value)
        except PolicyRefused as refused:
            raise PolicyError(f"Cannot use {name}={value!r} on job {name_of(job_class)}: {refused}") from None


def check_queue(job_name: str, queue: str, app: Celery) -> None:
    """Refuse a queue that the application does not declare, when it declares any.

    Celery would make the queue on the fly, and no worker would ever take from it.

    Raises:
        PolicyError: with the nearest name and all that are there.
    """
    declared = app.conf.task_queues
    if not declared:
        return
    names = list(declared) if isinstance(declared, Mapping) else [each.name for each in declared]
    aliases = [] if isinstance(declared, Mapping) else [each.alias for each in declared if each.alias]
    if queue in names or queue in aliases:
        return
    near = difflib.get_close_matches(queue, names, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise PolicyError(
        f"Cannot use queue={queue!r} on job {job_name}: task_queues does not have it, so no worker would take its "
        f"jobs.{meant} Queues are {', '.join(sorted(names))}; declare it there, or use one of them."
    )


def check_using(job_name: str, using: str | None) -> None:
    """Refuse a database whose outbox nobody relays: a job in it would wait for ever.

    Raises:
        PolicyError: with the databases that are relayed.
    """
    from django.db import DEFAULT_DB_ALIAS, connections

    from jobs import conf

    if using is not None and using not in connections:
        raise PolicyError(
            f"Cannot use using={using!r} on job {job_name}: DATABASES has no such name. It has "
            f"{', '.join(sorted(connections))}."
        )
    relayed = conf.current().outbox_databases
    alias = DEFAULT_DB_ALIAS if using is None else using
    if alias not in relayed:
        raise PolicyError(
            f"Cannot use using={alias!r} on job {job_name}: the relay does not look into that database, it looks "
            f"into {', '.join(relayed)}. Add it to JOBS_OUTBOX_DATABASES and migrate it."
        )


def name_of(job_class: type[Any]) -> str:
    """Return the name that a message calls a job by, before and after it has one."""
    return getattr(job_class, "name", None) or f"{job_class.__module__}.{job_class.__qualname__}"


def bind_arguments(job: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments by parameter name, with defaults; what ``**kwargs`` takes under its own names.

    Raises:
        TypeError: when they do not fit the parameters.
    """
    signature: inspect.Signature = job._jobs_signature
    bound = signature.bind(*(args or ()), **(kwargs or {}))
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments = {**arguments.pop(name), **arguments}
    return arguments


def _check_whole(
    job_class: type[Any], levels: list[Mapping[str, Any]], *, app: Celery | None
) -> dict[str, Any]:
    values = {name: next(level[name] for level in levels if name in level) for name in POLICIES}
    values["soft_time_limit"], values["time_limit"] = complete_time_limits(levels)
    try:
        check_together(values)
    except PolicyRefused as refused:
        raise PolicyError(f"Cannot use the policies of job {name_of(job_class)}: {refused}") from None
    _check_templates(job_class, values)
    if app is not None:
        check_using(name_of(job_class), values["using"])
        if values["queue"] is not None:
            check_queue(name_of(job_class), values["queue"], app)
    return values


def _check_templates(job_class: type[Any], values: Mapping[str, Any]) -> None:
    signature: inspect.Signature | None = job_class._jobs_signature
    if signature is None:
        return
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    for name in TEMPLATES:
        if isinstance(values[name], str):
            try:
                check_template(parse_template(values[name]), list(signature.parameters), takes_any=takes_any)
            except KeyRefused as refused:
                raise PolicyError(
                    f"Cannot use {name}={values[name]!r} on job {name_of(job_class)}: {refused}."
                ) from None


def _signature_of_body(job_class: type[Any]) -> inspect.Signature | None:
    """Return the parameters of a class's body, without ``self``; None where it has no body yet."""
    run = inspect.getattr_static(job_class, "run")
    if run is Task.run:
        return None
    if isinstance(run, staticmethod):
        return inspect.signature(run.__func__)
    signature = inspect.signature(run.__func__ if isinstance(run, classmethod) else run)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
