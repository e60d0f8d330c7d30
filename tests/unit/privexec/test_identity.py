"""Steps of the privilege drop on other hosts than this one; tests/host/test_identity.py has what they do for real."""

from __future__ import annotations

import errno
import os

import pytest

from basestation_runner import syscalls
from basestation_runner.privexec.identity import Identity, own_keyring

WHO = Identity(1000, (1000,))


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def join() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(syscalls, "join_new_session_keyring", join)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_where_nobody_can_have_keyrings_a_job_needs_none(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refuse(monkeypatch, number)
    own_keyring(WHO)


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOMEM, errno.EACCES])
def test_a_job_that_gets_no_keyring_of_its_own_must_not_run(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refuse(monkeypatch, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        own_keyring(WHO)
