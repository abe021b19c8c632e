"""One family, one file: config, table of variants, modules, forward."""
