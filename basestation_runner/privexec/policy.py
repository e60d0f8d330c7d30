"""Which orders the helper accepts from a watcher.

The watcher's word counts only for what a request says. Program, account, environment and limits come from the
helper's own config here; the account's numbers are checked at every execution, in accounts.py.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from basestation_runner.config.additions import NOTHING, AdditionsError, of_data
from basestation_runner.config.effective import ConflictsError, Effective, Value, effective
from basestation_runner.config.model import Application, Config, Site
from basestation_runner.config.parts import limit_text
from basestation_runner.config.plain import stated_data
from basestation_runner.config.resreq import holds
from basestation_runner.paths import lies_beneath
from basestation_runner.privexec import unsupported
from basestation_runner.privexec.order import NotNowError, Order, OrderedSite, RefusedError, Sandbox, Step


def order(config: Config, message: Mapping[str, Any], missing: Mapping[str, str]) -> Order:
    """Given a well-formed dispatch of our own watcher, return what it orders. Raises RefusedError or NotNowError.

    `missing` is what does not work on this host, with the reasons.
    """
    site = config.sites.get(message["site"])
    # Compared before anything else is believed: both sides must mean the same site by the name.
    if site is None or config.digest(site.name) != message["digest"]:
        raise NotNowError("watcher and helper have read different configurations: `runner reload` has both read anew")
    if site.not_supported:
        raise RefusedError(site.not_supported)
    if message["application"] not in site.applications:
        raise RefusedError(f"application {message['application']} is not one that the site may use")
    application = config.applications[message["application"]]
    _require_run_by(application, config, site, message["script"])
    args: Sequence[str] = message["args"]
    values = {"{job_id}": message["job_id"], "{queue_length}": str(message["queue_length"])}
    told = ("site", "application", "home", "mission_dir", "log_file", "script", "args", "additions")
    try:
        made = effective(site, application, of_data(message["additions"]))
    except AdditionsError as error:
        raise RefusedError(f"its additions make no sense: {error}") from error
    except ConflictsError as error:  # the profile has changed since the request was accepted, and may change again
        raise NotNowError(str(error)) from error
    if (reason := unsupported.reason(made, missing) or _unmet(config, made)) is not None:
        raise NotNowError(reason)
    return Order(
        job_id=message["job_id"],
        site=ordered_site(site),
        application=application.name,
        timing_line=application.timing_line,
        home=message["home"],
        mission_dir=message["mission_dir"],
        log_file=message["log_file"],
        jailed=site.jailed,
        script=message["script"],
        program=_program(site, application, message["script"]),
        own_args=[word for word in args if word not in application.strip_args],
        appended_args=[_filled(word, values) for word in application.append_args],
        env=_environment(made),
        request={name: message[name] for name in told},
        groups=made.groups.value if made.groups.origin == "job" else None,
        **_running(made, application),
        **_limits(made, application),
        facts=_facts(config, made, application),
    )


def _facts(config: Config, made: Effective, application: Application) -> dict[str, Any]:
    """Return the part of a job's dispatch record that is known before it starts."""
    return {"revision": config.revision(application.name), "effective": stated_data(made)}


def _unmet(config: Config, made: Effective) -> str | None:
    """Say what the job needs that this host is not, or does not offer; None if there is nothing.

    How much is in use at the moment is for the watcher to count.
    """
    attributes, resources = dict(config.host.attributes), dict(config.host.resources)
    for term in made.select:
        if not holds(term.value, attributes):
            return f"this host does not meet select[{term.value}]"
    for name, amount in made.rusage.items():
        if amount.value > resources.get(name, 0):
            return f"it needs {amount.value} {name}, of which this host offers {resources.get(name, 0)}"
    return None


def _limits(made: Effective, application: Application) -> dict[str, Any]:
    """Return the fields of an order that limit its job. A site's own limits are set for all its jobs."""
    return {
        "limits": {name: limit.value for name, limit in made.limits.items() if limit.origin != "site"},
        "limit_texts": {name: str(limit_text(name, limit.value)) for name, limit in made.limits.items()},
        "clears": application.leftovers == "kill",
    }


