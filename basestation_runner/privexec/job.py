"""What a job's child is to open and to execute, made from its order and from what the child has found.

The child (become/main.c) fulfils the wishes after the privilege drop, as the site, in their order; the first that it
cannot fulfil ends it. What follows for command and environment is decided here, in the keeper.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from basestation_runner import nss
from basestation_runner.paths import PathRefusedError, join_jail, lies_beneath
from basestation_runner.privexec import bwrap
from basestation_runner.privexec.identity import Identity
from basestation_runner.privexec.launch import launched
from basestation_runner.privexec.order import PROFILE, Order, RefusedError, Sandbox

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_LANG: Final = "C.UTF-8"
_NO_HOME: Final = "/nonexistent"
_MOST_KEPT: Final = 8000
"""Characters of a command that are kept in its job's dispatch record."""
_SHOWN: Final = 500
"""Characters of a request that a reason or the audit trail repeats."""
_YES: Final = "1"


class Wish(NamedTuple):
    """Something for the child to do: what people call it, and the words of become/main.c for it."""

    what: str
    words: tuple[str, ...]


Found = Mapping[Wish, str]
"""What the child has said of each wish."""


class Work(NamedTuple):
    """An order with what has been found out about it: as whom it is carried out, and where accounts have caches."""

    order: Order
    account: nss.Account
    who: Identity
    cache_dir: str


class Execution(NamedTuple):
    """What the child becomes: what people call it, its command, its environment, and how it is shut in, if it is."""

    what: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    sandbox: bwrap.Enclosure | None = None


class Plan(Protocol):
    """How a child gets from its drop to its program."""

    def opening(self) -> Sequence[Wish]:
        """Return what it must open and see first."""

    def take(self, found: Found) -> None:
        """Learn what came of that."""

    def view(self) -> Sequence[Wish]:
        """Return what it must open just before its program runs: what a sandbox shows."""

    def execution(self, found: Found) -> Execution:
        """Return what it executes, given what came of `view`. Raises RefusedError."""


class JobPlan:
    """The job itself."""

    def __init__(self, work: Work) -> None:
        """Nothing is known yet of what is there."""
        self._order = work.order
        self._home = HomePlaces(work.account, work.cache_dir)
        self._gid = work.who.groups[0]  # also of a log that is made
        self._argv: Sequence[str] = ()
        self._environment: Mapping[str, str] = {}
        self.warnings: list[str] = []
        """What the site should hear of."""

    def opening(self) -> Sequence[Wish]:
        """Return what must be there, so that what is missing is not an exit code; the log before all that can fail."""
        order = self._order
        # Whoever reads a reason on the host must not look for the path there.
        inside = f" inside the jail {order.site.jail_root}" if order.jailed else ""
        return [
            Wish("the site's tree", ("tree", *_tree(order))),
            Wish(f"the log {order.log_file}{inside}", ("log", order.log_file, str(self._gid))),
            Wish(f"the mission directory {order.mission_dir}{inside}", ("enter", order.mission_dir)),
            Wish(f"the home directory {order.home}{inside}", ("directory", order.home)),
            *_program(order),
            *(_translation(word) for word in self._places()),
            *self._home.wishes,
        ]

    def take(self, found: Found) -> None:
        """Make command and environment of what was found."""
        order = self._order
        self._argv = [*order.program, *self._translated(found), *order.appended_args]
        self._environment = _environment(order, self._home, found)
        self.warnings = self._home.warnings(found)

    @property
    def told(self) -> dict[str, Any]:
        """What the audit trail and the dispatch record say of it."""
        return {
            "command": shown(shlex.join(self._argv)),
            "argv": _some(self._argv),
            "env": sorted(self._environment),
        }

    def view(self) -> Sequence[Wish]:
        """Return what its sandbox shows, if it has one."""
        return [] if self._order.sandbox is None else _view(self._order, self._order.sandbox)

    def execution(self, found: Found) -> Execution:
        """Return the job's command, in its launcher and its sandbox. Raises RefusedError."""
        order = self._order
        argv, environment = self._argv, self._environment
        what = f"the {'interpreter' if len(order.program) > 1 else 'command'} {argv[0]}"
        if order.launcher is not None:
            argv, environment = launched(order.launcher, order.tasks, argv, environment, order.added_env)
            what = f"the launcher {argv[0]}"
        if order.sandbox is not None:
            return _enclosed(order, order.sandbox, found, argv, environment)
        return Execution(what, argv, environment)

    def _places(self) -> Iterator[str]:
        """Yield the request's own arguments that name a place in the mission or home directory.

        Compared by components, and only arguments: a mission directory equal to the interpreter's changes nothing else.
        """
        order = self._order
        if order.jailed:
            for word in order.own_args:
                if lies_beneath(word, order.mission_dir) or lies_beneath(word, order.home):
                    yield word

    def _translated(self, found: Found) -> Iterator[str]:
        for word in self._order.own_args:
            wish = _translation(word)
            yield _on_host(self._order, wish, found) if wish in found else word


