"""The OpenAI protocol, as pure functions: ``openai`` has requests and completions, ``sse`` the streamed form,
and ``tools`` the tool schemas and tool calls."""
