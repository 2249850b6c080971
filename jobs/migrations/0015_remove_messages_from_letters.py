"""Remove the columns whose values are in the messages' table now.

A collector of the version before may have written letters since they were copied. So the table is
locked, the rest is copied, and the columns are removed, in one transaction: no message is lost.
"""

from django.db import migrations, models


def copy_the_rest(apps, schema_editor):
    with schema_editor.connection.cursor() as cursor:
        if schema_editor.connection.vendor == 'postgresql':
            cursor.execute('LOCK TABLE jobs_deadletter IN ACCESS EXCLUSIVE MODE')
        cursor.execute(
            """
            INSERT INTO jobs_lettermessage (letter_id, body, headers, properties)
            SELECT l.id, l.body, l.headers, l.properties FROM jobs_deadletter l
            WHERE NOT EXISTS (SELECT 1 FROM jobs_lettermessage m WHERE m.letter_id = l.id)
            """
        )
        if schema_editor.connection.vendor == 'postgresql':
            # A table with unchecked references cannot be altered.
            cursor.execute('SET CONSTRAINTS ALL IMMEDIATE')


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0014_copy_messages_of_letters'),
    ]

    operations = [
        migrations.RunPython(copy_the_rest, migrations.RunPython.noop),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                # What the column is filled with when this is reversed, until the messages are copied back.
                migrations.AlterField(
                    model_name='deadletter', name='body', field=models.BinaryField(default=b'')
                ),
            ]
        ),
        migrations.RemoveField(model_name='deadletter', name='body'),
        migrations.RemoveField(model_name='deadletter', name='headers'),
        migrations.RemoveField(model_name='deadletter', name='properties'),
    ]
