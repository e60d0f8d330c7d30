# Stub of pyinotify 0.9.6: what this project uses.

from typing import Final

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

# The system calls alone. They return -1 when they fail; get_errno() then says why, to the same thread.
class INotifyWrapper:
    @staticmethod
    def create() -> INotifyWrapper: ...
    def get_errno(self) -> int: ...
    def inotify_init(self) -> int: ...
    def inotify_add_watch(self, fd: int, pathname: str, mask: int) -> int: ...
    def inotify_rm_watch(self, fd: int, wd: int) -> int: ...
