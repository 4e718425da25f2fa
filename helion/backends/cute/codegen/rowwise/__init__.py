"""Row kernels: a cluster reads each row once, holds it, reduces it and maps it."""
