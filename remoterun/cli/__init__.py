"""The command line: parse, call, print, map to an exit status.

Nothing is imported here: `signals` has to be in place before everything else is.
"""
