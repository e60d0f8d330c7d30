"""Who may be the helper, decided by what the kernel says about this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import prctl
import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.privexec import capabilities
from basestation_runner.privexec.capabilities import NEEDED, ProcessStatus, process_status, secure_helper

if TYPE_CHECKING:
    from collections.abc import Callable

NONE = ProcessStatus(
    uids=(990,) * 4,
    gids=(990,) * 4,
    groups=(),
    umask=0o022,
    blocked_signals=0,
    ignored_signals=0,
    inheritable=0,
    permitted=0,
    effective=0,
    ambient=0,
    no_new_privs=False,
)
BOTH = NONE._replace(permitted=NEEDED, effective=NEEDED)
KILL = 1 << prctl.CAP_KILL
SETUID = 1 << prctl.CAP_SETUID


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProcessStatus], list[str]]:
    """Let the kernel say something, and record what is changed instead of changing this process."""

    def pretend(status: ProcessStatus) -> list[str]:
        changed: list[str] = []

        class Inheritable:
            def limit(self) -> None:
                changed.append("inheritable emptied")

        monkeypatch.setattr(capabilities, "process_status", lambda: status)
        monkeypatch.setattr(prctl, "cap_inheritable", Inheritable())
        monkeypatch.setattr(prctl, "set_dumpable", lambda value: changed.append(f"dumpable {value}"))
        return changed

    return pretend


def test_the_needed_capabilities_are_setuid_and_setgid() -> None:
    assert NEEDED == 0b1100_0000


@pytest.mark.parametrize(
    "status",
    [BOTH, BOTH._replace(inheritable=NEEDED), BOTH._replace(inheritable=NEEDED, ambient=NEEDED)],
    ids=["of a file", "inheritable", "ambient"],
)
def test_with_exactly_the_two_it_may_change_identity(
    pretend: Callable[[ProcessStatus], list[str]], status: ProcessStatus
) -> None:
    changed = pretend(status)
    assert secure_helper() is True
    assert changed == ["inheritable emptied", "dumpable 0"]


def test_with_none_it_may_not_and_is_as_closed(pretend: Callable[[ProcessStatus], list[str]]) -> None:
    changed = pretend(NONE)
    assert secure_helper() is False
    assert "dumpable 0" in changed


@pytest.mark.parametrize("position", range(4))
def test_root_in_any_place_is_refused(pretend: Callable[[ProcessStatus], list[str]], position: int) -> None:
    uids = [990] * 4
    uids[position] = 0
    changed = pretend(BOTH._replace(uids=tuple(uids)))
    with pytest.raises(RunnerError, match="must not run as root"):
        secure_helper()
    assert not changed


@pytest.mark.parametrize("name", ["inheritable", "permitted", "effective", "ambient"])
@pytest.mark.parametrize("held", [BOTH, NONE])
def test_one_more_capability_in_any_set_is_refused(
    pretend: Callable[[ProcessStatus], list[str]], held: ProcessStatus, name: str
) -> None:
    pretend(held._replace(**{name: getattr(held, name) | KILL}))
    with pytest.raises(RunnerError, match="holds more than CAP_SETUID and CAP_SETGID"):
        secure_helper()


@pytest.mark.parametrize(
    "status",
    [
        NONE._replace(permitted=SETUID, effective=SETUID),
        BOTH._replace(effective=SETUID),
        BOTH._replace(effective=0),
        NONE._replace(inheritable=NEEDED),
    ],
)
def test_a_part_of_the_two_is_refused(pretend: Callable[[ProcessStatus], list[str]], status: ProcessStatus) -> None:
    pretend(status)
    with pytest.raises(RunnerError, match="holds a part of what it needs"):
        secure_helper()


def test_the_status_is_the_kernels_own() -> None:
    now = process_status()
    assert now.held == now.inheritable | now.permitted | now.effective | now.ambient
    assert len(now.uids) == len(now.gids) == 4
