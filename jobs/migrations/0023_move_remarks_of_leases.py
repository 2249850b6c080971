"""Move remarks, which stood in the place of a trouble after a prefix, to their own column. A dozen rows at most."""

from django.db import migrations

PREFIX = "Remark: "


def move(apps, schema_editor):
    leases = apps.get_model("jobs", "Lease").objects.using(schema_editor.connection.alias)
    for lease in leases.filter(trouble__startswith=PREFIX):
        # Only while it stands: a runops may write at the same time.
        leases.filter(duty=lease.duty, trouble=lease.trouble).update(
            remark=lease.trouble.removeprefix(PREFIX), trouble="", trouble_since=None
        )


def move_back(apps, schema_editor):
    """Put remarks where there is no trouble; beside one there was no room for them."""
    leases = apps.get_model("jobs", "Lease").objects.using(schema_editor.connection.alias)
    for lease in leases.exclude(remark="").filter(trouble=""):
        leases.filter(duty=lease.duty, trouble="").update(
            # With the prefix it may be longer than the column is.
            trouble=f"{PREFIX}{lease.remark}"[:500],
            remark="",
        )


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0022_add_lease_remark"),
    ]

    operations = [
        migrations.RunPython(move, move_back),
    ]
