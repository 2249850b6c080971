"""An item is marked once when it is sent; a batch that is on its way has a row."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Max, Min
from django.utils import timezone


def keep_unfinished_batches(apps, schema_editor):
    """Give batches that a crash cut off their row, so that they are finished as before."""
    alias = schema_editor.connection.alias
    items = apps.get_model("jobs", "OperationItem").objects.using(alias).filter(state="sending")
    batches = (
        items.order_by().values("operation", "batch").annotate(first=Min("id"), last=Max("id"))
    )
    apps.get_model("jobs", "OperationBatch").objects.using(alias).bulk_create(
        apps.get_model("jobs", "OperationBatch")(
            operation_id=row["operation"],
            number=row["batch"],
            first_item_id=row["first"],
            last_item_id=row["last"],
            claimed_at=timezone.now(),
        )
        for row in batches
    )
    items.update(state="sent", sent_at=timezone.now())


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0005_drop_an_index_nobody_reads'),
    ]

    operations = [
        migrations.CreateModel(
            name='OperationBatch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('first_item_id', models.BigIntegerField()),
                ('last_item_id', models.BigIntegerField()),
                ('claimed_at', models.DateTimeField()),
            ],
            options={
                'verbose_name_plural': 'operation batches',
            },
        ),
        migrations.AddField(
            model_name='operationbatch',
            name='operation',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='open_batches', to='jobs.operation'),
        ),
        migrations.AddConstraint(
            model_name='operationbatch',
            constraint=models.UniqueConstraint(fields=('operation', 'number'), name='operation_batch_number'),
        ),
        migrations.RunPython(keep_unfinished_batches, migrations.RunPython.noop),
        migrations.RemoveConstraint(
            model_name='operationitem',
            name='operation_item_once',
        ),
        migrations.RemoveConstraint(
            model_name='operationitem',
            name='operation_item_one_open',
        ),
        migrations.RemoveIndex(
            model_name='operationitem',
            name='operation_item_stage',
        ),
        migrations.AlterField(
            model_name='operationitem',
            name='letter',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='items', to='jobs.deadletter'),
        ),
        migrations.AlterField(
            model_name='operationitem',
            name='state',
            field=models.CharField(choices=[('pending', 'Not sent yet'), ('sent', 'Waiting for outcome'), ('done', 'Done'), ('died', 'Died again'), ('unknown', 'Outcome unknown'), ('skipped', 'Skipped'), ('refused', 'Cannot be replayed')], default='pending', max_length=16),
        ),
        migrations.AddIndex(
            model_name='operationitem',
            index=models.Index(condition=models.Q(('stage__gt', 0)), fields=['operation', 'stage', 'state'], name='operation_item_stage'),
        ),
        migrations.AddConstraint(
            model_name='operationitem',
            constraint=models.UniqueConstraint(fields=('letter', 'operation'), name='operation_item_once'),
        ),
        migrations.AddConstraint(
            model_name='operationitem',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'sent')), fields=('letter',), name='operation_item_one_open'),
        ),
    ]
