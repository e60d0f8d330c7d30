"""What all measurements of one run share."""

from collections.abc import Set as AbstractSet

from attrs import frozen

from basestation_runner.sandbox import Sandbox
from bench.floor import Floor
from bench.plan import Plan


@frozen
class Session:
    """One run: where it takes place, its floor, its sizes, and the letters of the measurements that are wanted."""

    sandbox: Sandbox
    floor: Floor
    plan: Plan
    only: AbstractSet[str]
