# Stub of pyinotify 0.9.6: what this project uses.

from collections import deque
from collections.abc import Callable
from logging import Logger
from typing import Any, Final

log: Logger

ALL_EVENTS: Final[int]
IN_ACCESS: Final[int]
IN_MODIFY: Final[int]
IN_ATTRIB: Final[int]
IN_CLOSE_WRITE: Final[int]
IN_CLOSE_NOWRITE: Final[int]
IN_OPEN: Final[int]
IN_MOVED_FROM: Final[int]
IN_MOVED_TO: Final[int]
IN_CREATE: Final[int]
IN_DELETE: Final[int]
IN_DELETE_SELF: Final[int]
IN_MOVE_SELF: Final[int]
IN_UNMOUNT: Final[int]
IN_Q_OVERFLOW: Final[int]
IN_IGNORED: Final[int]
IN_ONLYDIR: Final[int]
IN_DONT_FOLLOW: Final[int]
IN_EXCL_UNLINK: Final[int]
IN_MASK_ADD: Final[int]
IN_ISDIR: Final[int]
IN_ONESHOT: Final[int]

class PyinotifyError(Exception): ...
class NotifierError(PyinotifyError): ...

class WatchManagerError(Exception):
    wmd: dict[str, int]
    def __init__(self, msg: str, wmd: dict[str, int]) -> None: ...

class _RawEvent:
    wd: int
    mask: int
    cookie: int
    name: str

# Which attributes an event has depends on its kind: an overflow has no path, a watched item itself no name.
class Event:
    wd: int
    mask: int
    maskname: str
    cookie: int
    dir: bool
    name: str
    path: str
    pathname: str

class Watch:
    wd: int
    path: str
    mask: int
    proc_fun: Callable[[Event], object] | None
    auto_add: bool
    exclude_filter: Callable[[str], bool]

class ProcessEvent:
    def __init__(self, pevent: Callable[[Event], object] | None = None, **kargs: Any) -> None: ...
    def my_init(self, **kargs: Any) -> None: ...
    def __call__(self, event: Event) -> object: ...
    def process_default(self, event: Event) -> object: ...
    def process_IN_Q_OVERFLOW(self, event: Event) -> object: ...

class ExcludeFilter:
    def __init__(self, arg_lst: str | list[str]) -> None: ...
    def __call__(self, path: str) -> bool: ...

class WatchManager:
    def __init__(self, exclude_filter: Callable[[str], bool] = ...) -> None: ...
    def close(self) -> None: ...
    def get_fd(self) -> int: ...
    def get_watch(self, wd: int) -> Watch | None: ...
    def del_watch(self, wd: int) -> None: ...
    @property
    def watches(self) -> dict[int, Watch]: ...
    def add_watch(
        self,
        path: str | list[str],
        mask: int,
        proc_fun: Callable[[Event], object] | None = None,
        rec: bool = False,
        auto_add: bool = False,
        do_glob: bool = False,
        quiet: bool = True,
        exclude_filter: Callable[[str], bool] | None = None,
    ) -> dict[str, int]: ...
    def update_watch(
        self,
        wd: int | list[int],
        mask: int | None = None,
        proc_fun: Callable[[Event], object] | None = None,
        rec: bool = False,
        auto_add: bool = False,
        quiet: bool = True,
    ) -> dict[int, bool]: ...
    def rm_watch(self, wd: int | list[int], rec: bool = False, quiet: bool = True) -> dict[int, bool]: ...
    def get_wd(self, path: str) -> int | None: ...
    def get_path(self, wd: int) -> str | None: ...

class Notifier:
    _eventq: deque[_RawEvent]
    def __init__(
        self,
        watch_manager: WatchManager,
        default_proc_fun: Callable[[Event], object] | None = None,
        read_freq: int = 0,
        threshold: int = 0,
        timeout: int | None = None,
    ) -> None: ...
    def append_event(self, event: _RawEvent) -> None: ...
    def coalesce_events(self, coalesce: bool = True) -> None: ...
    def check_events(self, timeout: int | None = None) -> bool: ...
    # Raises UnicodeDecodeError, and loses the whole batch, when a name is not UTF-8.
    def read_events(self) -> None: ...
    def process_events(self) -> None: ...
    def stop(self) -> None: ...
