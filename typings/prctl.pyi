# Stub of python-prctl 1.8.1: what this project uses.

from typing import Final

CAP_AUDIT_CONTROL: Final[int]
CAP_AUDIT_READ: Final[int]
CAP_AUDIT_WRITE: Final[int]
CAP_BLOCK_SUSPEND: Final[int]
CAP_BPF: Final[int]
CAP_CHOWN: Final[int]
CAP_DAC_OVERRIDE: Final[int]
CAP_DAC_READ_SEARCH: Final[int]
CAP_FOWNER: Final[int]
CAP_FSETID: Final[int]
CAP_IPC_LOCK: Final[int]
CAP_IPC_OWNER: Final[int]
CAP_KILL: Final[int]
CAP_LEASE: Final[int]
CAP_LINUX_IMMUTABLE: Final[int]
CAP_MAC_ADMIN: Final[int]
CAP_MAC_OVERRIDE: Final[int]
CAP_MKNOD: Final[int]
CAP_NET_ADMIN: Final[int]
CAP_NET_BIND_SERVICE: Final[int]
CAP_NET_BROADCAST: Final[int]
CAP_NET_RAW: Final[int]
CAP_PERFMON: Final[int]
CAP_SETFCAP: Final[int]
CAP_SETGID: Final[int]
CAP_SETPCAP: Final[int]
CAP_SETUID: Final[int]
CAP_SYSLOG: Final[int]
CAP_SYS_ADMIN: Final[int]
CAP_SYS_BOOT: Final[int]
CAP_SYS_CHROOT: Final[int]
CAP_SYS_MODULE: Final[int]
CAP_SYS_NICE: Final[int]
CAP_SYS_PACCT: Final[int]
CAP_SYS_PTRACE: Final[int]
CAP_SYS_RAWIO: Final[int]
CAP_SYS_RESOURCE: Final[int]
CAP_SYS_TIME: Final[int]
CAP_SYS_TTY_CONFIG: Final[int]
CAP_WAKE_ALARM: Final[int]
CAP_LAST_CAP: Final[int]
CAP_EFFECTIVE: Final[int]
CAP_INHERITABLE: Final[int]
CAP_PERMITTED: Final[int]
ALL_CAPS: Final[tuple[int, ...]]
ALL_CAP_NAMES: Final[tuple[str, ...]]

class _CapabilitySet:
    audit_control: bool
    audit_read: bool
    audit_write: bool
    block_suspend: bool
    bpf: bool
    chown: bool
    dac_override: bool
    dac_read_search: bool
    fowner: bool
    fsetid: bool
    ipc_lock: bool
    ipc_owner: bool
    kill: bool
    lease: bool
    linux_immutable: bool
    mac_admin: bool
    mac_override: bool
    mknod: bool
    net_admin: bool
    net_bind_service: bool
    net_broadcast: bool
    net_raw: bool
    perfmon: bool
    setfcap: bool
    setgid: bool
    setpcap: bool
    setuid: bool
    syslog: bool
    sys_admin: bool
    sys_boot: bool
    sys_chroot: bool
    sys_module: bool
    sys_nice: bool
    sys_pacct: bool
    sys_ptrace: bool
    sys_rawio: bool
    sys_resource: bool
    sys_time: bool
    sys_tty_config: bool
    wake_alarm: bool
    def drop(self, *caps: int | str) -> None: ...
    def limit(self, *caps: int | str) -> None: ...

# Reads and changes the calling thread's sets; limit() without arguments empties one.
cap_effective: Final[_CapabilitySet]
cap_inheritable: Final[_CapabilitySet]
cap_permitted: Final[_CapabilitySet]
# drop() and limit() need CAP_SETPCAP.
capbset: Final[_CapabilitySet]

def get_caps(*args: tuple[int | str, int]) -> dict[int, dict[int, bool]]: ...
def get_child_subreaper() -> int: ...
def get_dumpable() -> int: ...
def get_keepcaps() -> int: ...
def get_name() -> str: ...
def get_no_new_privs() -> int: ...
def get_pdeathsig() -> int: ...
def get_securebits() -> int: ...
def set_child_subreaper(arg: int) -> None: ...
def set_dumpable(arg: int) -> None: ...
def set_keepcaps(arg: int) -> None: ...
def set_name(arg: str) -> None: ...
def set_no_new_privs(arg: int) -> None: ...
def set_pdeathsig(arg: int) -> None: ...
