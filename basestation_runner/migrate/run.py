"""`runner migrate-site`: what it is asked for, in order: list, plan, consent, and then the steps; or the way back."""

import os
from collections.abc import Collection, Mapping, Sequence

import click

from basestation_runner.config import rules
from basestation_runner.errors import EXIT_FAILED, EXIT_OK, RunnerError, printable
from basestation_runner.migrate import activity, finding, migration, multi, plan, show
from basestation_runner.migrate.activity import Activity
from basestation_runner.migrate.asother import Identity
from basestation_runner.migrate.context import Context
from basestation_runner.migrate.entry import Loss, not_accepted
from basestation_runner.migrate.journal import Journal
from basestation_runner.migrate.legacy import ENDS
from basestation_runner.migrate.plan import Plan
from basestation_runner.migrate.setting import Setting
from basestation_runner.migrate.steps import STEPS, Step
from basestation_runner.operate import output


def list_units(setting: Setting, *, as_json: bool) -> int:
    """Show what could be migrated and what was; return the exit status. Raises RunnerError."""
    rows = show.listing(setting)
    if as_json:
        output.show_json(rows)
    else:
        output.show([show.table(rows)])
    return EXIT_OK


def migrate(  # noqa: PLR0913 - what the command line can say
    setting: Setting,
    site: str,
    *,
    unit: str | None,
    accepted: Collection[str],
    is_dry: bool,
    is_agreed: bool,
    is_now: bool,
) -> int:
    """Take a site over, or go on with it after a kill; return the exit status. Raises RunnerError."""
    _check_name(site)
    journal = Journal.of(setting.journals, site) if _may_read_journals(setting) else None
    if journal is not None and journal.is_known:
        _tell_of_ignored({"--unit": unit, "--accept": accepted})
        return _again(setting, journal, STEPS, is_dry=is_dry, is_now=is_now)
    made = plan.make(setting, site, finding.legacy_unit(setting.systemctl, site, unit))
    losses = not_accepted(made.proposal.losses, accepted)
    seen = _activity(setting, made)
    click.echo(show.shown(made, setting, migration.titles(STEPS, made, setting), losses, seen))
    if is_now and seen is not None:
        click.echo(f"\n{_what_dies(made, seen)}")
    if made.faults:
        raise RunnerError(f"this host is not ready for site {site}: see the faults above", hint="nothing was touched")
    _refuse(losses)
    if is_dry:
        return EXIT_OK
    _need_root()
    if not is_agreed:
        _ask(f"Migrate site {site}")
    with migration.only_one(setting.journals):
        journal = Journal.of(setting.journals, site)
        if journal.is_known:
            raise RunnerError(f"somebody else has begun to migrate site {site}")
        migration.begin(journal, plan.facts_of(made))
        migration.go_on(Context(setting, journal, show.say, is_now), STEPS)
    click.echo(f"Site {site} is migrated. `runner migrate-site {site} --rollback` gives it back to {made.unit.name}.")
    return EXIT_OK


def migrate_multi(setting: Setting, *, accepted: Collection[str], is_dry: bool, is_agreed: bool, is_now: bool) -> int:
    """Take a host over from a BaseRunnerMulti, likewise. Raises RunnerError."""
    journal = Journal.of(setting.journals, multi.NAME) if _may_read_journals(setting) else None
    if journal is not None and journal.is_known:
        _tell_of_ignored({"--accept": accepted})
        return _again(setting, journal, multi.STEPS, is_dry=is_dry, is_now=is_now)
    made = multi.make(setting)
    losses = not_accepted(made.told.losses, accepted)
    click.echo("\n".join(map(printable, multi.lines(made, setting, losses))))
    if is_now:
        click.echo("\n".join(["", *map(printable, multi.what_dies(made, setting))]))
    if multi.not_ready(made):
        raise RunnerError("this host is not ready: see the faults above", hint="nothing was touched")
    _refuse(losses)
    if is_dry:
        return EXIT_OK
    _need_root()
    if not is_agreed:
        _ask("Migrate this host")
    with migration.only_one(setting.journals):
        journal = Journal.of(setting.journals, multi.NAME)
        if journal.is_known:
            raise RunnerError("somebody else has begun to migrate this host")
        migration.begin(journal, multi.facts_of(made, setting))
        migration.go_on(Context(setting, journal, show.say, is_now), multi.STEPS)
    click.echo("This host is migrated. `runner migrate-site --from-multi --rollback` gives it back.")
    return EXIT_OK


