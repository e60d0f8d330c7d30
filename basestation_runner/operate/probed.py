"""What a probe tells of a site's job, held against what the configuration and the name service say. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from basestation_runner import execgroups


def wrong(told: Mapping[str, Any], uid: int, decision: execgroups.Granted | execgroups.Refused) -> Iterator[str]:
    """Yield what of the job's identity is not as the account's uid and the groups that were decided on."""
    if set(told["uids"]) != {uid}:
        yield f"its uids are {numbers(told['uids'])}, not {uid}"
    if isinstance(decision, execgroups.Granted):
        if set(told["gids"]) != {decision.effective}:
            yield f"its GIDs are {numbers(told['gids'])}, not {decision.effective}"
        if set(told["groups"]) != set(decision.gids):
            yield f"its groups are {numbers(told['groups'])}, not {numbers(decision.gids)}"


def unsafe(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what no job may have, whosever it is."""
    if any(told["capabilities"].values()):
        yield f"it has capabilities, {', '.join(name for name, mask in told['capabilities'].items() if mask)}"
    if not told["no_new_privs"]:
        yield "no_new_privs is not set"


def numbers(ids: Iterable[int]) -> str:
    """Return ids as people read them."""
    return ",".join(str(number) for number in sorted(set(ids)))
