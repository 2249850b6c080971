"""The table that takes the messages of letters."""

import django.db.models.deletion
from django.db import migrations, models

import jobs.fields


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0012_keep_what_an_outbox_message_declares'),
    ]

    operations = [
        migrations.CreateModel(
            name='LetterMessage',
            fields=[
                ('letter', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='message', serialize=False, to='jobs.deadletter')),
                ('body', models.BinaryField()),
                ('headers', jobs.fields.JSONTextField(default=dict)),
                ('properties', jobs.fields.JSONTextField(default=dict)),
            ],
            options={
                'default_permissions': (),
            },
        ),
    ]
