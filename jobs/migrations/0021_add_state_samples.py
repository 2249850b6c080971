"""What stood open in each minute: dead letters, the outbox's lag, workers online."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0020_add_default_alert_rules"),
    ]

    operations = [
        migrations.CreateModel(
            name="StateSample",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "level",
                    models.CharField(choices=[("minute", "minute"), ("hour", "hour")], max_length=8),
                ),
                ("at", models.DateTimeField()),
                ("dead_letters", models.BigIntegerField(blank=True, null=True)),
                ("outbox_lag_seconds", models.FloatField(blank=True, null=True)),
                ("workers_online", models.PositiveIntegerField(blank=True, null=True)),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("level", "at"), name="state_sample_once")
                ],
            },
        ),
    ]
