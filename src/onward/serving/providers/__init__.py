"""Providers behind the gateway: services with models of their own, whose calls are passed on and recorded.

``catalog.py`` finds the provider of a model, ``upstream.py`` asks it, ``http/proxy.py`` answers the client.
The dialects are pure: ``chat.py`` and ``responses.py`` for OpenAI's API, ``messages.py`` for Anthropic's, and
``translation.py`` for a chat that an Anthropic model answers.
"""
