"""What turns the compiled program into what is installed, and looks at it. No part of the program itself.

Runs on the machine that compiles, with the standard library alone.
"""
