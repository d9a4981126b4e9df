"""The host side: the only room that imports SGLang."""
