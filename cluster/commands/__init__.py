"""The subcommands of `flockmq` that use Redis: one module each, with `run(arguments) -> exit status`."""
