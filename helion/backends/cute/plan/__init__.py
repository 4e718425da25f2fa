"""The planner: from the facts of one GEMM to its tiles, clusters, stages, and all derived counts."""
