"""`python -m minibert` is the command `minibert`."""
import sys

from .cli.entry import start

sys.exit(start())
