"""What a job may be to have that this helper cannot do yet: no job runs without something that it must have."""

from basestation_runner.config.effective import Effective


def reason(values: Effective) -> str | None:
    """Say what of a job this helper cannot do; None if it can do all of it."""
    wanted = {
        f"mode {values.mode.value}": values.mode.value != "direct",
        f"launch_type {values.launch_type.value}": values.launch_type.value != "serial",
    }
    missing = next((name for name, is_wanted in wanted.items() if is_wanted), None)
    return None if missing is None else f"{missing} is not supported by this helper yet"
