"""HTTP servers that see a service protocol and no model."""