class StepPlan:
    """A step of a job: the profile's own, or one that the job has added."""

    def __init__(self, work: Work, number: int) -> None:
        """`number` is the step's place in the order's `steps`."""
        self._order = work.order
        self._step = work.order.steps[number]
        self._what = work.order.step_title(number)
        self._home = HomePlaces(work.account, work.cache_dir)
        self._is_outer = self._step.origin == PROFILE
        self._environment: Mapping[str, str] = {}

    def opening(self) -> Sequence[Wish]:
        """Return what must be there. It runs in "/" when the job has done away with its mission directory."""
        program = self._step.argv[0]
        checks = [Wish(self._what, ("program", program))]
        if self._is_outer:
            checks.append(Wish(self._what, ("roots", program)))
        return [self._entry, *checks, *self._home.wishes]

    def take(self, found: Found) -> None:
        """Make its environment. Raises RefusedError when it needs a directory that is gone."""
        if self._has_sandbox and found[self._entry] != _YES:
            raise RefusedError("the mission directory is gone")
        left_out = self._order.added_env if self._is_outer else ()
        self._environment = _environment(self._order, self._home, found, left_out=left_out)

    def view(self) -> Sequence[Wish]:
        """Return what its sandbox shows: the job's own steps are shut in as the job is."""
        sandbox = self._order.sandbox
        return [] if sandbox is None or not self._has_sandbox else _view(self._order, sandbox)

    def execution(self, found: Found) -> Execution:
        """Return the step's command. Raises RefusedError."""
        sandbox = self._order.sandbox
        if sandbox is not None and self._has_sandbox:
            return _enclosed(self._order, sandbox, found, self._step.argv, self._environment)
        return Execution(self._what, self._step.argv, self._environment)

    @property
    def _has_sandbox(self) -> bool:
        return self._order.sandbox is not None and not self._is_outer

    @property
    def _entry(self) -> Wish:
        return Wish(self._what, ("try", *_tree(self._order), self._order.mission_dir))


class HomePlaces:
    """The places of an account that its environment names if they are its own."""

    def __init__(self, account: nss.Account, cache_dir: str) -> None:
        """Nothing is known yet of what is there."""
        self.account = account
        self.cache = f"{cache_dir}/{account.name}"
        self._home_wish = Wish("the account's home", ("private", account.home))
        self._cache_wish = Wish("the account's cache", ("cache", self.cache))
        self.wishes = (self._home_wish, self._cache_wish)
        """What finds out about them."""

    def has_cache(self, found: Found) -> bool:
        """Tell whether the account has a cache directory of its own."""
        return found[self._cache_wish] == _YES

    def warnings(self, found: Found) -> list[str]:
        """Return what the site should hear of."""
        if self.has_cache(found):
            return []
        return [f"{self.cache} is not {self.account.name}'s own: MPLCONFIGDIR stays unset"]

    def directory(self, found: Found) -> str:
        """Return the job's HOME."""
        # Never the mission directory: programs read code and commands from their home (Python its user site), and
        # whoever can write there would run them as the site before the listed script.
        if found[self._home_wish] == _YES:
            return self.account.home
        return self.cache if self.has_cache(found) else _NO_HOME


