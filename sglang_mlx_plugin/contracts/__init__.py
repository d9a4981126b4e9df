"""Contracts with SGLang: what we lean on there, and whether a release still gives it.

This room needs the standard library and ``packaging``; it reads SGLang's source and never
imports it. ``live.check_installed`` is the check at start-up.
"""
