"""Benchmarks: how fast and how small the installed program is, measured from outside. See README.md here."""
