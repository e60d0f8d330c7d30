"""A host taken over from a BaseRunnerMulti: its two units, its sites.yaml, its log rotation, all sites at once."""

import posixpath
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define, frozen

from basestation_runner import nss
from basestation_runner.config.document import Source, parse
from basestation_runner.config.findings import Finding
from basestation_runner.config.host import judge
from basestation_runner.config.hostfacts import gather
from basestation_runner.config.load import load_sources, read
from basestation_runner.config.location import applications_path
from basestation_runner.config.model import NO_CONTAINERS, Site
from basestation_runner.errors import RunnerError, TemporaryError
from basestation_runner.migrate import activity, asother, finding, sitesfile, watcher
from basestation_runner.migrate.asother import Identity
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.drain import drain
from basestation_runner.migrate.entry import Loss
from basestation_runner.migrate.legacy import ENDS, MULTI
from basestation_runner.migrate.pausing import paused, wake
from basestation_runner.migrate.setting import Setting
from basestation_runner.migrate.steps import Step, back_up, check_unit, free_name, remove_backup, tell_of
from basestation_runner.migrate.unit import Unit
from basestation_runner.watch.rundir import NotReadyError, owner

NAME: Final = "+multi"
"""What its journal is called: no site can be called so."""
DROP_IN: Final = "from-multi.conf"
_HEAD: Final = "# Written by `runner migrate-site --from-multi`, and removed by its --rollback.\n"
_CARRIED: Final = ("--sites_config", "--job_completions_log")
_OURS: Final = ("--priv_exec_socket", "--cgroup_root", "--base_log")
_OURS_DIRECTIVES: Final = frozenset({"Conflicts", "After", "Wants", "Description", "Documentation", "WantedBy"})


@define
class Told:
    """What the two units are told: by option, and what of their options and drop-ins is lost."""

    options: dict[str, str] = Factory(dict)
    losses: list[Loss] = Factory(list)
    ours: list[str] = Factory(list)
    logs: list[str] = Factory(list)  # the daemons' own


@frozen(kw_only=True)
class MultiPlan:
    """A host's migration that could begin."""

    watcher: Unit
    helper: Unit
    told: Told
    new: str
    drop_ins: Mapping[str, str]  # by unit
    rotations: tuple[str, ...]
    shared_rotations: tuple[str, ...]  # they rotate other logs besides
    sites: Mapping[str, Mapping[str, Any]]
    findings: tuple[Finding, ...]


def make(setting: Setting) -> MultiPlan:
    """Return the plan for this host. Raises RunnerError, ConfigErrors among them."""
    watching, helping = _pair(setting)
    for unit in (watching, helping):
        finding.refuse_link(setting.units, unit)
    told = _told(watching, helping)
    path = Path(told.options.get("--sites_config", ""))
    text = sitesfile.read(path)
    if text is None:
        raise RunnerError("the BaseRunnerMulti's sites.yaml is not there", where=str(path))
    here = sitesfile.read(setting.sites_config)
    if path != setting.sites_config and here is not None and sitesfile.has_sites(setting.sites_config, here):
        raise RunnerError("it has sites already", where=str(setting.sites_config), hint="migrate into an empty one")
    directory = next(posixpath.dirname(word) for word in watching.argv if posixpath.basename(word) == MULTI[0])
    new = sitesfile.with_field(path, text, "basestation_dir", directory)
    applications = applications_path(setting.applications_config)
    source = Source(str(setting.sites_config), new.encode())
    config = load_sources(source, read(applications) if applications else None)
    in_containers = [site.name for site in config.sites.values() if site.not_supported]
    if in_containers:
        raise RunnerError(f"{NO_CONTAINERS}, and these sites run their jobs in one: {', '.join(in_containers)}")
    groups = {site.name: _group(site) for site in config.sites.values()}
    files = [] if here is None else [str(setting.sites_config)]
    files += [str(applications)] if applications else []
    facts = gather(
        config,
        files,
        watcher_user=setting.watcher_user,
        helper_user=setting.helper_user,
        joining=frozenset(gid for gid, _ in groups.values()),
    )
    rotations, shared_rotations = _rotations(setting, told.logs)
    return MultiPlan(
        watcher=watching,
        helper=helping,
        told=told,
        new=new,
        drop_ins=_drop_ins(setting, watching, helping, told),
        rotations=tuple(rotations),
        shared_rotations=tuple(shared_rotations),
        sites={
            name: {"watch_dir": site.watch_dir, "runner_user": site.runner_user, "group": list(groups[name])}
            for name, site in config.sites.items()
        },
        findings=tuple(judge(parse(source), config, facts)),
    )