def _tree(order: Order) -> tuple[str, ...]:
    site = order.site
    roots = [site.jail_root] if order.jailed and site.jail_root else [*dict.fromkeys(site.roots)]
    return str(int(order.jailed)), str(len(roots)), *roots


def _program(order: Order) -> list[Wish]:
    """Return wishes that see interpreter and script, or the profile's command, which root alone may have written."""
    program, *scripts = order.program
    if not scripts:
        what = f"the command {program}"
        return [Wish(what, ("program", program)), Wish(what, ("roots", program))]
    return [
        Wish(f"the interpreter {program}", ("program", program)),
        *(Wish(f"the script {script}", ("script", script)) for script in scripts),
    ]


def _translation(word: str) -> Wish:
    return Wish(f"the argument {word}", ("translate", word))


def _on_host(order: Order, wish: Wish, found: Found) -> str:
    """Return the host's path of what a "translate" names: where a link leads, or where it lies without any."""
    (_, path), jail_root = wish.words, order.site.jail_root
    return found[wish] or (join_jail(jail_root, path) if order.jailed and jail_root else path)


def _environment(order: Order, home: HomePlaces, found: Found, *, left_out: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the whole environment, made from nothing. Variables of `left_out` are not in it."""
    account, has_cache = home.account, home.has_cache(found)
    return {
        "PATH": _PATH,
        "HOME": home.directory(found),
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell or "/bin/sh",
        "LANG": _LANG,
        **({"MPLCONFIGDIR": f"{home.cache}/matplotlib"} if has_cache else {}),
        **{name: value for name, value in order.env.items() if name not in left_out},
        "RUNNER_SITE": order.site.name,
        "RUNNER_JOB_ID": order.job_id,
    }


_HERE: Final = (
    Wish("the mission directory for the sandbox", ("here",)),
    Wish("the mission directory, once more for the sandbox", ("here",)),
)
"""The mission directory, twice: a sandbox may show it at two paths."""


def _view(order: Order, sandbox: Sandbox) -> list[Wish]:
    return [*_HERE, _inside(order), *(wish for wish, _ in _inputs_and_outputs(sandbox))]


def _inside(order: Order) -> Wish:
    return Wish("the sandbox", ("translate", order.mission_dir))


def _inputs_and_outputs(sandbox: Sandbox) -> Iterator[tuple[Wish, bool]]:
    """Yield each with whether it can be written."""
    for kind, places, writable in (("input", sandbox.inputs, False), ("output", sandbox.outputs, True)):
        for path, prefix in dict.fromkeys(map(tuple, places)):
            yield Wish(f"the {kind} {path}", ("place", path, prefix)), writable


def _enclosed(
    order: Order, sandbox: Sandbox, found: Found, argv: Sequence[str], environment: Mapping[str, str]
) -> Execution:
    directory = _on_host(order, _inside(order), found)
    mission, again = (_place(found[wish]) for wish in _HERE)
    mounts = [bwrap.Place(mission.path, mission.descriptor, writable=True)]
    if directory != mission.path:
        mounts.append(bwrap.Place(directory, again.descriptor, writable=True))
    for wish, writable in _inputs_and_outputs(sandbox):
        mounts.append(bwrap.Place(wish.words[1], _place(found[wish]).descriptor, writable))
    interpreter, *scripts = order.program
    needed = [interpreter, argv[0], *map(os.path.dirname, scripts)]
    try:
        enclosure = bwrap.enclosed(argv, environment, bwrap.View(mounts, needed, sandbox.network, directory))
    except PathRefusedError as error:
        raise RefusedError(f"the sandbox: {error}") from error
    return Execution(f"the sandbox {enclosure.argv[0]}", enclosure.argv, enclosure.environment, enclosure)


def _place(told: str) -> bwrap.Place:
    number, _, path = told.partition(":")
    return bwrap.Place(path, int(number), writable=False)


def shown(text: str) -> str:
    """Return as much of a text as a reason or the audit trail repeats."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _some(argv: Sequence[str]) -> list[str]:
    """Return as much of a command as its dispatch record holds."""
    room = _MOST_KEPT
    kept: list[str] = []
    for word in argv:
        room -= len(word) + 1
        if room < 0:
            return [*kept, "…"]
        kept.append(word)
    return kept
