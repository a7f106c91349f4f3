"""Going on with a run that waits, failed or was cut off: in this process, or in another one."""
