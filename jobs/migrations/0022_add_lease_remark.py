from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0021_add_state_samples"),
    ]

    operations = [
        migrations.AddField(
            model_name="lease",
            name="remark",
            field=models.CharField(blank=True, db_default="", max_length=500),
        ),
    ]
