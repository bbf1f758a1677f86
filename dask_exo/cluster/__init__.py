"""The waist: the verbs by which computations use a cluster, and Ray behind them."""
