"""What a job may be to have that this helper cannot do here: no job runs without something that it must have."""

from collections.abc import Mapping

from basestation_runner.config.effective import Effective

_MODES = ("direct", "sandbox")


def reason(values: Effective, missing: Mapping[str, str]) -> str | None:
    """Say what of a job cannot be done, given what does not work on this host; None if all of it can be."""
    if values.mode.value not in _MODES:
        return f"mode {values.mode.value} is not supported by this helper yet"
    for what in (f"mode {values.mode.value}", f"launch_type {values.launch_type.value}"):
        if what in missing:
            return f"{what} does not work on this host: {missing[what]}"
    return None
