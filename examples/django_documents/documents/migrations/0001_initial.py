from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="Document",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("owner", models.CharField(max_length=100)),
                ("text", models.TextField()),
                ("state", models.CharField(max_length=20, default="waiting")),
                ("words", models.PositiveIntegerField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("owner", models.CharField(max_length=100)),
                ("text", models.TextField()),
            ],
        ),
    ]
