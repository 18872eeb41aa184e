"""Small things that ship with the package: a photograph and a tiny seeded encoder."""
