"""The command line: settings, wiring, and nothing a library would need."""
