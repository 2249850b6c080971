from django.db import migrations

# What a fresh installation watches. A few letters that die all the time stay below each limit.
# The texts and numbers are those of jobs.core.alert_kinds when this was written; changing them here changes
# nothing for those who have the rules.
RULES = (
    {
        "key": "letters_growing",
        "name": "Dead letters grow",
        "kind": "letters_growing",
        "severity": "critical",
        "threshold": 20,
        "window_minutes": 5,
        "hold_seconds": 0,
        "recovery_hold_seconds": 300,
        "cool_down_seconds": 900,
    },
    {
        "key": "group_failing",
        "name": "A new failure",
        "kind": "group_failing",
        "severity": "warning",
        "threshold": 10,
        "window_minutes": 30,
        # Of an outage dead letters grow within this, and that rule tells of it.
        "hold_seconds": 120,
        "recovery_hold_seconds": 300,
        "cool_down_seconds": 3600,
    },
    {
        "key": "failure_rate",
        "name": "Jobs fail",
        "kind": "failure_rate",
        "severity": "critical",
        "threshold": 25,
        "recovery_threshold": 15,
        "window_minutes": 5,
        "minimum_attempts": 100,
        "hold_seconds": 120,
        "recovery_hold_seconds": 300,
        "cool_down_seconds": 900,
    },
    {
        # Of what is tried again without end nothing dies, and no other rule tells of it.
        "key": "retry_rate",
        "name": "Jobs are retried",
        "kind": "retry_rate",
        "severity": "warning",
        "threshold": 50,
        "recovery_threshold": 30,
        "window_minutes": 10,
        "minimum_attempts": 100,
        "hold_seconds": 300,
        "recovery_hold_seconds": 300,
        "cool_down_seconds": 3600,
    },
    {
        "key": "no_consumer",
        "name": "Nobody works on a queue",
        "kind": "no_consumer",
        "severity": "critical",
        "hold_seconds": 60,
        "recovery_hold_seconds": 30,
        "cool_down_seconds": 600,
    },
    {
        "key": "nothing_received",
        "name": "Workers take nothing",
        "kind": "nothing_received",
        "severity": "critical",
        "window_minutes": 5,
        "hold_seconds": 60,
        "recovery_hold_seconds": 60,
        "cool_down_seconds": 600,
    },
    {
        "key": "oldest_age",
        "name": "A message waits long",
        "kind": "oldest_age",
        "severity": "warning",
        "threshold": 1800,
        "recovery_threshold": 900,
        "hold_seconds": 120,
        "recovery_hold_seconds": 300,
        "cool_down_seconds": 1800,
    },
    {
        "key": "worker_lost",
        "name": "A worker was lost",
        "kind": "worker_lost",
        "severity": "warning",
        "window_minutes": 60,
        # A supervisor that starts it again within this is not worth a mail.
        "hold_seconds": 30,
        "recovery_hold_seconds": 0,
        "cool_down_seconds": 600,
    },
    {
        "key": "beat_silent",
        "name": "Beat is silent",
        "kind": "beat_silent",
        "severity": "critical",
        "threshold": 120,
        "recovery_hold_seconds": 30,
        "cool_down_seconds": 600,
    },
    {
        "key": "outbox_lag",
        "name": "The outbox lags",
        "kind": "outbox_lag",
        "severity": "critical",
        "threshold": 120,
        "recovery_threshold": 10,
        "hold_seconds": 30,
        "recovery_hold_seconds": 60,
        "cool_down_seconds": 600,
    },
    {
        "key": "collector_lag",
        "name": "The collector lags behind",
        "kind": "collector_lag",
        "severity": "critical",
        "threshold": 120,
        "recovery_threshold": 10,
        "hold_seconds": 30,
        "recovery_hold_seconds": 60,
        "cool_down_seconds": 600,
    },
)


def add_rules(apps, schema_editor):
    """Make the rules that are not there; one that an operator has deleted comes back only with a new database."""
    rule_model = apps.get_model("jobs", "AlertRule")
    rules = rule_model.objects.using(schema_editor.connection.alias)
    known = set(rules.filter(key__in=[rule["key"] for rule in RULES]).values_list("key", flat=True))
    rules.bulk_create(rule_model(**rule) for rule in RULES if rule["key"] not in known)


def remove_rules(apps, schema_editor):
    """Take them away with their alerts."""
    rule_model = apps.get_model("jobs", "AlertRule")
    rules = rule_model.objects.using(schema_editor.connection.alias)
    rules.filter(key__in=[rule["key"] for rule in RULES]).delete()


class Migration(migrations.Migration):
    dependencies = [("jobs", "0019_add_alerts")]

    operations = [migrations.RunPython(add_rules, remove_rules)]
