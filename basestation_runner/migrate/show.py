"""What a person is shown of a migration: what could be migrated, the plan, how it ended. Decides nothing."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import click

from basestation_runner.errors import RunnerError, printable
from basestation_runner.migrate import finding, multi, plan
from basestation_runner.migrate.activity import Activity
from basestation_runner.migrate.entry import Loss
from basestation_runner.migrate.finding import Candidate
from basestation_runner.migrate.journal import Journal
from basestation_runner.migrate.plan import Plan
from basestation_runner.migrate.setting import Setting
from basestation_runner.operate.output import Table


def say(text: str) -> None:
    """Tell a person something, now. That the terminal is gone is no reason to fail."""
    with suppress(OSError):
        click.echo(printable(text), err=True)


def listing(setting: Setting) -> list[dict[str, Any]]:
    """Return what could be migrated, and what was."""
    found = finding.without_idle_templates(list(finding.candidates(setting.systemctl)))
    rows = [_row(candidate) for candidate in found]
    rows += [_row_of_journal(setting, name) for name in Journal.names(setting.journals)]
    return rows


def _row_of_journal(setting: Setting, name: str) -> dict[str, Any]:
    row = {"site": "" if name == multi.NAME else name, "unit": "", "state": "", "remark": ""}
    try:
        journal = Journal.of(setting.journals, name)
    except RunnerError as error:
        return {**row, "remark": str(error)}
    return {**row, "unit": str(journal.facts.get("unit", "")), "state": journal.state, "remark": journal.remark}


def _row(candidate: Candidate) -> dict[str, Any]:
    unit = candidate.unit
    row = {"site": candidate.site, "unit": candidate.name, "state": "", "remark": candidate.fault}
    if unit is None:
        return row
    row["state"] = f"{unit.state}, {unit.file_state}"
    if candidate.is_multi:
        return {**row, "site": "", "remark": "BaseRunnerMulti: --from-multi"}
    try:
        proposal = plan.proposal_for(unit, candidate.site)
    except RunnerError as error:
        return {**row, "remark": str(error)}
    if proposal.wants_container:
        row["remark"] = "cannot be: its jobs run in a container"
    elif proposal.losses:
        names = dict.fromkeys(loss.name for loss in proposal.losses)
        row["remark"] = f"needs --accept {','.join(names)}"
    return row


def table(rows: Iterable[dict[str, Any]]) -> Table:
    """Return what `--list` shows on a terminal."""
    columns = ("site", "unit", "state", "remark")
    cells = [tuple(str(row[column]) for column in columns) for row in rows]
    return Table("Legacy units", columns, cells, "There is no legacy unit here.")


def shown(made: Plan, setting: Setting, steps: Sequence[str], losses: Sequence[Loss], activity: Activity | None) -> str:
    """Return a plan as text."""
    return "\n".join(_lines(made, setting, steps, losses, activity))


def _lines(
    made: Plan, setting: Setting, steps: Sequence[str], losses: Sequence[Loss], activity: Activity | None
) -> Iterator[str]:
    unit, proposal = made.unit, made.proposal
    yield f"Site {made.site}, from {unit.name} ({unit.state}, {unit.file_state}; {unit.file})"
    yield ""
    yield from map(printable, plan.difference(made, str(setting.sites_config)))
    yield from _block("Good to know", proposal.notes)
    yield from _block("Left to this program", proposal.ours)
    accepted = [loss for loss in proposal.losses if loss not in losses]
    yield from _block("Lost, and accepted", map(str, accepted))
    yield from _block("Lost: needs --accept", map(str, losses))
    yield from _block("This host", map(str, made.findings))
    if activity is not None:
        yield from _block("Now", [str(activity), *map(str, activity.jobs)])
    yield ""
    yield "What will be done:"
    for number, step in enumerate(steps, 1):
        yield f"  {number}. {step}"
    yield "  If anything of this fails, all of it is undone."


def _block(title: str, lines: Iterable[str]) -> Iterator[str]:
    each = [f"  {printable(line)}" for line in lines]
    if each:
        yield from ["", f"{title}:", *each]
