"""The one inotify instance, on real directories."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from basestation_runner.errors import RunnerError
from basestation_runner.watch import inotify
from basestation_runner.watch.inotify import Watches

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

PATIENCE = 20.0


class Heard:
    """What was told, and a way to wait for it."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str]] = []
        self.lost: list[str] = []
        self._something = asyncio.Event()

    def __call__(self, mask: int, name: str) -> None:
        self.events.append((mask, name))
        self._something.set()

    def tell(self, what: str) -> None:
        self.lost.append(what)
        self._something.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._something.clear()
            await self._something.wait()


def on_loop(test: Callable[[Watches, Heard], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        heard = Heard()
        watches = Watches(
            asyncio.get_running_loop(),
            on_overflow=lambda: heard.tell("overflow"),
            on_unclaimed=lambda: heard.tell("unclaimed"),
        )
        try:
            async with asyncio.timeout(PATIENCE):
                await test(watches, heard)
        finally:
            watches.close()

    asyncio.run(run())


def watch(watches: Watches, path: Path, mask: int = inotify.RUNDIR) -> int:
    descriptor = os.open(path, os.O_PATH)
    try:
        return watches.add(descriptor, mask)
    finally:
        os.close(descriptor)


def test_names_come_whole_whatever_bytes_are_in_them(tmp_path: Path) -> None:
    names = [b"a", b"\xff\xfe", "ä ".encode(), b"x" * 255, b"new\nline"]

    async def test(watches: Watches, heard: Heard) -> None:
        watches.subscribe(watch(watches, tmp_path), heard)
        for name in names:
            (tmp_path / os.fsdecode(name)).touch()
        await heard.until(lambda: len(heard.events) == len(names))
        assert [os.fsencode(name) for _, name in heard.events] == names

    on_loop(test)


def test_the_removal_of_the_directory_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()

    async def test(watches: Watches, heard: Heard) -> None:
        watches.subscribe(watch(watches, directory), heard)
        directory.rename(tmp_path / "moved")
        (tmp_path / "moved").rmdir()
        await heard.until(lambda: len(heard.events) >= 3)
        assert all(mask & inotify.GONE for mask, _ in heard.events)

    on_loop(test)


def test_two_who_watch_one_directory_both_hear_and_one_may_go(tmp_path: Path) -> None:
    async def test(watches: Watches, heard: Heard) -> None:
        other = Heard()
        first = watch(watches, tmp_path)
        second = watch(watches, tmp_path, inotify.PARENT)
        assert first == second
        watches.subscribe(first, heard)
        watches.subscribe(second, other)
        watches.unsubscribe(second, other)
        (tmp_path / "file").touch()
        await heard.until(lambda: any(mask & inotify.CLOSE_WRITE for mask, _ in heard.events))
        assert not other.events

    on_loop(test)


def test_a_watch_that_nobody_wants_any_more_is_removed(tmp_path: Path) -> None:
    async def test(watches: Watches, heard: Heard) -> None:
        gone, kept = tmp_path / "gone", tmp_path / "kept"
        gone.mkdir()
        kept.mkdir()
        number = watch(watches, gone)
        watches.subscribe(number, heard)
        watches.unsubscribe(number, heard)
        watches.subscribe(watch(watches, kept), heard)
        (gone / "file").touch()
        (kept / "file").touch()
        await heard.until(lambda: bool(heard.events))
        assert len(heard.events) == 1
        assert not heard.lost

    on_loop(test)


def test_an_event_before_anybody_subscribed_is_told_too(tmp_path: Path) -> None:
    async def test(watches: Watches, heard: Heard) -> None:
        watch(watches, tmp_path)
        (tmp_path / "file").touch()
        await heard.until(lambda: heard.lost == ["unclaimed"])

    on_loop(test)


@pytest.mark.parametrize(
    ("number", "text"), [(errno.ENOSPC, r"fs\.inotify\.max_user_watches"), (errno.EACCES, "Permission denied")]
)
def test_a_watch_that_is_refused_says_why(tmp_path: Path, number: int, text: str) -> None:
    async def test(watches: Watches, heard: Heard) -> None:  # noqa: ARG001
        watches.calls.inotify_add_watch = lambda *_: -1  # type: ignore[method-assign]
        watches.calls.get_errno = lambda: number  # type: ignore[method-assign]
        with pytest.raises(OSError, match=text):
            watch(watches, tmp_path)

    on_loop(test)


def test_an_instance_that_is_refused_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyinotify.INotifyWrapper.create", _Refusing)
    with pytest.raises(RunnerError, match=r"Too many open files .*fs\.inotify\.max_user_instances"):
        on_loop(lambda _watches, _heard: asyncio.sleep(0))


class _Refusing:
    def inotify_init(self) -> int:
        return -1

    def get_errno(self) -> int:
        return errno.EMFILE


def test_the_nearest_directory_and_the_name_that_should_appear_in_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").touch()
    for path, nearest, name in (
        (tmp_path / "a/b/c/d", tmp_path / "a", "b"),
        (tmp_path / "a/b", tmp_path / "a", "b"),
        (tmp_path / "a/file/x", tmp_path / "a", "file"),
    ):
        descriptor, found = inotify.open_nearest(str(path))
        assert Path(f"/proc/self/fd/{descriptor}").readlink() == nearest
        os.close(descriptor)
        assert found == name


def test_events_without_end_leave_the_loop_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each full buffer there is a pause; and nothing is lost by that."""
    monkeypatch.setattr(inotify, "_READ", 1024)
    count = 300

    async def test(watches: Watches, heard: Heard) -> None:
        pauses: list[float] = []
        real = watches._loop.call_later

        def call_later(wait: float, *rest: Any) -> asyncio.TimerHandle:  # noqa: ANN401 - passed on
            pauses.append(wait)
            return real(wait, *rest)

        monkeypatch.setattr(watches._loop, "call_later", call_later)
        watches.subscribe(watch(watches, tmp_path), heard)
        for number in range(count):
            (tmp_path / f"{number}").touch()
        await heard.until(lambda: len(heard.events) == count)
        assert len(pauses) >= count * 32 // 1024 - 1
        assert set(pauses) == {inotify._BREATH}

    on_loop(test)
