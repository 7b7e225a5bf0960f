"""The subcommands of `flockmq` that ask Redis: one module each, with `run(arguments) -> exit status`."""
