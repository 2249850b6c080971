"""Copy each letter's message to its own table, in batches that hold no lock for long."""

from django.db import migrations
from django.db.models import Max, Min

# Ids a transaction: some 10 MB of messages.
BATCH = 5_000
COPY = """
    INSERT INTO jobs_lettermessage (letter_id, body, headers, properties)
    SELECT id, body, headers, properties FROM jobs_deadletter WHERE id BETWEEN %s AND %s
    ON CONFLICT (letter_id) DO NOTHING
"""
COPY_BACK = """
    UPDATE jobs_deadletter
    SET body = m.body, headers = m.headers, properties = m.properties
    FROM jobs_lettermessage m WHERE m.letter_id = jobs_deadletter.id AND jobs_deadletter.id BETWEEN %s AND %s
"""


def in_batches(apps, schema_editor, statement):
    letters = apps.get_model('jobs', 'DeadLetter').objects.using(schema_editor.connection.alias)
    span = letters.aggregate(first=Min('id'), last=Max('id'))
    if span['first'] is None:
        return
    with schema_editor.connection.cursor() as cursor:
        for first in range(span['first'], span['last'] + 1, BATCH):
            cursor.execute(statement, [first, first + BATCH - 1])


def copy(apps, schema_editor):
    """Copy what is not there yet, so that a migration that was cut off can be run again."""
    in_batches(apps, schema_editor, COPY)


def copy_back(apps, schema_editor):
    in_batches(apps, schema_editor, COPY_BACK)


class Migration(migrations.Migration):

    # Each batch is committed by itself.
    atomic = False

    dependencies = [
        ('jobs', '0013_add_letter_message'),
    ]

    operations = [
        migrations.RunPython(copy, copy_back),
    ]
