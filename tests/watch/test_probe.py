"""Probes, from the control socket to the helper and back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.operate.client import Client
from basestation_runner.watch import helper

if TYPE_CHECKING:
    from tests.watch.conftest import Bench


def probe(bench: Bench, site: str) -> Any:  # noqa: ANN401 - JSON
    with Client(bench.options.control_socket) as client:
        return client.ask("probe", site=site)["probe"]


def test_a_probe_is_the_helpers_answer(bench: Bench) -> None:
    bench.site("alpha")
    bench.start()
    bench.until(lambda: bench.watcher and bench.watcher.helper.is_up)
    assert probe(bench, "alpha") == {"site": "alpha", "outcome": "probed", "uids": [1, 1, 1]}
    assert bench.helper.probed == ["alpha"]
    with pytest.raises(RunnerError, match="there is no such site"):
        probe(bench, "beta")


def test_without_an_answer_the_asker_is_told_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.site("alpha")
    bench.helper.has_probe = False
    bench.start()
    bench.until(lambda: bench.watcher and bench.watcher.helper.is_up)
    monkeypatch.setattr(helper, "PROBE_PATIENCE", 0.05)
    with pytest.raises(TemporaryError, match="the helper does not answer"):
        probe(bench, "alpha")

    monkeypatch.undo()
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(TemporaryError) as error:
            probe(bench, "alpha")
        told.append(str(error.value))

    asking = threading.Thread(target=ask)
    asking.start()
    bench.until(lambda: len(bench.helper.probed) == 2)
    bench.helper.kill()
    asking.join()
    assert told == ["the helper is not reachable"]
    with pytest.raises(TemporaryError, match="the helper is not reachable"):
        probe(bench, "alpha")
