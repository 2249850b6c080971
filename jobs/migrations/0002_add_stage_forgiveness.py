"""Stages remember what an operator resumed in spite of."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="operationstage",
            name="forgiven_bad",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="operationstage",
            name="forgiven_finished",
            field=models.PositiveIntegerField(default=0),
        ),
    ]
