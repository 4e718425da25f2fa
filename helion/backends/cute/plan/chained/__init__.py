"""Products in sequence: the plan of a matmul whose operand another one writes to the workspace."""
