"""The waist: what computations need of a cluster, and Ray behind it."""
