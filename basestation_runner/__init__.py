"""Run the jobs of many sites on one host, each as its own site's account. Holds the version and imports nothing."""

__version__ = "0.1.0.dev0"
