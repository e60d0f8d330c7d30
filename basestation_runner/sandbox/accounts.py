"""Throw-away accounts: whole passwd and group files of our own, shown over /etc's in a private mount namespace.

The host's own entries stay readable, so that root and the system accounts keep their names. Numbers are far above
those that hosts use, and differ between sandboxes that run side by side.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from attrs import define, evolve, field, frozen

from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account

_SPAN: Final = 200  # numbers set aside for one sandbox
_HIGH: Final = 1_000_000_000  # plus _SPAN for each pid, it stays below 2³¹
_LOW: Final = 60_100  # for a user namespace that maps only 65,536 ids; Debian gives 60,000-64,999 to no one by default


@frozen
class _Group:
    gid: int
    members: tuple[str, ...] = ()


@define
class Accounts:
    """The accounts and groups of one sandbox; every change is visible at once (see `together`), to every process in it.

    `publish(name, text)` must replace /etc/`name` in one step: daemons look names up while tests change them.
    """

    _publish: Callable[[str, str], None]
    first_id: int = field(factory=lambda: _first_id(os.getpid()))
    _next_id: int = field(init=False)
    _users: dict[str, Account] = field(factory=dict, init=False)
    _groups: dict[str, _Group] = field(factory=dict, init=False)
    _host: dict[str, list[str]] = field(init=False)
    _is_held: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Read what the host has, before anything of ours is shown."""
        self._next_id = self.first_id
        self._host = {name: _host_lines(Path("/etc", name)) for name in ("passwd", "group")}

    def owns(self, uid: int) -> bool:
        """Return whether `uid` is in the range that only this sandbox uses, or an account's that was given one.

        Never root's, whatever else it is called here: whoever made the sandbox is root.
        """
        return self._in_range(uid) or (uid != 0 and any(user.uid == uid for user in self._users.values()))

    def user(self, name: str) -> Account:
        return self._users[name]

    def gid(self, group: str) -> int:
        return self._groups[group].gid

    def add_group(self, name: str, *, gid: int | None = None) -> int:
        """Make a group and return its number: the next free one unless `gid` is given."""
        if name in self._groups:
            raise RunnerError(f"the group {name} exists already")
        number = self._take_id() if gid is None else gid
        self._groups[name] = _Group(number)
        self._write_groups()
        return number

    def add_user(
        self,
        name: str,
        *,
        primary: str | None = None,
        groups: Iterable[str] = (),
        uid: int | None = None,
        home: str = "/nonexistent",
    ) -> Account:
        """Make an account; its primary group is one of its own name unless `primary` names another."""
        if name in self._users:
            raise RunnerError(f"the account {name} exists already")
        number = self._take_id() if uid is None else uid
        if primary is None:
            primary = name
            self.add_group(name, gid=number)
        self._users[name] = Account(name, number, self.gid(primary), home, "/bin/sh")
        self._write_users()
        self.join(name, *groups)
        return self._users[name]

    def remove_user(self, name: str) -> None:
        del self._users[name]
        self._write_users()
        self.leave(name, *self._groups)

    def remove_group(self, name: str) -> None:
        del self._groups[name]
        self._write_groups()

    def join(self, user: str, *groups: str) -> None:
        """Make `user` a member of `groups`; processes that run already do not notice."""
        for name in groups:
            group = self._groups[name]
            if user not in group.members:
                self._groups[name] = evolve(group, members=(*group.members, user))
        self._write_groups()

    def leave(self, user: str, *groups: str) -> None:
        for name in groups:
            group = self._groups[name]
            self._groups[name] = evolve(group, members=tuple(member for member in group.members if member != user))
        self._write_groups()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Make all changes of this block visible at its end, so that many of them cost no more than one."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._write_users()
            self._write_groups()

    def snapshot(self) -> Callable[[], None]:
        """Return a function that brings back the accounts as they are now."""
        then = dict(self._users), dict(self._groups), self._next_id

        def restore() -> None:
            self._users, self._groups, self._next_id = then
            self._write_users()
            self._write_groups()

        return restore

    def _take_id(self) -> int:
        taken = {user.uid for user in self._users.values()} | {group.gid for group in self._groups.values()}
        while self._next_id in taken:
            self._next_id += 1
        if not self._in_range(self._next_id):
            raise RunnerError(f"more than {_SPAN} accounts and groups in one sandbox", hint="number the rest")
        self._next_id += 1
        return self._next_id - 1

    def _in_range(self, number: int) -> bool:
        return self.first_id <= number < self.first_id + _SPAN

    def _write_users(self) -> None:
        lines = [f"{u.name}:x:{u.uid}:{u.gid}::{u.home}:{u.shell}" for u in self._users.values()]
        self._show("passwd", self._users, lines)

    def _write_groups(self) -> None:
        lines = [f"{name}:x:{group.gid}:{','.join(group.members)}" for name, group in self._groups.items()]
        self._show("group", self._groups, lines)

    def _show(self, file: str, names: Iterable[str], lines: list[str]) -> None:
        if self._is_held:
            return
        ours = set(names)
        host = [line for line in self._host[file] if line.split(":", 1)[0] not in ours]
        self._publish(file, "\n".join([*host, *lines, ""]))


def _host_lines(path: Path) -> list[str]:
    """Return a file's entries, without the `+` and `-` lines that stand for another source."""
    lines = path.read_text(errors="surrogateescape").splitlines()
    return [line for line in lines if line and line[0] not in "#+-"]


def _first_id(pid: int) -> int:
    high = _HIGH + pid * _SPAN
    maps = (Path("/proc/self/uid_map"), Path("/proc/self/gid_map"))
    return high if all(_is_mapped(path.read_text(), high) for path in maps) else _LOW


def _is_mapped(id_map: str, first: int) -> bool:
    """Return whether a user namespace has the ids from `first` on; `id_map` is user_namespaces(7)'s table."""
    ranges = (tuple(map(int, line.split())) for line in id_map.splitlines())
    return any(inside <= first and first + _SPAN <= inside + count for inside, _outside, count in ranges)
