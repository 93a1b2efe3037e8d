"""One recipe trained many ways: the grid, the names, the plan, the processes, the board."""
