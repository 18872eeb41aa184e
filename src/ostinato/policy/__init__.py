"""Robot policies: from an observation to a chunk of actions."""
