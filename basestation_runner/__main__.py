"""`python -m basestation_runner` is the same program as `runner`."""

from basestation_runner.cli import main

raise SystemExit(main())
