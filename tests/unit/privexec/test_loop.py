"""The helper's event loop on real pipes, timers and signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from basestation_runner.privexec.loop import READ, WRITE, Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        os.close(end)


@pytest.fixture
def restored_signals() -> Iterator[None]:
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def then_stop(loop: Loop, callback: Callable[[], object]) -> Callable[[int], None]:
    def called(_: int) -> None:
        callback()
        loop.stop()

    return called


def test_a_descriptor_that_can_be_read_is_called_back(loop: Loop, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    got: list[bytes] = []
    loop.watch(reader, then_stop(loop, lambda: got.append(os.read(reader, 10))))
    os.write(writer, b"here")
    loop.run()
    assert got == [b"here"]


def test_a_descriptor_is_told_which_events_are_ready(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        got: list[int] = []

        def ready(events: int) -> None:
            got.append(events)
            loop.stop()

        for wanted in (READ | WRITE, READ, WRITE):
            loop.watch(ours.fileno(), ready, wanted)
            loop.run()
    assert got == [READ | WRITE, READ, WRITE]


def test_watching_again_replaces_the_callback(loop: Loop, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    got: list[str] = []
    loop.watch(reader, then_stop(loop, lambda: got.append("first")))
    loop.watch(reader, then_stop(loop, lambda: got.append("second")))
    os.write(writer, b"x")
    loop.run()
    assert got == ["second"]


def test_a_forgotten_descriptor_is_not_called_back(loop: Loop, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    got: list[str] = []
    loop.watch(reader, lambda _: got.append("forgotten"))
    loop.forget(reader)
    os.write(writer, b"x")
    loop.call_later(0, loop.stop)
    loop.run()
    assert not got


def test_a_descriptor_that_another_callback_of_the_round_forgot_is_not_called_back(loop: Loop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def forget_the_other(this: int, other: int) -> Callable[[int], None]:
        def callback(_: int) -> None:
            called.append(this)
            loop.forget(other)
            os.close(other)
            loop.stop()

        return callback

    (first, first_writer), (second, second_writer) = pipes
    loop.watch(first, forget_the_other(first, second))
    loop.watch(second, forget_the_other(second, first))
    for writer in (first_writer, second_writer):
        os.write(writer, b"x")
    loop.run()
    assert len(called) == 1
    for descriptor in (called[0], first_writer, second_writer):
        os.close(descriptor)


def test_a_descriptors_number_that_is_used_again_is_not_taken_for_the_old_one(loop: Loop) -> None:
    """Both are ready; the first callback closes the other descriptor and watches a new one with the same number."""
    pipes = [os.pipe() for _ in range(2)]
    (first, first_writer), (second, second_writer) = pipes
    replacements: list[int] = []

    def replace(other: int) -> Callable[[int], None]:
        def callback(_: int) -> None:
            loop.forget(other)
            os.close(other)
            reader, writer = os.pipe()
            replacements.extend((reader, writer))
            assert reader == other
            loop.watch(reader, lambda _: pytest.fail("nothing was written"))
            loop.stop()

        return callback

    loop.watch(first, replace(second))
    loop.watch(second, replace(first))
    for writer in (first_writer, second_writer):
        os.write(writer, b"x")
    loop.run()
    for descriptor in {first, second, first_writer, second_writer, *replacements}:
        os.close(descriptor)


def test_timers_are_called_once_in_the_order_of_their_times(loop: Loop) -> None:
    called: list[str] = []
    loop.call_later(0.02, loop.stop)
    for name, seconds in (("later", 0.01), ("first", -2), ("second", -1), ("last", 0.015)):
        loop.call_later(seconds, partial(called.append, name))
    loop.run()
    assert called == ["first", "second", "later", "last"]


def test_a_timer_is_not_called_before_its_time(loop: Loop, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"x")
    called: list[str] = []
    loop.call_later(3600, lambda: called.append("an hour early"))
    loop.call_later(0, lambda: called.append("due"))
    loop.watch(reader, then_stop(loop, lambda: called.append("ready")))
    loop.run()
    assert "an hour early" not in called


def test_timers_of_one_time_are_called_in_the_order_they_were_set(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1.0)
    called: list[int] = []
    for number in range(20):
        loop.call_later(0, partial(called.append, number))
    loop.call_later(0, loop.stop)
    loop.run()
    assert called == list(range(20))


def test_a_timer_can_set_the_next_one(loop: Loop) -> None:
    called: list[int] = []

    def again() -> None:
        called.append(len(called))
        if len(called) == 3:
            loop.stop()
        else:
            loop.call_later(0.001, again)

    loop.call_later(0, again)
    loop.run()
    assert called == [0, 1, 2]


def test_a_timer_is_called_although_descriptors_are_always_ready(loop: Loop, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"never read")
    loop.watch(reader, lambda _: None)
    loop.call_later(0.001, loop.stop)
    loop.run()


def test_a_loop_that_was_stopped_can_run_again(loop: Loop) -> None:
    for _ in range(2):
        loop.call_later(0, loop.stop)
        loop.run()


@pytest.mark.usefixtures("restored_signals")
def test_a_signal_is_handled_by_the_loop_and_not_in_the_middle_of_other_work(loop: Loop) -> None:
    called: list[str] = []

    def last() -> None:
        called.append("last")
        loop.stop()

    def send() -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        called.append("sent")

    loop.on_signals({signal.SIGUSR1: lambda: called.append("first"), signal.SIGUSR2: last})
    loop.call_later(0, send)
    loop.run()
    assert called == ["sent", "first", "last"]


@pytest.mark.usefixtures("restored_signals")
def test_a_signal_that_arrived_before_the_loop_ran_is_handled(loop: Loop) -> None:
    loop.on_signals({signal.SIGUSR1: loop.stop})
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run()


WAITS_FOR_A_SIGNAL = """
import signal, sys
from basestation_runner.privexec.loop import Loop
loop = Loop()
loop.on_signals({signal.SIGTERM: loop.stop})
loop.call_later(3600, loop.stop)
print("ready", flush=True)
loop.run()
print("stopped", flush=True)
"""


def test_an_idle_loop_is_woken_by_a_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_A_SIGNAL], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "ready\n"
        waiting.terminate()
        assert waiting.stdout.read() == "stopped\n"
    assert waiting.returncode == 0
