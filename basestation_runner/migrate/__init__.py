"""`runner migrate-site`: takes a site over from its legacy unit, and gives it back. Run by hand, as root."""
