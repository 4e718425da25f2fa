"""Services for the whole package: locks, lazy imports, files, loggers, tracebacks."""
