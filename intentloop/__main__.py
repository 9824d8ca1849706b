"""`python -m intentloop` is the command `intentloop`."""

from intentloop.commands.app import main

main()
