from basestation_runner.cli import main

raise SystemExit(main())
