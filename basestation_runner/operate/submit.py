"""`runner submit`: write a request into a site's rundir, as whoever asks, and follow what becomes of it."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import click
from attrs import evolve, frozen

from basestation_runner import runfile
from basestation_runner.config.additions import Additions, AdditionsError, of_data
from basestation_runner.config.rules import RuleError, application_name
from basestation_runner.errors import EXIT_FAILED, EXIT_OK, RunnerError, TemporaryError, printable
from basestation_runner.operate import output, values
from basestation_runner.operate.client import Client
from basestation_runner.paths import lies_beneath, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from basestation_runner.operate.client import Facts

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
TAKEN_WITHIN: Final = 5.0
"""Seconds in which a watched site's request should have been taken; whoever does not `--wait` is told then."""
SIGNALLED: Final = 128
"""A job that a signal ended has this and the signal's number as its exit status, as in a shell."""
_MODE: Final = 0o660
_REJECTED: Final = "rejected"


@frozen(kw_only=True)
class Added:
    """What the job adds to its application's profile, as the command line says it."""

    application: str | None = None
    env: Sequence[tuple[str, str]] = ()
    limits: Sequence[tuple[str, str]] = ()
    tasks: int | None = None
    groups: Sequence[str] = ()
    resreq: str | None = None
    inputs: Sequence[Path] = ()
    outputs: Sequence[Path] = ()
    pre_exec: str | None = None
    post_exec: str | None = None


@frozen(kw_only=True)
class SubmitOptions:
    control_socket: Path
    site: str
    script: str
    args: tuple[str, ...]
    home: Path | None
    mission_dir: Path | None
    log: Path | None
    added: Added
    dry_run: bool
    wait: bool
    as_json: bool


def run(options: SubmitOptions) -> int:
    """Submit a request; return the exit status, with `wait` the job's. Raises RunnerError."""
    with Client(options.control_socket) as client:
        site = client.ask("site", site=options.site)
        request = _request(options, site)
        content = _written(request)
        if options.dry_run:
            _show(client, options, request)
            return EXIT_OK
    with _rundir(site) as rundir:
        name = _drop(rundir, content)
        job = _taken(options, rundir, name)
        if job is not None and options.wait:
            job = _ended(options.control_socket, job)
    if options.as_json:
        output.show_json({"request": name, "job": None if job is None else output.named(job)})
    elif job is None:
        click.echo(f"{name}: not taken yet; `runner status` says why the site waits", err=True)
    elif not options.wait:
        click.echo(job["id"])
    return _exit_status(job) if options.wait and job is not None else EXIT_OK


# What is asked for


def _show(client: Client, options: SubmitOptions, request: runfile.Request) -> None:
    """Print what the request would be run with. Raises RunnerError when it would be rejected."""
    additions = request.additions
    would = client.ask(
        "would run",
        site=options.site,
        script=request.script,
        application=additions.application,
        additions=additions.data,
    )
    if options.as_json:
        output.show_json({"application": would["application"], "effective": would["effective"]})
        return
    title = f"{options.site} would run {request.script} with application {would['application']}:"
    output.show(["\n".join([title, *values.lines(values.effective(would["effective"]))])])


def _request(options: SubmitOptions, site: Facts) -> runfile.Request:
    if options.script not in site["scripts"] and not site["any_script"]:
        known = ", ".join(site["scripts"]) or "none"
        raise RunnerError(f"site {options.site} runs no {options.script}", hint=f"its scripts: {known}")
    mission_dir = _mission_dir(options, site)
    home = _seen(site, options.home) if options.home else _home(mission_dir, site)
    log = _seen(site, options.log) if options.log else f"{mission_dir}/{PurePosixPath(options.script).stem}.log"
    return runfile.Request(home, mission_dir, log, options.script, options.args, _additions(options.added, site))


def _additions(added: Added, site: Facts) -> Additions:
    """Return what the job adds, as its request says it. Raises RunnerError."""
    data = {
        "env": dict(added.env),
        "limits": dict(added.limits),
        "tasks": added.tasks,
        "groups": [int(group) if group.isdecimal() else group for group in added.groups],
        "resreq": added.resreq,
        "inputs": [_seen(site, path) for path in added.inputs],
        "outputs": [_seen(site, path) for path in added.outputs],
        "pre_exec": _words(added.pre_exec),
        "post_exec": _words(added.post_exec),
    }
    try:
        made = of_data({name: value for name, value in data.items() if value})
        return evolve(made, application=None if added.application is None else application_name(added.application))
    except AdditionsError as error:
        raise RunnerError(f"what the job adds makes no sense: {error}") from None
    except RuleError as error:
        raise RunnerError(f"application: {error.what}", hint=error.hint or None) from None


def _words(command: str | None) -> list[str]:
    try:
        return shlex.split(command or "")
    except ValueError as error:
        raise RunnerError(f"{command} is no command: {error}") from None


