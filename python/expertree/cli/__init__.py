"""The command line. `main.run` is the program's entry."""
