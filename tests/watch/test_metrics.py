"""What Prometheus reads of a watcher that runs, and that what ships for it asks for nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from basestation_runner.watch import web
from basestation_runner.watch.web import Address

if TYPE_CHECKING:
    from tests.watch.conftest import Bench

PACKAGING = Path(__file__).parents[2] / "packaging"
FUNCTIONS = {"sum", "by", "rate", "increase", "histogram_quantile", "absent", "time", "le"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(bench: Bench) -> Samples:
    assert bench.watcher is not None
    (served,) = bench.watcher.webs
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(web, "FRESH", -1.0)
    bench.metrics = Address(host="127.0.0.1")
    return bench


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_sites_and_jobs_are_counted(measured: Bench) -> None:
    bench = measured
    alpha = bench.site("alpha")
    bench.site("beta", make=False)
    bench.start()
    bench.drop(alpha, "1.run")
    bench.until(lambda: bench.states().get("1.run") == "succeeded")
    bench.helper.on_dispatch = bench.helper.hold
    bench.drop(alpha, "2.run")
    bench.until(lambda: bench.states().get("2.run") == "running")
    bench.drop(alpha, "3.run")
    bench.until(lambda: bench.states().get("3.run") == "queued")
    now = read(bench)
    assert value(now, "runner_sites", state="watching") == 1
    assert value(now, "runner_sites", state="pending") == 1
    assert value(now, "runner_site_watching", site="beta") == 0
    assert value(now, "runner_queued_jobs", site="alpha") == 1
    assert value(now, "runner_running_jobs", site="alpha") == 1
    assert value(now, "runner_keepers") == 1
    assert value(now, "runner_oldest_queued_seconds", site="alpha") > 0
    assert value(now, "runner_oldest_queued_seconds", site="beta") == 0
    assert value(now, "runner_jobs_total", state="succeeded", script="Base.py") == 1
    assert value(now, "runner_start_seconds_count") == 2
    assert value(now, "runner_run_seconds_count") == 1
    assert value(now, "runner_run_seconds_bucket", le="1.0") == 1
    assert value(now, "runner_run_seconds_bucket", le="0.1") == 0
    assert value(now, "runner_ledger_commit_seconds_count") > 2
    assert value(now, "runner_helper_up") == 1
    assert value(now, "runner_trouble") == 0


def test_what_kept_jobs_from_starting_is_counted_by_few_words(measured: Bench) -> None:
    bench = measured
    alpha = bench.site("alpha")
    bench.helper.on_dispatch = lambda message: bench.helper.say(
        {"event": "refused", "job_id": message["job_id"], "reason": "a reason from anywhere"}
    )
    bench.start()
    bench.drop(alpha, "1.run")
    bench.until(lambda: bench.states().get("1.run") == "refused")
    now = read(bench)
    assert value(now, "runner_dispatch_errors_total", reason="refused") == 1
    assert value(now, "runner_jobs_total", state="refused", script="Base.py") == 1


def test_scripts_that_no_profile_lists_are_one_series(measured: Bench) -> None:
    bench = measured
    alpha = bench.site("alpha")
    bench.default_application = "base"
    bench.start()
    for number in range(3):
        bench.drop(alpha, f"{number}.run", script=f"Any{number}.py", n=number)
    bench.until(lambda: sorted(bench.states().values()) == ["succeeded"] * 3)
    assert value(read(bench), "runner_jobs_total", state="succeeded", script="other") == 3


def test_lost_events_are_counted(measured: Bench) -> None:
    measured.site("alpha")
    watcher = measured.start()
    measured.on_loop(measured.sites_of_watcher[0]._on_overflow)
    measured.on_loop(watcher._on_overflow)
    assert value(read(measured), "runner_overflow_scans_total") == 2


def asked_for() -> set[str]:
    """Return every metric that the dashboard and the alert rules name."""
    dashboard = json.loads((PACKAGING / "grafana/runner.json").read_text())
    rules = YAML(typ="safe").load((PACKAGING / "prometheus/runner.rules.yml").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(expressions) > 20
    words = {word for text in expressions for word in re.findall(r"[a-z_]{2,}", re.sub(r'\{[^}]*\}|"[^"]*"', "", text))}
    return {word for word in words if word not in FUNCTIONS | {"state", "script", "reason", "site"}}


def test_the_dashboard_and_the_alert_rules_name_metrics_that_there_are(measured: Bench) -> None:
    alpha = measured.site("alpha")
    measured.helper.on_dispatch = lambda message: measured.helper.say(
        {"event": "refused", "job_id": message["job_id"], "reason": "no"}
    )
    measured.start()
    measured.drop(alpha, "1.run")
    measured.until(lambda: measured.states().get("1.run") == "refused")
    there = {name for name, _ in read(measured)}
    assert asked_for() <= there
    unused = {name for name in there if not name.endswith(("_sum", "_count", "_created"))} - asked_for()
    assert unused == set()


def test_a_watcher_without_metrics_does_not_hold_their_library() -> None:
    program = "import sys, basestation_runner.watch.daemon\nprint('prometheus_client' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
