from basestation_runner.__main__ import main

raise SystemExit(main())
