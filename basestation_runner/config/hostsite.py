"""Whether a host is ready for one site: facts in, findings out, each at the field that it is about. Looks at nothing.

The rules are those that the helper, the watcher and a job go by at run time.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from stat import S_IMODE, S_IRWXO, S_ISDIR, S_ISREG, S_ISVTX, S_IWOTH, S_IXGRP, S_IXOTH, S_IXUSR
from typing import Final

from attrs import fields_dict, frozen

from basestation_runner import execgroups, filesystems, tools
from basestation_runner.config.document import Document
from basestation_runner.config.findings import Finding, Level, found
from basestation_runner.config.hostfacts import NOT_BY_THIS_USER, Absent, Entry, Facts, Names, SiteFacts
from basestation_runner.config.model import Config, Site
from basestation_runner.config.probes import Unseen
from basestation_runner.config.rules import Step
from basestation_runner.errors import RunnerError
from basestation_runner.nss import Account

AS_ROOT: Final = "run it as root"
_MOST_LISTED: Final = 8
_ABOVE: Final = "look at its owner and mode, and at those of the directories above"
_CREATE: Final = "create it, or mend the path"


@frozen
class SiteCheck:
    """One site of a document, the facts about it, and those about the host."""

    document: Document
    config: Config
    site: Site
    facts: SiteFacts
    host: Facts

    def findings(self) -> Iterator[Finding]:
        user, names = self.site.runner_user, self.facts.names
        match names:
            case None:
                yield from self.no_account()
            case Unseen():
                yield self.unseen("runner_user", f"the look-up of account {user}", names)
            case Names():
                yield from self.account(names)
                yield from self.groups(names)
                yield from self.membership(names)
        yield from self.rundir()
        yield from self.jail()
        yield from self.interpreter()
        yield from self.scripts()
        yield from self.commands()
        yield from self.unsupported()

    def unsupported(self) -> Iterator[Finding]:
        """Whether the site asks for what this program does not do."""
        if self.site.not_supported:
            fields = (name for name in fields_dict(Site) if "docker" in name)
            field = next(name for name in fields if getattr(self.site, name) != fields_dict(Site)[name].default)
            yield self.say("warning", field, f"the site will not be served: {self.site.not_supported}")

    def say(self, level: Level, field: str | Iterable[Step], what: str, hint: str = "", command: str = "") -> Finding:
        steps = (field,) if isinstance(field, str) else field
        return found(self.document.fault((self.site.name, *steps), what, hint), level, command)

    def unseen(self, field: str | Iterable[Step], about: str, unseen: Unseen) -> Finding:
        hint = AS_ROOT if unseen == NOT_BY_THIS_USER else ""
        return self.say("fault" if unseen.is_fault else "warning", field, f"{about} {unseen.why}", hint)

    # Account and groups

    def no_account(self) -> Iterator[Finding]:
        """What there is to say when the name service does not know the account."""
        user = self.site.runner_user
        hint = "create it, or mend the name"
        yield self.say("fault", "runner_user", f"there is no account {user}", hint, useradd(user))

    def account(self, names: Names) -> Iterator[Finding]:
        """What the helper would refuse at each execution."""
        account, decision = names.account, names.decision
        for uid, whose in self.forbidden("uid").items():
            if account.uid == uid:
                what = f"account {account.name} has uid {uid}, {whose}: the helper refuses it"
                yield self.say("fault", "runner_user", what, "give the site an account of its own")
        granted = decision.gids if isinstance(decision, execgroups.Granted) else ()
        for gid, whose in self.forbidden("gid").items():
            if gid in granted:
                what = f"jobs would get GID {gid}, {whose}: the helper refuses them"
                hint = (
                    "remove it" if self.site.groups else "name the other groups in groups, or take it from the account"
                )
                yield self.say("fault", self.field_of(names, gid), what, hint)

    def forbidden(self, kind: str) -> Mapping[int, str]:
        """Return the ids that no job may have, and whose they are."""
        accounts = {"the helper's": self.host.helper.account, "the watcher's": self.host.watcher.account}
        daemons = {getattr(of, kind): whose for whose, of in accounts.items() if isinstance(of, Account)}
        whose = {**daemons, 0: "root's", execgroups.UNCHANGED: "which stands for none"}
        return {number: whose[number] for number in sorted(execgroups.forbidden(daemons))}

    def field_of(self, names: Names, gid: int) -> tuple[Step, ...]:
        """Return the way to the field that a group comes from."""
        return ("groups", names.requested.index(gid)) if self.site.groups else ("runner_user",)

    def groups(self, names: Names) -> Iterator[Finding]:
        """What becomes of the site's groups when a job starts."""
        account, decision = names.account.name, names.decision
        for index, (entry, gid) in enumerate(zip(self.site.groups or (), names.requested, strict=False)):
            field = ("groups", index)
            level: Level = "warning" if index else "fault"
            means = "jobs run without it" if index else "it is the site's group, jobs are refused"
            match gid:
                case None:
                    command = shlex.join(["groupadd", "--system", str(entry)])
                    hint = "create it, or mend the name"
                    yield self.say(level, field, f"there is no group {entry}: {means}", hint, command)
                case Unseen():
                    yield self.unseen(field, f"the look-up of group {entry}", gid)
                case int() if gid not in names.has:
                    what = f"account {account} is not in group {names.label(gid)}: {means}"
                    yield self.say(level, field, what, "add it", names.joining(account, gid))
        if names.effective in names.has and isinstance(decision, execgroups.Refused):
            yield self.say("fault", "groups" if self.site.groups else "runner_user", decision.reason)
        if withheld := sorted(names.has.difference(gid for gid in names.requested if isinstance(gid, int))):
            what = f"jobs do not get these groups of account {account}: {_listed(map(names.label, withheld))}"
            yield self.say("note", "groups", what, "list those that jobs need")

    def membership(self, names: Names) -> Iterator[Finding]:
        """Whether the watcher has the site's group, by the name service and as it runs; and the helper has not."""
        gid, watcher, helper = names.effective, self.host.watcher, self.host.helper
        if gid is None:
            return
        field, group = self.field_of(names, gid), names.label(gid)
        if isinstance(watcher.account, Account) and gid not in watcher.groups:
            what = f"the watcher's account {watcher.name} is not in the site's group {group}"
            command = names.joining(watcher.name, gid)
            yield self.say("fault", field, what, "add it, then restart the watcher", command)
        else:
            for process in self.host.watchers if isinstance(self.host.watchers, tuple) else ():
                if gid not in process.groups:
                    what = f"the running watcher (pid {process.pid}) is not in the site's group {group}"
                    yield self.say("fault", field, what, "restart it: a running process gains no group")
        if isinstance(helper.account, Account) and helper.name != watcher.name and gid in helper.groups:
            what = f"the helper's account {helper.name} is in the site's group {group}: it needs no site's group"
            yield self.say("warning", field, what, "remove it from there")

    # Files

    def rundir(self) -> Iterator[Finding]:
        """Whether the watcher can serve the rundir, and nobody else can lead it elsewhere."""
        path, rundir = self.site.watch_dir, self.facts.rundir
        if not isinstance(rundir, Entry):
            yield from self.missing("watch_dir", path, rundir, self.making(path))
            return
        yield from self.links("watch_dir", rundir)
        if not S_ISDIR(rundir.mode):
            yield self.say("fault", "watch_dir", f"{path} is not a directory")
            return
        yield from self.modes(rundir)
        if rundir.is_read_only:
            yield self.say("fault", "watch_dir", f"{path} is on a filesystem that is mounted read-only")
        elif rundir.may is False:
            what = f"the watcher's account {self.host.watcher.name} cannot list, write and enter {path}"
            yield self.say("fault", "watch_dir", what, _ABOVE)
        if filesystems.may_be_silent(rundir.filesystem):
            what = f"{path} is on a filesystem of type {rundir.filesystem}: inotify may not tell of every request"
            yield self.say("warning", "watch_dir", what, "keep rundirs on a local filesystem")

    def links(self, field: str, seen: Entry) -> Iterator[Finding]:
        """Whether the way to a directory leads only through links that the watcher and jobs follow."""
        for link in seen.links:
            if link.is_loose:
                what = f"{link.path} is a link where others than root can make one: it is not followed"
                yield self.say("fault", field, what, f"name the directory that it leads to, {link.target}")

    def modes(self, rundir: Entry) -> Iterator[Finding]:
        path = self.site.watch_dir
        if rundir.mode & S_ISVTX and rundir.mode & S_IWOTH:
            yield self.say("fault", "watch_dir", f"everybody shares {path}", "give the site a rundir of its own")
            return
        if rundir.mode & S_IRWXO:
            level: Level = "fault" if rundir.mode & S_IWOTH else "warning"
            what = f"everybody has access to {path} (mode {S_IMODE(rundir.mode):04o})"
            yield self.say(level, "watch_dir", what, "take it away", shlex.join(["chmod", "o-rwx", path]))
        match self.facts.names:
            case Names(effective=int(gid)) as names if rundir.gid != gid:
                what = f"{path} belongs to GID {rundir.gid}, not to the site's group {names.label(gid)}"
                command = shlex.join(["chgrp", names.name(gid), path])
                yield self.say("warning", "watch_dir", what, "change it", command)

    def making(self, rundir: str) -> str:
        """Return the command that makes the rundir as it should be; "" without an account whose it could be."""
        match self.facts.names:
            case Names(effective=int(gid)) as names:
                owner = ["-o", names.account.name, "-g", names.name(gid)]
                return shlex.join(["install", "-d", *owner, "-m", "2770", rundir])
        return ""

    def jail(self) -> Iterator[Finding]:
        path, jail = self.site.jail_root, self.facts.jail
        if path is None or jail is None:
            return
        if not isinstance(jail, Entry):
            yield from self.missing("jail_root", path, jail)
            return
        yield from self.links("jail_root", jail)
        if not S_ISDIR(jail.mode):
            yield self.say("fault", "jail_root", f"{path} is not a directory")
        elif jail.may is False:
            yield self.say("fault", "jail_root", f"account {self.site.runner_user} cannot enter {path}", _ABOVE)

    def interpreter(self) -> Iterator[Finding]:
        path, program = self.site.python_version, self.facts.interpreter
        if not isinstance(program, Entry):
            yield from self.missing("python_version", path, program)
        elif not S_ISREG(program.mode) or not program.mode & (S_IXUSR | S_IXGRP | S_IXOTH):
            yield self.say("fault", "python_version", f"{path} is not an executable file")
        elif program.may is False:
            what = f"account {self.site.runner_user} cannot execute {path}"
            yield self.say("fault", "python_version", what, _ABOVE)

    def scripts(self) -> Iterator[Finding]:
        field, directory, scripts = "basestation_dir", self.site.basestation_dir, self.facts.scripts
        if not isinstance(scripts, Mapping):
            yield from self.missing(field, directory, scripts)
            return
        hint = "mend basestation_dir, or list in applications what the site runs"
        for script, seen in scripts.items():
            path = f"{directory}/{script}"
            profiles = (self.config.applications[name] for name in self.site.applications)
            application = next(profile.name for profile in profiles if script in profile.scripts)
            match seen:
                case Unseen():
                    yield self.unseen(field, path, seen)
                case Absent():
                    yield self.say("fault", field, f"{path} does not exist, a script of {application}", hint)
                case Entry(mode=mode) if not S_ISREG(mode):
                    yield self.say("fault", field, f"{path} is not a file, a script of {application}", hint)
                case Entry(may=False):
                    what = f"account {self.site.runner_user} cannot read {path}"
                    yield self.say("fault", field, what, _ABOVE)

    def commands(self) -> Iterator[Finding]:
        field, commands = "applications", self.facts.commands
        if not isinstance(commands, Mapping):
            yield self.unseen(field, "what the site's profiles run", commands)
            return
        for path, command in commands.items():
            profiles = (self.config.applications[name] for name in self.site.applications)
            profile = next(profile for profile in profiles if path in profile.programs)
            whose = f"{profile.programs[path]} of {profile.name}"
            package = tools.PACKAGES.get(path)
            hint = _CREATE if package is None else f"install Debian's {package}"
            match command.seen:
                case Unseen():
                    yield self.unseen(field, path, command.seen)
                    continue
                case Absent():
                    yield self.say("fault", field, f"{path} does not exist, {whose}", hint)
                    continue
                case Entry(mode=mode) if not S_ISREG(mode):
                    yield self.say("fault", field, f"{path} is not a file, {whose}")
                case Entry(may=False):
                    what = f"account {self.site.runner_user} cannot execute {path}"
                    yield self.say("fault", field, what, _ABOVE)
            match command.trusted:
                case Unseen() as unseen:
                    yield self.unseen(field, f"who can change {path}", unseen)
                case RunnerError(where=where):
                    what = f"others than root could change {where}, and {path} is {whose}"
                    yield self.say("fault", field, what, "chown it to root, and chmod go-w it")

    def missing(self, field: str, path: str, seen: Absent | Unseen, command: str = "") -> Iterator[Finding]:
        """Given what is not there or could not be looked at, say so."""
        match seen:
            case Unseen():
                yield self.unseen(field, path, seen)
            case Absent(where):
                what = f"{path} does not exist" + (f": there is no {where}" if where != path else "")
                yield self.say("fault", field, what, _CREATE, command)


def useradd(name: str) -> str:
    """Return the command that makes an account of a daemon or of jobs."""
    options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]
    return shlex.join(["useradd", *options, name])


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - _MOST_LISTED
    return ", ".join(every[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
