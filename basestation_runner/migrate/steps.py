"""The steps of a migration: each can be done again after a kill in its midst, and undone whether or not it was done."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from attrs import frozen

from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate import activity, asother, sitesfile, watcher
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.drain import drain
from basestation_runner.migrate.pausing import paused, wake
from basestation_runner.migrate.unit import Unit

_CAN_BE_ENABLED: Final = frozenset({"enabled", "enabled-runtime", "disabled", "indirect", "alias"})
"""Values of UnitFileState=."""


@frozen
class Step:
    """One step; `title` is what a plan says of it. `check` raises RunnerError if it is seen that `undo` would fail."""

    name: str
    title: str
    do: Callable[[Context], None]
    undo: Callable[[Context], None] = lambda _: None
    check: Callable[[Context], None] = lambda _: None


# Stopping


def _stop(context: Context) -> None:
    unit = context.unit()
    if context.is_now:
        if unit.is_active:
            context.journal.note(stopped_at=time.time())
    else:
        _kill_when_idle(context)
    context.setting.systemctl.stop(unit.name)
    with suppress(RunnerError):  # only one that is called failed, for having been killed
        context.setting.systemctl.reset_failed(unit.name)


def _kill_when_idle(context: Context) -> None:
    """Kill the legacy daemon at a moment in which it has nothing to do, and cannot get anything to do.

    It is paused first: it would run what is handed in between the look and its end, and that would end with it. Told to
    end, it would still take what has come meanwhile. It keeps nothing that a kill could damage.
    """
    last: list[str] = []
    wake(context.unit())

    def is_over() -> bool:
        unit = context.unit()
        if not unit.is_active:
            if "stopped_at" not in context.journal.facts and unit.inactive_since_us:
                context.journal.note(stopped_at=activity.wall_ns(unit.inactive_since_us) / 1e9)
            return True
        seen = _quiet(context, unit)
        last[:] = [str(seen)] if seen is not None else last
        return seen is None

    context.wait(is_over, None, lambda: f"waiting for {context.unit_name}: {''.join(last)} (--now does not wait)")


def _quiet(context: Context, unit: Unit) -> activity.Activity | None:
    """Kill the daemon if it is idle and has been for a while; else return what keeps it."""

    def look() -> activity.Activity:
        return activity.of(context.setting, unit, context.owner, context.watch_dir)

    before = look()
    if not before.is_idle or not unit.main_pid:
        return before
    time.sleep(context.setting.patience.quiet)
    with paused(context, unit) as pidfd:
        at = time.time() - context.setting.patience.unsure
        now = look()
        # What it reads it removes: where no name has changed for a while it has nothing in its memory either.
        if pidfd is None or not now.is_idle or now.rundir.changed_ns != before.rundir.changed_ns:
            return now
        # An earlier call may have been killed just after this: what came since then was seen by nobody.
        context.journal.note(stopped_at=context.journal.facts.get("stopped_at", at))
        activity.kill(pidfd)
    return None


def _start_again(context: Context) -> None:
    """Have the legacy daemon run as before, and notice what was handed in while it did not."""
    unit = context.unit()
    if not context.journal.facts["was_active"]:
        return
    wake(unit)
    context.setting.systemctl.start(unit.name)
    stopped_at = context.journal.facts.get("stopped_at")
    if stopped_at is None:
        return
    has_lock = context.wait(
        lambda: _has_lock(context),
        context.setting.patience.watched,
        lambda: f"waiting for {unit.name} to take the lock of its rundir",
    )
    if not has_lock:
        raise RunnerError("it is started, but does not take the lock of its rundir", where=unit.name)
    owner, since_ns = context.owner, int(stopped_at * 1e9)
    again = asother.hand_in_again(owner, context.watch_dir, since_ns)
    if unit.type != "notify":  # nothing says when it has begun to listen
        time.sleep(context.setting.patience.quiet)
        asother.hand_in_again(owner, context.watch_dir, since_ns)
    tell_of(context, context.watch_dir, again)


def tell_of(context: Context, watch_dir: str, again: asother.Again) -> None:
    """Say what was handed in again, and by name what could not be."""
    if again.names:
        context.say(f"requests that had come meanwhile are handed in again: {len(again.names)}")
    for name, why in again.failed.items():
        context.say(f"{watch_dir}/{name} cannot be handed in again, the legacy daemon does not see it: {why}")


def _has_lock(context: Context) -> bool:
    unit = context.unit()
    holder = asother.look(context.owner, context.watch_dir).holder
    return holder is not None and holder in activity.processes(context.setting, unit)


def _disable(context: Context) -> None:
    facts = context.journal.facts
    if facts["was_enabled"]:
        context.setting.systemctl.disable(context.unit_name, is_runtime=facts["is_runtime"])


def _enable(context: Context) -> None:
    facts = context.journal.facts
    if facts["was_enabled"]:
        context.setting.systemctl.enable(context.unit_name, is_runtime=facts["is_runtime"])


def check_unit(context: Context, name: str, *, is_to_be_enabled: bool) -> None:
    """See that a legacy unit could run as it did before. Raises RunnerError."""
    unit = context.unit(name)
    if is_to_be_enabled and unit.file_state not in _CAN_BE_ENABLED:
        raise RunnerError(f"it cannot be enabled: it is {unit.file_state}", where=unit.name)


def _check_unit(context: Context) -> None:
    check_unit(context, context.unit_name, is_to_be_enabled=context.journal.facts["was_enabled"])


def _wait_until_gone(context: Context) -> None:
    """Wait for the processes of the unit, and for whoever has the lock. Raises RunnerError when they stay."""
    left = ""

    def is_gone() -> bool:
        nonlocal left
        unit = context.unit()
        pids = activity.processes(context.setting, unit)
        if pids and not context.is_now:
            left = f"processes of {unit.name} are left: {', '.join(map(str, sorted(pids)))}"
            return False
        holder = asother.look(context.owner, context.watch_dir).holder
        left = f"process {holder} has the lock of {context.watch_dir}"
        return holder is None

    if not context.wait(is_gone, context.setting.patience.gone, lambda: f"waiting: {left}"):
        raise RunnerError(left)


# The watcher


def _leave_word(context: Context) -> None:
    """Tell the watcher when the legacy daemon was stopped: what is older it never ran."""
    watcher.leave_word(context, [context.site], context.journal.facts.get("stopped_at"))


def _take_word_back(context: Context) -> None:
    watcher.leave_word(context, [context.site], None)


def _join(context: Context) -> None:
    """Make the watcher's account a member of the site's group, unless it is."""
    watcher.join(context, [(context.journal.facts["gid"], context.journal.facts["group"])])


def _restart_watcher(context: Context) -> None:
    """A running process gains no group: only a new one has it."""
    setting = context.setting
    if context.is_running(setting.watcher_unit) and not watcher.runs_with(context, context.journal.facts["gid"]):
        setting.systemctl.restart(setting.watcher_unit)
        context.wait_for_watcher()


# The configuration


def back_up(context: Context, ending: str) -> None:
    """Keep sites.yaml beside itself as it is now, under a name that nothing has. A second time does the same again."""
    path, facts = context.setting.sites_config, context.journal.facts
    text = sitesfile.read(path)
    if text is None:
        sitesfile.make_directory(path.parent)
        return
    if "backup" not in facts:
        context.journal.note(backup=str(free_name(path, f"before-{ending}")))
    sitesfile.replace(Path(facts["backup"]), text, path)


def free_name(path: Path, ending: str) -> Path:
    """Return a name beside a file that nothing has."""
    stem = f"{path.name}.{ending}"
    names = (path.with_name(f"{stem}.{number}" if number else stem) for number in count())
    return next(name for name in names if not os.path.lexists(name))


def remove_backup(context: Context) -> None:
    """Remove what was kept so."""
    if "backup" in context.journal.facts:
        Path(context.journal.facts["backup"]).unlink(missing_ok=True)


def _write(context: Context) -> None:
    path, facts = context.setting.sites_config, context.journal.facts
    now = sitesfile.read(path)
    if now == facts["new"]:
        return
    if now != facts["old"]:
        raise RunnerError("it was changed by somebody else meanwhile", where=str(path))
    back_up(context, context.site)
    sitesfile.replace(path, facts["new"])


def _without_entry(context: Context) -> str | None:
    """Return sites.yaml as it is to be again. Raises RunnerError or ConfigErrors."""
    path, facts = context.setting.sites_config, context.journal.facts
    now = sitesfile.read(path)
    if now is None or now == facts["old"]:
        return now
    return sitesfile.removed(path, now, context.site) if now != facts["new"] else facts["old"]


def _check_entry(context: Context) -> None:
    _without_entry(context)


def _write_back(context: Context) -> None:
    """Take the entry out again, whatever else was changed since, and have the daemons go by that."""
    setting = context.setting
    path = setting.sites_config
    text = _without_entry(context)
    if text != sitesfile.read(path):
        sitesfile.replace(path, text)
    left = sitesfile.read(path)
    if left is None or not sitesfile.has_sites(path, left):
        watcher.stop_daemons(context)
    elif context.is_running(setting.watcher_unit):
        context.wait_for_watcher()
        context.reload()
        with context.client() as client:
            client.ask("release", site=context.site)
    remove_backup(context)


def _reload(context: Context) -> None:
    """Have both daemons go by the new file, and start them if they do not run: it may be the first site."""
    if not watcher.start_daemons(context):
        context.reload()


def _wait_until_watched(context: Context) -> None:
    told = ""

    def is_watched() -> bool:
        nonlocal told
        with suppress(TemporaryError):
            site = context.ask_site(context.site)
            if site is None:
                raise RunnerError(f"the watcher does not know site {context.site}")
            told = site["reason"] or site["state"]
            return bool(site["state"] == "watching")
        return False

    patience = context.setting.patience.watched
    if not context.wait(is_watched, patience, lambda: f"waiting for site {context.site} to be watched: {told}"):
        raise RunnerError(f"site {context.site} is not watched: {told}")
    context.journal.note(is_watched=True)
    with context.client() as client:  # from an earlier time that ended with a drain
        client.ask("release", site=context.site)


def _probe(context: Context) -> None:
    watcher.probe(context, context.site)


STEPS: Final = (
    Step(
        "stop", "wait until {unit} runs no job and {watch_dir} is quiet, then stop it", _stop, _start_again, _check_unit
    ),
    Step("disable", "disable it", _disable, _enable),
    Step("gone", "wait until its process and its lock are gone", _wait_until_gone),
    Step("word", "leave word for the watcher: older requests go to stale/", _leave_word, _take_word_back),
    Step("join", "add {watcher} to group {group}, unless it is in it", _join, watcher.leave),
    Step("restart", "restart the watcher, if it runs without that group", _restart_watcher),
    Step("write", "write {config}, with a backup beside it", _write, _write_back, _check_entry),
    Step("reload", "have both daemons read it, or start them", _reload),
    Step("watched", "wait until the site is watched", _wait_until_watched, drain),
    Step("probe", "probe the site", _probe),
)
"""In their order; undone in the opposite one."""
