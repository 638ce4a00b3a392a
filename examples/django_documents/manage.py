"""Documents that are split, read in parallel and joined, in Django.

createdb documents; python manage.py migrate; timeball up timeball.contrib.django:tb; python manage.py runserver
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
