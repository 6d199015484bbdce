"""`python -m minibert` is the command `minibert`."""
import sys

from .cli.main import main

sys.exit(main())
