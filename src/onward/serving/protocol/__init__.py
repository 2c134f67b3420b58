"""The OpenAI protocol as pure functions: requests, tools and completions."""