def _written(request: runfile.Request) -> bytes:
    try:
        return runfile.written(request)
    except runfile.RequestError as error:
        raise RunnerError(f"this is no request: {error.reason}") from None


def _mission_dir(options: SubmitOptions, site: Facts) -> str:
    if options.mission_dir is not None:
        return _seen(site, options.mission_dir)
    here = str(Path.cwd())
    if not any(lies_beneath(here, root) for root in site["roots"]):
        raise RunnerError(f"{here} is not in the tree of site {options.site}", hint="name --mission-dir")
    return _seen(site, Path(here))


def _home(mission_dir: str, site: Facts) -> str:
    """Return the directory above, which is the glider's home, or the mission directory if that is the site's root."""
    parent = str(PurePosixPath(mission_dir).parent)
    is_inside = parent != "/" if site["jailed"] else any(lies_beneath(parent, root) for root in site["roots"])
    return parent if is_inside else mission_dir


def _seen(site: Facts, path: Path) -> str:
    """Return a path as the site's requests write it: one of the host that lies in a jail loses the jail's own path."""
    plain = os.path.normpath(path)
    for root in site["roots"]:
        if site["jailed"] and lies_beneath(plain, root):
            return str(PurePosixPath("/", PurePosixPath(plain).relative_to(root)))
    return plain


# Writing it


@contextmanager
def _rundir(site: Facts) -> Iterator[int]:
    """Open the directory that the watcher watches, and no other, whatever links lead there by now."""
    where = site["rundir"]
    if site["inode"] is None:
        raise TemporaryError(f"site {site['site']} is pending: {site['reason']}", where=where)
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RunnerError(f"the rundir cannot be opened: {error.strerror}", where=where) from error
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (site["device"], site["inode"]):
            raise TemporaryError("it is not the directory that is watched", where=where)
        yield descriptor
    finally:
        os.close(descriptor)


def _drop(rundir: int, content: bytes) -> str:
    """Write a request, whole or not at all; return its name."""
    name = f"submit-{secrets.token_hex(8)}.run"
    part = f".{name}.part"
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE, dir_fd=rundir)
        try:
            with suppress(PermissionError):  # it has the right group already where the rundir gives it
                os.fchown(file, -1, os.fstat(rundir).st_gid)
            os.fchmod(file, _MODE)
            os.write(file, content)
        finally:
            os.close(file)
        os.rename(part, name, src_dir_fd=rundir, dst_dir_fd=rundir)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part, dir_fd=rundir)
        raise RunnerError(f"the request cannot be written: {error.strerror}", where=path_of(rundir)) from error
    return name


# What becomes of it


def _pauses() -> Iterator[None]:
    """Pause between two looks, longer each time."""
    pause = FIRST_PAUSE
    while True:
        yield
        time.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _taken(options: SubmitOptions, rundir: int, name: str) -> Facts | None:
    """Return the job that the request becomes; None if it has not been taken for a while and need not be waited for.

    Raises RunnerError when it is rejected.
    """
    until = time.monotonic() + TAKEN_WITHIN
    for _ in _pauses():
        is_there = _exists(rundir, name)
        if not is_there:
            job = _asked(options.control_socket, "job of request", site=options.site, name=name)
            if job is not None:
                return job
            reason = _rejection(rundir, name)
            if reason is not None:
                raise RunnerError(f"the request was rejected: {reason}")
        if time.monotonic() > until and not options.wait:
            return None
    raise AssertionError


def _exists(rundir: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=rundir, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _rejection(rundir: int, name: str) -> str | None:
    """Return why a request was rejected, if it was."""
    with suppress(OSError):
        folder = os.open(_REJECTED, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=rundir)
        try:
            stem = name.removesuffix(".run")
            for entry in os.listdir(folder):  # noqa: PTH208 - of a descriptor
                if entry.startswith(f"{stem}.") and entry.endswith(".reason"):
                    file = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                    try:
                        return printable(os.read(file, 4096).decode(errors="replace").strip())
                    finally:
                        os.close(file)
        finally:
            os.close(folder)
    return None


def _ended(control_socket: Path, job: Facts) -> Facts:
    for _ in _pauses():
        known = _asked(control_socket, "job", job=job["id"])
        if known is not None and known["ended_at"] is not None:
            return known
    raise AssertionError


def _asked(control_socket: Path, request: str, **fields: object) -> Facts | None:
    """Return the job that is asked for; None while the watcher is away: it may be on its way back."""
    try:
        with Client(control_socket) as client:
            job: Facts | None = client.ask(request, **fields)["job"]
    except TemporaryError:
        return None
    return job


def _exit_status(job: Facts) -> int:
    """Return the job's exit code, and say why if it has none."""
    if job["exit_code"] is not None:
        return int(job["exit_code"])
    sys.stderr.write(f"runner: job {job['id']} is {job['state']}: {printable(output.result(job))}\n")
    return EXIT_FAILED if job["signal"] is None else SIGNALLED + int(job["signal"])
