"""What the name service and the host's files say about the account of a legacy unit. Blocking calls."""

import glob
import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from basestation_runner import execgroups, nss
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate.entry import People, Variables
from basestation_runner.migrate.unit import EnvironmentFile, Unit, variables_of

_MOST_BYTES: Final = 1 << 20


def people_of(unit: Unit) -> People:
    """Return the account of a unit, its groups and homes. Raises RunnerError when it has none that may run jobs."""
    if unit.user in {"", "root", "0"}:
        raise RunnerError("it runs as root: a site's jobs never do", where=unit.name, hint="give it a User= first")
    try:
        account = nss.account_by_uid(int(unit.user)) if unit.user.isdigit() else nss.account(unit.user)
        if account is None:
            raise RunnerError(f"there is no account {unit.user}, its User=", where=unit.name)
        primary = account.gid if not unit.group else _gid(unit, unit.group)
        has = nss.groups_of(account)
        extra = [_gid(unit, group) for group in unit.supplementary]
        listed = dict.fromkeys([*execgroups.of_account(primary, has), *(gid for gid in extra if gid in has)])
        return People(
            user=account.name,
            groups=tuple(map(_label, listed)),
            foreign=tuple(_label(gid) for gid in extra if gid not in has and gid != primary),
            homes=tuple(home for home in dict.fromkeys(_homes(account, primary)) if Path(home).is_dir()),
        )
    except nss.LookupFailedError as error:
        raise TemporaryError(f"the name service does not answer: {error}") from error


def _gid(unit: Unit, group: str) -> int:
    if group.isdigit():
        return int(group)
    found = nss.group(group)
    if found is None:
        raise RunnerError(f"there is no group {group}", where=unit.name)
    return found.gid


def _label(gid: int) -> str | int:
    """Return a group as sites.yaml names it."""
    found = nss.group_by_gid(gid)
    return gid if found is None or found.name.isdigit() else found.name


def _homes(account: nss.Account, gid: int) -> Iterator[str]:
    """Yield the homes of an account and of the members of its group, as far as the name service lists them."""
    yield account.home
    try:
        members = grp.getgrgid(gid).gr_mem
    except KeyError:
        members = []
    for name in members:
        member = nss.account(name)
        if member is not None:
            yield member.home
    for entry in pwd.getpwall():
        if entry.pw_gid == gid:
            yield entry.pw_dir


def variables_of_unit(unit: Unit) -> Variables:
    """Return the variables of a unit's processes: those of its files go before its own."""
    values = dict(unit.variables)
    secret, missing = [], []
    for path in _existing(unit.environment_files):
        content = _content(path)
        if content is None:
            missing.append(path)
        elif not content[1] & stat.S_IROTH:
            secret.append(path)
        else:
            values |= variables_of(content[0])
    return Variables(values=values, secret=tuple(secret), missing=tuple(missing))


def _existing(files: Iterable[EnvironmentFile]) -> Iterator[str]:
    """Yield the files that are meant, each of a pattern in its order; and one that should be there and is not."""
    for file in files:
        found = sorted(glob.glob(file.path))  # noqa: PTH207 - an absolute pattern
        yield from found or ([] if file.is_optional else [file.path])


def _content(path: str) -> tuple[str, int] | None:
    """Return what a file of variables holds, and its mode."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return None
        return file.read(_MOST_BYTES).decode(errors="replace"), status.st_mode
