"""The sub-commands' options. Each module parses them and calls one function; nothing else belongs here."""