def _pair(setting: Setting) -> tuple[Unit, Unit]:
    """Return the watcher's and the helper's unit. Raises RunnerError when there is not one of each."""
    found = [each.unit for each in finding.candidates(setting.systemctl) if each.unit is not None and each.is_multi]
    pair = []
    for program in MULTI:
        units = [unit for unit in found if any(posixpath.basename(word) == program for word in unit.argv)]
        if len(units) != 1:
            raise RunnerError(f"{len(units)} units of this host run {program}", hint="runner migrate-site --list")
        pair.append(units[0])
    return pair[0], pair[1]


def _told(*units: Unit) -> Told:
    """Return what the units are told. Their own files are as shipped; a drop-in is what somebody wanted otherwise."""
    told = Told()
    for unit in units:
        argv = unit.expanded(unit.variables)
        program = next(place for place, word in enumerate(argv) if posixpath.basename(word) in MULTI)
        rest = list(argv[program + 1 :])
        while rest:
            name, has_value, value = rest.pop(0).partition("=")
            if not has_value and rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            if name in _CARRIED:
                told.options[name] = value
            elif name in _OURS:
                told.options[name] = value
                told.logs += [value] if name == "--base_log" else []
                told.ours.append(f"{name} {value}: our daemons have their own")
            else:
                told.losses.append(Loss(name, f"{name} {value}".strip(), "our daemons have no such option"))
        for directive in unit.directives:
            text = f"{directive.name}={directive.value}"
            if directive.file == unit.file or directive.name in {*_OURS_DIRECTIVES, "ExecStart"}:
                continue
            told.losses.append(Loss(directive.name, text, f"from {directive.file}: write one for our units"))
    told.losses = list(dict.fromkeys(told.losses))
    return told


def _group(site: Site) -> tuple[int, str]:
    """Return a site's group. Raises RunnerError."""
    try:
        _, gid = owner(site)
        group = nss.group_by_gid(gid)
    except NotReadyError as error:
        raise RunnerError(f"site {site.name}: {error}") from error
    except nss.LookupFailedError as error:
        raise TemporaryError(f"the name service does not answer: {error}") from error
    return gid, str(gid) if group is None else group.name


def _drop_ins(setting: Setting, watching: Unit, helping: Unit, told: Told) -> dict[str, str]:
    """Return what our units need besides what they are shipped with: never run beside the old pair."""
    conflicts = f"{_HEAD}[Unit]\nConflicts={watching.name} {helping.name}\n"
    found = {setting.helper_unit: conflicts, setting.watcher_unit: conflicts}
    log = told.options.get("--job_completions_log")
    if log:
        argv = finding.read(setting.systemctl, setting.watcher_unit).argv
        words = " ".join(_quoted(word) for word in [*argv, "--job-completions-log", log])
        found[setting.watcher_unit] += f"[Service]\nExecStart=\nExecStart={words}\n"
    return found


def _quoted(word: str) -> str:
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if plain == word and " " not in word else f'"{plain}"'


