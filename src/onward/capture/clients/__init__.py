"""Wrappers of client libraries: ``openai`` for OpenAI clients, ``langchain`` for LangChain callbacks."""
