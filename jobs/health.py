"""Whether requests can be served, for load balancers."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, connections
from django.db.migrations.executor import MigrationExecutor

from jobs import leases
from jobs.duties import all_duties


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. Without a required one nothing can be served."""

    name: str
    is_good: bool
    is_required: bool
    text: str


def readiness() -> list[Check]:
    """Look whether the database answers and is migrated, and whether runops carries its duties out.

    The broker is not asked: a duty that cannot reach it is not carried out. Nothing in the answer is a secret.
    """
    try:
        with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
        executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except (DatabaseError, InterfaceError):
        return [Check("database", False, True, "The database does not answer.")]
    checks = [Check("database", True, True, "The database answers.")]
    if missing:
        text = f"{len(missing):,} migrations are not applied: run manage.py migrate."
        return [*checks, Check("migrations", False, True, text)]
    checks.append(Check("migrations", True, True, "All migrations are applied."))
    undone = [each.duty for each in leases.undone([duty.name for duty in all_duties()])]
    text = f"Not carried out: {', '.join(undone)}." if undone else "runops carries out all of its duties."
    return [*checks, Check("runops", not undone, False, text)]
