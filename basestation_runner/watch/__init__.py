"""The watcher: takes requests, keeps the ledger, decides what runs when. Holds no privilege."""