def _running(made: Effective, application: Application) -> dict[str, Any]:
    """Return the fields of an order that say how its job is run, and what runs before and after it."""
    return {
        "before": tuple(Step(step.origin, step.value) for step in made.before),
        "after": tuple(Step(step.origin, step.value) for step in made.after),
        "added_env": tuple(name for name, variable in made.env.items() if variable.origin == "job"),
        "launcher": None if made.launch_type.value == "serial" else made.launch_type.value,
        "tasks": made.tasks.value,
        "sandbox": _sandbox(made, application) if made.mode.value == "sandbox" else None,
    }


def _sandbox(made: Effective, application: Application) -> Sandbox:
    """Return what a job in a sandbox sees; a place that the profile names itself is its own prefix."""
    options = application.sandbox

    def confined(places: Sequence[Value[str]], prefixes: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (place.value, place.value if place.origin == "profile" else _prefix(place.value, prefixes))
            for place in places
        )

    return Sandbox(
        made.network.value, confined(made.inputs, options.job_inputs), confined(made.outputs, options.job_outputs)
    )


def _prefix(path: str, prefixes: Sequence[str]) -> str:
    return max((prefix for prefix in prefixes if lies_beneath(path, prefix)), key=len)


def legacy_order(config: Config, message: Mapping[str, Any], job_id: str, missing: Mapping[str, str]) -> Order:
    """Given a well-formed dispatch of a BaseRunnerMulti, return what it orders. Raises RefusedError.

    Its argv is finished, and must be what our own rules would have made: the site's interpreter, a listed script
    directly in its basestation_dir, arguments. It names no mission directory but by `--mission_dir`.
    """
    site = config.sites.get(message["site"])
    if site is None:
        raise RefusedError(f"site {message['site']} is not configured")
    if site.not_supported:
        raise RefusedError(site.not_supported)
    interpreter, path, *args = [*message["argv"], "", ""][: max(2, len(message["argv"]))]
    directory, _, script = path.rpartition("/")
    if interpreter != site.python_version or directory != site.basestation_dir:
        raise RefusedError("its program is not the site's interpreter with a script of the site's basestation_dir")
    application = config.application_for(site, script)
    if application is None or application.command is not None:
        raise RefusedError(f"script {script} is not listed in any application of the site")
    _require_run_by(application, config, site, script)
    made = effective(site, application, NOTHING)
    if (reason := unsupported.reason(made, missing) or _unmet(config, made)) is not None:
        raise RefusedError(reason)
    log_file = message["log_file"]
    mission_dir = _value_after("--mission_dir", args) or os.path.dirname(log_file)
    return Order(
        job_id=job_id,
        site=ordered_site(site),
        application=application.name,
        timing_line=False,  # the legacy watcher writes that line itself
        home=mission_dir,
        mission_dir=mission_dir,
        log_file=log_file,
        jailed=False,  # it has made paths and arguments the host's by itself
        script=script,
        program=_program(site, application, script),
        own_args=args,
        appended_args=(),
        env=_environment(made),
        request=None,
        **_running(made, application),
        **_limits(made, application),
        facts=_facts(config, made, application),
    )


def ordered_site(site: Site) -> OrderedSite:
    """Return the part of a site's entry that counts for one of its jobs."""
    return OrderedSite(
        name=site.name,
        runner_user=site.runner_user,
        groups=site.groups,
        roots=site.roots,
        jail_root=site.jail_root,
        memory_high_mb=site.memory_high_mb,
        memory_max_mb=site.memory_max_mb,
    )


def _program(site: Site, application: Application, script: str) -> tuple[str, ...]:
    """Return the profile's command, or the interpreter and the script's path: never from a path in a request."""
    if application.command is not None:
        return (application.command,)
    return site.python_version, f"{site.basestation_dir}/{script}"


def _filled(word: str, values: Mapping[str, str]) -> str:
    """Return an argument of a profile with its placeholders replaced."""
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


def _environment(made: Effective) -> dict[str, str]:
    return {name: variable.value for name, variable in made.env.items()}


def _require_run_by(application: Application, config: Config, site: Site, script: str) -> None:
    """Raise RefusedError unless the application is the one that runs this script at this site.

    That is the one that lists it, or the default one. Only a file directly in basestation_dir can be meant: a default
    application takes names that no list has checked.
    """
    is_bare = "/" not in script and script not in {"", ".", ".."}
    if not is_bare or config.application_for(site, script) != application:
        raise RefusedError(f"script {script} is not listed in application {application.name}")


def _value_after(option: str, args: list[str]) -> str | None:
    return next((value for name, value in pairwise(args) if name == option), None)
