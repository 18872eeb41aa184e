"""OpenAI's API over a chat service: chat completions, completions, models, tokens."""