def _rotations(setting: Setting, logs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files of logrotate but ours that are about the daemons' logs alone, and those about others besides.

    No log may be in two. `logs` are those that the old pair has elsewhere.
    """
    whole: list[str] = []
    partly: list[str] = []
    for path in sorted(setting.rotations.glob("*")):
        with suppress(OSError, ValueError):
            text = "" if path.name == setting.our_rotation else path.read_text(encoding="utf-8")
            about = [
                pattern.startswith(str(setting.logs)) or any(fnmatch(log, pattern) for log in logs)
                for pattern in _rotated(text)
            ]
            if any(about):
                (whole if all(about) else partly).append(str(path))
    return whole, partly


def _rotated(text: str) -> Iterator[str]:
    """Yield the patterns of logs that a file of logrotate names."""
    is_inside = False
    for raw in text.splitlines():
        line = raw.strip()
        if is_inside:
            is_inside = not line.startswith("}")
        elif line.startswith(("/", '"', "'", "{")):
            names, brace, rest = line.partition("{")
            yield from (name.strip("\"'") for name in names.split())
            is_inside = bool(brace) and not rest.endswith("}")


def lines(plan: MultiPlan, setting: Setting, losses: Sequence[Loss]) -> Iterator[str]:
    """Yield a plan as text."""
    yield f"{len(plan.sites)} sites, from {plan.watcher.name} and {plan.helper.name}: {', '.join(plan.sites)}"
    yield f"{plan.told.options['--sites_config']} becomes {setting.sites_config}, as it is"
    for unit, text in plan.drop_ins.items():
        yield from ["", f"A drop-in of {unit}:", *(f"  {line}" for line in text.splitlines())]
    for title, told in (
        ("Left to this program", plan.told.ours),
        ("Lost, and accepted", [str(loss) for loss in plan.told.losses if loss not in losses]),
        ("Lost: needs --accept", list(map(str, losses))),
        ("Log rotation that ours replaces", list(plan.rotations)),
        ("Log rotation of other logs besides: take the daemons' out of it", list(plan.shared_rotations)),
        ("This host", list(map(str, plan.findings))),
    ):
        if told:
            yield from ["", f"{title}:", *(f"  {line}" for line in told)]
    yield from ["", "What will be done:", *(f"  {number}. {step.title}" for number, step in enumerate(STEPS, 1))]
    yield "  If anything of this fails, all of it is undone."


def what_dies(plan: MultiPlan, setting: Setting) -> Iterator[str]:
    """Yield what --now costs, as text."""
    dying: dict[int, activity.Process] = {}
    for unit in (plan.watcher, plan.helper):
        if unit.kill_mode in ENDS:
            dying |= {job.pid: job for job in activity.jobs(setting, unit)}
    running = {job.pid: job for job in activity.jobs(setting, plan.helper)}
    running |= {job.pid: job for job in activity.shown(_pids_below(_cgroup_roots(plan, setting)))}
    staying = [job for pid, job in running.items() if pid not in dying]
    for title, jobs in (("With --now these die:", dying.values()), ("These run on, beside new jobs:", staying)):
        yield from [title, *(f"  {job}" for job in jobs)] if jobs else [title, "  nothing"]
    yield "What waits in the old watcher's memory is lost."


def facts_of(plan: MultiPlan, setting: Setting) -> dict[str, Any]:
    """Return all that the migration goes by."""
    return {
        "site": NAME,
        "unit": plan.watcher.name,
        "helper": plan.helper.name,
        "was_active": [unit.name for unit in (plan.helper, plan.watcher) if unit.is_active],
        "was_enabled": {unit.name: unit.is_runtime for unit in (plan.helper, plan.watcher) if unit.is_enabled},
        "cgroup_roots": _cgroup_roots(plan, setting),
        "old": sitesfile.read(setting.sites_config),
        "new": plan.new,
        "drop_ins": dict(plan.drop_ins),
        "rotations": list(plan.rotations),
        "sites": {name: dict(facts) for name, facts in plan.sites.items()},
    }


def _cgroup_roots(plan: MultiPlan, setting: Setting) -> list[str]:
    """Return where the helper has the cgroups of its jobs: where it is told to, else beside itself, in its slice."""
    told = plan.told.options.get("--cgroup_root")
    if told:
        return [told]
    parent = posixpath.dirname(plan.helper.control_group).strip("/")
    return [str(root / parent) for root in setting.cgroups] if parent else []


# Steps


def _looks(context: Context) -> dict[str, asother.Rundir]:
    """Return what lies in each rundir that can be looked at."""
    found = {}
    for name, site in context.journal.facts["sites"].items():
        with suppress(RunnerError):
            found[name] = asother.look(Identity.of(site["runner_user"]), site["watch_dir"])
    return found


def _stop(context: Context) -> None:
    facts = context.journal.facts
    systemctl = context.setting.systemctl
    if context.is_now:
        if context.is_running(facts["unit"]):
            context.journal.note(stopped_at=time.time())
    else:
        wake(context.unit())
        context.wait(
            lambda: _is_stopped(context),
            None,
            lambda: f"waiting until {facts['unit']} runs no job and all rundirs are quiet (--now does not wait)",
        )
    for unit in (facts["unit"], facts["helper"]):
        systemctl.stop(unit)
        with suppress(RunnerError):
            systemctl.reset_failed(unit)


def _is_stopped(context: Context) -> bool:
    """Kill the old watcher when nothing runs or waits: its queues are in its memory alone."""
    unit = context.unit()
    if not unit.is_active:
        return True
    began_ns = activity.wall_ns(unit.active_since_us)
    before = _looks(context)
    if _is_busy(context, before, began_ns) or not unit.main_pid:
        return False
    time.sleep(max(context.setting.patience.quiet, context.setting.patience.multi))
    with paused(context, unit) as pidfd:
        at = time.time() - context.setting.patience.unsure
        now = _looks(context)
        has_changed = {name: look.changed_ns for name, look in now.items()} != {
            name: look.changed_ns for name, look in before.items()
        }
        if pidfd is None or has_changed or _is_busy(context, now, began_ns):
            return False
        context.journal.note(stopped_at=context.journal.facts.get("stopped_at", at))
        activity.kill(pidfd)
    return True


def _is_busy(context: Context, looks: Mapping[str, asother.Rundir], began_ns: int) -> bool:
    return bool(_job_pids(context)) or any(
        time_ns >= began_ns for look in looks.values() for time_ns, _ in look.requests
    )


def _job_pids(context: Context) -> frozenset[int]:
    """Return the processes of jobs: in the sites' cgroups, or started by the helper."""
    facts = context.journal.facts
    found = _pids_below(facts["cgroup_roots"])
    helper = context.unit(facts["helper"])
    return frozenset(found | activity.processes(context.setting, helper) - {helper.main_pid})


def _pids_below(roots: Sequence[str]) -> set[int]:
    """Return the processes in the cgroups of sites."""
    listings = [listing for root in roots for listing in Path(root).glob("site-*/**/cgroup.procs")]
    return {pid for listing in listings for pid in activity.pids(listing)}


def _start_again(context: Context) -> None:
    """Have the old pair run as before, and notice what was handed in while it did not."""
    facts = context.journal.facts
    wake(context.unit())
    for unit in facts["was_active"]:
        context.setting.systemctl.start(unit)
    stopped_at = facts.get("stopped_at")
    if stopped_at is None or facts["unit"] not in facts["was_active"]:
        return

    def has_locks() -> bool:
        pid = context.setting.systemctl.main_pid(facts["unit"])
        return all(look.holder in {pid, None} for look in _looks(context).values())

    context.wait(has_locks, context.setting.patience.watched, lambda: f"waiting for {facts['unit']} to take its locks")
    for name, site in facts["sites"].items():
        try:
            again = asother.hand_in_again(Identity.of(site["runner_user"]), site["watch_dir"], int(stopped_at * 1e9))
        except RunnerError as error:  # its rundir is not there, as it was not before
            context.say(f"site {name}: {error}")
        else:
            tell_of(context, site["watch_dir"], again)


def _disable(context: Context) -> None:
    for unit, is_runtime in context.journal.facts["was_enabled"].items():
        context.setting.systemctl.disable(unit, is_runtime=is_runtime)


def _enable(context: Context) -> None:
    for unit, is_runtime in context.journal.facts["was_enabled"].items():
        context.setting.systemctl.enable(unit, is_runtime=is_runtime)


def _check_units(context: Context) -> None:
    facts = context.journal.facts
    for unit in (facts["unit"], facts["helper"]):
        check_unit(context, unit, is_to_be_enabled=unit in facts["was_enabled"])


def _wait_until_gone(context: Context) -> None:
    left: dict[str, int] = {}

    def is_gone() -> bool:
        left.clear()
        left.update({name: look.holder for name, look in _looks(context).items() if look.holder is not None})
        return not left

    if not context.wait(is_gone, context.setting.patience.gone, lambda: f"waiting for locks: {left}"):
        raise RunnerError(f"the locks of these sites are still held, by these processes: {left}")


def _kept(context: Context, path: str) -> Path:
    return context.setting.journals / f"{NAME}.{Path(path).name}"


def _move_rotations(context: Context) -> None:
    """Take the old files out of logrotate's way; they are kept beside the journal."""
    for path in context.journal.facts["rotations"]:
        text = sitesfile.read(Path(path))
        if text is not None:
            sitesfile.replace(_kept(context, path), text, Path(path))
            sitesfile.replace(Path(path), None)


def _move_rotations_back(context: Context) -> None:
    for path in context.journal.facts["rotations"]:
        text = sitesfile.read(_kept(context, path))
        if text is not None:
            sitesfile.replace(Path(path), text, _kept(context, path))
            sitesfile.replace(_kept(context, path), None)


def _leave_word(context: Context) -> None:
    watcher.leave_word(context, context.sites, context.journal.facts.get("stopped_at"))


def _take_word_back(context: Context) -> None:
    watcher.leave_word(context, context.sites, None)


def _join(context: Context) -> None:
    sites = context.journal.facts["sites"].values()
    watcher.join(context, dict.fromkeys((site["group"][0], site["group"][1]) for site in sites))


def _write(context: Context) -> None:
    setting, facts = context.setting, context.journal.facts
    now = sitesfile.read(setting.sites_config)
    if now != facts["new"]:
        if now != facts["old"]:
            raise RunnerError("it was changed by somebody else meanwhile", where=str(setting.sites_config))
        back_up(context, "multi")
        sitesfile.replace(setting.sites_config, facts["new"])
    for unit, text in facts["drop_ins"].items():
        path = setting.units / f"{unit}.d" / DROP_IN
        sitesfile.make_directory(path.parent)
        sitesfile.replace(path, text)
    setting.systemctl.daemon_reload()


def _write_back(context: Context) -> None:
    setting, facts = context.setting, context.journal.facts
    watcher.stop_daemons(context)
    now = sitesfile.read(setting.sites_config)
    if now is not None and now not in {facts["old"], facts["new"]}:
        kept = free_name(setting.sites_config, "after-multi")
        sitesfile.replace(kept, now, setting.sites_config)
        context.say(f"{setting.sites_config} was changed since: it is kept as {kept}")
    sitesfile.replace(setting.sites_config, facts["old"])
    remove_backup(context)
    for unit in facts["drop_ins"]:
        path = setting.units / f"{unit}.d" / DROP_IN
        path.unlink(missing_ok=True)
        with suppress(OSError):  # somebody's own drop-ins stay
            path.parent.rmdir()
    setting.systemctl.daemon_reload()


def _start(context: Context) -> None:
    if not watcher.start_daemons(context):
        context.reload()


def _wait_until_watched(context: Context) -> None:
    left: list[str] = []

    def are_watched() -> bool:
        with suppress(TemporaryError), context.client() as client:
            left[:] = [
                f"{site['site']}: {site['reason'] or site['state']}"
                for site in client.all_sites()
                if site["state"] != "watching" and site["site"] in readable
            ]
            return not left
        return False

    readable = set(_looks(context))  # one whose rundir is missing is pending, as it was before
    if not context.wait(are_watched, context.setting.patience.watched, lambda: f"waiting for sites: {left}"):
        raise RunnerError(f"not all sites are watched: {'; '.join(left)}")
    context.journal.note(is_watched=True)
    with context.client() as client:
        for site in context.sites:  # from an earlier time that ended with a drain
            client.ask("release", site=site)


def _probe(context: Context) -> None:
    """See that jobs would be right. Sites that are refused were so before too, unless it is all of them."""
    refused = []
    for name in context.sites:
        try:
            watcher.probe(context, name)
        except watcher.ProbeRefusedError as error:
            refused.append(str(error))
    if refused and len(refused) == len(context.sites):
        raise RunnerError(f"no site's jobs would be started: {'; '.join(refused)}")
    for why in refused:
        context.say(f"{why}; it is left so")


STEPS: Final = (
    Step(
        "stop",
        "wait until no job runs and all rundirs are quiet, then stop the old pair",
        _stop,
        _start_again,
        _check_units,
    ),
    Step("disable", "disable it", _disable, _enable),
    Step("gone", "wait until its locks are gone", _wait_until_gone),
    Step("rotation", "take its log rotation away", _move_rotations, _move_rotations_back),
    Step("word", "leave word for the watcher: older requests go to stale/", _leave_word, _take_word_back),
    Step("join", "add the watcher's account to the sites' groups that it is not in", _join, watcher.leave),
    Step(
        "write", "write sites.yaml, and drop-ins by which our units never run beside the old pair", _write, _write_back
    ),
    Step("start", "start and enable our daemons", _start),
    Step("watched", "wait until all sites are watched", _wait_until_watched, drain),
    Step("probe", "probe each site", _probe),
)


def not_ready(plan: MultiPlan) -> Collection[Finding]:
    """Return what keeps the migration from beginning."""
    return [each for each in plan.findings if each.level == "fault"]
