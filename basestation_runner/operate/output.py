"""How the operators' commands show things: tables by rich on a terminal, plain text elsewhere, or JSON.

Whatever is shown may have been written by somebody in a request: nothing of it reaches a terminal as it is.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import click
from attrs import frozen

from basestation_runner import nss
from basestation_runner.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from basestation_runner.operate.client import Facts

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86400
SHORT_ID: Final = 8
_GOOD: Final = frozenset({"succeeded", "watching", "running"})
_BAD: Final = frozenset({"failed", "lost", "refused", "pending"})
_GAP: Final = "  "


@frozen
class Table:
    """A titled table; `empty` is what is said instead when it has no rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    empty: str


Block = str | Table


def show(blocks: Iterable[Block]) -> None:
    """Print paragraphs and tables, an empty line between two."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - for a terminal only

        Console(highlight=False).print(renderable(blocks))
    else:
        click.echo("\n\n".join(map(_plain, blocks)))


def show_json(facts: object) -> None:
    """Print one JSON value."""
    click.echo(json.dumps(facts, indent=1, sort_keys=True))


def renderable(blocks: Iterable[Block]) -> RenderableType:
    """Return what rich shows."""
    from rich.console import Group  # noqa: PLC0415 - for a terminal only
    from rich.text import Text  # noqa: PLC0415 - the same

    parts: list[RenderableType] = []
    for block in blocks:
        if parts:
            parts.append(Text(""))
        parts.append(_rich_table(block) if isinstance(block, Table) and block.rows else Text(_plain(block)))
    return Group(*parts)


def _rich_table(table: Table) -> RenderableType:
    from rich import box  # noqa: PLC0415 - for a terminal only
    from rich.table import Table as RichTable  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(printable(cell), style=_style(cell)) for cell in row))
    return shown


def _style(cell: str) -> str:
    if cell in _GOOD:
        return "green"
    return "red" if cell in _BAD else ""


def _plain(block: Block) -> str:
    if isinstance(block, str):
        return "\n".join(map(printable, block.split("\n")))
    if not block.rows:
        return block.empty
    rows = [block.columns, *(tuple(map(printable, row)) for row in block.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"{block.title}:", *lines])


def age(seconds: float) -> str:
    """Return how long something took or has been, in words as short as they may be."""
    whole = max(0, int(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def when(moment: float | None) -> str:
    """Return a time on this host's clock; a dash if there is none."""
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


@cache
def who(uid: int) -> str:
    """Return an account's name, its number if it has none here."""
    if uid < 0:
        return "unknown"
    try:
        account = nss.account_by_uid(uid)
    except nss.LookupFailedError:
        account = None
    return str(uid) if account is None else account.name


def short(job: Facts) -> str:
    """Return the first part of a job's id, which mostly is enough to name it."""
    return str(job["id"])[:SHORT_ID]


def result(job: Facts) -> str:
    """Return how a job ended, in words; empty if there is nothing to say."""
    if job.get("reason"):
        return str(job["reason"])
    if job.get("signal") is not None:
        return f"signal {job['signal']}"
    return "" if job.get("exit_code") is None else f"exit code {job['exit_code']}"


def named(job: Facts) -> Facts:
    """Return a job with accounts by name besides their numbers."""
    more: dict[str, Any] = {"submitter_name": who(job["submitter"])}
    if job.get("cancelled_by") is not None:
        more["cancelled_by_name"] = who(job["cancelled_by"])
    return job | more


def sentence(parts: Sequence[str]) -> str:
    """Join what stands beside each other."""
    return "; ".join(part for part in parts if part)
