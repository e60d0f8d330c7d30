"""The watcher: takes requests, keeps the ledger, decides what runs when. Holds no privilege."""

import sys

# Where rich is installed, structlog would load it, for a form of lines that is not used here.
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
