"""The checks on tables of facts: one row a case, named for what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.preflight import report
from jobs.preflight.checks import check
from jobs.preflight.facts import (
    ApplicationFacts,
    BeatFacts,
    Facts,
    FarJob,
    QueueFacts,
    QueueState,
    RabbitFacts,
    RedisFacts,
    Runtime,
    TaskFacts,
    WorkerFacts,
)
from jobs.preflight.findings import Area, Finding, Level, count, refusing, worst_first
from jobs.preflight.runtimes import longest, percentile
from jobs.preflight.timeout_checks import enough_seconds

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TASK = TaskFacts(
    "shop.receipt",
    acks_late=True,
    reject_on_worker_lost=True,
    time_limit_seconds=660,
    soft_time_limit_seconds=600,
)
GOOD_OPTIONS = {"socket_timeout": 10, "socket_connect_timeout": 5, "visibility_timeout": 3600}
APPLICATION = ApplicationFacts(
    name="shop",
    transport="redis",
    broker="redis://broker/0",
    transport_options=GOOD_OPTIONS,
    prefetch_multiplier=1,
    tasks=(TASK,),
    queues=(QueueFacts("default"),),
    has_agent=True,
)
REDIS = RedisFacts(
    version="7.2.4",
    role="master",
    maxmemory_policy="noeviction",
    maxmemory_bytes=0,
    used_memory_bytes=1_000_000,
    evicted_keys=0,
    is_append_only=True,
    append_fsync="everysec",
    is_append_failing=False,
)
WORKER = WorkerFacts("celery@a", "prefork", frozenset({"default"}), frozenset({"shop.receipt"}))
BEAT = BeatFacts("beat@a:7", NOW, NOW)
GOOD = Facts(APPLICATION, redis=REDIS, queues=(QueueState("default", 3),), workers=(WORKER,), beats=(BEAT,))
RABBIT = Facts(
    replace(
        APPLICATION,
        transport="amqp",
        transport_options={"confirm_publish": True, "read_timeout": 10, "write_timeout": 10},
        queues=(QueueFacts("default", has_dead_letter_exchange=True),),
    ),
    rabbit=RabbitFacts("3.13.7"),
)


def redis(**changes: object) -> Facts:
    return replace(GOOD, redis=replace(REDIS, **changes))


def application(**changes: object) -> Facts:
    return replace(GOOD, application=replace(APPLICATION, **changes))


def task(**changes: object) -> Facts:
    return application(tasks=(replace(TASK, **changes),))


def rabbit(**changes: object) -> Facts:
    return replace(RABBIT, application=replace(RABBIT.application, **changes))


def options(**changes: object) -> Facts:
    return application(transport_options={**GOOD_OPTIONS, **changes})


def bad(facts: Facts) -> list[Finding]:
    return [finding for finding in check(facts) if finding.level is not Level.OK]


def one(facts: Facts) -> Finding:
    found = bad(facts)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    "facts", [GOOD, RABBIT, Facts(APPLICATION, redis=REDIS)], ids=["redis", "rabbit", "start"]
)
def test_what_is_set_up_well_is_found_without_fault(facts: Facts) -> None:
    assert bad(facts) == []


ERRORS_OF_THE_BROKER = {
    "row 71: eviction deletes whole queues": (
        redis(maxmemory_policy="allkeys-lru"),
        ("maxmemory-policy", "All its jobs go at once".lower(), "CONFIG SET maxmemory-policy noeviction"),
    ),
    "eviction of keys that expire": (
        redis(maxmemory_policy="volatile-ttl"),
        ("maxmemory-policy", "keys that expire", "redis.conf: maxmemory-policy noeviction"),
    ),
    "row 73: no append-only file": (
        redis(is_append_only=False, append_fsync="everysec"),
        ("append-only file", "forgets every job", "appendonly yes"),
    ),
    "row 73: appendfsync no": (
        redis(append_fsync="no"),
        ("appendfsync", "half a minute", "appendfsync everysec"),
    ),
    "the append-only file cannot be written": (
        redis(is_append_failing=True),
        ("append-only file", "in memory only", "df"),
    ),
    "a replica": (redis(role="slave"), ("redis role", "takes no writes", "address of the primary")),
    "row 65: late job longer than the visibility timeout": (
        task(time_limit_seconds=3600),
        ("visibility timeout", "runs twice at once", '"visibility_timeout": 3960'),
    ),
    "row 65: the default of an hour counts when nothing is set": (
        replace(
            task(time_limit_seconds=7200),
            application=replace(
                APPLICATION,
                tasks=(replace(TASK, time_limit_seconds=7200),),
                transport_options={"socket_timeout": 10, "socket_connect_timeout": 5},
            ),
        ),
        ("visibility timeout", "(the default)", "shorter time_limit on shop.receipt"),
    ),
    "measured p99 above a third of the visibility timeout": (
        replace(GOOD, runtime=Runtime("shop.report", 400, 1201)),
        ("measured runtimes", "400 runs of the last day", '"visibility_timeout": 4020'),
    ),
    "row 77: late job longer than the consumer timeout": (
        rabbit(tasks=(replace(TASK, time_limit_seconds=1800),)),
        ("consumer timeout", "broker_channel_error_retry", "consumer_timeout = 1980000"),
    ),
}


@pytest.mark.parametrize(("facts", "words"), ERRORS_OF_THE_BROKER.values(), ids=ERRORS_OF_THE_BROKER)
def test_broker_that_loses_jobs_is_an_error_and_refused(facts: Facts, words: tuple[str, ...]) -> None:
    finding = one(facts)

    assert (finding.level, finding.area, finding.name) == (Level.ERROR, Area.BROKER, words[0])
    assert refusing(check(facts)) == [finding]
    assert all(word.lower() in f"{finding.found} {finding.why} {finding.set}".lower() for word in words[1:])


NOT_REFUSED = {
    "row 71: keys were evicted": (redis(evicted_keys=7), Level.WARNING, "evicted keys", "7 since"),
    "memory nearly full": (
        redis(maxmemory_bytes=1_050_000),
        Level.WARNING,
        "memory",
        "maxmemory 2100000",
    ),
    "row 64: a job waits for longer than the visibility timeout": (
        redis(furthest_job=FarJob("shop.remind", 7200)),
        Level.WARNING,
        "far jobs",
        "shop.remind waits in a worker for a time 7,200 s ahead",
    ),
    "row 64: retries further away than half the visibility timeout": (
        task(furthest_retry_seconds=1801),
        Level.WARNING,
        "far retries",
        "base=jobs.Job",
    ),
    "row 78: the same on RabbitMQ": (
        rabbit(tasks=(replace(TASK, furthest_retry_seconds=901),)),
        Level.WARNING,
        "far retries",
        "901 s later",
    ),
    "prefetched jobs wait": (
        application(prefetch_multiplier=6),
        Level.WARNING,
        "prefetched jobs",
        "3,960 s together",
    ),
    "prefetch without a limit": (
        application(prefetch_multiplier=0),
        Level.WARNING,
        "prefetched jobs",
        "worker_prefetch_multiplier = 1",
    ),
    "measured p99 on RabbitMQ, whose timeout is assumed": (
        replace(RABBIT, runtime=Runtime("shop.report", 400, 601)),
        Level.WARNING,
        "measured runtimes",
        "JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS=",
    ),
    "row 94: no socket timeout": (
        application(transport_options={"visibility_timeout": 3600}),
        Level.WARNING,
        "socket timeout",
        '{"socket_timeout": 10, "socket_connect_timeout": 5}',
    ),
    "row 94: no socket timeout on RabbitMQ": (
        rabbit(transport_options={"confirm_publish": True, "read_timeout": 10}),
        Level.WARNING,
        "socket timeout",
        "write_timeout is not set",
    ),
    "row 74: no health check": (
        options(health_check_interval=0),
        Level.WARNING,
        "socket timeout",
        "takes no job",
    ),
    "row 82: no publisher confirms": (
        rabbit(transport_options={"read_timeout": 10, "write_timeout": 10}),
        Level.ERROR,
        "publisher confirms",
        '{"confirm_publish": True}',
    ),
    "row 79: a quorum queue drops jobs": (
        rabbit(queues=(QueueFacts("default", drops_by=("quorum",)),)),
        Level.WARNING,
        "dead letter exchange",
        "^(default)$",
    ),
    "row 80: no dead letter exchange is declared": (
        rabbit(queues=(QueueFacts("default"), QueueFacts("low"))),
        Level.UNKNOWN,
        "dead letter exchange",
        "rabbitmqctl list_policies",
    ),
    "late acknowledgement without limits": (
        task(time_limit_seconds=None),
        Level.WARNING,
        "time limits",
        "shop.receipt acknowledges late and has no time limit",
    ),
    "early acknowledgement without limits": (
        task(time_limit_seconds=None, acks_late=False),
        Level.WARNING,
        "time limits",
        "shop.receipt has no time limit",
    ),
    "results for ever on the broker": (
        application(keeps_results_on_broker=True),
        Level.WARNING,
        "results",
        "result_expires = 86400",
    ),
    "fleet limits without Redis": (
        replace(
            task(has_fleet_limits=True),
            application=replace(
                APPLICATION, tasks=(replace(TASK, has_fleet_limits=True),), limits_problem="No REDIS_URL."
            ),
        ),
        Level.ERROR,
        "fleet limits",
        "shop.receipt. No REDIS_URL.",
    ),
    "two addresses": (
        application(other_broker="redis://elsewhere/0"),
        Level.WARNING,
        "two brokers",
        "redis://elsewhere/0",
    ),
    "row 32: threads ignore limits": (
        application(pool="thread"),
        Level.WARNING,
        "pool",
        "ignores time_limit and soft_time_limit",
    ),
    "row 32: solo ignores limits": (application(pool="solo"), Level.WARNING, "pool", "solo"),
    "row 32: gevent keeps hard limits only": (
        application(pool="gevent"),
        Level.WARNING,
        "pool",
        "gevent, ignores soft_time_limit, which",
    ),
    "row 32: a worker that runs": (
        replace(GOOD, workers=(WORKER, replace(WORKER, hostname="celery@b", pool="thread"))),
        Level.WARNING,
        "pool",
        "The pool of celery@b, thread, ignores",
    ),
    "row 113: two beats": (
        replace(GOOD, beats=(BEAT, replace(BEAT, name="beat@b:9"))),
        Level.ERROR,
        "beat",
        "beat@a:7 (since 2026-11-29 12:00:00 UTC) and beat@b:9",
    ),
    "row 101: a queue that nobody consumes": (
        replace(GOOD, queues=(QueueState("default", 0), QueueState("defualt", 12))),
        Level.WARNING,
        "consumers",
        "defualt, in which 12 messages wait",
    ),
    "row 101: a declared queue that nobody consumes": (
        replace(
            GOOD,
            application=replace(APPLICATION, queues=(QueueFacts("default"), QueueFacts("long"))),
            queues=(QueueState("default", 0), QueueState("long", 0)),
        ),
        Level.WARNING,
        "consumers",
        "celery worker -Q …,long",
    ),
    "nobody answers": (
        replace(GOOD, workers=()),
        Level.UNKNOWN,
        "consumers",
        "3 messages wait",
    ),
    "too many keys": (
        replace(GOOD, are_queues_complete=False),
        Level.UNKNOWN,
        "consumers",
        "not all queues were looked for",
    ),
    "row 76: two applications share a queue": (
        replace(
            GOOD,
            workers=(
                WORKER,
                WorkerFacts("celery@b", "prefork", frozenset({"default"}), frozenset({"crm.mail"})),
            ),
        ),
        Level.WARNING,
        "mixed queue",
        "does not know",
    ),
    "the database is away": (
        replace(GOOD, beats=None, workers=None, queues=None, fleet_refusal="no such table"),
        Level.UNKNOWN,
        "fleet",
        "no such table",
    ),
    "the ledger cannot be read": (
        replace(GOOD, runtimes_refusal="no such table"),
        Level.UNKNOWN,
        "measured runtimes",
        "no such table",
    ),
    "another transport": (
        Facts(replace(APPLICATION, transport="sqs")),
        Level.UNKNOWN,
        "broker",
        "'sqs'",
    ),
}


@pytest.mark.parametrize(("facts", "level", "name", "words"), NOT_REFUSED.values(), ids=NOT_REFUSED)
def test_other_faults_are_named_and_keep_no_worker_from_starting(
    facts: Facts, level: Level, name: str, words: str
) -> None:
    finding = one(facts)

    assert (finding.level, finding.name) == (level, name)
    assert words in f"{finding.found} {finding.why} {finding.set}"
    assert refusing(check(facts)) == []


def test_no_agent_is_a_warning_and_lost_workers_come_back_for_ever() -> None:
    found = bad(application(has_agent=False))

    assert [(finding.level, finding.name) for finding in found] == [
        (Level.WARNING, "agent"),
        (Level.ERROR, "lost workers"),
    ]


def test_what_a_managed_redis_refuses_is_unknown_and_never_refused() -> None:
    told = RedisFacts(info_refusal="NOPERM no info", config_refusal="NOPERM no config", is_append_only=None)
    facts = replace(GOOD, redis=told)

    found = bad(facts)

    assert {(finding.level, finding.name) for finding in found} == {
        (Level.UNKNOWN, "redis role"),
        (Level.UNKNOWN, "maxmemory-policy"),
        (Level.UNKNOWN, "append-only file"),
    }
    assert all("NOPERM no info" in finding.found and "redis-cli INFO" in finding.set for finding in found)
    assert refusing(found) == []


def test_refused_config_leaves_only_appendfsync_unknown() -> None:
    finding = one(redis(append_fsync=None, config_refusal="unknown command 'CONFIG'"))

    assert (finding.level, finding.name) == (Level.UNKNOWN, "appendfsync")
    assert "unknown command 'CONFIG'" in finding.found
    assert "redis-cli CONFIG GET appendfsync" in finding.set


@pytest.mark.parametrize(
    "facts",
    [
        task(acks_late=False, time_limit_seconds=99_999),
        task(time_limit_seconds=3599.9),
        task(furthest_retry_seconds=1800),
        redis(furthest_job=FarJob("shop.remind", 3599)),
        redis(maxmemory_bytes=2_000_000),
        redis(append_fsync="always"),
        replace(GOOD, runtime=Runtime("shop.report", 20, 1200)),
        replace(RABBIT, rabbit=RabbitFacts("3.8.14", 1), application=replace(RABBIT.application)),
        application(pool="myproject.pools"),
        replace(GOOD, workers=(replace(WORKER, tasks=frozenset()), WORKER)),
        replace(RABBIT, workers=(), queues=(QueueState("default", 5, consumers=2),)),
    ],
)
def test_what_is_just_within_is_found_without_fault(facts: Facts) -> None:
    assert bad(facts) == []


@given(
    limit=st.none() | st.floats(0.1, 1e6),
    retry=st.none() | st.floats(0.1, 1e6),
    p99=st.none() | st.floats(0.001, 1e6),
    far=st.none() | st.floats(0.1, 1e6),
    multiplier=st.integers(1, 16),
    is_rabbit=st.booleans(),
)
def test_the_line_to_set_leaves_no_timeout_at_fault(
    limit: float | None,
    retry: float | None,
    p99: float | None,
    far: float | None,
    multiplier: int,
    is_rabbit: bool,
) -> None:
    asked = replace(
        APPLICATION,
        prefetch_multiplier=multiplier,
        tasks=(replace(TASK, time_limit_seconds=limit, furthest_retry_seconds=retry),),
    )
    runtime = None if p99 is None else Runtime("shop.receipt", 100, p99)
    job = None if far is None else FarJob("shop.receipt", far)
    facts = replace(GOOD, application=asked, runtime=runtime, redis=replace(REDIS, furthest_job=job))
    if is_rabbit:
        facts = replace(facts, redis=None, rabbit=RabbitFacts("4.0.1", 1))

    seconds = enough_seconds(facts)

    mended = replace(facts, application=replace(asked, transport_options={"visibility_timeout": seconds}))
    if is_rabbit:
        mended = replace(mended, rabbit=RabbitFacts("4.0.1", seconds))
    names = {finding.name for finding in bad(mended)}
    assert names.isdisjoint(
        {
            "visibility timeout",
            "consumer timeout",
            "measured runtimes",
            "prefetched jobs",
            "far retries",
            "far jobs",
        }
    )


@pytest.mark.parametrize(
    "facts", [*(row[0] for row in ERRORS_OF_THE_BROKER.values()), *(row[0] for row in NOT_REFUSED.values())]
)
def test_every_fault_says_what_why_and_what_to_do(facts: Facts) -> None:
    for finding in bad(facts):
        assert finding.found
        assert finding.why
        assert finding.set or finding.name == "broker"


def test_findings_are_sorted_worst_first_and_counted() -> None:
    found = worst_first(check(replace(redis(maxmemory_policy="allkeys-lru", evicted_keys=3), workers=())))

    assert [finding.level for finding in found][:3] == [Level.ERROR, Level.WARNING, Level.UNKNOWN]
    assert [count(found, level) for level in (Level.ERROR, Level.WARNING, Level.UNKNOWN)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 0.99, 5.0),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 1, 100),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_percentile_is_one_of_the_values_and_enough_do_not_exceed_it(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_task_with_the_longest_p99_counts_and_those_with_few_runs_do_not() -> None:
    runs = [("fast", 0.1)] * 500 + [("slow", 4.0)] * 19 + [("slow", 9.0)] + [("rare", 999.0)] * 19

    assert longest(runs) == Runtime("slow", 20, 9.0)
    assert longest([("rare", 999.0)] * 19) is None


@pytest.mark.parametrize(
    ("namespace", "options", "note"),
    [
        (
            "CELERY",
            {},
            "In this project broker_transport_options is written CELERY_BROKER_TRANSPORT_OPTIONS, "
            "and so are Celery's other settings.",
        ),
        ("CELERY", GOOD_OPTIONS, ""),
        ("", {}, ""),
    ],
)
def test_a_line_to_set_is_named_as_the_project_has_to_write_it(
    namespace: str, options: dict[str, int], note: str
) -> None:
    facts = replace(GOOD, application=replace(APPLICATION, namespace=namespace, transport_options=options))

    text = report.text(facts, check(facts))

    assert ("is written" in text) is bool(note)
    assert note in text
