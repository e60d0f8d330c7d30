"""What the kernel says that a process is and may do, and that the helper holds its two capabilities and no more."""

from typing import Final, NamedTuple

import prctl

from basestation_runner.errors import RunnerError

NEEDED: Final = 1 << prctl.CAP_SETGID | 1 << prctl.CAP_SETUID


class ProcessStatus(NamedTuple):
    """The part of /proc/<pid>/status that decides about privileges. `held` is the union of all four capability sets."""

    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    umask: int
    blocked_signals: int
    ignored_signals: int
    inheritable: int
    permitted: int
    effective: int
    ambient: int
    no_new_privs: bool

    @property
    def held(self) -> int:
        """Every capability that is in any set but the bounding one, which gives nothing by itself."""
        return self.inheritable | self.permitted | self.effective | self.ambient


def process_status(pid: int | None = None) -> ProcessStatus:
    """Read a process's status, this one's by default: the kernel's own words, not what a library believes."""
    with open(f"/proc/{'self' if pid is None else pid}/status", encoding="ascii", errors="replace") as status:
        fields = dict(line.split(":", 1) for line in status)
    numbers = {name: tuple(map(int, fields[name].split())) for name in ("Uid", "Gid", "Groups")}
    masks = {name: int(fields[name], 16) for name in ("SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapAmb")}
    return ProcessStatus(
        uids=numbers["Uid"],
        gids=numbers["Gid"],
        groups=numbers["Groups"],
        umask=int(fields["Umask"], 8),
        blocked_signals=masks["SigBlk"],
        ignored_signals=masks["SigIgn"],
        inheritable=masks["CapInh"],
        permitted=masks["CapPrm"],
        effective=masks["CapEff"],
        ambient=masks["CapAmb"],
        no_new_privs=fields["NoNewPrivs"].strip() == "1",
    )


def secure_helper(*, hands_on: bool = False) -> bool:
    """Make sure that this process may be the helper, and trim it. Return whether it can change identity.

    With CAP_SETUID and CAP_SETGID it can; with no capability at all it is in single-account mode. Anything else, or
    root, raises RunnerError: a helper with more would hand more to whoever takes it over.

    With `hands_on` what it executes gets the capabilities too: a keeper executes nothing but its jobs' children, which
    need them for the drop.
    """
    now = process_status()
    if 0 in now.uids:
        raise RunnerError(
            "the helper must not run as root",
            hint="run it as an account of its own with CAP_SETUID and CAP_SETGID as ambient capabilities",
        )
    if now.held & ~NEEDED:
        raise RunnerError(
            f"the helper holds more than CAP_SETUID and CAP_SETGID (capability mask {now.held:#x})",
            hint="give it exactly these two: AmbientCapabilities=CAP_SETUID CAP_SETGID",
        )
    if now.held and now.effective != NEEDED:
        raise RunnerError(
            f"the helper holds a part of what it needs (effective capability mask {now.effective:#x})",
            hint="give it both: AmbientCapabilities=CAP_SETUID CAP_SETGID",
        )
    if hands_on and now.ambient != now.held:
        raise RunnerError(
            f"what the helper executes does not get its capabilities (ambient capability mask {now.ambient:#x})",
            hint="give it both as ambient ones: AmbientCapabilities=CAP_SETUID CAP_SETGID",
        )
    if not hands_on:  # nothing that the helper might ever execute needs them
        prctl.cap_inheritable.limit()  # the ambient set falls with it
    # Its memory holds every site's environment; another process of its account must not read or trace it.
    prctl.set_dumpable(0)
    return bool(now.held)
