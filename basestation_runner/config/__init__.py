"""The typed configuration that all sub-commands share. Needs nothing that only the daemons need."""
