"""The subcommands of `flockmq`: one module each, with `run(arguments) -> exit status`."""
