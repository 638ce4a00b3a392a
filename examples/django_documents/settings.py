"""Settings of a small project; the database comes from the environment, as PostgreSQL's own programs read it."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
        "USER": os.environ.get("PGUSER", ""),
        "NAME": os.environ.get("PGDATABASE", "documents"),
    }
}
INSTALLED_APPS = ["documents", "timeball.contrib.django"]
TASKS = {"default": {"BACKEND": "timeball.contrib.django.Backend"}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