def roll_back(setting: Setting, site: str | None, *, is_dry: bool, is_agreed: bool, is_now: bool) -> int:
    """Give a migrated site back to its legacy unit, or without one the host; return the exit status.

    Raises RunnerError.
    """
    if site is not None:
        _check_name(site)
    _need_root()
    what = "This host" if site is None else f"Site {site}"
    journal = Journal.of(setting.journals, multi.NAME if site is None else site)
    if not journal.is_known:
        raise RunnerError(f"{what} was not migrated", where=str(setting.journals))
    unit = journal.facts["unit"]
    click.echo(f"{what} goes back to {unit}: running jobs end first, and those that wait become requests again.")
    steps = multi.STEPS if site is None else STEPS
    if is_dry:
        migration.check_way_back(Context(setting, journal, show.say, is_now), steps)
        return EXIT_OK
    if not is_agreed:
        _ask("Give it back")
    with migration.only_one(setting.journals):
        journal = _read_again(journal)
        migration.go_back(Context(setting, journal, show.say, is_now), steps)
    click.echo(f"{what} is given back to {unit}.")
    return EXIT_OK


def _tell_of_ignored(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        show.say(f"{' and '.join(given)}: ignored, as it goes by what was agreed to before")


def _again(setting: Setting, journal: Journal, steps: Sequence[Step], *, is_dry: bool, is_now: bool) -> int:
    """Go on with what an earlier call has begun: it was agreed to then."""
    site, unit = journal.facts["site"], journal.facts["unit"]
    what = "This host" if site == multi.NAME else f"Site {site}"
    if journal.state == "migrated":
        raise RunnerError(f"{what} is migrated already, from {unit}", hint="--rollback gives it back")
    is_forth = journal.state == "begun"
    click.echo(f"An earlier call was interrupted: this one goes on to {'finish' if is_forth else 'undo'} it.")
    if is_dry:
        return EXIT_OK
    _need_root()
    with migration.only_one(setting.journals):
        context = Context(setting, _read_again(journal), show.say, is_now)
        if is_forth:
            migration.go_on(context, steps)
        else:
            migration.go_back(context, steps)
    click.echo(f"{what} is migrated." if is_forth else f"{what} is not migrated: {unit} has it as before.")
    return EXIT_OK if is_forth else EXIT_FAILED


def _read_again(journal: Journal) -> Journal:
    """Return a journal as it is when nobody else goes on with it. Raises RunnerError if somebody did meanwhile."""
    now = Journal(journal.path)
    if not now.is_known or now.state != journal.state:
        raise RunnerError("another call has gone on with it meanwhile", hint="runner migrate-site --list")
    return now


def _refuse(losses: Sequence[Loss]) -> None:
    """Let nothing be lost that nobody has agreed to. Raises RunnerError."""
    if losses:
        names = ",".join(dict.fromkeys(loss.name for loss in losses))
        raise RunnerError("not all of the unit can be carried over", hint=f"if that is right: --accept {names}")


def _check_name(site: str) -> None:
    """See that a site can be called so, before files are. Raises RunnerError."""
    try:
        rules.name(site)
    except rules.RuleError as error:
        raise RunnerError(error.what, hint=error.hint) from None


def _may_read_journals(setting: Setting) -> bool:
    return not setting.journals.exists() or os.access(setting.journals, os.R_OK | os.X_OK)


def _activity(setting: Setting, made: Plan) -> Activity | None:
    """Return what the unit does now, if this user may look."""
    if not made.unit.is_active or os.geteuid() != 0:
        return None
    entry = made.proposal.entry
    return activity.of(setting, made.unit, Identity.of(entry["runner_user"]), entry["watch_dir"])


def _what_dies(made: Plan, seen: Activity) -> str:
    """Say what --now costs."""
    ends = made.unit.kill_mode in ENDS
    jobs = "".join(f"\n  {job}" for job in seen.jobs) or "\n  nothing"
    what = "With --now these die:" if ends else "With --now these run on, beside the jobs of the new site:"
    names = "".join(f"\n  {printable(name)}" for name in seen.fresh) or "\n  nothing"
    return f"{what}{jobs}\nand these requests go to stale/ unless they are done first:{names}"


def _need_root() -> None:
    if os.geteuid() != 0:
        raise RunnerError("only root can do that", hint="sudo; --dry-run and --list need no root")


def _ask(question: str) -> None:
    try:
        agreed = click.confirm(f"\n{question}?", default=False)
    except click.Abort:
        agreed = False
    if not agreed:
        raise RunnerError("not confirmed: nothing was touched", hint="--yes does not ask")
