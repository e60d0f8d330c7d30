"""What a request may look like, and how anything else is answered."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from basestation_runner.runfile import MAX_BYTES, Request, RequestError, glider, parse, written


def reason(content: bytes) -> str:
    with pytest.raises(RequestError) as raised:
        parse(content)
    return raised.value.reason


KNOWN = "(known fields: application, env, pre_exec, post_exec, limits, groups, tasks, resreq, inputs, outputs)"
LOGOUT = (
    b"/home/sg123 /home/sg123/mission1 /home/sg123/mission1/baselog.log Base.py --mission_dir /home/sg123/mission1"
    b" --verbose --daemon --nice 10 --base_log /home/sg123/mission1/baselog_261130113955"
    b" --config /home/sg123/mission1/sg123.conf\n"
)
EARLY_GPS = (
    b"/home/sg123 /home/sg123/mission1 /home/sg123/mission1/glider_early_gps.log GliderEarlyGPS.py --daemon"
    b" --mission_dir /home/sg123/mission1 --verbose --base_log /home/sg123/mission1/glider_early_gps_261130113946"
    b" --config /home/sg123/mission1/sg123.conf --csh_pid 28588 --path_to_logout nologout\n"
)
LOGIN = b"/home/sg090 /home/sg090 /home/sg090/baselog.log BaseLogin.py --mission_dir /home/sg090 --verbose\n"


def test_what_glider_login_and_glider_logout_write_is_taken() -> None:
    logout, early, login = parse(LOGOUT), parse(EARLY_GPS), parse(LOGIN)
    assert (logout.home, logout.mission_dir) == ("/home/sg123", "/home/sg123/mission1")
    assert (logout.log_file, logout.script) == ("/home/sg123/mission1/baselog.log", "Base.py")
    assert logout.args[:5] == ("--mission_dir", "/home/sg123/mission1", "--verbose", "--daemon", "--nice")
    assert (early.script, early.args[-4:]) == (
        "GliderEarlyGPS.py",
        ("--csh_pid", "28588", "--path_to_logout", "nologout"),
    )
    assert login == Request(
        "/home/sg090",
        "/home/sg090",
        "/home/sg090/baselog.log",
        "BaseLogin.py",
        ("--mission_dir", "/home/sg090", "--verbose"),
    )


@pytest.mark.parametrize(
    "content",
    [
        b"/h /m /l s a b",
        b"/h /m /l s a b\n",
        b"/h /m /l s a b\r\n",
        b"/h /m /l s a b\r",
        b"  /h   /m\t/l  s \t a  b  \n",
        b"/h /m /l s a b\n\n  \n\r\n\t",
        b"//h/ /./m/. /l s a b\n",
    ],
)
def test_spacing_line_ends_and_spelling_of_directories_do_not_matter(content: bytes) -> None:
    assert parse(content) == Request("/h", "/m", "/l", "s", ("a", "b"))


def test_a_script_needs_no_arguments() -> None:
    assert parse(b"/h /m /l s").args == ()


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"", "its first line is empty"),
        (b" \n", "its first line is empty"),
        (b"\n/h /m /l s\n", "its first line is empty"),
        (b"/h /l Base.py\n", "its first line has 3 of the 4 fields HOME MISSION_DIR LOG_FILE SCRIPT"),
        (b"/h /l Base.py --verbose\n", "LOG_FILE 'Base.py' is not an absolute path"),
        (b"h /m /l s", "HOME 'h' is not an absolute path"),
        (b"/h ../m /l s", "MISSION_DIR '../m' is not an absolute path"),
        (b"/h /m /l /bin/sh", "SCRIPT '/bin/sh' is not a script's file name"),
        (b"/h /m /l ..", "SCRIPT '..' is not a script's file name"),
        (b"/h /m /l .", "SCRIPT '.' is not a script's file name"),
        (b"/h /m /l -c", "SCRIPT '-c' is not a script's file name"),
        (b"/h /m /l " + b"s" * 256, f"SCRIPT '{'s' * 78}…' is too long for a file's name"),
        (b"/h /m /" + b"l" * 4096 + b" s", f"LOG_FILE '/{'l' * 77}…' is too long for a path"),
        (b"/h /m /l s\0", "it contains a NUL byte"),
        (b"/h /m /l s \xff", "it is not UTF-8"),
        (b"/h /m /l s \xed\xa0\x80", "it is not UTF-8"),
        (b"/h /m /l s \x1b[31m", "its first line contains a character that cannot be printed"),
        (b"/h /m /l s a\rb", "its first line contains a character that cannot be printed"),
        (b"/h /m /l s a\x0bb", "its first line contains a character that cannot be printed"),
        ("/h /m /l s a\u2028b".encode(), "its first line contains a character that cannot be printed"),
        ("\ufeff/h /m /l s".encode(), "its first line contains a character that cannot be printed"),
        (
            b"/h /m /l s\n\n\n/h /m /l s\n",
            f"line 4, column 1: expected a mapping of fields, found the text '/h /m /l s' {KNOWN}",
        ),
        (b"x" * (MAX_BYTES + 1), "it is larger than 64 KiB"),
    ],
)
def test_anything_else_is_refused_with_its_reason(content: bytes, answer: str) -> None:
    assert reason(content) == answer


def test_a_request_of_exactly_64_kib_is_taken() -> None:
    content = b"/h /m /l s ".ljust(MAX_BYTES, b"x")
    assert len(parse(content).args[0]) == MAX_BYTES - 11


WORDS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
DIRECTORIES = st.lists(WORDS.filter(lambda word: "/" not in word and word != "."), max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
REQUESTS = st.builds(
    Request,
    home=DIRECTORIES,
    mission_dir=DIRECTORIES,
    log_file=WORDS.map(lambda word: "/" + word),
    script=WORDS.filter(lambda word: "/" not in word and word not in {".", ".."} and not word.startswith("-")),
    args=st.lists(WORDS).map(tuple),
)


@settings(deadline=None)
@given(REQUESTS, st.sampled_from([" ", "  ", "\t", " \t "]), st.sampled_from(["", "\n", "\r\n", "\n\n"]))
def test_what_is_written_is_what_is_read(request_: Request, gap: str, end: str) -> None:
    words = [request_.home, request_.mission_dir, request_.log_file, request_.script, *request_.args]
    assert parse((gap.join(words) + end).encode()) == request_


@settings(deadline=None)
@given(st.binary() | st.text().map(str.encode) | st.lists(st.binary(max_size=8)).map(b" ".join))
@example(b"/" * MAX_BYTES)
@example(b"/h /m /l '\"" + b"\x7f" * 300)
def test_any_bytes_give_a_request_or_a_short_printable_reason(content: bytes) -> None:
    with suppress(RequestError):
        made = parse(content)
        assert all(word.isprintable() for word in (made.home, made.mission_dir, made.log_file, made.script, *made.args))
        return
    shown = reason(content)
    assert shown.isprintable()
    assert len(shown) < 160


@pytest.mark.parametrize(
    ("home", "number"),
    [
        ("/home/sg123", "123"),
        ("/home/sg090/", "090"),
        ("/home/SG7", "007"),
        ("/home/sg1234", "000"),
        ("/home/sg12x", "000"),
        ("/home/123", "000"),
        ("/home/sg", "000"),
        ("/home/sg\u0661\u0662\u0663", "000"),
        ("/", "000"),
    ],
)
def test_the_glider_is_the_number_in_its_homes_name(home: str, number: str) -> None:
    assert glider(home) == number


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), max_size=4),
    st.sampled_from(["/home/sg123", "/h//x/", "//h/./y"]),
)
def test_what_was_parsed_can_be_written_and_is_the_same_request_again(args: list[str], home: str) -> None:
    content = " ".join([home, f"{home}/m", f"{home}/m/log", "Base.py", *args]).encode()
    try:
        request = parse(content)
    except RequestError:
        return
    assert parse(written(request)) == request


@pytest.mark.parametrize(
    "request_",
    [
        Request("/h", "/h/m", "/h/m/log", "Base.py", ("a b",)),
        Request("/h", "/h/m", "/h/m/log", "Base.py", ("",)),
        Request("/h", "/h/m", "/h/m/log", "Base.py", ("a\nb",)),
        Request("/h", "/h/m m", "/h/m/log", "Base.py"),
        Request("/h", "/h/m/", "/h/m/log", "Base.py"),
        Request("h", "/h/m", "/h/m/log", "Base.py"),
        Request("/h", "/h/m", "/h/m/log", "../Base.py"),
        Request("/h", "/h/m", "/h/m/log", "Base.py", ("\udc80",)),
        Request("/h", "/h/m", "/h/m/log", "Base.py", ("x" * 70_000,)),
    ],
)
def test_what_no_request_can_say_is_not_written(request_: Request) -> None:
    with pytest.raises(RequestError):
        written(request_)
