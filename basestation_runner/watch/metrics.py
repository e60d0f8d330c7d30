"""What the watcher shows to Prometheus, made anew from what it knows each time that somebody asks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from attrs import frozen
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from basestation_runner import __version__
from basestation_runner.watch.web import Page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from basestation_runner.watch.jobs import Jobs
    from basestation_runner.watch.report import Report
    from basestation_runner.watch.tally import Times

PATH: Final = "/metrics"
STATES: Final = ("watching", "starting", "pending")


def page(report: Report, jobs: Jobs) -> Page:
    """Return the page that Prometheus reads."""
    return Page(CONTENT_TYPE_LATEST, Metrics(report, jobs).exposition)


@frozen
class Metrics:
    """Every series. Labels hold names from the configuration and words from here only: their number is bounded."""

    report: Report
    jobs: Jobs

    async def exposition(self) -> bytes:
        """Return all series as text. Raises what Report raises when the ledger does not answer."""
        oldest = await self.report.accepted_first()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected([*self._sites(oldest), *self._jobs(), *self._itself()]))
        return generate_latest(registry)

    def _sites(self, oldest: Mapping[str, float]) -> Iterator[Metric]:
        states = GaugeMetricFamily("runner_sites", "Sites of the configuration, by state.", labels=["state"])
        states_of = self.report.states()
        for state in STATES:
            states.add_metric([state], sum(each == state for each in states_of.values()))
        yield states
        yield GaugeMetricFamily("runner_sites_held", "Sites of which nothing is started.", value=self.report.held)
        up = GaugeMetricFamily("runner_site_watching", "1 while requests of the site are taken.", labels=["site"])
        queued = GaugeMetricFamily("runner_queued_jobs", "Jobs of the site that wait.", labels=["site"])
        running = GaugeMetricFamily("runner_running_jobs", "Jobs of the site that run.", labels=["site"])
        age = GaugeMetricFamily(
            "runner_oldest_queued_seconds", "Age of the site's job that has waited longest.", labels=["site"]
        )
        now = time.time()
        for name, state in states_of.items():
            up.add_metric([name], state == "watching")
            queued.add_metric([name], self.jobs.queued(name))
            running.add_metric([name], self.jobs.running(name))
            age.add_metric([name], max(0.0, now - oldest.get(name, now)))
        yield from (up, queued, running, age)

    def _jobs(self) -> Iterator[Metric]:
        tally = self.jobs.tally
        ended = CounterMetricFamily(
            "runner_jobs", "Jobs that have ended, by the state in which.", labels=["state", "script"]
        )
        for (state, script), count in tuple(tally.ended.items()):
            ended.add_metric([state, script], count)
        yield ended
        errors = CounterMetricFamily(
            "runner_dispatch_errors",
            "Jobs that could not be started or whose end is not known, by why.",
            labels=["reason"],
        )
        for reason, count in tuple(tally.errors.items()):
            errors.add_metric([reason], count)
        yield errors
        yield _histogram("runner_start_seconds", "From a request's acceptance to its job's start.", tally.starts)
        yield _histogram("runner_run_seconds", "From a job's start to its end.", tally.runs)
        yield GaugeMetricFamily("runner_stuck_jobs", "Jobs that wait for what may last.", value=len(self.jobs.stuck))
        keepers = len(self.jobs.in_flight)
        yield GaugeMetricFamily("runner_keepers", "Jobs that the helper has been given: a keeper each.", value=keepers)

    def _itself(self) -> Iterator[Metric]:
        tally = self.jobs.tally
        yield InfoMetricFamily("runner_build", "The watcher's version.", value={"version": __version__})
        yield GaugeMetricFamily("runner_start_time_seconds", "When the watcher began.", value=self.report.started_at)
        helper = self.report.helper.facts
        yield GaugeMetricFamily("runner_helper_up", "1 while the helper can be asked.", value=helper["reachable"])
        same = self.report.has_same_config() is not False
        yield GaugeMetricFamily("runner_config_in_sync", "0 while both daemons go by different files.", value=same)
        trouble = self.report.trouble() is not None
        yield GaugeMetricFamily("runner_trouble", "1 while nothing is accepted or started at all.", value=trouble)
        yield CounterMetricFamily(
            "runner_overflow_scans", "Rundirs scanned because events were lost.", value=tally.overflows
        )
        yield _histogram("runner_ledger_commit_seconds", "How long the ledger's commits took.", tally.commits)


@frozen(eq=False)
class _Collected(Collector):
    metrics: list[Metric]

    def collect(self) -> list[Metric]:
        return self.metrics


def _histogram(name: str, text: str, times: Times) -> Metric:
    buckets, so_far = [], 0
    for bound, count in zip((*map(str, times.bounds), "+Inf"), times.counts, strict=True):
        so_far += count
        buckets.append((bound, float(so_far)))
    metric = HistogramMetricFamily(name, text)
    metric.add_metric([], buckets, times.total)
    return metric
