"""Large files, with a fault in every line, are answered in bounded time and with bounded text."""

from __future__ import annotations

import pytest

from basestation_runner.config.load import ConfigErrors, Source, load_sources
from basestation_runner.config.nested import MAX_COMPARED
from tests.fuzz.bounds import bounded


def faults(sites: str, applications: str = "{}") -> list[str]:
    with pytest.raises(ConfigErrors) as caught, bounded(10):
        load_sources(Source("s", sites.encode()), Source("a", applications.encode()))
    return [str(fault) for fault in caught.value.faults]


def profiles(count: int) -> str:
    return "applications:\n" + "".join(f"- {{name: app{number}, scripts: [s{number}.py]}}\n" for number in range(count))


def test_a_rundir_inside_many_others_is_one_fault() -> None:
    depth = 200
    sites = (f"s{number}: {{watch_dir: {'/a' * (number + 1)}, runner_user: r}}" for number in range(depth))
    found = faults("\n".join(sites))
    assert len(found) == depth - 1
    assert found[-1].startswith(f"s:{depth}:")
    assert f"lies inside the rundir of site s{depth - 2} " in found[-1]


def test_thousands_of_unknown_applications_beside_thousands_of_known_ones_are_answered() -> None:
    sites = (f"s{n}: {{watch_dir: /srv/{n}, runner_user: r, applications: [apx{n}]}}" for n in range(1000))
    found = faults("\n".join(sites), profiles(3000))
    assert len(found) == 1000
    assert "application apx0 is not defined (did you mean app0?)" in found[0]


def test_not_all_of_thousands_of_known_names_are_listed_in_a_hint() -> None:
    (found,) = faults("s: {watch_dir: /srv/s, runner_user: r, applications: [zz]}", profiles(5000))
    assert found.count(", app") == MAX_COMPARED - 1
    assert found.endswith(", …)")


def test_thousands_of_sites_that_may_use_thousands_of_applications_share_one_list() -> None:
    sites = "".join(f"s{n}: {{watch_dir: /srv/{n}, runner_user: r, applications: all}}\n" for n in range(1000))
    with bounded(10):
        config = load_sources(Source("s", sites.encode()), Source("a", profiles(3000).encode()))
    assert len({id(site.applications) for site in config.sites.values()}) == 1
